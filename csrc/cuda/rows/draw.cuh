// A draw from a row or a residual, without a list of elements: fast exponentials and logarithms of the device bound
// every token's score, and only a token that may be the best of its block is evaluated exactly. It is for few requests,
// where a block has a few thousand columns: code that runs once costs more than arithmetic. Scores are to base 2.
#pragma once

#include <cstdlib>
#include <cstring>

#include "../team/launch.cuh"
#include "edited_row.cuh"
#include "race.cuh"

namespace specdec::cuda {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

// ---- bounds ---------------------------------------------------------------------------------------------------------

// The largest distance between a token's score and the middle of its bounds: errors of two logarithms, of an arrival,
// and of the exact score itself, whose roundings grow with the logarithm of the weight.
__device__ __forceinline__ float score_error(float log2_weight) {
  return 6e-5f + 4e-7f * min(kLargest, magnitude(log2_weight));
}

// The relative error of p and q.
constexpr float kLawError = 6e-6f;

// -log(1 - u) of a word in units of 2^-32, to 4e-5 of itself; for words below 2^15 it is less exact. From 1/2 on u has
// 24 bits, as in truncated().
__device__ __forceinline__ float about_neg_log1p(uint32_t word) {
  const float u = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
  const float left = (static_cast<float>(~word | 0xffu) + 1.0f) * 0x1p-32f;
  return u < 0x1p-7f ? u + 0.5f * u * u : log2_approx(left) * -kLn2;
}

// The first arrival of a group.
__device__ __forceinline__ float about_first_arrival(const LaneNoise& words) {
  return words.a < 1u << 15 ? first_arrival(words.a, words.b) : about_neg_log1p(words.a) * 0x1p-6f;
}

__device__ __forceinline__ float about_probability(const LawWithStats& side, float raw) {
  if (side.law.space != SPECDEC_LOGITS) return Probs{}.probability(raw, {});
  return exp2_approx(log_probability(min(kLargest, side.law.key(raw)), side.lse) * kLog2E);
}

// Bounds of the logarithm of a token's weight; a NaN or -inf means that it has none. `q` is not yet multiplied.
template <class Support>
__device__ __forceinline__ Range log2_weight_bounds(const WeightsOf<Support>& w, float raw, float q) {
  const Law& law = w.target.stats.law;
  if (!w.residual) {
    const float log2_weight =
        law.space == SPECDEC_LOGITS ? min(kLargest, law.key(raw)) * kLog2E : log2_approx(Probs{}.probability(raw, {}));
    return {log2_weight, log2_weight};
  }
  const float p = about_probability(w.target.stats, raw), drafted = q * w.draft_prob;
  const float least = p * (1.0f - kLawError) - drafted * (1.0f + kLawError);
  const float most = p * (1.0f + kLawError) - drafted * (1.0f - kLawError);
  return {least > 1e-36f ? log2_approx(least) : -kInfinity, most > 0.0f ? log2_approx(most) : -kInfinity};
}

// An upper bound for tokens with elements up to `largest`; NaN if there is none.
template <class Support>
__device__ __forceinline__ float log2_weight_bound(const WeightsOf<Support>& w, float largest) {
  const Law& law = w.target.stats.law;
  if (law.space != SPECDEC_LOGITS) return largest != largest ? largest : log2_approx(Probs{}.probability(largest, {}));
  const float x = min(kLargest, law.key(largest));
  return (w.residual ? log_probability(x, w.target.stats.lse) : x) * kLog2E;
}

// ---- edits ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Shared<EditWords> words_of_lanes() {
  SPECDEC_SHARED(EditWords, words, kThreads);
  return words;
}

