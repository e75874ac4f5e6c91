// The best keys of a warp, a block or a team, in order: 32 at a time.
#pragma once

#include "block_reduce.cuh"

namespace specdec {
namespace cuda {

constexpr WideKey kCeiling = ~WideKey{0};

// The best keys of a warp in falling order. Lane i holds the i-th; 0 is nobody.
struct TopK {
  WideKey place = 0;
  int size;            // places that count, at most 32
  WideKey below;       // this key and larger ones were taken by an earlier TopK

  __device__ WideKey last() const { return __shfl_sync(kWarp, place, size - 1); }
  __device__ float to_beat() const { return candidate_of_key(last()).score; }

  // Every lane offers a key, or 0.
  __device__ void offer(WideKey key) {
    if (key >= below) key = 0;
    for (;;) {
      const unsigned better = __ballot_sync(kWarp, key > last());
      if (!better) return;
      const int from = __ffs(static_cast<int>(better)) - 1;
      const WideKey enters = __shfl_sync(kWarp, key, from);
      if (lane_id() == from) key = 0;
      const int at = __popc(__ballot_sync(kWarp, place > enters));
      const WideKey above = __shfl_up_sync(kWarp, place, 1u);
      if (lane_id() == at) place = enters;
      else if (lane_id() > at) place = above;
    }
  }
};

// The best of the block's warps, for warp 0. Returns to every thread whether any thread's `bad` is set.
__device__ __forceinline__ bool merge_topk(TopK* topk, bool bad) {
  SPECDEC_SHARED(WideKey, places, kMaxWarps * 32);
  places[threadIdx.x] = topk->place;
  bad = __syncthreads_or(bad);
  if (warp_id() == 0)
    for (int w = 1; w < warps_in_block(); ++w) topk->offer(places[w * 32 + lane_id()]);
  __syncthreads();
  return bad;
}

}  // namespace cuda
}  // namespace specdec
