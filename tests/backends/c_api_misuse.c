/* Wrong calls of specdec.h's functions: each must return an error that names the mistake, and run nothing. With ON_GPU
 * the CUDA functions are called. Prints each call that did otherwise, and returns their number. */
#include <specdec.h>
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
static specdec_merge_paths_params merge_paths(void) {
  static int32_t each[2][B * N];
  specdec_merge_paths_params p;
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

static specdec_verify_links_params links(void) {
  static int32_t path[B * (D + 1)];
  const specdec_output_i32 paths = {path, D + 1, B, D + 1};
  specdec_verify_links_params p;
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

static specdec_coin_params coin(void) {
  specdec_coin_params p;
  memset(&p, 0, sizeof p);
  p.coins = f32(B, K);
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
  INVALID(verify_chain, chain, p.form = 16, "form: expected at most 7; got 16");
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
  FINE(verify_chain, chain, (void)p);
  FINE(verify_chain, ragged, (void)p);
  FINE(verify_chain, indexed, (void)p);
  FINE(verify_chain, chain, memset(&p.draft, 0, sizeof p.draft));
  FINE(verify_chain, chain, p.tokens.rows = p.num_accepted.rows = p.status.rows = 0);
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
  FINE(merge_paths, merge_paths, (void)p);
  INVALID(merge_paths, merge_paths, p.paths.slots = N, "draft_tokens.columns: expected 5; got 4");
  INVALID(merge_paths, merge_paths, p.leaves.data = NULL, "leaves.data: expected memory; got NULL");
  INVALID(merge_paths, merge_paths, p.paths.requests = 1, "paths.requests: expected 2 or more; got 1");
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
  INVALID(verify_links, links, p.draft_tokens.data = NULL, "draft_tokens.data: expected memory; got NULL");
  INVALID(verify_links, links, p.first_child.slots = 1, "first_child.slots: expected 4 or more; got 1");
  INVALID(verify_links, links, p.target.rows = 3, "target.rows: expected 4 or more; got 3");
  INVALID(verify_links, links, p.target_tokens = p.draft_tokens, "target: expected none beside target_tokens; got some");
  INVALID(verify_links, links, p.path.data = NULL, "path.data: expected memory; got NULL");
  INVALID(verify_links, links, p.form = 16, "form: expected at most 7; got 16");
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
  FINE(verify_tree, tree, (void)p);
  FINE(tree_mask, mask, (void)p);
  FINE(tree_positions, tree_positions, (void)p);
  FINE(tree_parents, tree_parents, (void)p);
  FINE(build_tree, build_tree, (void)p);
  FINE(verify_links, links, (void)p);
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
  INVALID(coin, coin, p.coins.data = NULL, "coins.data: expected memory; got NULL");
  INVALID(coin, coin, p.coins.row_stride = 1, "coins.row_stride: expected 3; got 1");
  INVALID(coin, coin, p.stream = -1, "stream: expected 0 or more; got -1");
  FINE(coin, coin, (void)p);
  FINE(race_sample, race, (void)p);
  FINE(race_topk, race, (void)p);
  FINE(residual, residual, (void)p);
  FINE(overlap, overlap, (void)p);
}

static void edits(void) {
  static const int32_t slots[B] = {0};
  const specdec_lists one_index = {slots, 1, 1, B, 1, 1, false}, short_index = {slots, 1, 1, 1, 1, 1, false};
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
  expect("none needed", specdec_cuda_race_sample(&p, NULL, 0, &needed, NULL), SPECDEC_OK, "");
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
  NOTHING(verify_links);
  NOTHING(compact_kv);
  NOTHING(count_tokens);
  NOTHING(coin);
  chains();
  trees();
  rows_alone();
  edits();
  machine();
  return mistakes;
}
