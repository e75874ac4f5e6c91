// Candidates as keys, and how lanes, warps and blocks agree on the largest.
#pragma once

#include "rows.cuh"
#include "specdec/race.h"

namespace specdec {
namespace cuda {

// Larger score, then lower token: larger key. 0 is nobody.
using WideKey = unsigned long long;

// Floats in order as unsigned integers.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t b = bits(x + 0.0f);  // -0 and 0 are equal
  return b >> 31 ? ~b : b | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t o) { return from_bits(o >> 31 ? o ^ 0x80000000u : ~o); }

__device__ __forceinline__ WideKey key_of_candidate(const Candidate& c) {
  return c.token == kNoToken ? 0 : static_cast<WideKey>(ordered(c.score)) << 32 | static_cast<uint32_t>(~c.token);
}
__device__ __forceinline__ Candidate candidate_of_key(WideKey key) {
  if (key == 0) return kNobody;
  return {from_ordered(static_cast<uint32_t>(key >> 32)), static_cast<int32_t>(~static_cast<uint32_t>(key))};
}

__device__ __forceinline__ WideKey warp_max(WideKey key) {
#pragma unroll
  for (int with = 16; with; with /= 2) {
    const WideKey other = __shfl_xor_sync(kWarp, key, with);
    key = other > key ? other : key;
  }
  return key;
}

// The same in every lane, whatever the order: a + b = b + a.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int with = 16; with; with /= 2) x = add(x, __shfl_xor_sync(kWarp, x, with));
  return x;
}

__device__ __forceinline__ float warp_max(float x) { return from_ordered(__reduce_max_sync(kWarp, ordered(x))); }

constexpr int kMaxWarps = 8;

// A key and what was met on the way, over a block or a team.
struct Find {
  WideKey key;
  bool bad;                   // something that no law has
  bool draft_weighs = false;  // a draft row, where one was looked through, has weight
};

__device__ __forceinline__ unsigned flags_of(const Find& find) {
  return (find.bad ? 1u : 0u) | (find.draft_weighs ? 2u : 0u);
}
__device__ __forceinline__ Find find_of(WideKey key, unsigned flags) {
  return {key, (flags & 1u) != 0, (flags & 2u) != 0};
}

__device__ __forceinline__ Draw draw_of(const Find& find, int32_t status) {
  return draw_of(candidate_of_key(find.key), status | (find.bad ? kStatusNonFinite : kStatusOk));
}

// The block's; every thread gets it. Holds two barriers, so it can be called again at once.
__device__ __forceinline__ Find block_find(Find mine) {
  SPECDEC_SHARED(WideKey, keys, kMaxWarps);
  const WideKey key = warp_max(mine.key);
  if (lane_id() == 0) keys[warp_id()] = key;
  const bool bad = __syncthreads_or(mine.bad);
  WideKey best = 0;
  for (int w = 0; w < warps_in_block(); ++w) {
    const WideKey other = keys[w];
    best = other > best ? other : best;
  }
  __syncthreads();
  return {best, bad};
}

// True, for every thread, in the block that is the last of `blocks` to come; it sees what the others wrote before. The
// counter is zero again afterwards.
__device__ __forceinline__ bool last_to_come(unsigned* counter, unsigned blocks) {
  if (blocks == 1) return true;
  SPECDEC_SHARED(unsigned, ticket, 1);
  __syncthreads();  // all writes of this block come before the ticket
  if (threadIdx.x == 0) {
    ticket[0] = add_acquire_release(counter, 1u);
    if (ticket[0] == blocks - 1) *counter = 0;
  }
  __syncthreads();
  return ticket[0] == blocks - 1;
}

// Partial results in memory: key and flags.
constexpr int kWordsAPartial = 2;

__device__ __forceinline__ void store_partial(WideKey* partials, int64_t index, const Find& find) {
  partials[index * kWordsAPartial] = find.key;
  partials[index * kWordsAPartial + 1] = flags_of(find);
}

// Of partials[first .. first + count); every warp that calls gets it in every lane.
__device__ __forceinline__ Find gather_partials(const WideKey* partials, int64_t first, int count) {
  WideKey best = 0;
  unsigned flags = 0;
  for (int i = lane_id(); i < count; i += 32) {
    const WideKey key = load_fresh(partials + (first + i) * kWordsAPartial);
    best = key > best ? key : best;
    flags |= static_cast<unsigned>(load_fresh(partials + (first + i) * kWordsAPartial + 1));
  }
  return find_of(warp_max(best), __reduce_or_sync(kWarp, flags));
}

}  // namespace cuda
}  // namespace specdec
