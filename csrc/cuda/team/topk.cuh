// The best keys of a warp, a block or a team, in order: 32 at a time.
#pragma once

#include "block_reduce.cuh"

namespace specdec::cuda {

constexpr WideKey kCeiling = ~WideKey{0};

// The best keys of a warp in falling order. Lane i has the i-th; 0 is no candidate.
struct TopK {
  WideKey entry = 0;
  int size;       // entries that count, at most 32
  WideKey below;  // this key and larger ones are in an earlier TopK

  __device__ WideKey last() const { return __shfl_sync(kWarp, entry, size - 1); }
  __device__ float to_beat() const { return candidate_of_key(last()).score; }

  // Every lane offers a key, or 0. The largest enters first, so at most 32 do.
  __device__ void offer(WideKey key) {
    if (key >= below) key = 0;
    for (;;) {
      if (!__any_sync(kWarp, key > last())) return;
      const unsigned high = static_cast<unsigned>(key >> 32), most = __reduce_max_sync(kWarp, high);
      const unsigned low = __reduce_max_sync(kWarp, high == most ? static_cast<unsigned>(key) : 0u);
      const WideKey enters = static_cast<WideKey>(most) << 32 | low;
      if (key == enters) key = 0;
      const int at = __popc(__ballot_sync(kWarp, entry > enters));
      const WideKey above = __shfl_up_sync(kWarp, entry, 1u);
      if (lane_id() == at) entry = enters;
      else if (lane_id() > at) entry = above;
    }
  }

  // Offers words that other blocks wrote. All warps of the block call, and share them.
  __device__ void offer_all(const WideKey* keys, int count) {
#pragma unroll 1
    for (int first = warp_id() * 32; first < count; first += static_cast<int>(blockDim.x))
      offer(first + lane_id() < count ? load_fresh(keys + first + lane_id()) : 0);
  }
};

// Blocks of a row that has a list of k keys for each: all lists of a launch are kept short.
inline int64_t most_lists(int64_t rows, int64_t k) {
  constexpr int64_t kKeys = 16 << 10;
  const int64_t most = kKeys / (rows * (k > 1 ? k : 1));
  return most > 1 ? most : 1;
}

// The best k keys of a block, in order. fill(first, &topk) offers keys of the caller's warp: once for each 32
// positions, from `first` on. Then a thread calls take(position, key) for each. All threads call.
template <class Fill, class Take>
__device__ __forceinline__ void take_best(int32_t k, Fill&& fill, Take&& take) {
  SPECDEC_SHARED(WideKey, entries, kMaxWarps * 32);
  SPECDEC_SHARED(WideKey, lowest, 1);
  WideKey below = kCeiling;
#pragma unroll 1
  for (int32_t first = 0; first < k; first += 32) {
    TopK topk = {0, k - first < 32 ? k - first : 32, below};
    if (below) fill(first, &topk);
    entries[threadIdx.x] = topk.entry;
    __syncthreads();
    if (warp_id() == 0) {
      for (int w = 1; w < warps_in_block(); ++w) topk.offer(entries[w * 32 + lane_id()]);
      if (lane_id() < topk.size) take(first + lane_id(), topk.entry);
      if (lane_id() == topk.size - 1) lowest[0] = topk.entry;
    }
    __syncthreads();
    below = lowest[0];
  }
}

}  // namespace specdec::cuda
