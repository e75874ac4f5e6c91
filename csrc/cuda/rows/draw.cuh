// A draw from a row, or from what is left of one, without a list: every token's score is bounded with the device's own
// exponentials and logarithms, and only a token that may be the best of its block is evaluated exactly. For few requests,
// where a block has a few thousand columns: code that runs once costs more than arithmetic. Scores are to base 2 here.
#pragma once

#include <cstdlib>
#include <cstring>

#include "../team/launch.cuh"
#include "edited_row.cuh"
#include "race.cuh"

namespace specdec::cuda {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

// ---- bounds ---------------------------------------------------------------------------------------------------------

// What a score of a token may differ from its bound's middle: by the errors of two logarithms, of an arrival, and of the
// exact score itself, whose roundings grow with the logarithm of the weight.
__device__ __forceinline__ float score_error(float log2_weight) {
  return 6e-5f + 4e-7f * min(kLargest, magnitude(log2_weight));
}

// What p and q may differ from the exact ones, as a share of themselves.
constexpr float kLawError = 6e-6f;

// -log(1 - u) of a word in units of 2^-32, to 4e-5 of itself; of words below 2^15 it is less exact for a group. From 1/2
// on u has 24 bits, as in truncated().
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

// Of the logarithm of a token's weight: a NaN or -inf says that it has none. `q` is not yet multiplied.
template <class Kept>
__device__ __forceinline__ Range log2_weight_bounds(const WeightsOf<Kept>& w, float raw, float q) {
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

// No token with an element up to this has a larger logarithm of its weight; NaN if there is no such bound.
template <class Kept>
__device__ __forceinline__ float log2_weight_bound(const WeightsOf<Kept>& w, float largest) {
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

// LogitEdits batches that come one after the other, if the row has edits: words are looked up once for several of them,
// and wait in shared memory. `step` is counted from the first batch, or from a later one.
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

// The draft's elements of a lane's four columns of the target, in a vocabulary of its own. What it lacks has no weight.
template <class Kept>
__device__ __forceinline__ uint4 mapped_four(const LawRowOf<Kept>& draft, int32_t column) {
  int32_t own = draft.columns().first_at_least(column);
  uint32_t raw[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = own < draft.row.vocab && draft.map[own] == column + i;
    raw[i] = there ? bits(element(draft.row, own)) : Float32::kMinusInfinity;
    own += there;
  }
  return {raw[0], raw[1], raw[2], raw[3]};
}

// The target's token of the draft's argmax, if the draft is greedy; else kNoToken.
template <class Kept>
__device__ __forceinline__ int32_t certain_token(const LawRowOf<Kept>& draft) {
  return draft.stats.law.greedy ? draft.columns().to_target({0.0f, draft.stats.argmax}).token : kNoToken;
}

// ---- the draw -------------------------------------------------------------------------------------------------------

// What a block met in the rows: values that are impossible in a law; and of the draft's, if it is of probabilities, an
// element that has weight.
constexpr unsigned kBadValue = 1, kDraftHasWeight = 2;

struct alignas(16) Meeting {  // of blocks, in the workspace: zero before and after every kernel
  unsigned came, met;
  WideKey best;
};

// Whether this block is the last to come, of so many. It sees what the others did before. All threads call.
__device__ __forceinline__ bool comes_last(Meeting* meeting, unsigned blocks) {
  SPECDEC_SHARED(unsigned, before, 1);
  __syncthreads();
  if (threadIdx.x == 0) before[0] = add_acquire_release(&meeting->came, 1u);
  __syncthreads();
  return before[0] == blocks - 1;
}

// By one thread of the last block: what was found, and what blocks met in the rows. Nothing is left of it.
struct Found {
  Candidate best;
  unsigned met;
};
__device__ __forceinline__ Found taken_from(Meeting* meeting) {
  return {candidate_of_key(atomicExch(&meeting->best, WideKey{0})), atomicExch(&meeting->met, 0u)};
}

__device__ __forceinline__ RowPartial partial_of(const Found& found) {
  return {found.best, found.met & kBadValue ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
}

// What a lane knows of the tokens that it looked through: the best by its upper bound, and all that its exact score takes.
struct Likely {
  float highest = -kInfinity, second = -kInfinity;  // upper bounds
  float sure = -kInfinity;                          // a score that the best one has at least
  int32_t column = kNoToken;
  float raw, draft_raw;
  uint32_t later;  // the token's own word
  LaneNoise group;
};

// The exact score. `draft_raw` is the draft's element of this token.
template <class Kept>
__device__ __forceinline__ float exact_score(const WeightsOf<Kept>& w, const Likely& t, int32_t certain) {
  float log_weight;
  if constexpr (Kept::kFiltered) {
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
  return draft.kept.keeps(raw, draft.map ? draft.columns().column(token) : token);
}

// Bounds the scores of a lane's four tokens.
template <class Kept>
__device__ __forceinline__ void bound_four(const WeightsOf<Kept>& w, const Noise& noise, int32_t certain, int32_t column,
                                           const uint4& values, const uint4& draft, const LaneNoise& group,
                                           float first, Likely* best) {
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
    if (column + i == w.excluded || !w.target.kept.keeps(raw, column + i)) weight = {-kInfinity, -kInfinity};
    const float arrives = log2_approx(first + (winner == i ? 0.0f : about_neg_log1p(word)));
    const float most = weight.high - arrives + score_error(weight.high);
    best->second = max(min(best->highest, most), best->second);
    if (most > best->highest) {  // a NaN is nobody
      best->highest = most, best->sure = weight.low - arrives - score_error(weight.low);
      best->column = column + i, best->raw = raw, best->draft_raw = draft_raw, best->later = word;
      changed = true;
    }
  }
  if (changed) best->group = group;
}

// Whether a draw has to say what is wrong with the draft's row: of one that was looked through before it is known.
template <class Kept>
__device__ __forceinline__ bool reads_probs_of_draft(const WeightsOf<Kept>& w) {
  return w.residual && w.draft.stats.law.space != SPECDEC_LOGITS && !w.draft.stats.law.greedy;
}

// What is met in a lane's four elements of a row, `count` of them inside of it.
__device__ __forceinline__ unsigned met_in_four(const Law& law, const uint4& values, int32_t count) {
  unsigned met = 0;
#pragma unroll 1
  for (int i = 0; i < 4 && i < count; ++i) {
    const float raw = Float32::at(values, i);
    if (!law.is_element(raw)) met |= kBadValue;
    if (law.rank(raw) > -kInfinity) met |= kDraftHasWeight;
  }
  return met;
}

// Where the scores of a block's tokens meet, as ordered words.
__device__ __forceinline__ void begin_draw(const Shared<unsigned>& sure) {
  if (threadIdx.x == 0) sure[0] = ordered(-kInfinity);
}

// Brings 2,048 columns of a row, or those before `end`, into the L2 cache: 64 a lane.
__device__ __forceinline__ void prefetch_columns(const Row& row, int32_t begin, int32_t end) {
  const int32_t column = begin + lane_id() * kGroup, half = row.dtype == SPECDEC_FLOAT32 ? kGroup / 2 : kGroup;
#pragma unroll 1
  for (int32_t at = column; at < column + kGroup && at < end && at < row.vocab; at += half)
    prefetch_line(address_of(row, at));
}

// The block draws over the tiles [tile, end) of 1,024 columns, and brings what it finds to the meeting. Behind
// begin_draw and a barrier. At temperature 0 it is the most probable token that is found. A lane loads `kSteps` fours
// together.
template <int kSteps, class Kept>
__device__ __forceinline__ void draw_tiles(const WeightsOf<Kept>& w, const Noise& visible, int tile, int end,
                                           const Shared<unsigned>& sure, Meeting* meeting) {
  using Own = Batch<Float32, kSteps>;
  const auto& row = w.target.row;
  const Row& draft_row = as_it_came(w.draft.row);  // a draft's row has no edits
  const Law& law = w.target.stats.law;
  const bool probs = law.space != SPECDEC_LOGITS, draft_probs = reads_probs_of_draft(w);
  const int32_t certain = w.residual ? certain_token(w.draft) : kNoToken;
  const bool reads_draft = w.residual && !w.draft.stats.law.greedy && (!w.draft.map || draft_probs);
  const bool maps = w.residual && !w.draft.stats.law.greedy && w.draft.map;
  // A warp takes as many columns as there are tiles, all of them side by side.
  const int32_t begin = tile * kMassTile + warp_id() * (end - tile) * Own::kPerStep;
  const int32_t stop = begin + (end - tile) * Own::kPerStep;
  // A lane makes the words of a group, so a warp has those of 2,048 columns together.
  constexpr int kHeld = kGroup * 32 / Own::kTokens * kSteps;  // steps
  LaneNoise words = {};
  float first = 0.0f;
  Likely best;
  unsigned met = 0;
#pragma unroll 1
  for (int32_t at = begin; at < stop; at += Own::kTokens) {
    const int steps = stop - at < Own::kTokens ? (stop - at) / Own::kPerStep : kSteps;
    Fetched<kSteps> fetched, fetched_draft;
    fetched.fetch(as_it_came(row), at, steps);
    if (reads_draft) fetched_draft.fetch(draft_row, at, steps);
    const Noise noise = opaque(visible);
    const int held = (at - begin) / Own::kPerStep % kHeld;
    if (held == 0) {
      words = lane_noise(noise, row, at);
      first = about_first_arrival(words);
      if (at + Own::kTokens < stop) {
        prefetch_columns(as_it_came(row), at, stop);
        if (reads_draft) prefetch_columns(draft_row, at, stop);
      }
    }
    Own batch = fetched.floats(as_it_came(row), at, steps);
    edit_in_turn(row, at, held, &batch);
    Own draft = {};
    if (reads_draft) draft = fetched_draft.floats(draft_row, at, steps);
    const float to_beat = from_ordered(read_atomic(sure)), log2_first = log2_approx(first);
#pragma unroll 1
    for (int u = 0; u < steps; ++u) {
      const int32_t column = Own::token(at, u);
      const uint4 values = batch.at(u);
      const float largest = Float32::largest(values);
      if (!(largest < kInfinity)) met |= kBadValue;
      if (probs) met |= met_in_four(law, values, row.vocab - column) & kBadValue;
      uint4 draft_values = kNoElements;
      if (reads_draft) draft_values = draft.at(u);
      if (draft_probs) met |= met_in_four(w.draft.stats.law, draft_values, draft_row.vocab - column);
      if (law.greedy) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float rank = law.rank(Float32::at(values, i));
          if (rank > best.highest) best.highest = rank, best.column = column + i;
        }
        continue;
      }
      const LaneGroup group = {words, first};
      const LaneGroup own = group.of_vector<Float32>(held + u);
      const float bound = log2_weight_bound(w, largest);
      const float log2_earliest = __shfl_sync(kWarp, log2_first, 2 * (held + u) + lane_id() / 16);
      const bool hopeless = bound == -kInfinity || bound + score_error(bound) - log2_earliest < to_beat ||
                            !(largest != largest || w.target.kept.reaches(largest));
      if (__all_sync(kWarp, hopeless)) continue;
      if (maps) draft_values = column < row.vocab ? mapped_four(w.draft, column) : kNoElements;
      bound_four(w, noise, certain, column, values, draft_values, own.words, own.needed, &best);
    }
    if (law.greedy) continue;
    const unsigned score = __reduce_max_sync(kWarp, ordered(best.sure));
    if (lane_id() == 0) atomicMax(&sure[0], score);
  }
  if (__any_sync(kWarp, met != 0)) {
    met = __reduce_or_sync(kWarp, met);
    if (lane_id() == 0) atomicOr(&meeting->met, met);
  }
  __syncthreads();
  // Mostly one token of a block is left. Where two of a lane are, it looks at all of its own.
  const float needed = law.greedy ? -kInfinity : from_ordered(read_atomic(sure));
  if (best.column == kNoToken || !(best.highest >= needed)) return;
  Candidate mine = {law.greedy ? best.highest : exact_score(w, best, certain), best.column};
  if (!law.greedy && best.second >= needed) {
#pragma unroll 1
    for (int32_t at = begin; at < stop; at += Own::kPerStep)
#pragma unroll 1
      for (int i = 0; i < 4 && Own::token(at, 0) + i < row.vocab; ++i) {
        const int32_t column = Own::token(at, 0) + i;
        const uint32_t token = static_cast<uint32_t>(row.vocab_start + column);
        const float log_weight = w.log_weight(element(row, column), column);
        if (log_weight > -kInfinity)
          mine = best_of(Candidate{race_score(log_weight, arrival(opaque(visible), token)), column}, mine);
      }
  }
  if (mine.score > -kInfinity) atomicMax(&meeting->best, key_of_candidate(mine));
}

// ---- parts of rows --------------------------------------------------------------------------------------------------

struct Tiles {
  int begin, end;
};

// How rows are cut into parts, a block each.
struct Parts {
  Quotient count;  // of a row
  int tiles;       // of a row
  int tiles_a_part;
  __device__ __forceinline__ Tiles tiles_of(int part) const {
    const int begin = part * tiles_a_part, end = begin + tiles_a_part;
    return {begin, end < tiles ? end : tiles};
  }
};

// Up to `share` parts of a row.
inline Parts parts_of_rows(int32_t vocab, int64_t share) {
  const int tiles = (vocab + kMassTile - 1) / kMassTile;
  const int wanted = static_cast<int>(share < 1 ? 1 : share < tiles ? share : tiles);
  const int tiles_a_part = (tiles + wanted - 1) / wanted;
  return {quotient((tiles + tiles_a_part - 1) / tiles_a_part), tiles, tiles_a_part};
}

constexpr int64_t kStraightRows = 16;
constexpr int64_t kTicketsAMeeting = sizeof(Meeting) / sizeof(unsigned);

// Whether a call that can goes straight. SPECDEC_CUDA_STRAIGHT=0 sends none, 1 all that can. It is looked at in each
// call, so that both ways can be measured in turns.
inline bool straight_if(bool few) {
  const char* const asked = std::getenv("SPECDEC_CUDA_STRAIGHT");
  return asked && !std::strcmp(asked, "0") ? false : asked && !std::strcmp(asked, "1") ? true : few;
}

}  // namespace specdec::cuda
