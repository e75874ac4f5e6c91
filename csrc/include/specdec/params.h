// Plain parameter structs, one per op, shared by every C++ backend. Strides are in elements. Pointers are to host or
// device memory, whichever the backend runs on. Plain types: the same in every copy of the CPU kernels.
//
// A struct's `fields`, or its `arguments` where it has them, hand to f the op's arguments in the order of its declaration
// in specdec_kernels/ops. Calls from Python are read by the types of these fields (csrc/bindings.h). So an argument is
// named once here and once there.
#pragma once

#include "config.h"

namespace specdec {

enum class DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
enum class Space : int32_t { kLogits = 0, kProbs = 1 };
enum class Method : int32_t { kRejection = 0, kRace = 1, kTraversal = 2 };  // of a chain: "block"

// One number for all (data null), or one for each place (outer, inner): a request and its slot, or a row of two leading
// dimensions. A stride of 0 means that a dimension shares its number. Integers in memory are int32 or int64.
template <class T>
struct Per {
  const void* data;
  int64_t outer_stride, inner_stride;
  T value;
  bool wide;  // 64 bits in memory
  SPECDEC_HD T at(int64_t outer, int64_t inner = 0) const {
    return data ? load(outer * outer_stride + inner * inner_stride) : value;
  }
  SPECDEC_HD T load(int64_t offset) const {
    if (sizeof(T) == 8 && !wide) return static_cast<T>(static_cast<const int32_t*>(data)[offset]);
    return static_cast<const T*>(data)[offset];
  }
};

// How a raw logit becomes a weight, as the caller said it. specdec/law.h decodes it.
struct LawParams {
  Space space;
  Per<float> temperature;
  Per<int64_t> top_k;  // this one and the next three: specdec/filter.h
  Per<float> top_p, min_p;
  int64_t rules;
  template <class F>
  void fields(F&& f) { f(space, temperature, top_k, top_p, min_p, rules); }
};

// Which random numbers (specdec/noise.h).
struct NoiseParams {
  Per<int64_t> seed, position, nonce;
  template <class F>
  void fields(F&& f) { f(seed, position, nonce); }
};

// int32 or int64 token ids or parents, [requests, slots], or one [slots] for all requests (request_stride 0).
struct Tokens {
  const void* data;
  int64_t request_stride, slot_stride;
  int64_t requests;  // 1 if all requests share them, or if they are packed one after another
  int32_t slots;
  bool wide;
  SPECDEC_HD int64_t at(int64_t offset) const {
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  }
};

// Rows of logits or probabilities, [requests, rows, vocab] with unit stride along the vocabulary. Ragged chains have
// [rows, vocab]: request_stride 0, the rows of all requests one after another.
struct Rows {
  const void* data;  // null where there is no draft
  int64_t request_stride, row_stride;
  int64_t requests, rows;
  int32_t vocab;
  DType dtype;
  int32_t first_token = 0;  // column i is token first_token + i: races over a part of a vocabulary
  SPECDEC_HD int64_t offset(int64_t outer, int64_t inner) const { return outer * request_stride + inner * row_stride; }
  // A place counts the rows of all requests.
  SPECDEC_HD bool has(int64_t place) const { return place >= 0 && place < requests * rows; }
  SPECDEC_HD int64_t offset_of(int64_t place) const { return offset(place / rows, place % rows); }
};

// A contiguous vector, null where it was not given.
template <class T>
struct Vector {
  T* data;
  int64_t size;
};

// Lists of `size` int32 (int64 if wide), [requests, rows, size] with unit stride along a list, like Rows. Null where
// they were not given.
struct Lists {
  const void* data;
  int64_t request_stride, row_stride;
  int64_t requests, rows, size;
  bool wide;
  SPECDEC_HD int64_t offset(int64_t outer, int64_t inner) const { return outer * request_stride + inner * row_stride; }
  SPECDEC_HD const int32_t* at(int64_t outer, int64_t inner) const {
    return static_cast<const int32_t*>(data) + offset(outer, inner);
  }
  SPECDEC_HD int64_t load(int64_t offset) const {
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  }
};

// What becomes of a target row's logits before its law sees them. Lists are those of an entry (RequestIndex) and, in
// ops on rows, of a row; elsewhere of row 0. Where `by_row` has their bit, allowed and bias_spans are those of a target
// row, and have its place. A span is a begin and an end in bias_tokens and bias_values. With an index, what stands at a
// place is a number: which of the lists (of row 0) is the place's. seen_index is that of prompt_mask, output_mask and
// output_counts; -1: the place has none.
struct EditParams {
  Lists allowed;
  Vector<const int32_t> bias_tokens;
  Vector<const float> bias_values;
  Lists bias_spans;
  Per<float> repetition, frequency, presence;
  Lists prompt_mask, output_mask, output_counts, pending;
  int64_t by_row;
  Lists seen_index, allowed_index;
  template <class F>
  void fields(F&& f) {
    f(allowed, bias_tokens, bias_values, bias_spans, repetition, frequency, presence, prompt_mask, output_mask,
      output_counts, pending, by_row, seen_index, allowed_index);
  }
  // Whether anything may change. A repetition of zero that is not in memory was not given.
  SPECDEC_HD bool on() const { return allowed.data || bias_tokens.size > 0 || penalises(); }
  SPECDEC_HD bool penalises() const {
    return repetition.data || (repetition.value != 0.0f && repetition.value != 1.0f) || frequency.data ||
           frequency.value != 0.0f || presence.data || presence.value != 0.0f;
  }
};
constexpr int64_t kAllowedByRow = 1, kBiasByRow = 2;

// For each batch row, the index of the numbers and draft rows that it uses; -1: idle, nothing is read. Null: each batch
// row uses those of its own index.
struct RequestIndex {
  const void* data;
  int64_t size;
  int64_t entries;  // how many numbers and draft rows there are
  bool wide;        // int64
  SPECDEC_HD int64_t at(int64_t b) const {
    return wide ? static_cast<const int64_t*>(data)[b] : static_cast<const int32_t*>(data)[b];
  }
};

// An output [rows, columns] (a vector has one column): unit stride along the columns. Null where nobody wants it.
template <class T>
struct Output {
  T* data;
  int64_t row_stride;
  int64_t rows, columns;
};

// Tokens that an op writes, int64 or int32, [rows, columns] of any strides; a column stride of 0 is 1. With an index
// (Form) all requests share one row.
struct TokenOutput {
  void* data;
  int64_t row_stride;
  int64_t rows, columns;
  int64_t column_stride;
  bool narrow;  // int32
  SPECDEC_HD int64_t offset(int64_t row, int64_t column) const {
    return row * row_stride + column * (column_stride == 0 ? 1 : column_stride);
  }
};

// How a verdict is written, if not as it is by default.
constexpr int64_t kUnpadded = 1;  // what is behind the last token stays as it is
constexpr int64_t kEmitted = 2;   // num_accepted counts the last token, too
constexpr int64_t kAdded = 4;     // num_accepted is added to what is there
constexpr int64_t kZeros = 8;     // tokens behind the last are 0, not -1; with an index those of nodes off the path

struct ChainParams {
  Tokens draft_tokens;
  Rows target, draft;
  Vector<const int32_t> cu_drafts;  // [batch + 1], null when padded
  bool by_rows;                     // cu_drafts counts target rows, and draft tokens stand in the rows that they enter
  Vector<const int32_t> draft_map;  // [draft.vocab]: the target's token of each of the draft's, rising
  RequestIndex request_index;       // [batch]
  Method method;
  LawParams target_law, draft_law;
  EditParams edits;  // of the target's rows
  Per<float> draft_prob, epsilon;
  NoiseParams noise;
  Tokens input_positions;  // like the target's rows, may be null: where the token that enters a row stands. Then the
                           // noise's position is one more than that of a request's first row
  Tokens input_nonces;     // [1, batch], may be null: the noise's nonces, of requests and not of entries
  TokenOutput tokens;      // [batch, max_drafts + 1]; flat with an index
  Output<int32_t> num_accepted, status;
  Output<int32_t> path;          // [batch, max_drafts + 1], wanted with an index: the places of the path
  Output<int32_t> num_rejected;  // [batch], may be null
  Output<int32_t> num_passed;    // [batch], may be null: drafts that pass their own test (specdec/chain.h)
  Tokens index;                  // [batch, max_drafts + 1], may be null: the place of the token after each node
  Tokens bonus;                  // [1, batch], may be null: the token after a request's last draft. Then the target has
                                 // no row for it
  int64_t form;                  // a sum of the bits above
  template <class F>
  void fields(F&& f) {
    f(draft_tokens, target, draft, cu_drafts, by_rows, draft_map, request_index, method, target_law, draft_law,
      edits, draft_prob, epsilon, noise, input_positions, input_nonces, tokens, num_accepted, status, path,
      num_rejected, num_passed, index, bonus, form);
  }
  SPECDEC_HD int64_t batch() const { return index.data ? path.rows : tokens.rows; }
  SPECDEC_HD int32_t places() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); }
  SPECDEC_HD int32_t max_drafts() const { return places() - 1; }
  // Of all requests together, where they are packed.
  SPECDEC_HD int64_t packed_drafts() const { return draft_tokens.slots - (by_rows ? batch() : 0); }
};

