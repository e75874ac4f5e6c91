// The race over a part of a row, and the argmax of a part: one pass, 16 bytes a load. A warp holds a chunk of up to
// 2,048 tokens at once (1,024 in float32). Each lane owns the noise of one group. Most chunks are dismissed by one
// integer compare a lane, most vectors of the others by a compare each. The tokens that are left are evaluated exactly
// (specdec/race.h), so the winner does not depend on how the row was cut.
#pragma once

#include "../team/block_reduce.cuh"
#include "weights.cuh"

namespace specdec {
namespace cuda {

// The part of a row that this block takes: it is block `rank` of `size`. The warps of all blocks take chunks in turn.
struct Part {
  int rank, size;
};

// Vectors a lane takes at once: eight, or fewer if eight would leave warps without work.
template <class T>
__device__ __forceinline__ int steps_a_chunk(int32_t vocab, int warps) {
  const int32_t steps = (vocab + Batch<T>::kPerStep - 1) / Batch<T>::kPerStep;
  const int share = (steps + warps - 1) / warps;
  return share < 1 ? 1 : share > kVectors ? kVectors : share;
}

// Calls start(first column, steps, any), then f(batch, first column, steps) for each of this warp's chunks.
template <class T, class R, class Start, class F>
__device__ __forceinline__ void over_chunks(const R& row, Part part, Start&& start, F&& f) {
  const int warps = part.size * warps_in_block();
  const int steps = steps_a_chunk<T>(row.vocab, warps);
  const int64_t chunk = static_cast<int64_t>(steps) * Batch<T>::kPerStep;
  int64_t first = (part.rank * warps_in_block() + warp_id()) * chunk - row.skipped();
  start(static_cast<int32_t>(first), steps, first < row.vocab);
#pragma unroll 1
  for (; first < row.vocab; first += warps * chunk) {
    Batch<T> batch;
    batch.load(row, static_cast<int32_t>(first), steps);
    f(batch, static_cast<int32_t>(first), steps);
  }
}

// over_chunks where a warp is as slow as its loads: f gets reduce(batch), what it needs of a chunk, in few registers.
// So the next chunk is on its way before f looks at this one, and the first chunk before start().
template <class T, class R, class Start, class Reduce, class F>
__device__ __forceinline__ void stream_chunks(const R& row, Part part, Start&& start, Reduce&& reduce, F&& f) {
  const int warps = part.size * warps_in_block();
  const int steps = steps_a_chunk<T>(row.vocab, warps);
  const int64_t chunk = static_cast<int64_t>(steps) * Batch<T>::kPerStep, stride = warps * chunk;
  const int64_t own = (part.rank * warps_in_block() + warp_id()) * chunk - row.skipped();
  // What is loaded under a condition begins as zero. Else, in a kernel that calls this in a loop, the compiler keeps its
  // registers from the start of that loop on, for each type of elements.
  Batch<T> batch = {};
#pragma unroll 1
  for (int64_t first = own - stride;; first += stride) {
    const bool starts = first < own, more = first + stride < row.vocab;
    decltype(reduce(batch)) found = {};
    if (!starts) found = reduce(batch);
    if (more) batch.load(row, static_cast<int32_t>(first + stride), steps);
    if (starts) start(static_cast<int32_t>(own), steps, more);
    else f(found, static_cast<int32_t>(first), steps);
    if (!more) return;
  }
}

// Which of the lane's vectors have an element with a sign, as bits, where a law has no negative values.
template <class T>
__device__ __forceinline__ unsigned signs_of(const Law& law, const Batch<T>& batch) {
  unsigned signs = 0;
  if (law.is_signed()) return signs;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) signs |= static_cast<unsigned>(T::any_sign(batch.vector[u])) << u;
  return signs;
}

// Is one of the lane's values impossible in a law (NaN, +inf, a negative probability)? `largest` is their maximum, or
// NaN; `signs` is signs_of the chunk.
template <class T, class R>
__device__ __forceinline__ bool bad_elements(const R& row, const Law& law, unsigned signs, float largest,
                                             int32_t first, int steps) {
  if (!(largest < kInfinity)) return true;
  if (law.is_signed()) return false;
  bool negative = false;
  signs &= (1u << steps) - 1u;         // the other steps are -inf
  for (; signs; signs &= signs - 1) {  // rare: -0, a negative value, or the -inf outside of the row
    const int step = __ffs(static_cast<int>(signs)) - 1;
    const int32_t column = Batch<T>::token(first, step);
    const uint4 values = Batch<T>::load_again(row, column);  // to hold fewer registers
    for (int i = 0; i < T::kPerVector; ++i)
      negative |= column + i >= 0 && column + i < row.vocab && T::at(values, i) < 0.0f;
  }
  return negative;
}

template <class T, class R>
__device__ __forceinline__ bool bad_elements(const R& row, const Law& law, const Batch<T>& batch, float largest,
                                             int32_t first, int steps) {
  return bad_elements<T>(row, law, signs_of(law, batch), largest, first, steps);
}

// What a race needs of a lane's chunk: the largest element of each vector (NaN if one is), and the vectors with signs.
struct Largest {
  float of[kVectors];
  unsigned signs;
};

template <class T>
__device__ __forceinline__ Largest largest_of(const Law& law, const Batch<T>& batch) {
  Largest found;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) found.of[u] = T::largest(batch.vector[u]);
  found.signs = signs_of(law, batch);
  return found;
}

