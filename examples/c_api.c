/* Drafts tokens by a race and verifies them, through the C functions of libspecdec: no Python, no torch.
 *
 *   include=$(python -m specdec_kernels.headers --include)
 *   library=$(python -m specdec_kernels.headers --lib)
 *   cc -std=c11 -I "$include" c_api.c -L "$library" -Wl,-rpath,"$library" -lspecdec -o c_api && ./c_api
 *
 * On a GPU: with -DON_GPU, the include and library folders of CUDA, and -lcudart. */
#include <specdec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(ON_GPU)
#include <cuda_runtime.h>
#endif

enum { REQUESTS = 2, DRAFTS = 3, VOCAB = 5000 };

static void check(int error) {
  if (error == SPECDEC_OK) return;
  fprintf(stderr, "%s: %s\n", specdec_error_string(error), specdec_last_error());
  exit(1);
}

/* ---- where the rows are ----------------------------------------------------------------------------------------- */

#if defined(ON_GPU)

static void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  exit(1);
}

static void* place(const void* host, size_t bytes) {
  void* device = NULL;
  check_cuda(cudaMalloc(&device, bytes));
  if (host) check_cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  return device;
}

static void fetch(void* host, const void* device, size_t bytes) { /* waits for the kernels before it */
  check_cuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

/* One for the one stream used here. It is zeroed when it is new, and never again. */
static void* workspace = NULL;
static size_t workspace_bytes = 0;

static void grow_workspace(size_t bytes) {
  check_cuda(cudaFree(workspace));
  workspace = place(NULL, bytes);
  workspace_bytes = bytes;
  check_cuda(cudaMemset(workspace, 0, bytes));
}

#define RUN(op, params)                                                               \
  do {                                                                                \
    size_t needed = 0;                                                                \
    int error = specdec_cuda_##op(params, workspace, workspace_bytes, &needed, NULL); \
    if (error == SPECDEC_WORKSPACE_TOO_SMALL) {                                       \
      grow_workspace(needed);                                                         \
      error = specdec_cuda_##op(params, workspace, workspace_bytes, &needed, NULL);   \
    }                                                                                 \
    check(error);                                                                     \
  } while (0)

#else

static void* place(const void* host, size_t bytes) {
  void* memory = malloc(bytes);
  if (!memory) exit(1);
  return host ? memcpy(memory, host, bytes) : memory;
}

static void fetch(void* host, const void* memory, size_t bytes) { memcpy(host, memory, bytes); }

#define RUN(op, params) check(specdec_cpu_##op(params, 1))

#endif

/* ---- the models ------------------------------------------------------------------------------------------------- */

/* Logits that a model could have given, in steps of `step` / 128: [REQUESTS, rows, VOCAB]. */
static const void* logits(size_t rows, uint32_t step) {
  const size_t count = REQUESTS * rows * VOCAB;
  float* const values = (float*)malloc(count * sizeof(float));
  if (!values) exit(1);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t token = (uint32_t)(i % VOCAB), row = (uint32_t)(i / VOCAB % rows);
    const uint32_t request = (uint32_t)(i / VOCAB / rows);
    const uint32_t word = (token + 31 * row + 977 * request) * 2654435761u;
    values[i] = (float)((word >> 22) / step * step) / 128.0f;
  }
  const void* const placed = place(values, count * sizeof(float));
  free(values);
  return placed;
}

int main(void) {
  const int64_t seeds[REQUESTS] = {1, 2};
  const int64_t positions[REQUESTS][DRAFTS] = {{5, 6, 7}, {20, 21, 22}}; /* of the tokens that are drafted */
  const void* const device_seeds = place(seeds, sizeof seeds);
  const void* const device_positions = place(positions, sizeof positions);
  int64_t* const drafted = (int64_t*)place(NULL, REQUESTS * DRAFTS * sizeof(int64_t));
  int64_t* const tokens = (int64_t*)place(NULL, REQUESTS * (DRAFTS + 1) * sizeof(int64_t));
  int32_t* const num_accepted = (int32_t*)place(NULL, REQUESTS * sizeof(int32_t));
  int32_t* const status = (int32_t*)place(NULL, REQUESTS * sizeof(int32_t));

  const specdec_rows draft = {
      .data = logits(DRAFTS, 256),
      .request_stride = DRAFTS * VOCAB,
      .row_stride = VOCAB,
      .requests = REQUESTS,
      .rows = DRAFTS,
      .vocab = VOCAB,
      .dtype = SPECDEC_FLOAT32,
  };
  const specdec_rows target = {
      .data = logits(DRAFTS + 1, 1),
      .request_stride = (DRAFTS + 1) * VOCAB,
      .row_stride = VOCAB,
      .requests = REQUESTS,
      .rows = DRAFTS + 1,
      .vocab = VOCAB,
      .dtype = SPECDEC_FLOAT32,
  };
  const specdec_law law = {.space = SPECDEC_LOGITS, .temperature = {.value = 0.75f}};

  /* The draft model's tokens: one race for each of its rows. A request's seed is that of all its rows. */
  const specdec_race_params race = {
      .rows = draft,
      .law = law,
      .noise = {.seed = {.data = device_seeds, .outer_stride = 1, .wide = true},
                .position = {.data = device_positions, .outer_stride = DRAFTS, .inner_stride = 1, .wide = true}},
      .tokens = {.data = drafted, .row_stride = 1, .rows = REQUESTS * DRAFTS, .columns = 1},
  };
  RUN(race_sample, &race);

  /* The target model's rows, one more for each request, decide how many of them are accepted. */
  const specdec_verify_chain_params chain = {
      .draft_tokens = {.data = drafted, .request_stride = DRAFTS, .slot_stride = 1, .requests = REQUESTS,
                       .slots = DRAFTS, .wide = true},
      .target = target,
      .draft = draft,
      .method = SPECDEC_REJECTION,
      .target_law = law,
      .draft_law = law,
      .draft_prob = {.value = 1.0f},
      .noise = {.seed = race.noise.seed,
                .position = {.data = device_positions, .outer_stride = DRAFTS, .wide = true}}, /* of its first token */
      .tokens = {.data = tokens, .row_stride = DRAFTS + 1, .rows = REQUESTS, .columns = DRAFTS + 1},
      .num_accepted = {.data = num_accepted, .row_stride = 1, .rows = REQUESTS, .columns = 1},
      .status = {.data = status, .row_stride = 1, .rows = REQUESTS, .columns = 1},
  };
  RUN(verify_chain, &chain);

  int64_t drafts_of[REQUESTS][DRAFTS], tokens_of[REQUESTS][DRAFTS + 1];
  int32_t accepted_of[REQUESTS], status_of[REQUESTS];
  fetch(drafts_of, drafted, sizeof drafts_of);
  fetch(tokens_of, tokens, sizeof tokens_of);
  fetch(accepted_of, num_accepted, sizeof accepted_of);
  fetch(status_of, status, sizeof status_of);
  for (int b = 0; b < REQUESTS; ++b) {
    printf("drafted");
    for (int i = 0; i < DRAFTS; ++i) printf(" %d", (int)drafts_of[b][i]);
    printf(" accepted %d emitted", (int)accepted_of[b]);
    for (int i = 0; i <= accepted_of[b]; ++i) printf(" %d", (int)tokens_of[b][i]);
    printf(" status %d\n", (int)status_of[b]);
  }
  return 0;
}