struct TreeParams {
  Tokens draft_tokens, parents;  // [batch, nodes]; a stride of 0 along the batch is one tree for all
  Rows target, draft;            // row i of a request: the law of the token after node i
  Vector<const int32_t> draft_map;
  RequestIndex request_index;
  Method method;
  bool replacement;
  LawParams target_law, draft_law;
  EditParams edits;  // of the target's rows
  NoiseParams noise;
  Tokens input_positions;  // [batch, nodes], may be null: where a node's token stands. Then the noise's position is one
                           // more than that of the root
  TokenOutput tokens;      // [batch, max_depth + 1]; deeper nodes count as absent. Flat with an index
  Output<int32_t> path;    // [batch, max_depth + 1]; with an index of places
  Output<int32_t> num_accepted, status;
  Tokens index;  // [batch, nodes], may be null: the place of the token after each node
  int64_t form;
  template <class F>
  void fields(F&& f) {
    f(draft_tokens, parents, target, draft, draft_map, request_index, method, replacement, target_law, draft_law,
      edits, noise, input_positions, tokens, path, num_accepted, status, index, form);
  }
  SPECDEC_HD int64_t batch() const { return index.data ? path.rows : tokens.rows; }
  SPECDEC_HD int32_t places() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); }
  SPECDEC_HD int32_t nodes() const { return static_cast<int32_t>(target.rows); }
  SPECDEC_HD int32_t max_depth() const { return places() - 1; }
};

