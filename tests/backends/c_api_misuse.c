/* Wrong calls of specdec.h's functions: each must return an error that names the mistake, and run nothing. With ON_GPU
 * the CUDA functions are called. Prints each call that did otherwise, and returns their number. */
#include <specdec_sharded.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, K = 3, V = 50, N = 4, D = 2, SLOTS = 8 };

static float rows[B * N * V];
static int32_t draft_tokens[B * N], parents[N] = {-1, 0, 0, 1}, cu_drafts[B + 1] = {0, 1, 3}, word[B * N];
static int64_t words[B * N * 4];
static float figures[B * N * V];
static char cache[B * SLOTS * 4];
static int mistakes = 0;

#if defined(ON_GPU)
static char room[1 << 20] __attribute__((aligned(16)));
#define CALL(op, params) specdec_cuda_##op(params, room, sizeof room, NULL, NULL)
#else
#define CALL(op, params) specdec_cpu_##op(params, 1)
#endif

static void expect(const char* call, int got, int error, const char* message) {
  const char* said = got == SPECDEC_OK ? "" : specdec_last_error();
  if (got == error && strcmp(said, message) == 0) return;
  printf("%s\n  expected %d %s\n  got      %d %s\n", call, error, message, got, said);
  ++mistakes;
}

#define INVALID(op, valid, change, message)                                                            \
  do {                                                                                                 \
    specdec_##op##_params p = valid();                                                                 \
    change;                                                                                            \
    expect(#op ": " #change, CALL(op, &p), SPECDEC_INVALID_ARGUMENT, #op ": " message);                \
  } while (0)

#define FINE(op, valid, change)                                          \
  do {                                                                   \
    specdec_##op##_params p = valid();                                   \
    change;                                                              \
    expect(#op ": " #change, CALL(op, &p), SPECDEC_OK, "");              \
  } while (0)

static specdec_rows some_rows(int64_t count) {
  const specdec_rows x = {.data = rows, .request_stride = count * V, .row_stride = V, .requests = B, .rows = count,
                          .vocab = V, .dtype = SPECDEC_FLOAT32};
  return x;
}

static specdec_tokens some_tokens(const int32_t* data, int64_t requests, int32_t slots) {
  const specdec_tokens x = {data, requests > 1 ? slots : 0, 1, requests, slots, false};
  return x;
}

static specdec_output_i64 i64(int64_t count, int64_t columns) {
  const specdec_output_i64 x = {words, columns, count, columns};
  return x;
}

static specdec_output_tokens written(int64_t count, int64_t columns) {
  const specdec_output_tokens x = {.data = words, .row_stride = columns, .rows = count, .columns = columns};
  return x;
}

static specdec_output_i32 i32(int64_t count) {
  const specdec_output_i32 x = {word, 1, count, 1};
  return x;
}

static specdec_output_f32 f32(int64_t count, int64_t columns) {
  const specdec_output_f32 x = {figures, columns, count, columns};
  return x;
}

static specdec_verify_chain_params chain(void) {
  specdec_verify_chain_params p;
  memset(&p, 0, sizeof p);
  p.draft_tokens = some_tokens(draft_tokens, B, K);
  p.target = some_rows(K + 1);
  p.draft = some_rows(K);
  p.draft_prob.value = 1.0f;
  p.tokens = written(B, K + 1);
  p.num_accepted = p.status = i32(B);
  return p;
}

static specdec_verify_chain_params indexed(void) {
  static const int32_t index[B] = {1, -1};
  specdec_verify_chain_params p = chain();
  p.request_index.data = index;
  p.request_index.size = B;
  p.request_index.entries = B;
  return p;
}

static specdec_verify_chain_params ragged(void) {
  specdec_verify_chain_params p = chain();
  p.cu_drafts.data = cu_drafts;
  p.cu_drafts.size = B + 1;
  p.draft_tokens = some_tokens(draft_tokens, 1, 3);
  p.target = some_rows(3 + B);
  p.draft = some_rows(3);
  p.target.requests = p.draft.requests = 1;
  return p;
}

static specdec_verify_tree_params tree(void) {
  specdec_verify_tree_params p;
  memset(&p, 0, sizeof p);
  p.draft_tokens = some_tokens(draft_tokens, B, N);
  p.parents = some_tokens(parents, 1, N);
  p.target = p.draft = some_rows(N);
  p.tokens = written(B, D + 1);
  p.path.data = word;
  p.path.row_stride = p.path.columns = D + 1;
  p.path.rows = B;
  p.num_accepted = p.status = i32(B);
  return p;
}

static specdec_race_params race(void) {
  specdec_race_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(2);
  p.tokens = i64(2 * B, 1);
  return p;
}

static specdec_residual_params residual(void) {
  specdec_residual_params p;
  memset(&p, 0, sizeof p);
  p.target = p.draft = some_rows(2);
  p.draft_prob.value = 1.0f;
  p.probs = f32(2 * B, V);
  p.mass = f32(2 * B, 1);
  return p;
}

static specdec_overlap_params overlap(void) {
  specdec_overlap_params p;
  memset(&p, 0, sizeof p);
  p.target = p.draft = some_rows(2);
  p.accept = p.tv = p.kl = p.harmonic = f32(2 * B, 1);
  return p;
}

static specdec_tree_mask_params mask(void) {
  specdec_tree_mask_params p;
  memset(&p, 0, sizeof p);
  p.parents = some_tokens(parents, 1, N);
  p.columns = N;
  p.mask.data = cache;
  p.mask.batch = B;
  p.mask.nodes = N;
  p.status = i32(B);
  return p;
}

static specdec_tree_positions_params tree_positions(void) {
  specdec_tree_positions_params p;
  memset(&p, 0, sizeof p);
  p.parents = some_tokens(parents, 1, N);
  p.positions = i64(B, N);
  p.status = i32(B);
  return p;
}

/* One chain of three tokens a request. */
static specdec_merge_chains_params merge_chains(void) {
  static int32_t each[2][B * N];
  specdec_merge_chains_params p;
  memset(&p, 0, sizeof p);
  p.paths = some_tokens(draft_tokens, B, N - 1);
  p.draft_tokens = i64(B, N);
  p.parents.data = each[0], p.leaves.data = each[1];
  p.parents.rows = p.leaves.rows = B;
  p.parents.row_stride = p.parents.columns = N, p.leaves.row_stride = p.leaves.columns = 1;
  return p;
}

static specdec_build_tree_params build_tree(void) {
  static int64_t each[4][B * N];
  static uint8_t bytes[B * N * N];
  static const int32_t groups[2] = {-1, 0};
  specdec_output_i64* outputs[4];
  specdec_build_tree_params p;
  int i;
  memset(&p, 0, sizeof p);
  outputs[0] = &p.positions, outputs[1] = &p.index, outputs[2] = &p.first_child, outputs[3] = &p.next_sibling;
  for (i = 0; i < 4; ++i) {
    const specdec_output_i64 output = {each[i], N, B, N};
    *outputs[i] = output;
  }
  p.parent_list = some_tokens(groups, 1, 2);
  p.selected = some_tokens(parents + 1, 1, N - 1);
  p.topk = 2;
  p.layout = SPECDEC_TREE_NODES;
  p.mask.data = bytes;
  p.mask.row_stride = p.mask.columns = 1;
  p.mask.rows = sizeof bytes;
  p.status = i32(B);
  return p;
}

/* More nodes than a word has bits. */
static specdec_build_tree_params wide_tree(void) {
  static int64_t room[B * 33];
  static const int32_t candidates[32] = {0};
  const specdec_output_i64 output = {room, 33, B, 33};
  specdec_build_tree_params p = build_tree();
  p.positions = p.index = p.first_child = p.next_sibling = output;
  p.selected = some_tokens(candidates, 1, 32);
  return p;
}

static specdec_tree_parents_params tree_parents(void) {
  static int32_t above[B * N], ranks[B * N];
  const specdec_output_i32 each[2] = {{above, N, B, N}, {ranks, N, B, N}};
  specdec_tree_parents_params p;
  memset(&p, 0, sizeof p);
  p.first_child = p.next_sibling = some_tokens(parents, 1, N);
  p.parents = each[0];
  p.ranks = each[1];
  p.status = i32(B);
  return p;
}

static specdec_verify_linked_tree_params links(void) {
  static int32_t path[B * (D + 1)];
  const specdec_output_i32 paths = {path, D + 1, B, D + 1};
  specdec_verify_linked_tree_params p;
  memset(&p, 0, sizeof p);
  p.draft_tokens = p.first_child = p.next_sibling = some_tokens(parents, 1, N);
  p.target = some_rows(N);
  p.threshold_single.value = p.threshold_total.value = 1.0f;
  p.tokens = written(B, D + 1);
  p.path = paths;
  p.num_accepted = p.status = i32(B);
  return p;
}

static specdec_cache_layer layers[2];

static specdec_compact_kv_params compact(void) {
  static const int32_t path[B * (D + 1)] = {0, 1, 3, 0, 2, -1};
  const specdec_cache_layer layer = {cache, SLOTS * 4, SLOTS * 4, 4, 1, SLOTS, 4, B};
  const specdec_path paths = {path, D + 1, B, D + 1};
  specdec_compact_kv_params p;
  memset(&p, 0, sizeof p);
  layers[0] = layers[1] = layer;
  p.layers.data = layers;
  p.layers.size = 1;
  p.path = paths;
  p.status = i32(B);
  return p;
}

static specdec_verify_chain_params edited(void) {
  static const int32_t bits[B * (K + 1) * 2] = {0}, counts[B * V] = {0}, spans[B + 1] = {0, 1, 1}, token[1] = {7};
  static const float value[1] = {1.0f};
  const specdec_lists each_row = {bits, (K + 1) * 2, 2, B, K + 1, 2, false}, mask = {bits, 2, 0, B, 1, 2, false};
  const specdec_lists span = {spans, 1, 0, B, 1, 2, false}, count = {counts, V, 0, B, 1, V, false};
  specdec_verify_chain_params p = chain();
  p.edits.allowed = each_row;
  p.edits.by_row = SPECDEC_ALLOWED_BY_ROW;
  p.edits.bias_tokens.data = token;
  p.edits.bias_values.data = value;
  p.edits.bias_tokens.size = p.edits.bias_values.size = 1;
  p.edits.bias_spans = span;
  p.edits.frequency.value = 1.0f;
  p.edits.output_mask = mask;
  p.edits.output_counts = count;
  return p;
}

static specdec_count_tokens_params counting(void) {
  static int32_t bits[B * 2], counts[B * V];
  const specdec_output_i32 mask = {bits, 2, B, 2}, count = {counts, V, B, V};
  specdec_count_tokens_params p;
  memset(&p, 0, sizeof p);
  p.tokens = some_tokens(draft_tokens, B, K);
  p.num.value = K;
  p.mask = mask;
  p.counts = count;
  p.status = i32(B);
  return p;
}

static specdec_uniform_params uniform(void) {
  specdec_uniform_params p;
  memset(&p, 0, sizeof p);
  p.uniforms = f32(B, K);
  return p;
}

static specdec_context_seeds_params seeds(void) {
  specdec_context_seeds_params p;
  memset(&p, 0, sizeof p);
  p.text = some_tokens(draft_tokens, B, K);
  p.draft_tokens = some_tokens(draft_tokens, B, K);
  p.seed = p.position = some_tokens(draft_tokens, 1, B);
  p.window = 2;
  p.seeds = i64(B, K + 1);
  return p;
}

static specdec_path numbers(const int32_t* data, int64_t count, int64_t columns) {
  const specdec_path x = {data, columns, count, columns};
  return x;
}

static specdec_output_i32 i32s(int64_t count, int64_t columns) {
  static int32_t room[B * N * 32];
  const specdec_output_i32 x = {room, columns, count, columns};
  return x;
}

static specdec_indices each(const int32_t* data, int64_t size) {
  const specdec_indices x = {data, size};
  return x;
}

static specdec_values values(int64_t size) {
  const specdec_values x = {figures, size};
  return x;
}

/* [A, R] = [B, 2] rows. */
static specdec_cutoff_params cutoff(void) {
  specdec_cutoff_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(2);
  p.value = p.max = f32(2 * B, 1);
  p.last = p.mass = i64(2 * B, 1);
  p.support_size = i32(2 * B);
  return p;
}

static specdec_logprobs_params logprobs(void) {
  specdec_logprobs_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(2);
  p.tokens = some_tokens(draft_tokens, B, 2);
  p.logprob = f32(2 * B, 1);
  p.rank = i32(2 * B);
  p.top_tokens = i64(2 * B, 3);
  p.top_logprobs = f32(2 * B, 3);
  return p;
}

static specdec_mask_logits_params mask_logits(void) {
  specdec_mask_logits_params p;
  memset(&p, 0, sizeof p);
  p.rows = p.out = some_rows(2);
  p.temperature.value = 1.0f;
  p.value = values(2 * B);
  p.last = some_tokens(draft_tokens, 1, 2 * B);
  return p;
}

static specdec_store_rows_params store_rows(void) {
  static float room[B * N * V];
  specdec_store_rows_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(1);
  p.slots = some_tokens(draft_tokens, 1, B);
  p.cache = some_rows(N);
  p.cache.data = room;
  return p;
}

static specdec_count_at_least_params count_at_least(void) {
  specdec_count_at_least_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(2);
  p.least = values(2 * B);
  p.counts = i32(2 * B);
  return p;
}

static specdec_token_logits_params token_logits(void) {
  specdec_token_logits_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(2);
  p.tokens = some_tokens(draft_tokens, 1, 2);
  p.logits = f32(2 * B, 2);
  return p;
}

static specdec_mass_tiles_params mass_tiles(void) {
  specdec_mass_tiles_params p;
  memset(&p, 0, sizeof p);
  p.rows = some_rows(2);
  p.tiles = i32s(2 * B, 3);
  p.status = i32(2 * B);
  return p;
}

static specdec_tile_laws_params tile_laws(void) {
  static const int32_t tiles[B * 3] = {0};
  specdec_tile_laws_params p;
  memset(&p, 0, sizeof p);
  p.tiles = numbers(tiles, B, 3);
  p.raw = some_rows(B);
  p.raw.requests = 1;
  p.row_stats = f32(B, 2);
  p.probs = f32(B, V);
  return p;
}

/* Two pairs of [B, 2] rows: all row indices are 0. */
static specdec_residual_sums_params residual_sums(void) {
  static const int32_t place[B] = {0}, cuts[B * 6] = {0};
  specdec_residual_sums_params p;
  memset(&p, 0, sizeof p);
  p.target = p.draft = some_rows(2);
  p.row = p.draft_row = each(place, B);
  p.cuts = numbers(cuts, B, 6);
  p.row_stats = some_rows(B);
  p.row_stats.requests = 1, p.row_stats.vocab = 4;
  p.sums = i64(B, 2);
  p.status = i32(B);
  return p;
}

static specdec_residual_race_params residual_race(void) {
  const specdec_residual_sums_params pair = residual_sums();
  specdec_residual_race_params p;
  memset(&p, 0, sizeof p);
  p.target = pair.target, p.draft = pair.draft, p.row = pair.row, p.draft_row = pair.draft_row, p.cuts = pair.cuts;
  p.row_stats = pair.row_stats;
  p.excluded = numbers(parents, B, 2);
  p.tokens = i64(B, 1);
  p.status = i32(B);
  p.scores = f32(B, 1);
  return p;
}

static specdec_first_arrivals_params first_arrivals(void) {
  static const int32_t packed[3 * 3 * B] = {0};
  specdec_first_arrivals_params p;
  memset(&p, 0, sizeof p);
  p.packed = numbers(packed, 3, 3 * B);
  p.tokens = i64(B, 1);
  p.status = p.empty = i32(B);
  return p;
}

/* B chains of K drafts, without draft laws. */
static specdec_walk_tables_params tables(void) {
  static const int32_t statuses[B * (K + 1)] = {0};
  specdec_walk_tables_params p;
  memset(&p, 0, sizeof p);
  p.draft_tokens = some_tokens(draft_tokens, B, K);
  p.vocab = V;
  p.draft_prob.value = 1.0f;
  p.row_status = each(statuses, B * (K + 1));
  p.p_of_drafts = values(B * (K + 1));
  p.row_stats = values(2 * B * (K + 1));
  p.tokens = written(B, K + 1);
  p.num_accepted = p.status = p.row = p.draft_row = i32(B);
  p.subtracted = f32(B, 1);
  p.slot = i64(B, 1);
  p.laws = f32(B, 4);
  p.excluded = i32s(B, 1);
  return p;
}

static specdec_walk_tables_params raced_tables(void) {
  specdec_walk_tables_params p = tables();
  p.method = SPECDEC_RACE;
  p.winners = some_tokens(draft_tokens, 1, B * (K + 1));
  memset(&p.row, 0, sizeof p.row);
  return p;
}

/* B trees of N nodes, with draft laws. */
static specdec_walk_tables_params tree_tables(void) {
  static const int32_t statuses[B * N] = {0};
  static const int64_t answers[B * 2 * N] = {0};
  specdec_walk_tables_params p = tables();
  const specdec_tokens no_answers = {answers, 2 * N, 1, B, 2 * N, true};
  p.draft_tokens = some_tokens(draft_tokens, B, N);
  p.parents = some_tokens(parents, 1, N);
  p.row_status = p.draft_row_status = each(statuses, B * N);
  p.p_of_drafts = p.q_of_drafts = values(B * N);
  p.row_stats = p.draft_row_stats = values(2 * B * N);
  p.answers = no_answers;
  p.requested_rows = i32s(B, 2 * N);
  p.requested_subtracted = f32(B, N);
  p.excluded.columns = N;
  return p;
}

static specdec_walk_tables_params traversed_tables(void) {
  specdec_walk_tables_params p = tables();
  p.method = SPECDEC_TRAVERSAL;
  p.memory = i32s(B, 8 * (K + 1));
  return p;
}

static specdec_walk_tables_params packed_tables(void) {
  static const int32_t statuses[3 + B] = {0};
  specdec_walk_tables_params p = tables();
  p.cu_drafts = each(cu_drafts, B + 1);
  p.draft_tokens = some_tokens(draft_tokens, 1, 3);
  p.row_status = each(statuses, 3 + B);
  p.p_of_drafts = values(3 + B);
  p.row_stats = values(2 * (3 + B));
  return p;
}

static void chains(void) {
  INVALID(verify_chain, chain, p.target.data = NULL, "target.data: expected memory; got NULL");
  INVALID(verify_chain, chain, p.target.dtype = 3, "target.dtype: expected at most 2; got 3");
  INVALID(verify_chain, chain, p.draft.dtype = -1, "draft.dtype: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.target.vocab = 0, "target.vocab: expected 1 or more; got 0");
  INVALID(verify_chain, chain, p.target.vocab_start = 64, "target.vocab_start: expected 0; got 64");
  INVALID(verify_chain, chain, p.draft.vocab_start = 64, "draft.vocab_start: expected 0; got 64");
  INVALID(verify_chain, chain, p.target.vocab_start = -1, "target.vocab_start: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.target.rows = K, "target.rows: expected 4 or more; got 3");
  INVALID(verify_chain, chain, p.target.rows = -1, "target.rows: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.target.requests = 1, "target.requests: expected 2 or more; got 1");
  INVALID(verify_chain, chain, p.target.requests = 3000000000, "target.requests: expected at most 2147483647; got 3000000000");
  INVALID(verify_chain, chain, memset(&p.target, 0, sizeof p.target), "target.requests: expected 1 or more; got 0");
  INVALID(verify_chain, chain, p.draft.vocab = V + 1, "draft.vocab: expected at most 50; got 51");
  INVALID(verify_chain, chain, p.draft.rows = K - 1, "draft.rows: expected 3 or more; got 2");
  INVALID(verify_chain, chain, p.draft_tokens.data = NULL, "draft_tokens.data: expected memory; got NULL");
  INVALID(verify_chain, chain, p.draft_tokens.slots = K - 1, "draft_tokens.slots: expected 3 or more; got 2");
  INVALID(verify_chain, chain, p.method = 3, "method: expected at most 2; got 3");
  INVALID(verify_chain, chain, (p.method = SPECDEC_BLOCK, p.draft_prob.value = 0.5f),
          "draft_prob: expected 1 for all with blocks; got another");
  INVALID(verify_chain, chain, (p.method = SPECDEC_BLOCK, p.draft_prob.value = 1.0f, p.epsilon.value = 0.1f),
          "epsilon: expected 0 for all with blocks; got another");
  INVALID(verify_chain, chain, p.method = SPECDEC_RACE, "draft: expected none with the race; got one");
  INVALID(verify_chain, chain, p.target_law.space = 7, "target_law.space: expected at most 1; got 7");
  INVALID(verify_chain, chain, p.tokens.data = NULL, "tokens.data: expected memory; got NULL");
  INVALID(verify_chain, chain, p.tokens.rows = -1, "tokens.rows: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.tokens.columns = 0, "tokens.columns: expected 1 or more; got 0");
  INVALID(verify_chain, chain, p.tokens.row_stride = K, "tokens.row_stride: expected 4 or more; got 3");
  INVALID(verify_chain, chain, p.tokens.column_stride = 2, "tokens.row_stride: expected 7 or more; got 4");
  INVALID(verify_chain, chain, p.output_format = 16, "output_format: expected at most 7; got 16");
  INVALID(verify_chain, chain, (p.tokens = written(1, 9), p.index = some_tokens(draft_tokens, B, K + 1)),
          "path.columns: expected 1 or more; got 0");
  INVALID(verify_chain, chain, p.num_accepted.data = NULL, "num_accepted.data: expected memory; got NULL");
  INVALID(verify_chain, chain, p.num_accepted.row_stride = 2, "num_accepted.row_stride: expected 1; got 2");
  INVALID(verify_chain, chain, p.status.rows = 1, "status.rows: expected 2; got 1");
  INVALID(verify_chain, chain, p.request_index.size = B, "request_index.data: expected memory; got NULL");
  INVALID(verify_chain, indexed, p.request_index.size = 1, "request_index.size: expected 2; got 1");
  INVALID(verify_chain, indexed, p.request_index.entries = B + 1, "draft.requests: expected 3 or more; got 2");
  INVALID(verify_chain, indexed, p.request_index.entries = -1, "request_index.entries: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.draft_map.data = cu_drafts, "draft_map.size: expected 50; got 0");
  INVALID(verify_chain, ragged, p.cu_drafts.size = B, "cu_drafts.size: expected 3; got 2");
  INVALID(verify_chain, ragged, p.target.rows = B, "target.rows: expected 5 or more; got 2");
  INVALID(verify_chain, ragged, p.draft.rows = 2, "draft.rows: expected 3 or more; got 2");
  INVALID(verify_chain, chain, p.target.vocab_start = 2147483647,
          "target.vocab_start: expected at most 2147483597; got 2147483647");
  INVALID(verify_chain, chain, p.draft_tokens.requests = -1, "draft_tokens.requests: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.draft_map.size = -1, "draft_map.size: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.draft_map.size = V, "draft_map.data: expected memory; got NULL");
  INVALID(verify_chain, indexed, p.request_index.size = -1, "request_index.size: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.num_accepted.columns = -1, "num_accepted.columns: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.target_law.rules = -1, "target_law.rules: expected 0 or more; got -1");
  INVALID(verify_chain, chain, p.draft_law.rules = 64, "draft_law.rules: expected at most 63; got 64");
  INVALID(verify_chain, chain,
          (p.target_law.space = p.draft_law.space = SPECDEC_PROBS, p.target_law.rules = SPECDEC_FILTERED),
          "target_law.rules: expected no SPECDEC_FILTERED with probabilities, which are final; got 16");
  INVALID(verify_chain, chain, (p.tokens.row_stride = 8, p.tokens.column_stride = -1),
          "tokens.column_stride: expected 1 or more; got -1");
  INVALID(verify_chain, chain, p.output_format = -1, "output_format: expected 0 or more; got -1");
  INVALID(verify_chain, chain, (p.index = some_tokens(draft_tokens, B, K + 1), p.path = i32s(B, K + 1)),
          "tokens.rows: expected 1; got 2");
  INVALID(verify_chain, chain,
          (p.tokens = written(1, 9), p.index = some_tokens(draft_tokens, B, K + 1), p.path = i32s(B, K + 1),
           p.path.data = NULL),
          "path.data: expected memory; got NULL");
  INVALID(verify_chain, chain, (p.path = i32s(B, K + 1), p.path.row_stride = K),
          "path.row_stride: expected 4 or more; got 3");
  INVALID(verify_chain, chain,
          (p.tokens = written(1, 9), p.index = some_tokens(draft_tokens, B, K), p.path = i32s(B, K + 1)),
          "index.slots: expected 4 or more; got 3");
  INVALID(verify_chain, chain, (p.target_law.space = p.draft_law.space = SPECDEC_PROBS, p.num_passed = i32(1)),
          "num_passed.rows: expected 2; got 1");
  INVALID(verify_chain, chain,
          (p.target_law.space = p.draft_law.space = SPECDEC_PROBS, p.num_passed = i32(B),
           memset(&p.draft, 0, sizeof p.draft)),
          "draft.data: expected memory; got NULL");
  INVALID(verify_chain, ragged, p.draft_tokens.requests = 0, "draft_tokens.requests: expected 1 or more; got 0");
  INVALID(verify_chain, ragged, p.input_positions = some_tokens(draft_tokens, 1, B + 2),
          "input_positions.slots: expected 5 or more; got 4");
  FINE(verify_chain, chain, (void)p);
  FINE(verify_chain, ragged, (void)p);
  FINE(verify_chain, indexed, (void)p);
  FINE(verify_chain, chain, memset(&p.draft, 0, sizeof p.draft));
  FINE(verify_chain, chain, p.tokens.rows = p.num_accepted.rows = p.status.rows = 0);
  FINE(verify_chain, chain,
       (p.tokens.rows = p.num_accepted.rows = p.status.rows = 0, memset(&p.target, 0, sizeof p.target)));
  FINE(verify_chain, chain, (memset(&p.draft, 0, sizeof p.draft), p.draft.requests = B));
  FINE(verify_chain, chain, (p.tokens.columns = 1, memset(&p.draft_tokens, 0, sizeof p.draft_tokens)));
  FINE(verify_chain, chain, (p.tokens.row_stride = 1, p.tokens.column_stride = B));
  FINE(verify_chain, chain, (p.target_law.space = p.draft_law.space = SPECDEC_PROBS, p.num_passed = i32(B)));
  INVALID(verify_chain, ragged,
          (p.request_index.data = parents, p.request_index.size = B, p.request_index.entries = B + 1),
          "draft.requests: expected 3 or more; got 1");
}

static void trees(void) {
  INVALID(verify_tree, tree, p.parents.data = NULL, "parents.data: expected memory; got NULL");
  INVALID(verify_tree, tree, p.parents.slots = N - 1, "parents.slots: expected 4 or more; got 3");
  INVALID(verify_tree, tree, p.draft_tokens.requests = 1, "draft_tokens.requests: expected 2 or more; got 1");
  INVALID(verify_tree, tree, p.draft.rows = N - 1, "draft.rows: expected 4 or more; got 3");
  INVALID(verify_tree, tree, p.target.rows = 0, "target.rows: expected 1 or more; got 0");
  INVALID(verify_tree, tree, p.path.data = NULL, "path.data: expected memory; got NULL");
  INVALID(verify_tree, tree, p.path.columns = D, "path.columns: expected 3; got 2");
  INVALID(verify_tree, tree, (p.tokens = written(1, 9), p.index = some_tokens(draft_tokens, B, N - 1)),
          "index.slots: expected 4 or more; got 3");
  INVALID(verify_tree, tree, p.method = 4, "method: expected at most 3; got 4");
  INVALID(verify_tree, tree, p.method = SPECDEC_PATHS, "leaves.data: expected memory; got NULL");
  INVALID(verify_tree, tree, p.leaves = some_tokens(parents, B, 1), "leaves: expected NULL but with paths; got memory");
  INVALID(verify_tree, tree, (p.method = SPECDEC_PATHS, p.leaves = some_tokens(parents, B, 1), p.draft.data = NULL),
          "draft.data: expected memory; got NULL");
  FINE(verify_tree, tree, (p.method = SPECDEC_PATHS, p.leaves = some_tokens(parents, B, 1)));
  FINE(merge_chains, merge_chains, (void)p);
  INVALID(merge_chains, merge_chains, p.paths.slots = N, "draft_tokens.columns: expected 5; got 4");
  INVALID(merge_chains, merge_chains, p.leaves.data = NULL, "leaves.data: expected memory; got NULL");
  INVALID(merge_chains, merge_chains, p.paths.requests = 1, "paths.requests: expected 2 or more; got 1");
  INVALID(tree_mask, mask, p.mask.layout = 4, "mask.layout: expected at most 3; got 4");
  INVALID(tree_mask, mask, p.mask.data = NULL, "mask.data: expected memory; got NULL");
  INVALID(tree_mask, mask, p.columns = N - 1, "columns: expected 4 or more; got 3");
  INVALID(tree_mask, mask, p.parents.slots = -1, "parents.slots: expected 0 or more; got -1");
  INVALID(tree_positions, tree_positions, p.parents.slots = 1, "parents.slots: expected 4 or more; got 1");
  INVALID(tree_positions, tree_positions, p.positions.data = NULL, "positions.data: expected memory; got NULL");
  INVALID(tree_positions, tree_positions, p.status.data = NULL, "status.data: expected memory; got NULL");
  INVALID(build_tree, build_tree, p.topk = 0, "topk: expected 1 or more; got 0");
  INVALID(build_tree, build_tree, p.layout = 3, "layout: expected at most 2; got 3");
  INVALID(build_tree, build_tree, p.selected.slots = 2, "selected.slots: expected 3 or more; got 2");
  INVALID(build_tree, build_tree, p.parent_list.data = NULL, "parent_list.data: expected memory; got NULL");
  INVALID(build_tree, build_tree, p.mask.rows = 31, "mask.rows: expected 32 or more; got 31");
  INVALID(build_tree, build_tree, p.mask.row_stride = 2, "mask.row_stride: expected 1; got 2");
  INVALID(build_tree, build_tree, p.next_sibling.columns = 3, "next_sibling.columns: expected 4; got 3");
  INVALID(tree_parents, tree_parents, p.first_child.slots = 1, "first_child.slots: expected 4 or more; got 1");
  INVALID(tree_parents, tree_parents, p.next_sibling.data = NULL, "next_sibling.data: expected memory; got NULL");
  INVALID(tree_parents, tree_parents, p.ranks.columns = 3, "ranks.columns: expected 4; got 3");
  INVALID(tree_parents, tree_parents, p.status.data = NULL, "status.data: expected memory; got NULL");
  INVALID(verify_chain, chain, p.tokens_by_row = true, "tokens_by_row: expected false without cu_drafts; got true");
  INVALID(verify_chain, ragged, p.draft_tokens.slots = p.tokens_by_row = true,
          "draft_tokens.slots: expected 2 or more; got 1");
  INVALID(verify_chain, chain, p.input_positions = some_tokens(draft_tokens, B, 0),
          "input_positions.slots: expected 1 or more; got 0");
  INVALID(verify_tree, tree, p.input_positions = some_tokens(draft_tokens, B, 0),
          "input_positions.slots: expected 1 or more; got 0");
  INVALID(verify_chain, chain, p.input_nonces = some_tokens(draft_tokens, 1, B - 1),
          "input_nonces.slots: expected 2 or more; got 1");
  INVALID(verify_chain, chain, p.input_nonces = some_tokens(draft_tokens, 1, B),
          "input_nonces: expected NULL without input_positions; got memory");
  FINE(verify_tree, tree, p.input_positions = some_tokens(draft_tokens, B, N));
  INVALID(verify_chain, chain, p.row_seeds = some_tokens(draft_tokens, B, K + 1),
          "row_seeds: expected NULL but with the race; got memory");
  INVALID(verify_chain, chain,
          (memset(&p.draft, 0, sizeof p.draft), p.method = SPECDEC_RACE, p.row_seeds = some_tokens(draft_tokens, B, K)),
          "row_seeds.slots: expected 4 or more; got 3");
  INVALID(verify_tree, tree,
          (memset(&p.draft, 0, sizeof p.draft), p.method = SPECDEC_RACE, p.row_seeds = some_tokens(draft_tokens, B, N - 1)),
          "row_seeds.slots: expected 4 or more; got 3");
  FINE(verify_tree, tree,
       (memset(&p.draft, 0, sizeof p.draft), p.method = SPECDEC_RACE, p.row_seeds = some_tokens(draft_tokens, B, N)));
  FINE(verify_chain, chain,
       (p.input_positions = some_tokens(draft_tokens, B, K + 1), p.input_nonces = some_tokens(draft_tokens, 1, B)));
  INVALID(verify_chain, chain, p.bonus = some_tokens(draft_tokens, 1, B - 1), "bonus.slots: expected 2 or more; got 1");
  INVALID(verify_chain, ragged, (p.bonus = some_tokens(draft_tokens, 1, B), p.tokens_by_row = true),
          "bonus: expected NULL with tokens_by_row; got memory");
  INVALID(verify_chain, chain,
          (p.bonus = some_tokens(draft_tokens, 1, B), p.input_positions = some_tokens(draft_tokens, B, K + 1)),
          "bonus: expected NULL with input_positions; got memory");
  INVALID(verify_chain, chain, (p.bonus = some_tokens(draft_tokens, 1, B), p.target.rows = K - 1),
          "target.rows: expected 3 or more; got 2");
  INVALID(verify_chain, ragged, (p.bonus = some_tokens(draft_tokens, 1, B), p.target.rows = 2),
          "target.rows: expected 3 or more; got 2");
  FINE(verify_chain, chain, (p.bonus = some_tokens(draft_tokens, 1, B), p.target = some_rows(K)));
  FINE(verify_chain, ragged, (p.bonus = some_tokens(draft_tokens, 1, B), p.target.rows = 3));
  INVALID(verify_chain, chain, p.num_passed = i32(B),
          "num_passed: expected NULL but with rejection of probabilities, without draft_map; got memory");
  INVALID(verify_linked_tree, links, p.draft_tokens.data = NULL, "draft_tokens.data: expected memory; got NULL");
  INVALID(verify_linked_tree, links, p.first_child.slots = 1, "first_child.slots: expected 4 or more; got 1");
  INVALID(verify_linked_tree, links, p.target.rows = 3, "target.rows: expected 4 or more; got 3");
  INVALID(verify_linked_tree, links, p.target_tokens = p.draft_tokens,
          "target: expected none beside target_tokens; got some");
  INVALID(verify_linked_tree, links, p.path.data = NULL, "path.data: expected memory; got NULL");
  INVALID(verify_linked_tree, links, p.output_format = 16, "output_format: expected at most 7; got 16");
  INVALID(compact_kv, compact, p.layers.data = NULL, "layers.data: expected memory; got NULL");
  INVALID(compact_kv, compact, layers[0].data = NULL, "layers.data: expected memory; got NULL");
  INVALID(compact_kv, compact, layers[0].entry_bytes = -4, "layers.entry_bytes: expected 0 or more; got -4");
  INVALID(compact_kv, compact, layers[0].batch = -1, "layers.batch: expected 0 or more; got -1");
  INVALID(compact_kv, compact, p.path.data = NULL, "path.data: expected memory; got NULL");
  INVALID(compact_kv, compact, (p.block_table = p.path, p.block_table.rows = 1), "block_table.rows: expected 2; got 1");
  INVALID(compact_kv, compact, (p.block_table = p.path, p.block_table.columns = 1 << 30),
          "block_table.columns: expected at most 268435455; got 1073741824");
  INVALID(compact_kv, compact, (p.block_table = p.path, layers[1].slots = 5, p.layers.size = 2),
          "layers.slots: expected 8; got 5");
  INVALID(verify_tree, tree,
          (p.method = SPECDEC_PATHS, p.leaves = some_tokens(parents, B, 1), p.draft.data = NULL, p.draft.rows = 0),
          "draft.data: expected memory; got NULL");
  INVALID(verify_tree, tree,
          (p.method = SPECDEC_PATHS, p.leaves = some_tokens(parents, 1, 1), p.leaves.request_stride = 1),
          "leaves.requests: expected 2 or more; got 1");
  INVALID(merge_chains, merge_chains, (p.paths.slots = N, p.leaves.columns = p.leaves.row_stride = 3),
          "paths.slots % leaves.columns: expected 0; got 1");
  INVALID(merge_chains, merge_chains, p.parents.columns = N + 1, "parents.columns: expected 4; got 5");
  INVALID(tree_mask, mask, p.mask.batch = -1, "mask.batch: expected 0 or more; got -1");
  INVALID(tree_mask, mask, p.mask.nodes = 0, "mask.nodes: expected 1 or more; got 0");
  INVALID(tree_mask, mask, p.parents.slots = 1, "parents.slots: expected 4 or more; got 1");
  INVALID(tree_mask, mask, p.status.rows = 1, "status.rows: expected 2; got 1");
  INVALID(tree_positions, tree_positions, p.status.rows = 1, "status.rows: expected 2; got 1");
  INVALID(build_tree, build_tree, p.index.columns = 0, "index.columns: expected 1 or more; got 0");
  INVALID(build_tree, build_tree, p.index.row_stride = 5, "index.row_stride: expected 4; got 5");
  INVALID(build_tree, build_tree, p.positions.columns = 3, "positions.columns: expected 4; got 3");
  INVALID(build_tree, build_tree, p.first_child.data = NULL, "first_child.data: expected memory; got NULL");
  INVALID(build_tree, build_tree, p.status.rows = 1, "status.rows: expected 2; got 1");
  INVALID(build_tree, build_tree, (p.parent_list.requests = 1, p.parent_list.request_stride = 2),
          "parent_list.requests: expected 2 or more; got 1");
  INVALID(build_tree, wide_tree, p.layout = SPECDEC_TREE_BITS, "index.columns: expected at most 32; got 33");
  INVALID(tree_parents, tree_parents, p.parents.row_stride = 5, "parents.row_stride: expected 4; got 5");
  INVALID(tree_parents, tree_parents, p.next_sibling.slots = 1, "next_sibling.slots: expected 4 or more; got 1");
  INVALID(verify_linked_tree, links, p.draft_tokens.slots = 0, "draft_tokens.slots: expected 1 or more; got 0");
  INVALID(verify_linked_tree, links, (p.draft_tokens.requests = 1, p.draft_tokens.request_stride = 4),
          "draft_tokens.requests: expected 2 or more; got 1");
  INVALID(verify_linked_tree, links, p.next_sibling.slots = 1, "next_sibling.slots: expected 4 or more; got 1");
  INVALID(verify_linked_tree, links, (p.tree_valid.data = (const bool*)cache, p.tree_valid.size = 1),
          "tree_valid.size: expected 2; got 1");
  INVALID(verify_linked_tree, links, (p.tokens = written(1, 9), p.index = some_tokens(draft_tokens, B, N - 1)),
          "index.slots: expected 4 or more; got 3");
  INVALID(verify_linked_tree, links, p.target.vocab_start = 64, "target.vocab_start: expected 0; got 64");
  INVALID(verify_linked_tree, links,
          (memset(&p.target, 0, sizeof p.target), p.target_tokens = some_tokens(parents, 1, N - 1)),
          "target_tokens.slots: expected 4 or more; got 3");
  INVALID(compact_kv, compact, p.layers.size = -1, "layers.size: expected 0 or more; got -1");
  INVALID(compact_kv, compact, layers[0].heads = -1, "layers.heads: expected 0 or more; got -1");
  INVALID(compact_kv, compact, layers[0].slots = -1, "layers.slots: expected 0 or more; got -1");
  INVALID(compact_kv, compact, p.status.rows = 1, "status.rows: expected 2; got 1");
  FINE(verify_tree, tree, (void)p);
  FINE(verify_tree, tree,
       (p.tokens.rows = p.path.rows = p.num_accepted.rows = p.status.rows = 0, memset(&p.target, 0, sizeof p.target)));
  FINE(verify_linked_tree, links,
       (p.tokens.rows = p.path.rows = p.num_accepted.rows = p.status.rows = 0, memset(&p.target, 0, sizeof p.target)));
  FINE(compact_kv, compact, (p.path.rows = p.status.rows = 0, layers[0].data = NULL));
  FINE(compact_kv, compact, (p.block_table = p.path, layers[0].slots = 0));
  FINE(tree_mask, mask, (void)p);
  FINE(tree_positions, tree_positions, (void)p);
  FINE(tree_parents, tree_parents, (void)p);
  FINE(build_tree, build_tree, (void)p);
  FINE(verify_linked_tree, links, (void)p);
  FINE(compact_kv, compact, (void)p);
}

static void rows_alone(void) {
  INVALID(race_sample, race, p.rows.data = NULL, "rows.data: expected memory; got NULL");
  INVALID(race_sample, race, p.tokens.columns = 2, "tokens.columns: expected at most 1; got 2");
  INVALID(race_sample, race, p.tokens.rows = B, "tokens.rows: expected 4; got 2");
  INVALID(race_sample, race, p.status.data = word, "status.rows: expected 4; got 0");
  INVALID(race_topk, race, p.tokens.columns = V + 1, "tokens.columns: expected at most 50; got 51");
  INVALID(race_topk, race, p.tokens.columns = 0, "tokens.columns: expected 1 or more; got 0");
  INVALID(residual, residual, p.draft.rows = 1, "draft.rows: expected 2 or more; got 1");
  INVALID(residual, residual, p.draft.data = NULL, "draft.data: expected memory; got NULL");
  INVALID(residual, residual, p.probs.columns = V - 1, "probs.columns: expected 50; got 49");
  INVALID(residual, residual, p.mass.data = NULL, "mass.data: expected memory; got NULL");
  INVALID(overlap, overlap, p.draft.requests = 1, "draft.requests: expected 2 or more; got 1");
  INVALID(overlap, overlap, p.kl.data = NULL, "kl.data: expected memory; got NULL");
  INVALID(overlap, overlap, p.harmonic.rows = 3, "harmonic.rows: expected 4; got 3");
  INVALID(uniform, uniform, p.uniforms.data = NULL, "uniforms.data: expected memory; got NULL");
  INVALID(uniform, uniform, p.uniforms.row_stride = 1, "uniforms.row_stride: expected 3; got 1");
  INVALID(uniform, uniform, p.stream = -1, "stream: expected 0 or more; got -1");
  INVALID(context_seeds, seeds, p.window = 0, "window: expected 1 or more; got 0");
  INVALID(context_seeds, seeds, p.window = 9, "window: expected at most 8; got 9");
  INVALID(context_seeds, seeds, p.seeds.data = NULL, "seeds.data: expected memory; got NULL");
  INVALID(context_seeds, seeds, p.seed = some_tokens(draft_tokens, 1, B - 1), "seed.slots: expected 2 or more; got 1");
  INVALID(context_seeds, seeds, p.position = some_tokens(draft_tokens, 1, B - 1),
          "position.slots: expected 2 or more; got 1");
  INVALID(context_seeds, seeds, p.text.requests = 1, "text.requests: expected 2 or more; got 1");
  INVALID(context_seeds, seeds, (p.request_index.data = parents, p.request_index.size = 1),
          "request_index.size: expected 2; got 1");
  INVALID(context_seeds, seeds, p.draft_tokens.slots = K - 1, "draft_tokens.slots: expected 3 or more; got 2");
  INVALID(context_seeds, seeds, p.tokens_by_row = true, "tokens_by_row: expected false without cu_drafts; got true");
  INVALID(context_seeds, seeds, (p.draft_tokens.slots = K + 1, p.parents = some_tokens(parents, B, K)),
          "parents.slots: expected 4 or more; got 3");
  INVALID(context_seeds, seeds, p.cu_drafts = each(cu_drafts, B), "cu_drafts.size: expected 3; got 2");
  INVALID(context_seeds, seeds, (p.cu_drafts = each(cu_drafts, B + 1), p.draft_tokens.requests = 0),
          "draft_tokens.requests: expected 1 or more; got 0");
  INVALID(context_seeds, seeds, (p.cu_drafts = each(cu_drafts, B + 1), p.draft_tokens.slots = p.tokens_by_row = true),
          "draft_tokens.slots: expected 2 or more; got 1");
  INVALID(context_seeds, seeds, (p.cu_drafts = each(cu_drafts, B + 1), p.parents = some_tokens(parents, B, K + 1)),
          "parents: expected NULL with cu_drafts; got memory");
  INVALID(race_sample, race, (p.draft_map = each(parents, N)), "draft_map.size: expected 50; got 4");
  INVALID(race_sample, race, (p.draft_map = each(parents, V), p.edits.frequency.value = 1.0f),
          "edits: expected none with draft_map; got some");
  INVALID(race_sample, race, (p.scores = f32(2 * B, 1), p.scores.rows = B), "scores.rows: expected 4; got 2");
  INVALID(race_sample, race, (p.law.rules = SPECDEC_FILTERED, p.rows.vocab_start = 128),
          "rows.vocab_start: expected 0; got 128");
  INVALID(race_sample, race, (p.rows.vocab_start = 64, p.edits.frequency.value = 1.0f, p.scores = f32(2 * B, 1)),
          "rows.vocab_start % 128: expected 0; got 64");
  INVALID(residual, residual, p.status = i32(1), "status.rows: expected 4; got 1");
  INVALID(overlap, overlap, memset(&p.draft, 0, sizeof p.draft), "draft.data: expected memory; got NULL");
  INVALID(uniform, uniform, p.stream = 1LL << 32, "stream: expected at most 4294967295; got 4294967296");
  INVALID(cutoff, cutoff, p.law.space = SPECDEC_PROBS, "law.space: expected logits; got probabilities");
  INVALID(cutoff, cutoff, p.rows.vocab_start = 64, "rows.vocab_start: expected 0; got 64");
  INVALID(cutoff, cutoff, p.mass.rows = 1, "mass.rows: expected 4; got 1");
  INVALID(cutoff, cutoff, p.status = i32(1), "status.rows: expected 4; got 1");
  INVALID(logprobs, logprobs, p.tokens.slots = 1, "tokens.slots: expected 2 or more; got 1");
  INVALID(logprobs, logprobs, p.rank.data = NULL, "rank.data: expected memory; got NULL");
  INVALID(logprobs, logprobs, p.top_tokens.row_stride = 4, "top_tokens.row_stride: expected 3; got 4");
  INVALID(logprobs, logprobs, p.top_logprobs.columns = 2, "top_logprobs.columns: expected 3; got 2");
  INVALID(logprobs, logprobs, p.rows.vocab_start = 64, "rows.vocab_start: expected 0; got 64");
  INVALID(logprobs, logprobs, (p.rows.vocab = 33, p.support_bits = i32s(2 * B, 1), p.support_size = i32(2 * B)),
          "support_bits.columns: expected 2; got 1");
  INVALID(logprobs, logprobs, p.support_bits = i32s(2 * B, 2), "support_size.rows: expected 4; got 0");
  INVALID(logprobs, logprobs, p.support_size = i32(2 * B), "support_bits.data: expected memory; got NULL");
  INVALID(logprobs, logprobs, p.status = i32(1), "status.rows: expected 4; got 1");
  INVALID(mask_logits, mask_logits, p.value.size = 1, "value.size: expected 4; got 1");
  INVALID(mask_logits, mask_logits, p.last.slots = 1, "last.slots: expected 4; got 1");
  INVALID(mask_logits, mask_logits, p.out.requests = 1, "out.requests: expected 2; got 1");
  INVALID(mask_logits, mask_logits, p.out.rows = 1, "out.rows: expected 2; got 1");
  INVALID(mask_logits, mask_logits, p.out.vocab = V - 1, "out.vocab: expected 50; got 49");
  INVALID(mask_logits, mask_logits, p.out.dtype = SPECDEC_FLOAT16, "out.dtype: expected 0; got 2");
  INVALID(store_rows, store_rows, p.rows.rows = 2, "rows.rows: expected 1; got 2");
  INVALID(store_rows, store_rows, p.slots.slots = 1, "slots.slots: expected 2; got 1");
  INVALID(store_rows, store_rows, p.cache.vocab = V - 1, "cache.vocab: expected 50 or more; got 49");
  INVALID(store_rows, store_rows, p.cache.dtype = SPECDEC_FLOAT16, "cache.dtype: expected 0; got 2");
  FINE(uniform, uniform, (void)p);
  FINE(context_seeds, seeds, (void)p);
  FINE(cutoff, cutoff, (void)p);
  FINE(logprobs, logprobs, (void)p);
  FINE(mask_logits, mask_logits, (void)p);
  FINE(store_rows, store_rows, (void)p);
  FINE(race_sample, race, (void)p);
  FINE(race_topk, race, (void)p);
  FINE(residual, residual, (void)p);
  FINE(residual, residual, (p.target = p.draft = some_rows(3), p.probs = f32(3 * B, V), p.mass = f32(3 * B, 1)));
  FINE(residual, residual, (p.target.requests = 0, p.mass.rows = 0, memset(&p.probs, 0, sizeof p.probs)));
  FINE(overlap, overlap, (void)p);
}

static void parts(void) {
  INVALID(count_at_least, count_at_least, p.law.space = SPECDEC_PROBS, "law.space: expected logits; got probabilities");
  INVALID(count_at_least, count_at_least, p.least.size = 1, "least.size: expected 4; got 1");
  INVALID(count_at_least, count_at_least, p.counts.rows = 1, "counts.rows: expected 4; got 1");
  INVALID(token_logits, token_logits, p.row_indices = some_tokens(parents, 1, 1),
          "row_indices.slots: expected 4 or more; got 1");
  INVALID(token_logits, token_logits, p.logits.rows = B, "logits.rows: expected 4; got 2");
  INVALID(token_logits, token_logits, p.tokens.slots = 1, "tokens.slots: expected 2 or more; got 1");
  INVALID(token_logits, token_logits, p.logits.row_stride = 3, "logits.row_stride: expected 2; got 3");
  INVALID(mass_tiles, mass_tiles, p.law.space = SPECDEC_PROBS, "law.space: expected logits; got probabilities");
  INVALID(mass_tiles, mass_tiles, p.tiles.columns = 6, "tiles.columns: expected 3; got 6");
  INVALID(mass_tiles, mass_tiles, p.status.rows = 1, "status.rows: expected 4; got 1");
  INVALID(tile_laws, tile_laws, p.tiles.rows = 1, "tiles.rows: expected 2; got 1");
  INVALID(tile_laws, tile_laws, p.tiles.columns = p.tiles.row_stride = 4, "tiles.columns % 3: expected 0; got 1");
  INVALID(tile_laws, tile_laws, p.row_stats.columns = 3, "row_stats.columns: expected 2; got 3");
  INVALID(tile_laws, tile_laws, p.probs.columns = V - 1, "probs.columns: expected 50; got 49");
  INVALID(residual_race, residual_race, p.target_law.space = SPECDEC_PROBS,
          "target_law.space: expected logits; got probabilities");
  INVALID(residual_race, residual_race, p.target_law.rules = SPECDEC_FILTERED,
          "target_law.rules: expected no SPECDEC_FILTERED, since cuts replace filters; got it");
  INVALID(residual_race, residual_race, p.draft_law.space = SPECDEC_PROBS,
          "draft_law.space: expected logits; got probabilities");
  INVALID(residual_race, residual_race, p.draft_law.rules = SPECDEC_FILTERED,
          "draft_law.rules: expected no SPECDEC_FILTERED, since cuts replace filters; got it");
  INVALID(residual_race, residual_race, p.draft.vocab = V - 1, "draft.vocab: expected 50; got 49");
  INVALID(residual_race, residual_race, p.draft.vocab_start = 64, "draft.vocab_start: expected 0; got 64");
  INVALID(residual_race, residual_race, p.draft_row.size = 1, "draft_row.size: expected 2; got 1");
  INVALID(residual_race, residual_race, p.cuts.columns = 5, "cuts.columns: expected 6; got 5");
  INVALID(residual_race, residual_race, p.row_stats.rows = 1, "row_stats.rows: expected 2 or more; got 1");
  INVALID(residual_race, residual_race, p.row_stats.vocab = 3, "row_stats.vocab: expected 4; got 3");
  INVALID(residual_race, residual_race, p.row_stats.dtype = SPECDEC_FLOAT16, "row_stats.dtype: expected 0; got 2");
  INVALID(residual_race, residual_race, p.excluded.rows = 1, "excluded.rows: expected 2; got 1");
  INVALID(residual_race, residual_race, p.scores.rows = 1, "scores.rows: expected 2; got 1");
  INVALID(residual_sums, residual_sums, (p.draft.data = NULL, p.draft.requests = 0, p.draft.vocab = V - 1),
          "draft.vocab: expected 50; got 49");
  INVALID(residual_sums, residual_sums,
          (p.draft.data = NULL, p.draft.requests = 0, p.draft_row.data = NULL, p.draft_row.size = 0),
          "draft_row.size: expected 2; got 0");
  INVALID(residual_sums, residual_sums, p.target_law.space = SPECDEC_PROBS,
          "target_law.space: expected logits; got probabilities");
  INVALID(residual_sums, residual_sums, p.sums.columns = 1, "sums.columns: expected 2; got 1");
  INVALID(residual_sums, residual_sums, p.status.rows = 1, "status.rows: expected 2; got 1");
  INVALID(first_arrivals, first_arrivals, p.packed.columns = 5, "packed.columns: expected 6; got 5");
  INVALID(first_arrivals, first_arrivals, p.packed.rows = 0, "packed.rows: expected 1 or more; got 0");
  INVALID(first_arrivals, first_arrivals, p.packed.row_stride = 7, "packed.row_stride: expected 6; got 7");
  INVALID(first_arrivals, first_arrivals, p.empty.rows = 1, "empty.rows: expected 2; got 1");
  INVALID(walk_tables, tables, p.tokens.columns = 0, "tokens.columns: expected 1 or more; got 0");
  INVALID(walk_tables, packed_tables, p.cu_drafts.size = B, "cu_drafts.size: expected 3; got 2");
  INVALID(walk_tables, tree_tables, p.cu_drafts = each(cu_drafts, B + 1), "cu_drafts.size: expected 0; got 3");
  INVALID(walk_tables, tree_tables, p.parents.slots = 1, "parents.slots: expected 4 or more; got 1");
  INVALID(walk_tables, tables, p.draft_tokens.slots = 1, "draft_tokens.slots: expected 3 or more; got 1");
  INVALID(walk_tables, tables, p.vocab = 0, "vocab: expected 1 or more; got 0");
  INVALID(walk_tables, tables, p.vocab = 1LL << 31, "vocab: expected at most 2147483647; got 2147483648");
  INVALID(walk_tables, tables, (p.request_index.data = parents, p.request_index.size = 1, p.request_index.entries = 1),
          "request_index.size: expected 2; got 1");
  INVALID(walk_tables, tables, p.row_status.size = 1, "row_status.size: expected 8; got 1");
  INVALID(walk_tables, raced_tables, p.winners.slots = 1, "winners.slots: expected 8; got 1");
  INVALID(walk_tables, tables, p.tokens.row_stride = 1, "tokens.row_stride: expected 4 or more; got 1");
  INVALID(walk_tables, tables, (p.path = i32s(B, K + 1), p.path.columns = 1), "path.columns: expected 4; got 1");
  INVALID(walk_tables, tables, p.num_accepted.rows = 1, "num_accepted.rows: expected 2; got 1");
  INVALID(walk_tables, raced_tables, memset(&p.winners, 0, sizeof p.winners),
          "winners.data: expected memory; got NULL");
  INVALID(walk_tables, tables, p.p_of_drafts.size = 1, "p_of_drafts.size: expected 8; got 1");
  INVALID(walk_tables, tables, p.row_stats.size = 1, "row_stats.size: expected 16; got 1");
  INVALID(walk_tables, tables, p.slot.rows = 1, "slot.rows: expected 2; got 1");
  INVALID(walk_tables, tables, p.laws.columns = 3, "laws.columns: expected 4; got 3");
  INVALID(walk_tables, traversed_tables, p.memory.columns = 1, "memory.columns: expected 32; got 1");
  INVALID(walk_tables, tables, p.excluded.columns = 2, "excluded.columns: expected 1; got 2");
  INVALID(walk_tables, raced_tables, p.row.rows = 1, "row.rows: expected 0; got 1");
  INVALID(walk_tables, tree_tables, p.q_of_drafts.size = 1, "q_of_drafts.size: expected 8; got 1");
  INVALID(walk_tables, tree_tables, p.draft_row_status.size = 1, "draft_row_status.size: expected 8; got 1");
  INVALID(walk_tables, tree_tables, p.draft_row_indices = some_tokens(parents, 1, N),
          "draft_row_indices.slots: expected 8; got 4");
  INVALID(walk_tables, tree_tables, p.answers.slots = 1, "answers.slots: expected 8 or more; got 1");
  INVALID(walk_tables, tree_tables, p.requested_rows.columns = 1, "requested_rows.columns: expected 8; got 1");
  INVALID(walk_tables, tree_tables, p.requested_subtracted.columns = 1,
          "requested_subtracted.columns: expected 4; got 1");
  FINE(count_at_least, count_at_least, (void)p);
  FINE(token_logits, token_logits, (void)p);
  FINE(mass_tiles, mass_tiles, (void)p);
  FINE(tile_laws, tile_laws, (void)p);
  FINE(residual_race, residual_race, (void)p);
  FINE(residual_sums, residual_sums, (void)p);
  FINE(first_arrivals, first_arrivals, (void)p);
  FINE(walk_tables, tables, (void)p);
  FINE(walk_tables, tables,
       (p.q_of_drafts = values(B * K), p.draft_row_status = each(p.row_status.data, B * K),
        p.draft_row_stats = values(2 * B * K)));
  FINE(walk_tables, raced_tables, (void)p);
  FINE(walk_tables, tree_tables, (void)p);
  FINE(walk_tables, traversed_tables, (void)p);
  FINE(walk_tables, packed_tables, (void)p);
}

/* A mask of one word a request, where two are needed. */
#define EDITED(op, valid, change)                                                                       \
  INVALID(op, valid, (p.edits.frequency.value = 1.0f, p.edits.output_mask = narrow, change),            \
          "edits.output_mask.size: expected 2 or more; got 1")

static void edits(void) {
  static const int32_t slots[B] = {0};
  const specdec_lists one_index = {slots, 1, 1, B, 1, 1, false}, short_index = {slots, 1, 1, 1, 1, 1, false};
  const specdec_lists narrow = {slots, 1, 0, B, 1, 1, false};
  EDITED(verify_chain, ragged, (void)p);
  EDITED(verify_tree, tree, (void)p);
  EDITED(residual, residual, p.draft.vocab = 32);
  EDITED(residual_race, residual_race, (void)p);
  EDITED(cutoff, cutoff, (void)p);
  EDITED(logprobs, logprobs, (void)p);
  EDITED(count_at_least, count_at_least, (void)p);
  EDITED(mass_tiles, mass_tiles, (void)p);
  INVALID(token_logits, token_logits,
          (p.rows = some_rows(3), p.edits.frequency.value = 1.0f, p.edits.output_mask = short_index),
          "edits.output_mask.requests: expected 2 or more; got 1");
  INVALID(verify_chain, edited, (p.edits.prompt_mask = p.edits.output_mask, p.edits.prompt_mask.size = 1),
          "edits.prompt_mask.size: expected 2 or more; got 1");
  INVALID(verify_chain, edited, p.edits.allowed.size = 1, "edits.allowed.size: expected 2 or more; got 1");
  INVALID(verify_chain, edited, p.edits.allowed.rows = K, "edits.allowed.rows: expected 4 or more; got 3");
  INVALID(verify_chain, edited, p.edits.allowed.requests = 1, "edits.allowed.requests: expected 2 or more; got 1");
  INVALID(verify_chain, edited, p.edits.allowed.wide = true, "edits.allowed.wide: expected false; got true");
  INVALID(verify_chain, edited, p.edits.bias_values.size = 2, "edits.bias_values.size: expected 1; got 2");
  INVALID(verify_chain, edited, p.edits.bias_tokens.data = NULL, "edits.bias_tokens.data: expected memory; got NULL");
  INVALID(verify_chain, edited, p.edits.bias_spans.size = 3, "edits.bias_spans.size: expected 2; got 3");
  INVALID(verify_chain, edited, p.edits.bias_spans.requests = 1, "edits.bias_spans.requests: expected 2 or more; got 1");
  INVALID(verify_chain, edited, p.edits.by_row = 4, "edits.by_row: expected at most 3; got 4");
  INVALID(verify_chain, edited, p.edits.output_mask.data = NULL, "edits.output_mask.data: expected memory; got NULL");
  INVALID(verify_chain, edited, p.edits.output_counts.size = 49, "edits.output_counts.size: expected 50 or more; got 49");
  INVALID(verify_chain, edited, p.edits.output_counts.rows = -1, "edits.output_counts.rows: expected 0 or more; got -1");
  INVALID(verify_chain, edited, p.edits.seen_index = p.edits.bias_spans, "edits.seen_index.size: expected 1; got 2");
  INVALID(verify_chain, edited, p.edits.seen_index = short_index, "edits.seen_index.requests: expected 2 or more; got 1");
  INVALID(verify_chain, edited, (p.edits.seen_index = one_index, p.edits.output_counts.requests = 1),
          "edits.output_counts.requests: expected 2; got 1");
  INVALID(verify_chain, edited, (p.edits.allowed_index = one_index, p.edits.allowed.data = NULL),
          "edits.allowed.data: expected memory; got NULL");
  INVALID(verify_chain, edited, p.edits.allowed_index = one_index, "edits.allowed_index.rows: expected 4 or more; got 1");
  INVALID(verify_chain, edited, p.target_law.space = p.draft_law.space = SPECDEC_PROBS,
          "edits: expected none with probabilities, which are final; got some");
  INVALID(verify_chain, edited, p.edits.allowed.requests = -1, "edits.allowed.requests: expected 0 or more; got -1");
  INVALID(verify_chain, edited, p.edits.pending.size = -1, "edits.pending.size: expected 0 or more; got -1");
  INVALID(verify_chain, edited, p.edits.bias_tokens.size = p.edits.bias_values.size = -1,
          "edits.bias_tokens.size: expected 0 or more; got -1");
  INVALID(verify_chain, edited, p.edits.bias_values.data = NULL, "edits.bias_values.data: expected memory; got NULL");
  INVALID(verify_chain, edited, p.edits.bias_spans.data = NULL, "edits.bias_spans.data: expected memory; got NULL");
  INVALID(verify_chain, edited, p.edits.by_row = -1, "edits.by_row: expected 0 or more; got -1");
  INVALID(verify_chain, edited,
          (p.edits.seen_index = one_index, p.edits.output_counts.data = NULL, p.edits.output_mask.data = NULL),
          "edits.prompt_mask.data: expected memory; got NULL");
  INVALID(verify_chain, edited,
          (p.edits.seen_index = one_index, p.edits.prompt_mask = p.edits.output_mask,
           p.edits.prompt_mask.requests = 1),
          "edits.prompt_mask.requests: expected 2; got 1");
  INVALID(count_tokens, counting, p.tokens.requests = 1, "tokens.requests: expected 2 or more; got 1");
  INVALID(count_tokens, counting, p.mask.data = NULL, "mask.data: expected memory; got NULL");
  INVALID(count_tokens, counting, p.mask.columns = 1, "mask.columns: expected 2 or more; got 1");
  INVALID(count_tokens, counting, p.counts.row_stride = 1, "counts.row_stride: expected 50 or more; got 1");
  INVALID(count_tokens, counting, p.counts.rows = 1, "counts.rows: expected 2; got 1");
  INVALID(count_tokens, counting, p.status.rows = 3, "status.rows: expected 2; got 3");
  FINE(count_tokens, counting, (void)p);
}

/* All zeros, and no struct at all. */
#define NOTHING(op)                                                                                                \
  do {                                                                                                             \
    specdec_##op##_params p;                                                                                       \
    memset(&p, 0, sizeof p);                                                                                       \
    CALL(op, &p);                                                                                                  \
    expect(#op ": NULL", CALL(op, NULL), SPECDEC_INVALID_ARGUMENT, #op ": params: expected a struct; got NULL");   \
  } while (0)

#if defined(ON_GPU)

static void machine(void) {
  const specdec_race_params p = race();
  const specdec_tree_mask_params plain = mask();
  specdec_verify_chain_params small = chain();
  char said[100];
  size_t needed = 1;
  int error;
  uint64_t capture = 1;
  expect("a device", specdec_cuda_available(), SPECDEC_OK, "");
  expect("a capture", specdec_cuda_capture(NULL, &capture), SPECDEC_OK, "");
  if (capture != 0) expect("no capture", (int)capture, 0, "");
  expect("no workspace", specdec_cuda_race_sample(&p, NULL, 16, &needed, NULL), SPECDEC_INVALID_ARGUMENT,
         "race_sample: workspace: expected memory; got NULL");
  expect("askew", specdec_cuda_race_sample(&p, room + 8, 16, NULL, NULL), SPECDEC_INVALID_ARGUMENT,
         "race_sample: workspace: expected memory aligned to 16 bytes");
  expect("none needed", specdec_cuda_tree_mask(&plain, NULL, 0, &needed, NULL), SPECDEC_OK, "");
  if (needed != 0) expect("needed", (int)needed, 0, "");
  error = specdec_cuda_verify_chain(&small, room, 16, &needed, NULL);
  snprintf(said, sizeof said, "verify_chain: workspace: expected %zu bytes; got 16", needed);
  expect("too small", error, SPECDEC_WORKSPACE_TOO_SMALL, said);
  expect("too small", specdec_cuda_verify_chain(&small, room, 16, NULL, NULL), SPECDEC_WORKSPACE_TOO_SMALL, said);
  expect("enough", specdec_cuda_verify_chain(&small, room, needed, &needed, NULL), SPECDEC_OK, "");
}

#else

static void machine(void) {
  const specdec_race_params p = race();
  expect("no threads", specdec_cpu_race_sample(&p, 0), SPECDEC_INVALID_ARGUMENT,
         "race_sample: threads: expected 1 or more; got 0");
  if (specdec_cuda_available() == SPECDEC_OK) return;
  if (specdec_cuda_race_sample(&p, NULL, 0, NULL, NULL) == SPECDEC_OK) expect("no device", SPECDEC_OK, -1, "an error");
}

#endif

int main(void) {
  if (specdec_version() != SPECDEC_VERSION || *specdec_last_error()) return 255;
  NOTHING(verify_chain);
  NOTHING(verify_tree);
  NOTHING(race_sample);
  NOTHING(race_topk);
  NOTHING(residual);
  NOTHING(overlap);
  NOTHING(tree_mask);
  NOTHING(tree_positions);
  NOTHING(tree_parents);
  NOTHING(build_tree);
  NOTHING(verify_linked_tree);
  NOTHING(compact_kv);
  NOTHING(count_tokens);
  NOTHING(uniform);
  NOTHING(context_seeds);
  NOTHING(cutoff);
  NOTHING(logprobs);
  NOTHING(mask_logits);
  NOTHING(store_rows);
  NOTHING(count_at_least);
  NOTHING(token_logits);
  NOTHING(mass_tiles);
  NOTHING(tile_laws);
  NOTHING(residual_race);
  NOTHING(residual_sums);
  NOTHING(first_arrivals);
  NOTHING(walk_tables);
  chains();
  trees();
  rows_alone();
  parts();
  edits();
  machine();
  return mistakes;
}