// Edits batches that come one after the other, if the row has edits. Words are looked up once for several batches, and
// wait in shared memory. `step` counts from the first batch, or from a later one.
template <int kCount>
__device__ __forceinline__ void edit_in_turn(const Row&, int32_t, int, Batch<Float32, kCount>*) {}
template <int kCount>
__device__ __forceinline__ void edit_in_turn(const EditedRow& row, int32_t first, int step,
                                             Batch<Float32, kCount>* batch) {
  constexpr int kSteps = 8 / kCount * kCount;
  if (!row.edited) return;
  const Shared<EditWords> words = words_of_lanes();
  if (step % kSteps == 0) words[threadIdx.x] = edit_words(row, first, kSteps);
  edit(row, words[threadIdx.x], step % kSteps, first, batch);
}

// ---- the draft's side -----------------------------------------------------------------------------------------------

// The draft's elements of a lane's four target columns, from the draft's vocabulary. Missing tokens have no weight.
template <class Support>
__device__ __forceinline__ uint4 mapped_four(const LawRowOf<Support>& draft, int32_t column) {
  int32_t draft_column = draft.columns().first_at_least(column);
  uint32_t raw[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = draft_column < draft.row.vocab && draft.map[draft_column] == column + i;
    raw[i] = there ? bits(element(draft.row, draft_column)) : Float32::kMinusInfinity;
    draft_column += there;
  }
  return {raw[0], raw[1], raw[2], raw[3]};
}

// The target's token of a greedy draft's argmax; else kNoToken.
template <class Support>
__device__ __forceinline__ int32_t certain_token(const LawRowOf<Support>& draft) {
  return draft.stats.law.greedy ? draft.columns().to_target({0.0f, draft.stats.argmax}).token : kNoToken;
}

// ---- the draw -------------------------------------------------------------------------------------------------------

// Flags of a row: it has a value that is impossible in a law; a draft's row of probabilities has weight.
constexpr unsigned kBadValue = 1, kDraftHasWeight = 2;

struct alignas(16) Ticket {  // of a row or request, in the workspace: zero before and after every kernel
  unsigned arrived, flags;
  WideKey best;
};

// Returns true in the last block to call. The caller resets `arrived`: done here, chain_race takes 9 registers more.
__device__ __forceinline__ bool is_last_block(Ticket* ticket, unsigned blocks) {
  SPECDEC_SHARED(unsigned, before, 1);
  __syncthreads();
  if (threadIdx.x == 0) before[0] = add_acquire_release(&ticket->arrived, 1u);
  __syncthreads();
  return before[0] == blocks - 1;
}

// The best candidate of all blocks, and the OR of their flags. A thread of the last block takes both off the ticket.
struct BlockBest {
  Candidate best;
  unsigned flags;
};
__device__ __forceinline__ BlockBest take_block_best(Ticket* ticket) {
  return {candidate_of_key(atomicExch(&ticket->best, WideKey{0})), atomicExch(&ticket->flags, 0u)};
}