// race_sample (one column of tokens) and race_topk (k), over [requests, rows] rows.
struct RaceParams {
  Rows rows;
  Vector<const int32_t> draft_map;
  RequestIndex request_index;
  LawParams law;
  EditParams edits;
  NoiseParams noise;
  Output<int64_t> tokens;  // [requests * rows, k]
  Output<int32_t> status;  // [requests * rows], may be null
  Output<float> scores;    // [requests * rows, k]; null: the rows are whole (specdec/partial.h)
  template <class F>
  void fields(F&& f) { f(rows, draft_map, request_index, law, edits, noise, tokens, status, scores); }
  // A tensor does not say where in the vocabulary it begins, so a call from Python has that apart.
  template <class F>
  void arguments(F&& f) {
    f(rows, rows.first_token, draft_map, request_index, law, edits, noise, tokens, status, scores);
  }
  SPECDEC_HD int64_t count() const { return rows.requests * rows.rows; }
  SPECDEC_HD int32_t k() const { return static_cast<int32_t>(tokens.columns); }
};

// count_at_least: how many tokens of [requests, rows] rows, which may be parts of rows, are at least as large as a number.
struct CountAtLeastParams {
  Rows rows;
  RequestIndex request_index;
  LawParams law;
  EditParams edits;
  Vector<const float> least;  // [requests * rows]: of x (specdec/law.h); none is counted where it is -inf or NaN
  Output<int32_t> counts;     // [requests * rows]
  template <class F>
  void fields(F&& f) { f(rows, request_index, law, edits, least, counts); }
  SPECDEC_HD int64_t count() const { return rows.requests * rows.rows; }
};