// Noise that is opaque, so that the compiler does not move work on it out of a loop.
__device__ __forceinline__ Noise opaque(const Noise& n) {
  return {{opaque(n.key.low), opaque(n.key.high)}, opaque(n.position), opaque(n.nonce), n.stream};
}

// The noise of the lane's group in a chunk that begins with column `first`.
struct LaneNoise {
  uint32_t a, b;
};

template <class R>
__device__ __forceinline__ LaneNoise lane_noise(const Noise& visible, const R& row, int32_t first) {
  const Noise noise = opaque(visible);
  const uint32_t group = static_cast<uint32_t>((row.vocab_start + first) / kGroup + lane_id());
  const Words<uint32_t> w = noise_words(noise, group >> 1);
  return group & 1 ? LaneNoise{w.word[1], w.word[3]} : LaneNoise{w.word[0], w.word[2]};
}

// A first guess at the best score: the token of the lane's group that arrives first.
template <class Kept>
__device__ __forceinline__ void offer_first_arrival(const WeightsOf<Kept>& weights, int32_t first, int groups,
                                                    const LaneNoise& words, Candidate* mine) {
  const auto& row = weights.target.row;
  const int32_t column = first + lane_id() * kGroup + first_winner(words.b);
  if (lane_id() >= groups || column < 0 || column >= row.vocab) return;
  const float log_weight = weights.log_weight(element(row, column), column, -kInfinity);
  if (log_weight > -kInfinity) *mine = {race_score(log_weight, first_arrival(words.a, words.b)), column};
}

// Evaluates those tokens of a lane's vector that could still win. The vector begins with `column`.
template <class T, class Kept>
__device__ __forceinline__ void open_vector(const WeightsOf<Kept>& weights, const Noise& visible, const uint4& values,
                                            int32_t column, float to_beat, Candidate* mine) {
  const auto& row = weights.target.row;
  const Noise noise = opaque(visible);
  const Group group = group_at(noise, static_cast<uint32_t>(row.vocab_start + column) / kGroup);
#pragma unroll 1
  for (int i = 0; i < T::kPerVector; ++i, ++column) {
    if (column < 0 || column >= row.vocab) continue;
    const float log_weight =
        weights.log_weight(T::at(values, i), column, needed_log_weight(max(to_beat, mine->score), group.first));
    if (log_weight == -kInfinity) continue;
    const uint32_t token = static_cast<uint32_t>(row.vocab_start + column);
    const Candidate c = {race_score(log_weight, arrival(opaque(noise), group, token)), column};
    if (better(c, *mine)) *mine = c;
  }
}

// Could a token of log weight `bound` win against `to_beat` in a group with the word `a`? largest_winning_word answers
// the same question, but its result is for one bound. Here each vector has its own, so this is cheaper. It is looser by
// kWordLogError.
__device__ __forceinline__ bool may_win(float bound, uint32_t a, float to_beat) {
  const float needed = to_beat + (log2_approx(static_cast<float>(a)) - 38.0f) * 0.69314718f;
  return bound > -kInfinity && !(bound < needed - kWordLogError - slack(to_beat, needed));
}

// Which of the lane's vectors could hold a token that beats `to_beat`, as bits. All lanes of the warp call.
template <class T, class Kept>
__device__ __forceinline__ unsigned vectors_to_open(const Largest& largest, const WeightsOf<Kept>& weights,
                                                    int32_t first, int steps, const LaneNoise& words, float to_beat,
                                                    bool* bad) {
  float top = -kInfinity;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) top = max_nan(top, largest.of[u]);
  *bad |= bad_elements<T>(weights.target.row, weights.target.stats.law, largest.signs, top, first, steps);
  const float bound = top == top ? weights.log_bound(top) : kLargest;  // with a NaN every token is evaluated
  const uint32_t least = __reduce_min_sync(kWarp, lane_id() < steps * Batch<T>::kGroupsAStep ? words.a : 0xffffffffu);
  const bool open_tile = bound > -kInfinity && least <= largest_winning_word(bound, to_beat);
  if (!__any_sync(kWarp, open_tile)) return 0;
  unsigned open = 0;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const uint32_t a = __shfl_sync(kWarp, words.a, u * Batch<T>::kGroupsAStep + lane_id() * T::kPerVector / kGroup);
    const float here = largest.of[u] == largest.of[u] ? weights.log_bound(largest.of[u]) : kLargest;
    if (may_win(here, a, to_beat)) open |= 1u << u;
  }
  return open;
}

template <class T, class Kept>
__device__ __forceinline__ unsigned vectors_to_open(const Batch<T>& batch, const WeightsOf<Kept>& weights,
                                                    int32_t first, int steps, const LaneNoise& words, float to_beat,
                                                    bool* bad) {
  return vectors_to_open<T>(largest_of(weights.target.stats.law, batch), weights, first, steps, words, to_beat, bad);
}

