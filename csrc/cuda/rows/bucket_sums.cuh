// Sums of a target row and a draft row by buckets of their ratio (specdec/paths.h), as integers.
#pragma once

#include "pair_sums.cuh"
#include "specdec/paths.h"

namespace specdec::cuda {

// Lanes of a warp that add to one bucket wait for each other, so a warp has some copies of its counts. Each has the
// high and the low part of UnitSum.
constexpr int kBucketCopies = 8, kBucketCounts = kBucketSums * 2 * kBucketCopies;

// Shared memory for the buckets.
struct BucketMemory {
  Shared<WideKey> sums;      // [kBucketSums], of the team
  Shared<WideKey> of_warps;  // [warps, kBucketSums]
  Shared<unsigned> counts;   // [warps, kBucketCounts], of a tile
  Shared<float> looks;       // [kLookFloats]: ways to choose a chain
};
__host__ __device__ __forceinline__ size_t bytes_of_buckets(int warps) {
  return sizeof(WideKey) * kBucketSums * (1 + warps) + sizeof(unsigned) * kBucketCounts * warps +
         sizeof(float) * kLookFloats;
}
__device__ __forceinline__ BucketMemory bucket_memory(size_t at, int warps) {
  const size_t of_warps = at + sizeof(WideKey) * kBucketSums, counts = of_warps + sizeof(WideKey) * kBucketSums * warps;
  BucketMemory memory = {};
  memory.sums = dynamic_shared<WideKey>(at, kBucketSums);
  memory.of_warps = dynamic_shared<WideKey>(of_warps, kBucketSums * warps);
  memory.counts = dynamic_shared<unsigned>(counts, kBucketCounts * warps);
  memory.looks = dynamic_shared<float>(counts + sizeof(unsigned) * kBucketCounts * warps, kLookFloats);
  return memory;
}

class BucketCounts {
 public:
  __device__ explicit BucketCounts(const BucketMemory& of) : memory(of), first(warp_id() * kBucketCounts) {
    for (int i = lane_id(); i < kBucketCounts; i += 32) memory.counts[first + i] = 0;
    __syncwarp();
  }
  __device__ void take(float p, float q) const {
    const int bucket = static_cast<int>(find_bucket(p, q));
    add_weight(bucket, p);
    add_weight(kBuckets + bucket, q);
  }
  __device__ void end_tile() {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int sum = i * 32 + lane_id();
      if (sum >= kBucketSums) continue;
#pragma unroll 1
      for (int copy = 0; copy < kBucketCopies; ++copy) {
        const int at = counts_index(sum) + copy;
        units[i] += units_of(memory.counts[at], memory.counts[at + kBucketCopies]);
        memory.counts[at] = memory.counts[at + kBucketCopies] = 0;
      }
    }
    __syncwarp();
  }
  // Adds up the team's sums into `memory.sums` of each member.
  __device__ void add_up(Team& team) const {
    const int warps = warps_in_block();
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (i * 32 + lane_id() < kBucketSums) memory.of_warps[warp_id() * kBucketSums + i * 32 + lane_id()] = units[i];
    __syncthreads();
    for (int sum = warp_id(); sum < kBucketSums; sum += warps) {
      uint64_t all = 0;
      for (int warp = lane_id(); warp < warps; warp += 32) all += memory.of_warps[warp * kBucketSums + sum];
      all = warp_sum(all);
      if (lane_id() == 0) team.bring(sum, all);
    }
    sum_members(team, kBucketSums, memory.sums);
  }

 private:
  __device__ int counts_index(int sum) const { return first + sum * 2 * kBucketCopies; }
  __device__ void add_weight(int sum, float weight) const {
    UnitSum<float> one;
    one.take(weight);
    const int at = counts_index(sum) + lane_id() % kBucketCopies;
    if (one.high) atomicAdd(&memory.counts[at], one.high);
    if (one.low) atomicAdd(&memory.counts[at + kBucketCopies], one.low);
  }

  const BucketMemory& memory;
  const int first;
  uint64_t units[2] = {};  // sums lane_id() and 32 + lane_id()
};

struct WarpWorkers {
  __device__ int32_t index() const { return lane_id(); }
  __device__ int32_t count() const { return 32; }
  __device__ float largest(float x) const { return warp_max(x); }
  __device__ int32_t least(int32_t x) const {
    return static_cast<int32_t>(__reduce_min_sync(kWarp, static_cast<unsigned>(x)));
  }
};

// The choice at a node of the path, in shared memory: the scales of q by bucket, then a Look. No chain to look at: no
// choice was made. One at most: q is not scaled.
constexpr int kShareFew = kBuckets, kShareMany = kBuckets + 1, kShareOfFew = kBuckets + 2, kSharesADepth = kBuckets + 3;

// Chooses how many of `chains` to look at after a node of this weight. All lanes of a warp call, once `sums` are there.
__device__ __forceinline__ void choose_look(const BucketMemory& memory, int32_t chains, float weight,
                                            const Shared<float>& chosen) {
  const Looks<Shared<float>> looks(memory.looks, chains);
  if (lane_id() < kBuckets) looks.fill(memory.sums, weight, lane_id());
  __syncwarp();
  const Look look = looks.best(WarpWorkers{});
  if (lane_id() < kBuckets) chosen[lane_id()] = looks.scale(look, lane_id());
  if (lane_id() != 0) return;
  chosen[kShareFew] = static_cast<float>(look.few);
  chosen[kShareMany] = static_cast<float>(look.many);
  chosen[kShareOfFew] = look.few_prob;
}

}  // namespace specdec::cuda