// token_logits: the logits of some tokens in rows, which may be parts of rows; 0 where a part has not the token.
struct TokenLogitsParams {
  Rows rows;
  Tokens places;         // [n]: of the row of each, among all; not given: the rows in order
  Tokens tokens;         // [n, m], of the whole vocabulary
  EditParams edits;      // of the part's columns
  Output<float> logits;  // [n, m]
  template <class F>
  void fields(F&& f) { f(rows, places, tokens, edits, logits); }
  template <class F>
  void arguments(F&& f) { f(rows, rows.first_token, places, tokens, edits, logits); }
  SPECDEC_HD int64_t batch() const { return logits.rows; }
  SPECDEC_HD int64_t place(int64_t index) const {
    return places.data ? places.at(index * places.slot_stride) : index;
  }
  SPECDEC_HD int64_t token(int64_t index, int64_t i) const {
    return tokens.at(index * tokens.request_stride + i * tokens.slot_stride);
  }
};

// mass_tiles: what the tiles of [requests, rows] rows weigh, which may be parts of rows (specdec/mass.h).
struct MassTilesParams {
  Rows rows;
  RequestIndex request_index;
  LawParams law;
  EditParams edits;
  Output<int32_t> tiles;   // [requests * rows, 3 tiles]: maxima as bits, then low and high words of units
  Output<int32_t> status;  // [requests * rows]
  template <class F>
  void fields(F&& f) { f(rows, request_index, law, edits, tiles, status); }
  SPECDEC_HD int64_t count() const { return rows.requests * rows.rows; }
};

// tile_laws: from all tiles of a row its log-sum-exp, and the probabilities of some raw values.
struct TileLawsParams {
  Output<const int32_t> tiles;  // [n, 3 tiles], contiguous
  Rows raw;                     // one request of n rows
  Per<float> temperature;       // (0, row)
  Output<float> known;          // [n, 2]: specdec/softmax.h
  Output<float> probs;          // [n, raw.vocab]
  template <class F>
  void fields(F&& f) { f(tiles, raw, temperature, known, probs); }
  SPECDEC_HD int64_t batch() const { return raw.rows; }
  SPECDEC_HD int32_t tiles_a_row() const { return static_cast<int32_t>(tiles.columns / 3); }
};

// residual_race: the first arrival in a part of one row of each request, over (p - taken q)^+.
struct ResidualRaceParams {
  Rows target, draft;                  // without draft: over p
  Vector<const int32_t> row;           // [batch]: among all rows of the target; -1: none, the request is idle
  Vector<const int32_t> draft_row;     // likewise, of the draft; -1: over p
  Output<const int32_t> excluded;      // [batch, n]: tokens that have no weight in p; -1: none
  Output<const int32_t> cuts;          // [batch, 6]: what filters keep of both rows (PartCut); null: all
  Rows known;                          // float32 [batch, 4]: the LogSumExp of both rows
  LawParams target_law, draft_law;     // of (request, 0), without filters
  EditParams edits;                    // of the target's rows
  Per<float> taken;
  NoiseParams noise;                   // of the row's own position
  Output<int64_t> tokens;              // [batch]
  Output<int32_t> status;              // [batch]
  Output<float> scores;                // [batch]
  template <class F>
  void fields(F&& f) {
    f(target, draft, row, draft_row, excluded, cuts, known, target_law, draft_law, edits, taken, noise, tokens,
      status, scores);
  }
  template <class F>
  void arguments(F&& f) {
    f(target, target.first_token, draft, row, draft_row, excluded, cuts, known, target_law, draft_law, edits, taken,
      noise, tokens, status, scores);
  }
  SPECDEC_HD int64_t batch() const { return row.size; }
};

// residual_sums: what (p - taken q)^+ and q weigh in parts of pairs of rows, in units of 2^-42 (specdec/residual.h).
struct ResidualSumsParams {
  Rows target, draft;
  Vector<const int32_t> row, draft_row;  // [pairs]: among all rows of either; -1: none, the pair is idle
  Output<const int32_t> cuts;            // [pairs, 6]: what filters keep of both rows (PartCut); null: all
  Rows known;                            // float32 [pairs, 4]: the LogSumExp of both rows
  LawParams target_law, draft_law;       // of (pair, 0), without filters
  EditParams edits;                      // of the target's rows
  Per<float> taken;
  Output<int64_t> sums;    // [pairs, 2]
  Output<int32_t> status;  // [pairs]
  template <class F>
  void fields(F&& f) {
    f(target, draft, row, draft_row, cuts, known, target_law, draft_law, edits, taken, sums, status);
  }
  SPECDEC_HD int64_t pairs() const { return row.size; }
};

