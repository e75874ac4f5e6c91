// Sums of a target row and a draft row by buckets of their ratio (specdec/paths.h), as whole numbers.
#pragma once

#include "pair_sums.cuh"
#include "specdec/paths.h"

namespace specdec::cuda {

// Lanes of a warp that meet in a bucket wait for each other. So a warp has some copies of what it counts: of each sum the
// high and the low part of UnitSum.
constexpr int kBucketCopies = 8, kBucketCounts = kBucketSums * 2 * kBucketCopies;

// In shared memory, for `warps` warps.
struct BucketRoom {
  Shared<WideKey> sums;      // of the team, once they are known
  Shared<WideKey> of_warps;  // of each warp of the block
  Shared<unsigned> counts;   // of each warp, of a tile
  Shared<float> looks;       // ways to choose a chain
};
__host__ __device__ __forceinline__ size_t bytes_of_buckets(int warps) {
  return sizeof(WideKey) * kBucketSums * (1 + warps) + sizeof(unsigned) * kBucketCounts * warps +
         sizeof(float) * kLookFloats;
}
__device__ __forceinline__ BucketRoom bucket_room(size_t at, int warps) {
  const size_t of_warps = at + sizeof(WideKey) * kBucketSums, counts = of_warps + sizeof(WideKey) * kBucketSums * warps;
  return {dynamic_shared<WideKey>(at, kBucketSums), dynamic_shared<WideKey>(of_warps, kBucketSums * warps),
          dynamic_shared<unsigned>(counts, kBucketCounts * warps),
          dynamic_shared<float>(counts + sizeof(unsigned) * kBucketCounts * warps, kLookFloats)};
}

// What a warp adds up.
class BucketCounts {
 public:
  __device__ explicit BucketCounts(const BucketRoom& of) : room(of), first(warp_id() * kBucketCounts) {
    for (int i = lane_id(); i < kBucketCounts; i += 32) room.counts[first + i] = 0;
    __syncwarp();
  }
  __device__ void take(float p, float q) const {
    const int bucket = static_cast<int>(bucket_of(p, q));
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
        const int at = place(sum) + copy;
        units[i] += units_of(room.counts[at], room.counts[at + kBucketCopies]);
        room.counts[at] = room.counts[at + kBucketCopies] = 0;
      }
    }
    __syncwarp();
  }
  // The team's, in `room.sums` of each member.
  __device__ void add_up(Team& team) const {
    const int warps = warps_in_block();
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (i * 32 + lane_id() < kBucketSums) room.of_warps[warp_id() * kBucketSums + i * 32 + lane_id()] = units[i];
    __syncthreads();
    for (int sum = warp_id(); sum < kBucketSums; sum += warps) {
      uint64_t all = 0;
      for (int warp = lane_id(); warp < warps; warp += 32) all += room.of_warps[warp * kBucketSums + sum];
      all = warp_sum(all);
      if (lane_id() == 0) team.bring(sum, all);
    }
    sum_members(team, kBucketSums, room.sums);
  }

 private:
  __device__ int place(int sum) const { return first + sum * 2 * kBucketCopies; }
  __device__ void add_weight(int sum, float weight) const {
    UnitSum<float> one;
    one.take(weight);
    const int at = place(sum) + lane_id() % kBucketCopies;
    if (one.high) atomicAdd(&room.counts[at], one.high);
    if (one.low) atomicAdd(&room.counts[at + kBucketCopies], one.low);
  }

  const BucketRoom& room;
  const int first;
  uint64_t units[2] = {};  // of sums lane_id() and 32 + lane_id()
};

// The lanes of a warp.
struct WarpWorkers {
  __device__ int32_t index() const { return lane_id(); }
  __device__ int32_t count() const { return 32; }
  __device__ float largest(float x) const { return warp_max(x); }
  __device__ int32_t least(int32_t x) const {
    return static_cast<int32_t>(__reduce_min_sync(kWarp, static_cast<unsigned>(x)));
  }
};

// What was chosen at a node of the path, in shared memory: the shares of q by bucket, then a Look. No chain to look at
// says that nothing was. One at most says that q counts as it came.
constexpr int kShareFew = kBuckets, kShareMany = kBuckets + 1, kShareOfFew = kBuckets + 2, kSharesADepth = kBuckets + 3;

// Chooses how many of these chains to look at after a node of this weight, by a warp, once the sums are known.
__device__ __forceinline__ void choose_look(const BucketRoom& room, int32_t chains, float weight,
                                            const Shared<float>& chosen) {
  const Looks<Shared<float>> looks(room.looks, chains);
  if (lane_id() < kBuckets) looks.fill(room.sums, weight, lane_id());
  __syncwarp();
  const Look look = looks.best(WarpWorkers{});
  if (lane_id() < kBuckets) chosen[lane_id()] = looks.share(look, lane_id());
  if (lane_id() != 0) return;
  chosen[kShareFew] = static_cast<float>(look.few);
  chosen[kShareMany] = static_cast<float>(look.many);
  chosen[kShareOfFew] = look.share;
}

}  // namespace specdec::cuda
