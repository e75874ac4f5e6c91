// Candidates as keys, and how lanes, warps and blocks agree on the largest.
#pragma once

#include "../arch.cuh"
#include "specdec/partial.h"

namespace specdec::cuda {

// Writes a request's status, of which each thread has a part. All threads of the block call.
__device__ __forceinline__ void store_status(int32_t* to, int32_t status) {
  const bool bad = __syncthreads_or(status != SPECDEC_STATUS_OK);
  if (threadIdx.x == 0) *to = bad ? SPECDEC_STATUS_PARAMETER : SPECDEC_STATUS_OK;
}

// A larger score makes a larger key; with equal scores, a lower token does. 0 is no candidate.
using WideKey = unsigned long long;

__device__ __forceinline__ WideKey key_of_candidate(const Candidate& c) {
  return c.token == kNoToken ? 0 : static_cast<WideKey>(ordered(c.score)) << 32 | static_cast<uint32_t>(~c.token);
}
__device__ __forceinline__ Candidate candidate_of_key(WideKey key) {
  if (key == 0) return kNoCandidate;
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

// Every lane gets the same bits, because a + b = b + a.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int with = 16; with; with /= 2) x = add(x, __shfl_xor_sync(kWarp, x, with));
  return x;
}

// Every lane gets the sum. It adds parts of 22 bits, since 32 of them fit 27 bits.
__device__ __forceinline__ uint64_t warp_sum(uint64_t x) {
  constexpr uint64_t kPart = (1u << 22) - 1;
  const uint64_t low = __reduce_add_sync(kWarp, static_cast<unsigned>(x & kPart));
  const uint64_t middle = __reduce_add_sync(kWarp, static_cast<unsigned>(x >> 22 & kPart));
  const uint64_t high = __reduce_add_sync(kWarp, static_cast<unsigned>(x >> 44));
  return low + (middle << 22) + (high << 44);
}

__device__ __forceinline__ float warp_max(float x) { return from_ordered(__reduce_max_sync(kWarp, ordered(x))); }

// Reads a word of shared memory that other warps may update by atomics at the same time; a plain load would be a race.
// One lane reads for all, since an atomic takes the lanes one after the other.
__device__ __forceinline__ unsigned read_atomic(const Shared<unsigned>& word) {
  unsigned value = 0;
  if (lane_id() == 0) value = atomicOr(&word[0], 0u);
  return __shfl_sync(kWarp, value, 0);
}

constexpr int kMaxWarps = 8;

// A status bit between the blocks of a draw that also looked through a draft row: that row has weight. It is never
// written out.
constexpr int32_t kDraftWeighs = 1 << 30;

// The block's best candidate, and whether any thread has `bad`. Every thread gets both. The second barrier lets a
// caller call again at once.
__device__ __forceinline__ RowPartial best_of_block(const Candidate& mine, bool bad) {
  SPECDEC_SHARED(WideKey, keys, kMaxWarps);
  const WideKey key = warp_max(key_of_candidate(mine));
  if (lane_id() == 0) keys[warp_id()] = key;
  bad = __syncthreads_or(bad);
  WideKey best = 0;
  for (int w = 0; w < warps_in_block(); ++w) {
    const WideKey other = keys[w];
    best = other > best ? other : best;
  }
  __syncthreads();
  return {candidate_of_key(best), bad ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
}

// Adds up x over the block, for every thread.
template <int N>
__device__ __forceinline__ void block_sums(uint64_t (&x)[N]) {
  SPECDEC_SHARED(uint64_t, partials, N * kMaxWarps);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint64_t sum = warp_sum(x[i]);
    if (lane_id() == 0) partials[i * kMaxWarps + warp_id()] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = 0;
#pragma unroll(N > 2 ? 1 : 4)  // large N are rare, and would take much code
  for (int w = 0; w < warps_in_block(); ++w)
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += partials[i * kMaxWarps + w];
  __syncthreads();
}

// Returns true to every thread of the last of `blocks` blocks that call this. That block sees what the others wrote
// before. The counter is zero again afterwards.
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
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

// A RowPartial as two words, which blocks hand to each other.
constexpr int kWordsAPartial = 2;

__device__ __forceinline__ void store_partial(WideKey* partials, int64_t index, const RowPartial& part) {
  put_word(partials + index * kWordsAPartial, key_of_candidate(part.best));
  put_word(partials + index * kWordsAPartial + 1, static_cast<WideKey>(static_cast<uint32_t>(part.status)));
}

// The best of `count` parts. word(i, 0) and word(i, 1) are the two words of part i. Every lane of every warp that calls
// gets the result.
template <class Word>
__device__ __forceinline__ RowPartial best_of_parts(int count, Word&& word) {
  WideKey best = 0;
  unsigned status = 0;
  for (int i = lane_id(); i < count; i += 32) {
    const WideKey key = word(i, 0);
    best = key > best ? key : best;
    status |= static_cast<unsigned>(word(i, 1));
  }
  return {candidate_of_key(warp_max(best)), static_cast<int32_t>(__reduce_or_sync(kWarp, status))};
}

__device__ __forceinline__ RowPartial gather_partials(const WideKey* partials, int64_t first, int count) {
  return best_of_parts(count, [&](int i, int k) { return load_fresh(partials + (first + i) * kWordsAPartial + k); });
}

// The partial results of a row or request, [rows, count, kWordsAPartial], which the last block combines.
struct Splits {
  unsigned* tickets;
  WideKey* partials;
  int count;
  __device__ int64_t index() const { return blockIdx.x / count; }
  __device__ int rank() const { return static_cast<int>(blockIdx.x % count); }

  // Returns true in the last block, whose `best` is then that of all.
  __device__ __forceinline__ bool gather(RowPartial* best) const {
    if (count == 1) return true;
    if (threadIdx.x == 0) store_partial(partials, index() * count + rank(), *best);
    if (!is_last_block(tickets + index(), static_cast<unsigned>(count))) return false;
    *best = gather_partials(partials, index() * count, count);
    return true;
  }
};

}  // namespace specdec::cuda