__device__ __forceinline__ RowPartial partial_of(const BlockBest& best) {
  return {best.best, best.flags & kBadValue ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
}

// A lane's best token by its upper bound, with all that its exact score needs.
struct LaneCandidate {
  float upper = -kInfinity, second = -kInfinity;  // upper bounds
  float lower = -kInfinity;                       // a lower bound of the best one's score
  int32_t column = kNoToken;
  float raw, draft_raw;
  uint32_t later;  // the word of this token
  LaneNoise group;
};

// The exact score. `draft_raw` is the draft's element of this token.
template <class Support>
__device__ __forceinline__ float exact_score(const WeightsOf<Support>& w, const LaneCandidate& t, int32_t certain) {
  float log_weight;
  if constexpr (Support::kFiltered) {
    log_weight = w.log_weight(t.raw, t.column);
  } else if (!w.residual) {
    log_weight = t.column == w.excluded ? -kInfinity : w.target.stats.law.in_space([&](auto s) { return s.log_weight(t.raw); });
  } else {
    const float p = w.target.stats.probability(t.column, t.raw);
    const float q = w.draft.stats.law.greedy ? (t.column == certain ? 1.0f : 0.0f) : w.draft.stats.probability(0, t.draft_raw);
    log_weight = specdec::log_weight(residual_weight(p, mul(w.draft_prob, q)));
  }
  const float first = first_arrival(t.group.a, t.group.b);
  const bool is_first = t.column % kGroup == first_winner(t.group.b);
  return log_weight == -kInfinity ? log_weight
                                  : race_score(log_weight, is_first ? first : add(first, later_by(t.later)));
}

// Whether the draft's filters keep a token of the target.
__device__ __forceinline__ bool keeps_draft(const LawRow&, float, int32_t) { return true; }
__device__ __forceinline__ bool keeps_draft(const LawRowOf<Filtered>& draft, float raw, int32_t token) {
  return draft.support.keeps(raw, draft.map ? draft.columns().column(token) : token);
}

// Bounds the scores of a lane's four tokens.
template <class Support>
__device__ __forceinline__ void bound_four(const WeightsOf<Support>& w, const Noise& noise, int32_t certain,
                                           int32_t column, const uint4& values, const uint4& draft,
                                           const LaneNoise& group, float first, LaneCandidate* best) {
  const Words<uint32_t> late = noise_words(noise, static_cast<uint32_t>(w.target.row.vocab_start + column) >> 2, 1);
  const int winner = first_winner(group.b) - column % kGroup;
  bool changed = false;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const float raw = Float32::at(values, i), draft_raw = Float32::at(draft, i);
    const uint32_t word = i == 0 ? late.word[0] : i == 1 ? late.word[1] : i == 2 ? late.word[2] : late.word[3];
    float q = 0.0f;
    if (w.residual && certain == kNoToken && keeps_draft(w.draft, draft_raw, column + i))
      q = max(about_probability(w.draft.stats, draft_raw), 0.0f);
    if (certain == column + i) q = 1.0f;
    Range weight = log2_weight_bounds(w, raw, q);
    if (column + i == w.excluded || !w.target.support.keeps(raw, column + i)) weight = {-kInfinity, -kInfinity};
    const float arrives = log2_approx(first + (winner == i ? 0.0f : about_neg_log1p(word)));
    const float most = weight.high - arrives + score_error(weight.high);
    best->second = max(min(best->upper, most), best->second);
    if (most > best->upper) {  // a NaN is no candidate
      best->upper = most, best->lower = weight.low - arrives - score_error(weight.low);
      best->column = column + i, best->raw = raw, best->draft_raw = draft_raw, best->later = word;
      changed = true;
    }
  }
  if (changed) best->group = group;
}

// Whether the draw reports the draft row's status: other draft rows were looked through before.
template <class Support>
__device__ __forceinline__ bool reads_probs_of_draft(const WeightsOf<Support>& w) {
  return w.residual && w.draft.stats.law.space != SPECDEC_LOGITS && !w.draft.stats.law.greedy;
}

// The flags of a lane's four elements, `count` of which lie in the row.
__device__ __forceinline__ unsigned flags_of_four(const Law& law, const uint4& values, int32_t count) {
  unsigned flags = 0;
#pragma unroll 1
  for (int i = 0; i < 4 && i < count; ++i) {
    const float raw = Float32::at(values, i);
    if (!law.is_element(raw)) flags |= kBadValue;
    if (law.rank(raw) > -kInfinity) flags |= kDraftHasWeight;
  }
  return flags;
}

// Resets the block's best lower bound, an ordered word.
__device__ __forceinline__ void begin_draw(const Shared<unsigned>& block_bound) {
  if (threadIdx.x == 0) block_bound[0] = ordered(-kInfinity);
}

// Brings 2,048 columns of a row, or those before `end`, into the L2 cache: 64 a lane.
__device__ __forceinline__ void prefetch_columns(const Row& row, int32_t begin, int32_t end) {
  const int32_t column = begin + lane_id() * kGroup, half = row.dtype == SPECDEC_FLOAT32 ? kGroup / 2 : kGroup;
#pragma unroll 1
  for (int32_t at = column; at < column + kGroup && at < end && at < row.vocab; at += half)
    prefetch_line(address_of(row, at));
}

