// The race over a part of a row, and the argmax of a part: one pass, 16 bytes a load. A warp holds a chunk of up to
// 2,048 tokens at once (1,024 in float32). Each lane computes the noise of one group. One compare a lane dismisses most
// chunks, and a compare for each vector most vectors of the others. The rest is evaluated exactly (specdec/race.h), so
// the winner does not depend on how the row was cut.
#pragma once

#include "../team/block_reduce.cuh"
#include "weights.cuh"

namespace specdec::cuda {

// The part of a row that a block reads: block `rank` of `size`. The warps of all blocks take chunks in turn.
struct Part {
  int rank, size;
};

// Vectors of a lane in a chunk: eight, or fewer if eight would leave warps without work.
template <class T>
__device__ __forceinline__ int steps_a_chunk(int32_t vocab, int warps) {
  const int32_t steps = (vocab + Batch<T>::kPerStep - 1) / Batch<T>::kPerStep;
  const int warp_steps = (steps + warps - 1) / warps;
  return warp_steps < 1 ? 1 : warp_steps > kVectors ? kVectors : warp_steps;
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

// Races over a part's chunks by words(first column), start(first column, steps, the words of that chunk) and
// f(reduce(batch, steps), first column, steps, its words). All warps of a block take as many turns: a chunk behind the
// row is -inf. words() is called once in the code, because code that runs once costs as much as its fetch.
// reduce() keeps what f() needs of a chunk, in few registers. So with `kAhead` the next chunk is loaded before f()
// looks at this one, and the first chunk before start(); without it, prefetched into the L2 cache.
template <bool kAhead, class T, class R, class Words, class Start, class Reduce, class F>
__device__ __forceinline__ void race_chunks(const R& row, Part part, Words&& words, Start&& start, Reduce&& reduce,
                                            F&& f) {
  const int warps = part.size * warps_in_block();
  const int steps = steps_a_chunk<T>(row.vocab, warps);
  const int32_t chunk = steps * Batch<T>::kPerStep;
  const int64_t stride = static_cast<int64_t>(warps) * chunk;
  // The first warp's chunk in a turn; those of other warps follow.
  int64_t first = static_cast<int64_t>(part.rank) * warps_in_block() * chunk - row.skipped() - stride;
  // Zeros: else, in a kernel that calls this in a loop, the compiler keeps the batch's registers from the start of that
  // loop on, for each type of elements, since the first load is under a condition.
  Batch<T> batch = {};
  decltype(words(0)) now = {};
  bool starts = true;
#pragma unroll 1
  for (;; first += stride) {
    const bool more = first + stride < row.vocab;
    const int32_t begin = static_cast<int32_t>(first) + warp_id() * chunk, next = begin + static_cast<int32_t>(stride);
    decltype(reduce(batch, steps)) reduced = {};
    if (!starts) {
      if constexpr (!kAhead) batch.load(row, begin, steps);
      reduced = reduce(batch, steps);
    }
    if (more) {
      if constexpr (kAhead) batch.load(row, next, steps);
      else prefetch<T>(row, next, steps);
    }
    decltype(words(0)) then = {};
    if (more) then = words(next);
    if (starts) start(next, steps, then);
    else f(reduced, begin, steps, now);
    if (!more) return;
    now = then;
    starts = false;
  }
}

// The lane's vectors that have an element with a sign, as bits, if a law has no negative values.
template <class T>
__device__ __forceinline__ unsigned signs_of(const Law& law, const Batch<T>& batch) {
  unsigned signs = 0;
  if (law.is_signed()) return signs;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) signs |= static_cast<unsigned>(T::any_sign(batch.vector[u])) << u;
  return signs;
}

// Whether one of the lane's values is impossible in a law (NaN, +inf, a negative probability). `largest` is their
// maximum, or NaN; `signs` is signs_of the chunk.
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
    const uint4 values = Batch<T>::load_again(row, column);  // holds fewer registers
    for (int i = 0; i < T::kPerVector; ++i)
      negative |= column + i >= 0 && column + i < row.vocab && T::at(values, i) < 0.0f;
  }
  return negative;
}

// A lane's chunk, reduced: the largest element of each vector (NaN if one is), and the vectors with signs.
struct Largest {
  float of[kVectors];
  unsigned signs;
};

template <class T>
__device__ __forceinline__ Largest largest_of(const Law& law, const Batch<T>& batch, int steps) {
  Largest largest;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) largest.of[u] = -kInfinity;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    if (u >= steps) break;
    largest.of[u] = T::largest(batch.vector[u]);
  }
  largest.signs = signs_of(law, batch);
  return largest;
}

// Noise that is opaque: the compiler does not move work on it out of a loop.
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