// mask_logits: rows without what cuts drop. `out` may be `rows`.
struct MaskLogitsParams {
  Rows rows;
  Per<float> temperature;      // of (request, row): that of the cuts; 1 where they are of the logits as they came
  Vector<const float> value;   // [requests * rows]: what cutoff says
  Tokens last;                 // likewise, int64
  Rows out;                    // like rows; written
  template <class F>
  void fields(F&& f) { f(rows, temperature, value, last, out); }
  SPECDEC_HD int64_t count() const { return rows.requests * rows.rows; }
};

// store_rows: rows put where an engine keeps them.
struct StoreRowsParams {
  Rows rows;            // one row a request
  Tokens slots;         // [requests]; -1, like any that is out of range: the row is not written
  Per<int64_t> column;  // of (request, 0); likewise
  Rows cache;           // [slots, columns, vocab or more] of the same type; written
  template <class F>
  void fields(F&& f) { f(rows, slots, column, cache); }
  SPECDEC_HD int64_t count() const { return rows.requests; }
  // Where in `cache` a row goes, in elements; -1: nowhere.
  SPECDEC_HD int64_t place(int64_t index) const {
    const int64_t slot = slots.at(index * slots.slot_stride), place = column.at(index);
    const bool inside = slot >= 0 && slot < cache.requests && place >= 0 && place < cache.rows;
    return inside ? cache.offset(slot, place) : -1;
  }
};

// first_arrivals: the winners of rows from what their parts found.
struct FirstArrivalsParams {
  Output<const int32_t> packed;  // [parts, 3 n], contiguous: of each row a token, a score as bits, a status
  Output<int64_t> tokens;        // [n]
  Output<int32_t> status;        // [n]
  Output<int32_t> empty;         // [n]: 1 where no part has a candidate
  template <class F>
  void fields(F&& f) { f(packed, tokens, status, empty); }
};

// chain_ends: what ends each chain of which a walk accepted some drafts (specdec/chain_ends.h).
struct ChainEndsParams {
  Tokens draft_tokens;              // [batch, max_drafts], or packed
  Vector<const int32_t> cu_drafts;  // [batch + 1], null when padded
  int64_t vocab;
  RequestIndex request_index;  // [batch]
  Vector<const int32_t> num_accepted, walked;  // [batch]: of the walk, and its status
  Vector<const int32_t> met;                   // of each target row, all requests together: its status
  Vector<const int32_t> draft_met;             // of each draft's row; null: no draft laws
  Vector<const bool> read;          // [batch, max_drafts + 1], may be null: whose rows decided; those up to the last
  Tokens winners;                   // of each target row, may be null: the argmax, of requests of temperature 0
  Tokens draft_places;              // of each draft, may be null: its row among all draft rows
  Vector<const float> known;        // 2 of each target row: specdec/softmax.h
  Vector<const float> draft_known;  // 2 of each draft row
  Per<float> temperature, draft_prob;
  Output<int64_t> tokens;  // [batch, max_drafts + 1]
  Output<int32_t> status, row, draft_row, tried;  // [batch]
  Output<float> taken;   // [batch]
  Output<int64_t> slot;  // [batch]
  Output<float> laws;    // [batch, 4]
  template <class F>
  void fields(F&& f) {
    f(draft_tokens, cu_drafts, vocab, request_index, num_accepted, walked, met, draft_met, read, winners,
      draft_places, known, draft_known, temperature, draft_prob, tokens, status, row, draft_row, tried, taken, slot,
      laws);
  }
  SPECDEC_HD int64_t batch() const { return tokens.rows; }
  SPECDEC_HD int32_t max_drafts() const { return static_cast<int32_t>(tokens.columns) - 1; }
};