// Adds the lane's best token to the ticket, if it can win. Mostly one token of a block is left. A lane with two
// evaluates all of its tokens in [begin, stop).
template <class Chunk, class Support>
__device__ __forceinline__ void offer_best(const WeightsOf<Support>& w, const Noise& visible, const LaneCandidate& best,
                                           int32_t certain, int32_t begin, int32_t stop,
                                           const Shared<unsigned>& block_bound, Ticket* ticket) {
  const auto& row = w.target.row;
  const Law& law = w.target.stats.law;
  const float needed = law.greedy ? -kInfinity : from_ordered(read_atomic(block_bound));
  if (best.column == kNoToken || !(best.upper >= needed)) return;
  Candidate mine = {law.greedy ? best.upper : exact_score(w, best, certain), best.column};
  if (!law.greedy && best.second >= needed) {
#pragma unroll 1
    for (int32_t at = begin; at < stop; at += Chunk::kPerStep)
#pragma unroll 1
      for (int i = 0; i < 4 && Chunk::token(at, 0) + i < row.vocab; ++i) {
        const int32_t column = Chunk::token(at, 0) + i;
        const uint32_t token = static_cast<uint32_t>(row.vocab_start + column);
        const float log_weight = w.log_weight(element(row, column), column);
        if (log_weight > -kInfinity)
          mine = best_of(Candidate{race_score(log_weight, arrival(opaque(visible), token)), column}, mine);
      }
  }
  if (mine.score > -kInfinity) atomicMax(&ticket->best, key_of_candidate(mine));
}

// Draws over the tiles [tile, end) of 1,024 columns, and adds the block's best candidate and flags to the ticket. A
// barrier after begin_draw comes before. At temperature 0 the most probable token is the best. A lane loads `kSteps`
// fours together.
template <int kSteps, class Support>
__device__ __forceinline__ void draw_tiles(const WeightsOf<Support>& w, const Noise& visible, int tile, int end,
                                           const Shared<unsigned>& block_bound, Ticket* ticket) {
  using Chunk = Batch<Float32, kSteps>;
  const auto& row = w.target.row;
  const Row& draft_row = stored_row(w.draft.row);  // a draft's row has no edits
  const Law& law = w.target.stats.law;
  const bool probs = law.space != SPECDEC_LOGITS, draft_probs = reads_probs_of_draft(w);
  const int32_t certain = w.residual ? certain_token(w.draft) : kNoToken;
  const bool reads_draft = w.residual && !w.draft.stats.law.greedy && (!w.draft.map || draft_probs);
  const bool maps = w.residual && !w.draft.stats.law.greedy && w.draft.map;
  // A warp takes as many columns as there are tiles, side by side.
  const int32_t begin = tile * kMassTile + warp_id() * (end - tile) * Chunk::kPerStep;
  const int32_t stop = begin + (end - tile) * Chunk::kPerStep;
  // A lane computes the words of one group, so a warp has those of 2,048 columns at once.
  constexpr int kHeld = kGroup * 32 / Chunk::kTokens * kSteps;  // steps
  LaneNoise words = {};
  float first = 0.0f;
  LaneCandidate best;
  unsigned flags = 0;
#pragma unroll 1
  for (int32_t at = begin; at < stop; at += Chunk::kTokens) {
    const int steps = stop - at < Chunk::kTokens ? (stop - at) / Chunk::kPerStep : kSteps;
    Fetched<kSteps> fetched, fetched_draft;
    fetched.fetch(stored_row(row), at, steps);
    if (reads_draft) fetched_draft.fetch(draft_row, at, steps);
    const Noise noise = opaque(visible);
    const int held = (at - begin) / Chunk::kPerStep % kHeld;
    if (held == 0) {
      words = lane_noise(noise, row, at);
      first = about_first_arrival(words);
      if (at + Chunk::kTokens < stop) {
        prefetch_columns(stored_row(row), at, stop);
        if (reads_draft) prefetch_columns(draft_row, at, stop);
      }
    }
    Chunk batch = fetched.floats(stored_row(row), at, steps);
    edit_in_turn(row, at, held, &batch);
    Chunk draft = {};
    if (reads_draft) draft = fetched_draft.floats(draft_row, at, steps);
    const float to_beat = from_ordered(read_atomic(block_bound)), log2_first = log2_approx(first);
#pragma unroll 1
    for (int u = 0; u < steps; ++u) {
      const int32_t column = Chunk::token(at, u);
      const uint4 values = batch.at(u);
      const float largest = Float32::largest(values);
      if (!(largest < kInfinity)) flags |= kBadValue;
      if (probs) flags |= flags_of_four(law, values, row.vocab - column) & kBadValue;
      uint4 draft_values = kNoElements;
      if (reads_draft) draft_values = draft.at(u);
      if (draft_probs) flags |= flags_of_four(w.draft.stats.law, draft_values, draft_row.vocab - column);
      if (law.greedy) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float rank = law.rank(Float32::at(values, i));
          if (rank > best.upper) best.upper = rank, best.column = column + i;
        }
        continue;
      }
      const LaneGroup group = {words, first};
      const LaneGroup vector_group = group.of_vector<Float32>(held + u);
      const float bound = log2_weight_bound(w, largest);
      const float log2_earliest = __shfl_sync(kWarp, log2_first, 2 * (held + u) + lane_id() / 16);
      const bool hopeless = bound == -kInfinity || bound + score_error(bound) - log2_earliest < to_beat ||
                            !(largest != largest || w.target.support.reaches(largest));
      if (__all_sync(kWarp, hopeless)) continue;
      if (maps) draft_values = column < row.vocab ? mapped_four(w.draft, column) : kNoElements;
      bound_four(w, noise, certain, column, values, draft_values, vector_group.words, vector_group.needed, &best);
    }
    if (law.greedy) continue;
    const unsigned score = __reduce_max_sync(kWarp, ordered(best.lower));
    if (lane_id() == 0) atomicMax(&block_bound[0], score);
  }
  if (__any_sync(kWarp, flags != 0)) {
    flags = __reduce_or_sync(kWarp, flags);
    if (lane_id() == 0) atomicOr(&ticket->flags, flags);
  }
  __syncthreads();
  offer_best<Chunk>(w, visible, best, certain, begin, stop, block_bound, ticket);
}