// A first guess at the best score: no more than the score of the first token to arrive in the lane's group. With U = a
// 2^-32, rounded up, that arrives at U / 64 exp(U) or before, for U up to 1/2. Larger U make no good guess.
template <class Support>
__device__ __forceinline__ float score_at_least(const WeightsOf<Support>& weights, int32_t first, int groups,
                                                const LaneNoise& words) {
  const auto& row = weights.target.row;
  const int32_t column = first + lane_id() * kGroup + first_winner(words.b);
  if (lane_id() >= groups || column < 0 || column >= row.vocab || static_cast<int32_t>(words.a) < 0) return -kInfinity;
  const float log_weight = weights.log_weight(element(row, column), column);
  const float u = (static_cast<float>(words.a) + 128.0f) * 0x1p-32f;  // a float of 2^31 is rounded by 64
  const float late = log2_approx(u) * 0.69314718f - 4.1588831f + u;   // log(1/64)
  return log_weight - late - kWordLogError - slack(log_weight, late);
}

// The least key (specdec/law.h) that can win against `to_beat` in a group with the word `a`: the group's first arrival
// is at least a * 2^-38.
template <class Support>
__device__ __forceinline__ float key_to_win(const WeightsOf<Support>& weights, uint32_t a, float to_beat) {
  const float needed = to_beat + (log2_approx(static_cast<float>(a)) - 38.0f) * 0.69314718f;
  return weights.needed_key(needed - kWordLogError - slack(to_beat, needed));
}

// A group of a chunk: its words, and the key that its elements need.
struct LaneGroup {
  LaneNoise words;
  float needed;

  // The group of this lane's vector `step`. All lanes of the warp call.
  template <class T>
  __device__ __forceinline__ LaneGroup of_vector(int step) const {
    const int lane = step * Batch<T>::kGroupsAStep + lane_id() * T::kPerVector / kGroup;
    return {{__shfl_sync(kWarp, words.a, lane), __shfl_sync(kWarp, words.b, lane)}, __shfl_sync(kWarp, needed, lane)};
  }
};

// The elements of a vector with at least the needed key, as bits.
template <class T>
__device__ __forceinline__ unsigned elements_to_open(const Law& law, const uint4& values, float needed) {
  unsigned open = 0;
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) open |= static_cast<unsigned>(law.key(T::at(values, i)) >= needed) << i;
  return open;
}

// An element that could win, and the words of its group. A block lists as many as it has threads.
struct alignas(16) Element {
  float raw;
  int32_t column;
  LaneNoise words;
};
constexpr int kElements = 32 * kMaxWarps;

// A block's race. In shared memory are the best score so far, as an ordered word, and the number of listed elements;
// the rest differs between threads.
constexpr int kBestScore = 0, kListedElements = 1, kRaceWords = 2;

struct BlockRace {
  Shared<unsigned> words;
  Shared<Element> list;
  unsigned listed = 0;  // elements that were listed and evaluated
  Candidate mine = kNoCandidate;
  bool bad = false;  // a value was impossible in a law

  // The block needs a barrier behind it.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) words[kBestScore] = ordered(-kInfinity), words[kListedElements] = 0;
  }
};

// Lists the elements that are `left` of a lane's vector at `column`, until the list is full.
template <class T>
__device__ __forceinline__ void list_elements(const BlockRace& race, const uint4& values, int32_t column,
                                              const LaneNoise& words, unsigned* left) {
  if (!*left) return;
  unsigned index = atomicAdd(&race.words[kListedElements], static_cast<unsigned>(__popc(*left))) - race.listed;
#pragma unroll 1
  for (; *left && index < blockDim.x; *left &= *left - 1, ++index) {
    const int i = __ffs(static_cast<int>(*left)) - 1;
    race.list[index] = Element{T::at(values, i), column + i, words};
  }
}

// Evaluates a listed element exactly.
template <class Support>
__device__ __forceinline__ Candidate candidate_of(const WeightsOf<Support>& weights, const Noise& visible,
                                                  const Element& element) {
  const float log_weight = weights.log_weight(element.raw, element.column);
  if (log_weight == -kInfinity) return kNoCandidate;
  const uint32_t token = static_cast<uint32_t>(weights.target.row.vocab_start + element.column);
  return {race_score(log_weight, arrival(opaque(visible), group_of(token / kGroup, element.words.a, element.words.b), token)),
          element.column};
}

