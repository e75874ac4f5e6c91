// A tile of a row in shared memory: a warp loads it once, and reads it as often as it needs.
#pragma once

#include "../team/launch.cuh"
#include "edited_row.cuh"
#include "mass_row.cuh"

namespace specdec::cuda {

// Shared memory of a block's tiles, one a warp.
constexpr size_t kStagedBytes = kVectors * kThreads * sizeof(uint4);

// A lane's fours of a tile, as float32 in shared memory, so that loops over them are short. Elements outside of the row
// are -inf.
struct StagedTile {
  Shared<uint4> fours;         // [steps, threads]
  float largest = -kInfinity;  // of the lane's elements; NaN if one is

  __device__ __forceinline__ uint4 of(int step) const { return fours[step * kThreads + threadIdx.x]; }

  // All loads are in flight together; the row may begin anywhere.
  template <class R>
  __device__ __forceinline__ void load(const R& row, int32_t first) {
    Batch<Float32> batch;
    batch.load(with_edits(row), first, kVectors);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      largest = max_nan(largest, Float32::largest(batch.vector[u]));
      fours[u * kThreads + threadIdx.x] = batch.vector[u];
    }
  }
};

// A tile's argmax, and its status.
__device__ __forceinline__ RowPartial argmax_of_tile(const LawRow& side, const StagedTile& tile, int32_t first) {
  Candidate mine = kNoCandidate;
  bool bad = false;
#pragma unroll 1
  for (int u = 0; u < kVectors; ++u) {
    const uint4 values = tile.of(u);
    const int32_t column = Batch<Float32>::token(first, u);
#pragma unroll 1
    for (int i = 0; i < 4 && column + i < side.row.vocab; ++i) {
      const float raw = Float32::at(values, i), rank = side.stats.law.rank(raw);
      bad |= !side.stats.law.is_element(raw);
      if (rank > mine.score) mine = {rank, column + i};
    }
  }
  return {candidate_of_key(warp_max(key_of_candidate(mine))),
          __any_sync(kWarp, bad) ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
}

// A tile's mass.
template <class R>
__device__ __forceinline__ TileMass mass_of_tile(const R& row, const Logits& space, const StagedTile& tile,
                                                 int32_t first) {
  const float top = space.key(tile.largest);
  if (__all_sync(kWarp, top < kInfinity)) {
    const float tile_top = warp_max(top);
    uint64_t units = 0;
#pragma unroll 1
    for (int u = 0; u < kVectors; ++u) {
      const uint4 four = tile.of(u);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const TwoWords w = unit_weight(Floats(space.below(Float32::at(four, i), tile_top),
                                              space.below(Float32::at(four, i + 1), tile_top)));
        units += w.a + w.b;  // they fit 32 bits
      }
    }
    return {{warp_sum(units), tile_top}, SPECDEC_STATUS_OK};
  }
  bool bad = false;
  const MassTile odd = weigh_odd_tile(row, space, first, &bad);
  return {odd, __any_sync(kWarp, bad) ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
}

// Loads and weighs a tile of a row of logits. All lanes of a warp call.
template <class R>
__device__ __forceinline__ TileMass weigh(const R& row, int32_t tile, const Logits& space, const Shared<uint4>& fours) {
  StagedTile staged = {fours};
  staged.load(row, tile * kMassTile);
  return mass_of_tile(row, space, staged, tile * kMassTile);
}

// Writes the words of a tile: its mass, or its best token where the law needs no sum.
__device__ __forceinline__ void put_tile(WideKey* words, int tiles, int tile, const LawRow& side,
                                         const StagedTile& staged) {
  WideKey first, second;
  if (side.stats.law.needs_sum()) {
    const TileMass mass = mass_of_tile(side.row, side.stats.law.logits(), staged, tile * kMassTile);
    first = packed_max(mass), second = mass.tile.units;
  } else {
    const RowPartial best = argmax_of_tile(side, staged, tile * kMassTile);
    first = key_of_candidate(best.best), second = static_cast<unsigned>(best.status);
  }
  if (lane_id() == 0) put_word(words + tile, first), put_word(words + tiles + tile, second);
}

}  // namespace specdec::cuda