// ---- parts of rows --------------------------------------------------------------------------------------------------

struct Tiles {
  int begin, end;
};

// How rows are cut into parts, a block each.
struct Parts {
  Quotient count;  // parts of a row
  int tiles;       // of a row
  int tiles_a_part;
  __device__ __forceinline__ Tiles tiles_of(int part) const {
    const int begin = part * tiles_a_part, end = begin + tiles_a_part;
    return {begin, end < tiles ? end : tiles};
  }
};

// Cuts a row into at most `most` parts.
inline Parts parts_of_rows(int32_t vocab, int64_t most) {
  const int tiles = (vocab + kMassTile - 1) / kMassTile;
  const int wanted = static_cast<int>(most < 1 ? 1 : most < tiles ? most : tiles);
  const int tiles_a_part = (tiles + wanted - 1) / wanted;
  return {quotient((tiles + tiles_a_part - 1) / tiles_a_part), tiles, tiles_a_part};
}

constexpr int64_t kFewRows = 16;
constexpr int64_t kTicketSize = sizeof(Ticket) / sizeof(unsigned);

// Whether to use the kernel for few rows. SPECDEC_CUDA_FEW_ROWS=0 forbids it, 1 forces it. Each call reads the
// variable, so that both ways can be timed in turns.
inline bool use_few_rows_kernel(bool few) {
  const char* const requested = std::getenv("SPECDEC_CUDA_FEW_ROWS");
  return requested && !std::strcmp(requested, "0") ? false : requested && !std::strcmp(requested, "1") ? true : few;
}

}  // namespace specdec::cuda