// The race of one chunk. `best` is the block's best score so far, shared by its warps. `again(step)` returns a vector
// of the batch for the second time. race_part reads it from the cache, because eight vectors would take too many
// registers until then. An epilogue has its logits in registers alone and returns batch.at(step).
template <class T, class Kept, class Again>
__device__ __forceinline__ void race_chunk(const Largest& largest, const WeightsOf<Kept>& weights, const Noise& noise,
                                           int32_t first, int steps, const Shared<unsigned>& best, Candidate* mine,
                                           bool* bad, Again&& again) {
  const float to_beat = from_ordered(read_atomic(best));
  unsigned open = vectors_to_open<T>(largest, weights, first, steps, lane_noise(noise, weights.target.row, first),
                                     to_beat, bad);
  if (!__any_sync(kWarp, open != 0)) return;
  const float before = mine->score;
#pragma unroll 1
  for (; open; open &= open - 1) {
    const int step = __ffs(static_cast<int>(open)) - 1;
    open_vector<T>(weights, noise, again(step), Batch<T>::token(first, step), to_beat, mine);
  }
  if (__any_sync(kWarp, mine->score > before)) {
    const unsigned mine_ordered = __reduce_max_sync(kWarp, ordered(mine->score));
    if (lane_id() == 0) atomicMax(&best[0], mine_ordered);
  }
}

template <class T, class Kept, class Again>
__device__ __forceinline__ void race_chunk(const Batch<T>& batch, const WeightsOf<Kept>& weights, const Noise& noise,
                                           int32_t first, int steps, const Shared<unsigned>& best, Candidate* mine,
                                           bool* bad, Again&& again) {
  race_chunk<T>(largest_of(weights.target.stats.law, batch), weights, noise, first, steps, best, mine, bad, again);
}

// The winner of this block's part of a row under `weights`, as a column. Every thread gets it. `kAhead`: chunks are
// loaded ahead (stream_chunks), for which kernels that walk have no registers left.
template <bool kAhead = false, class Kept>
__device__ __forceinline__ RowPartial race_part(const WeightsOf<Kept>& weights, const Noise& noise, Part part) {
  SPECDEC_SHARED(unsigned, best, 1);
  if (threadIdx.x == 0) best[0] = ordered(-kInfinity);
  __syncthreads();
  Candidate mine = kNobody;
  bool bad = false;
  with_type(weights.target.row, [&](auto type) {
    using T = decltype(type);
    const auto& row = weights.target.row;
    const auto guess = [&](int32_t first, int steps, bool any) {
      if (any) {
        if constexpr (!kAhead) prefetch<T>(row, first, steps);  // it arrives while the first guess is made
        offer_first_arrival(weights, first, steps * Batch<T>::kGroupsAStep, lane_noise(noise, row, first), &mine);
        const unsigned score = __reduce_max_sync(kWarp, ordered(mine.score));
        if (lane_id() == 0) atomicMax(&best[0], score);
      }
      __syncthreads();
    };
    const auto reduce = [&](const Batch<T>& batch) { return largest_of(weights.target.stats.law, batch); };
    const auto look = [&](const Largest& largest, int32_t first, int steps) {
      race_chunk<T>(largest, weights, noise, first, steps, best, &mine, &bad,
                    [&](int step) { return Batch<T>::load_again(row, Batch<T>::token(first, step)); });
    };
    if constexpr (kAhead) {
      stream_chunks<T>(row, part, guess, reduce, look);
    } else {
      over_chunks<T>(row, part, guess, [&](const Batch<T>& batch, int32_t first, int steps) {
        look(reduce(batch), first, steps);
      });
    }
  });
  return best_of_block(mine, bad);
}

// The largest element of this block's part of a row, lowest token on ties: temperature 0.
template <class R>
__device__ __forceinline__ RowPartial argmax_part(const R& row, const Law& law, Part part) {
  Candidate mine = kNobody;
  bool bad = false;
  with_type(row, [&](auto type) {
    using T = decltype(type);
    over_chunks<T>(row, part, [](int32_t, int, bool) {},
                   [&](const Batch<T>& batch, int32_t first, int steps) {
                     unsigned larger = 0;
                     float top = -kInfinity;
#pragma unroll
                     for (int u = 0; u < kVectors; ++u) {
                       const float largest = T::largest(batch.vector[u]);
                       top = max_nan(top, largest);
                       if (!(largest <= mine.score)) larger |= 1u << u;  // with a NaN the maximum is unknown
                     }
                     bad |= bad_elements(row, law, batch, top, first, steps);
#pragma unroll 1
                     for (; larger; larger &= larger - 1) {
                       const int32_t column = Batch<T>::token(first, __ffs(static_cast<int>(larger)) - 1);
                       const uint4 values = Batch<T>::load_again(row, column);
                       for (int i = 0; i < T::kPerVector; ++i) {  // columns outside of the row have no weight
                         const float rank = law.rank(T::at(values, i));
                         if (rank > mine.score) mine = {rank, column + i};
                       }
                     }
                   });
  });
  return best_of_block(mine, bad);
}

}  // namespace cuda
}  // namespace specdec