struct ResidualParams {
  Rows target, draft;
  Vector<const int32_t> draft_map;
  RequestIndex request_index;
  LawParams target_law, draft_law;
  EditParams edits;  // of the target's rows
  Per<float> draft_prob, epsilon;
  Output<float> probs;     // [requests * rows, V]
  Output<float> mass;      // [requests * rows]
  Output<int32_t> status;  // likewise, may be null
  template <class F>
  void fields(F&& f) {
    f(target, draft, draft_map, request_index, target_law, draft_law, edits, draft_prob, epsilon, probs, mass, status);
  }
  SPECDEC_HD int64_t count() const { return target.requests * target.rows; }
};

struct OverlapParams {
  Rows target, draft;
  Vector<const int32_t> draft_map;
  RequestIndex request_index;
  LawParams target_law, draft_law;
  EditParams edits;  // of the target's rows
  Output<float> accept, tv, kl, harmonic;  // [requests * rows]
  Output<int32_t> status;                  // likewise, may be null
  template <class F>
  void fields(F&& f) {
    f(target, draft, draft_map, request_index, target_law, draft_law, edits, accept, tv, kl, harmonic, status);
  }
  SPECDEC_HD int64_t count() const { return target.requests * target.rows; }
};

// cutoff: what filters keep of [requests, rows] rows (specdec/filter.h).
struct CutoffParams {
  Rows rows;
  RequestIndex request_index;
  LawParams law;
  EditParams edits;
  Output<float> value;     // [requests * rows]
  Output<int64_t> last;    // likewise
  Output<int32_t> kept;    // how many
  Output<int64_t> mass;
  Output<float> max;
  Output<int32_t> status;  // may be null
  template <class F>
  void fields(F&& f) { f(rows, request_index, law, edits, value, last, kept, mass, max, status); }
  SPECDEC_HD int64_t count() const { return rows.requests * rows.rows; }
};

// logprobs: of one token of each of [requests, rows] rows, and the largest `top`.
struct LogprobsParams {
  Rows rows;
  Tokens tokens;  // [requests, rows]
  RequestIndex request_index;
  LawParams law;
  EditParams edits;
  Output<float> logprob;       // [requests * rows]
  Output<int32_t> rank;        // likewise
  Output<int64_t> top_tokens;  // [requests * rows, top]
  Output<float> top_logprobs;  // likewise
  Output<int32_t> status;      // [requests * rows], may be null
  template <class F>
  void fields(F&& f) { f(rows, tokens, request_index, law, edits, logprob, rank, top_tokens, top_logprobs, status); }
  SPECDEC_HD int64_t count() const { return rows.requests * rows.rows; }
  SPECDEC_HD int32_t top() const { return static_cast<int32_t>(top_tokens.columns); }
};

enum class MaskLayout : int32_t { kBool = 0, kAdditive32 = 1, kAdditive16 = 2, kBits = 3 };

// [batch, nodes, columns], contiguous; kBits: int32 [batch, nodes, ceil(columns / 32)].
struct Mask {
  void* data;
  int64_t batch;
  int32_t nodes;
  MaskLayout layout;
  uint32_t minus_infinity;  // additive layouts: the bits of -inf in their own type
};

// tree_mask: row i of a request says which cache slots node i attends to. Slots [0, prefix_len) hold the committed
// prefix, slot prefix_len + j holds node j.
struct MaskParams {
  Tokens parents;
  Per<int64_t> prefix_len;
  int64_t columns;  // slots covered
  Mask mask;
  Output<int32_t> status;  // [batch]
  template <class F>
  void fields(F&& f) { f(parents, prefix_len, columns, mask, status); }
};

struct PositionsParams {
  Tokens parents;
  Per<int64_t> prefix_len;
  Output<int64_t> positions;  // [batch, nodes]
  Output<int32_t> status;     // [batch]
  template <class F>
  void fields(F&& f) { f(parents, prefix_len, positions, status); }
};

// tree_parents: trees by each node's first child and next sibling (specdec/links.h).
struct LinksParams {
  Tokens first_child, next_sibling;  // [batch, nodes]
  Vector<const bool> tree_valid;     // [batch]; null: all are
  Output<int32_t> parents, ranks;    // [batch, nodes]
  Output<int32_t> status;            // [batch]
  template <class F>
  void fields(F&& f) { f(first_child, next_sibling, tree_valid, parents, ranks, status); }
};

