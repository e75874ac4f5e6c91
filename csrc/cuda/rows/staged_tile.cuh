// A tile of a row in shared memory: a warp loads it once, and looks at it as often as it likes.
#pragma once

#include "edited_row.cuh"
#include "mass_row.cuh"

namespace specdec::cuda {

// Of a block.
constexpr size_t kStagedBytes = kVectors * kThreads * sizeof(uint4);

// A lane's fours of a tile, as float32 in shared memory, so that loops over them are short.
struct StagedTile {
  Shared<uint4> fours;  // by step and thread
  int count = 0;        // of the lane that begin in the row
  float largest = -kInfinity;  // NaN if an element is

  __device__ __forceinline__ uint4 of(int step) const { return fours[step * kThreads + threadIdx.x]; }
  __device__ __forceinline__ void put(int step, const uint4& four) {
    largest = max_nan(largest, Float32::largest(four));
    fours[step * kThreads + threadIdx.x] = four;
  }

  // All loads are on their way together, of float32 `kWide`.
  template <int kWide>
  __device__ __forceinline__ void load(const Row& row, int32_t first) {
    const int32_t column = Batch<Float32>::token(first, 0), left = row.vocab - column;
    const bool wide = row.dtype == SPECDEC_FLOAT32;
    const char* const at = address_of(row, column);
    count = left <= 0 ? 0 : left > (kVectors - 1) * 128 ? kVectors : (left + 127) / 128;
    if (reinterpret_cast<uintptr_t>(row.data) % (wide ? 16 : 8) != 0 ||
        (row.vocab - first < kMassTile && row.vocab % 4 != 0)) {
#pragma unroll 1
      for (int u = 0; u < count; ++u) put(u, raw_four(row, column + u * 128));
    } else if (wide) {
#pragma unroll 1
      for (int begin = 0; begin < count; begin += kWide) {
        uint4 four[kWide];
#pragma unroll
        for (int u = 0; u < kWide; ++u)
          if (begin + u < count) four[u] = load_stream(at + (begin + u) * 128 * 4);
#pragma unroll
        for (int u = 0; u < kWide; ++u)
          if (begin + u < count) put(begin + u, four[u]);
      }
    } else {
      uint2 half[kVectors];
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        if (u < count) half[u] = load_stream_half(at + u * 128 * 2);
      const bool brain = row.dtype == SPECDEC_BFLOAT16;
      if (brain) {
#pragma unroll
        for (int u = 0; u < kVectors; ++u)
          if (u < count) put(u, widened(true, half[u]));
      } else {
#pragma unroll
        for (int u = 0; u < kVectors; ++u)
          if (u < count) put(u, widened(false, half[u]));
      }
    }
  }
};

// A tile's argmax: a candidate, and a status.
__device__ __forceinline__ RowPartial argmax_of_tile(const LawRow& side, const StagedTile& tile, int32_t first) {
  Candidate mine = kNobody;
  bool bad = false;
#pragma unroll 1
  for (int u = 0; u < tile.count; ++u) {
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

// A tile's mass, as weigh_tile has it.
__device__ __forceinline__ TileMass mass_of_tile(const LawRow& side, const StagedTile& tile, int32_t first) {
  const Logits space = side.stats.law.logits();
  const float top = space.key(tile.largest);
  if (__all_sync(kWarp, top < kInfinity)) {
    const float tile_top = warp_max(top);
    uint64_t units = 0;
#pragma unroll 1
    for (int u = 0; u < tile.count; ++u) {
      const uint4 four = tile.of(u);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const TwoWords w = unit_weight(Floats(space.below(Float32::at(four, i), tile_top),
                                              space.below(Float32::at(four, i + 1), tile_top)));
        units += w.a + w.b;
      }
    }
    return {{ExactMass::of_warp(units), tile_top}, SPECDEC_STATUS_OK};
  }
  bool bad = false;
  const MassTile odd = weigh_odd_tile(side.row, space, first, &bad);
  return {odd, __any_sync(kWarp, bad) ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
}

}  // namespace specdec::cuda