// The lane's vectors that could hold a winner, as bits. All lanes of the warp call.
template <class T, class Support>
__device__ __forceinline__ unsigned vectors_to_open(const Largest& largest, const WeightsOf<Support>& weights,
                                                    int32_t first, int steps, float needed, bool* bad) {
  float top = -kInfinity;
  unsigned open = 0;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    if (u >= steps) break;
    top = max_nan(top, largest.of[u]);
    const int lane = u * Batch<T>::kGroupsAStep + lane_id() * T::kPerVector / kGroup;
    if (weights.reach(largest.of[u], __shfl_sync(kWarp, needed, lane))) open |= 1u << u;
  }
  *bad |= bad_elements<T>(weights.target.row, weights.target.stats.law, largest.signs, top, first, steps);
  return open;
}

// One turn of a race: each warp has a chunk, whose words are `words`. again(step) returns a vector of the batch again:
// race_part reads it from the cache, because eight vectors would take too many registers until then; an epilogue has
// its logits in registers alone and returns batch.at(step). Some lanes have several elements that could win, and most
// have none, so the block lists them, and each thread evaluates one. All threads of the block call.
template <class T, class Support, class Again>
__device__ __forceinline__ void race_turn(const Largest& largest, const WeightsOf<Support>& weights, const Noise& noise,
                                          int32_t first, int steps, const LaneNoise& words, BlockRace* race,
                                          Again&& again) {
  const LaneGroup lane_group = {words, key_to_win(weights, words.a, from_ordered(race->words[kBestScore]))};
  unsigned open = vectors_to_open<T>(largest, weights, first, steps, lane_group.needed, &race->bad), left = 0;
  LaneGroup group = {};
  uint4 values = {};
  int32_t column = 0;
  bool any = open != 0;
#pragma unroll 1
  for (;;) {
#pragma unroll 1
    while (__any_sync(kWarp, (left | open) != 0)) {
      if (!__any_sync(kWarp, left != 0)) {
        const int step = open ? __ffs(static_cast<int>(open)) - 1 : 0;
        group = lane_group.template of_vector<T>(step);
        if (open) {
          column = Batch<T>::token(first, step);
          values = again(step);
          left = elements_to_open<T>(weights.target.stats.law, values, group.needed);
        }
        open &= open - 1;
      }
      list_elements<T>(*race, values, column, group.words, &left);
      if (__any_sync(kWarp, left != 0)) break;  // the list is full
    }
    if (!__syncthreads_or(any)) return;
    const unsigned all = race->words[kListedElements], count = min(all - race->listed, blockDim.x);
    race->listed = all;
    const float before = race->mine.score;
    if (threadIdx.x < count) race->mine = best_of(candidate_of(weights, noise, race->list[threadIdx.x]), race->mine);
    if (__any_sync(kWarp, race->mine.score > before)) {
      const unsigned score = __reduce_max_sync(kWarp, ordered(race->mine.score));
      if (lane_id() == 0) atomicMax(&race->words[kBestScore], score);
    }
    any = (left | open) != 0;
    if (!__syncthreads_or(any)) return;
  }
}

// The winner of this block's part of a row under `weights`, as a column. Every thread gets it. `kAhead` loads chunks
// ahead (race_chunks); kernels that walk have no registers left for that.
template <bool kAhead = false, class Support>
__device__ __forceinline__ RowPartial race_part(const WeightsOf<Support>& weights, const Noise& noise, Part part) {
  SPECDEC_SHARED(unsigned, race_words, kRaceWords);
  SPECDEC_SHARED(Element, list, kElements);
  BlockRace race = {race_words, list};
  race.begin();
  __syncthreads();
  with_type(weights.target.row, [&](auto type) {
    using T = decltype(type);
    const auto& row = weights.target.row;
    race_chunks<kAhead, T>(
        row, part, [&](int32_t first) { return lane_noise(noise, row, first); },
        [&](int32_t first, int steps, const LaneNoise& words) {
          const float guess = score_at_least(weights, first, steps * Batch<T>::kGroupsAStep, words);
          const unsigned score = __reduce_max_sync(kWarp, ordered(guess));
          if (lane_id() == 0) atomicMax(&race.words[kBestScore], score);
          __syncthreads();
        },
        [&](const Batch<T>& batch, int steps) { return largest_of(weights.target.stats.law, batch, steps); },
        [&](const Largest& largest, int32_t first, int steps, const LaneNoise& words) {
          race_turn<T>(largest, weights, noise, first, steps, words, &race,
                       [&](int step) { return Batch<T>::load_again(row, Batch<T>::token(first, step)); });
        });
  });
  return best_of_block(race.mine, race.bad);
}

// The largest element of this block's part of a row at temperature 0; the lowest token wins a tie.
template <class R>
__device__ __forceinline__ RowPartial argmax_part(const R& row, const Law& law, Part part) {
  Candidate mine = kNoCandidate;
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
                     bad |= bad_elements<T>(row, law, signs_of(law, batch), top, first, steps);
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

}  // namespace specdec::cuda