// What build_tree's mask covers: a prefix and the nodes, the nodes, the nodes as bits.
enum class TreeMask : int32_t { kFull = 0, kNodes = 1, kBits = 2 };

// build_tree: trees of candidates that were selected by their numbers (specdec/build.h).
struct BuildParams {
  Tokens parent_list;       // [batch, groups]: the candidate that a group of them follows
  Tokens selected;          // [batch, nodes - 1]: the candidates that are nodes 1, 2, ...
  Per<int64_t> prefix_len;  // of a request
  int64_t topk;             // candidates of a group
  TreeMask layout;
  Output<uint8_t> mask;                                         // [bytes]
  Output<int64_t> positions, index, first_child, next_sibling;  // [batch, nodes]
  Output<int32_t> status;                                       // [batch]
  template <class F>
  void fields(F&& f) {
    f(parent_list, selected, prefix_len, topk, layout, mask, positions, index, first_child, next_sibling, status);
  }
  SPECDEC_HD int32_t nodes() const { return static_cast<int32_t>(index.columns); }
  // What is written of a node's row. A row of bits is one word.
  SPECDEC_HD int32_t row_bytes() const {
    if (layout != TreeMask::kBits) return nodes();
    return nodes() > 16 ? 4 : nodes() > 8 ? 2 : 1;
  }
};

// verify_links: a walk through trees by their links, decided by what is given (specdec/link_walk.h).
struct LinkedParams {
  Tokens draft_tokens, first_child, next_sibling;  // [batch, nodes]
  Vector<const bool> tree_valid;                   // [batch]; null: all are
  Rows target;                                     // probabilities, or none beside target_tokens
  Tokens target_tokens;                            // [batch, nodes], may be null: the target's own
  Per<float> coins;                                // (request, node); without data those of the noise
  Per<float> threshold_single, threshold_total;
  NoiseParams noise;     // of the token after the root
  TokenOutput tokens;    // [batch, max_depth + 1]; deeper nodes count as absent. Flat with an index
  Output<int32_t> path;  // [batch, max_depth + 1]; with an index of places
  Output<int32_t> num_accepted, status;
  Tokens index;  // [batch, nodes], may be null: the place of the token after each node
  int64_t form;
  template <class F>
  void fields(F&& f) {
    f(draft_tokens, first_child, next_sibling, tree_valid, target, target_tokens, coins, threshold_single,
      threshold_total, noise, tokens, path, num_accepted, status, index, form);
  }
  SPECDEC_HD int64_t batch() const { return index.data ? path.rows : tokens.rows; }
  SPECDEC_HD int32_t places() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); }
};

// One tensor [batch, heads, slots, size] of a cache, or [pages, heads, slots of a page, size]. Its elements are only
// moved, so strides are in bytes here.
struct CacheLayer {
  char* data;
  int64_t batch_stride, head_stride, slot_stride;
  int32_t heads, slots, entry_bytes, batch;
};

struct CompactParams {
  Vector<const CacheLayer> layers;  // in host memory
  Output<const int32_t> path;       // [batch, max_depth + 1]
  Per<int64_t> prefix_len;
  Output<const int32_t> block_table;  // [batch, pages of a request]; may be null
  Output<int32_t> status;             // [batch]
  template <class F>
  void fields(F&& f) { f(layers, path, prefix_len, block_table, status); }
};

// The record of a request's tokens: a bit of each that was seen, how often it was (specdec/count.h).
struct CountParams {
  Tokens tokens;           // [batch, slots]
  Per<int64_t> num;        // how many of them
  Output<int32_t> mask;    // [batch, words], any row stride
  Output<int32_t> counts;  // [batch, vocab], any row stride; may be null
  Output<int32_t> status;  // [batch]
  template <class F>
  void fields(F&& f) { f(tokens, num, mask, counts, status); }
  SPECDEC_HD int64_t vocab() const { return counts.data ? counts.columns : 32 * mask.columns; }
};

struct CoinParams {
  NoiseParams noise;
  Per<int64_t> index;
  int64_t stream;
  Output<float> coins;  // [outer, inner]
  template <class F>
  void fields(F&& f) { f(noise, index, stream, coins); }
};

}  // namespace specdec
