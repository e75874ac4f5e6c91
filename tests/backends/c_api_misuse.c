/* Wrong calls of specdec.h's functions: each must return an error that names the mistake, and run nothing. With ON_GPU
 * the CUDA functions are called. Prints each call that did otherwise, and returns their number. */
#include <specdec_sharded.h>
#include <stdio.h>
#include <string.h>

static int mistakes = 0;

#if defined(ON_GPU)
static char workspace[1 << 20] __attribute__((aligned(16)));
#define CALL(op, params) specdec_cuda_##op(params, workspace, sizeof workspace, NULL, NULL)
#else
#define CALL(op, params) specdec_cpu_##op(params, 1)
#endif

static void expect(const char* call, int got, int error, const char* message) {
  const char* said = got == SPECDEC_OK ? "" : specdec_last_error();
  if (got == error && strcmp(said, message) == 0) return;
  printf("%s\n  expected %d %s\n  got      %d %s\n", call, error, message, got, said);
  ++mistakes;
}

#define WRONG(op, valid, change, message)                                                      \
  do {                                                                                         \
    specdec_##op##_params p = valid();                                                         \
    change expect(#op ": " #change, CALL(op, &p), SPECDEC_INVALID_ARGUMENT, #op ": " message); \
  } while (0);

#define FINE(op, valid, change)                                \
  do {                                                         \
    specdec_##op##_params p = valid();                         \
    change fill();                                             \
    expect(#op ": " #change, CALL(op, &p), SPECDEC_OK, "");    \
  } while (0);

/* Assigns a pointer of any type. */
static void set(void* pointer, void* memory) { memcpy(pointer, &memory, sizeof memory); }

#include "calls.h"

#if defined(ON_GPU)

static void machine(void) {
  const specdec_race_sample_params p = valid_race_sample();
  const specdec_tree_mask_params plain = valid_tree_mask();
  specdec_verify_chain_params small = valid_verify_chain();
  char said[100];
  size_t needed = 1;
  int error;
  uint64_t capture = 1;
  expect("a device", specdec_cuda_available(), SPECDEC_OK, "");
  expect("a capture", specdec_cuda_capture(NULL, &capture), SPECDEC_OK, "");
  if (capture != 0) expect("no capture", (int)capture, 0, "");
  expect("no workspace", specdec_cuda_race_sample(&p, NULL, 16, &needed, NULL), SPECDEC_INVALID_ARGUMENT,
         "race_sample: workspace: expected memory; got NULL");
  expect("askew", specdec_cuda_race_sample(&p, workspace + 8, 16, NULL, NULL), SPECDEC_INVALID_ARGUMENT,
         "race_sample: workspace: expected memory aligned to 16 bytes");
  expect("none needed", specdec_cuda_tree_mask(&plain, NULL, 0, &needed, NULL), SPECDEC_OK, "");
  if (needed != 0) expect("needed", (int)needed, 0, "");
  error = specdec_cuda_verify_chain(&small, workspace, 16, &needed, NULL);
  snprintf(said, sizeof said, "verify_chain: workspace: expected %zu bytes; got 16", needed);
  expect("too small", error, SPECDEC_WORKSPACE_TOO_SMALL, said);
  expect("too small", specdec_cuda_verify_chain(&small, workspace, 16, NULL, NULL), SPECDEC_WORKSPACE_TOO_SMALL, said);
  expect("enough", specdec_cuda_verify_chain(&small, workspace, needed, &needed, NULL), SPECDEC_OK, "");
}

#else

static void machine(void) {
  const specdec_race_sample_params p = valid_race_sample();
  expect("no threads", specdec_cpu_race_sample(&p, 0), SPECDEC_INVALID_ARGUMENT,
         "race_sample: threads: expected 1 or more; got 0");
  if (specdec_cuda_available() == SPECDEC_OK) return;
  if (specdec_cuda_race_sample(&p, NULL, 0, NULL, NULL) == SPECDEC_OK) expect("no device", SPECDEC_OK, -1, "an error");
}

#endif

int main(void) {
  if (specdec_version() != SPECDEC_VERSION || *specdec_last_error()) return 255;
  calls();
  machine();
  return mistakes;
}
