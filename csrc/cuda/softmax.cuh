// The log-sum-exp of rows of logits. A tile is what a warp holds at once. A tile's figures depend on the tile alone,
// and they are combined in one order. So no probability depends on how many blocks shared a row.
#pragma once

#include "scan.cuh"
#include "specdec/softmax.h"

namespace specdec {
namespace cuda {

__device__ __forceinline__ int32_t tiles_of(const Row& row) {
  const int32_t tile = row.dtype == DType::kFloat32 ? Batch<Float32>::kTokens : Batch<BFloat16>::kTokens;
  return (row.vocab + tile - 1) / tile;
}

// Maximum, sum and status of a tile, as one word. The sum is never negative, so its sign bit holds the status.
__device__ __forceinline__ WideKey packed(const RowPartial& tile) {
  return static_cast<WideKey>(bits(tile.max)) << 32 | bits(tile.sum) | (tile.status ? 0x80000000u : 0u);
}
__device__ __forceinline__ RowPartial unpacked(WideKey word) {
  const uint32_t low = static_cast<uint32_t>(word);
  return {from_bits(static_cast<uint32_t>(word >> 32)), from_bits(low & 0x7fffffffu), kNobody,
          low >> 31 ? kStatusNonFinite : kStatusOk};
}

constexpr WideKey kNoTile = static_cast<WideKey>(0xff800000u) << 32;  // maximum -inf, sum 0

template <class T>
__device__ __forceinline__ RowPartial look_at_tile(const Row& row, int32_t tile, const Logits& space) {
  Batch<T> batch;
  const int32_t first = tile * Batch<T>::kTokens;
  batch.load(row, first, kVectors);
  float largest = -kInfinity;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) largest = max_nan(largest, T::largest(batch.vector[u]));
  const bool bad = __any_sync(kWarp, !(largest < kInfinity));
  if (bad) {  // read again, from memory: a NaN must not count
    largest = -kInfinity;
#pragma unroll 1
    for (int i = 0; i < kVectors * T::kPerVector; ++i) {
      const int32_t token = first + i * 32 + lane_id();
      if (token < row.vocab) largest = max(element(row, token), largest);
    }
  }
  const float top = warp_max(space.scaled(largest));
  const int32_t status = bad ? kStatusNonFinite : kStatusOk;
  if (top == -kInfinity) return {top, 0.0f, kNobody, status};
  float sum = 0.0f;
  if (bad) {
#pragma unroll 1
    for (int i = 0; i < kVectors * T::kPerVector; ++i) {
      const int32_t token = first + i * 32 + lane_id();
      if (token < row.vocab) sum = add(sum, exp_or_zero(sub(space.scaled(element(row, token)), top)));
    }
  } else {
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) {
        // min: x may overflow where top was capped. The product is not rounded before top is subtracted (fused). The
        // approximate exponential is within 2^-22. The error of its argument is as small, because the sum holds exp(0).
        // A law needs 1e-5.
        const float below = fminf(space.fused_below(T::at(batch.vector[u], i), top), 0.0f);
        sum = add(sum, exp2_approx(mul(below, 1.44269504f)));
      }
    }
  }
  return {top, warp_sum(sum), kNobody, status};
}

__device__ __forceinline__ RowPartial look_at_tile(const Row& row, int32_t tile, const Logits& space) {
  return with_type(row.dtype, [&](auto type) { return look_at_tile<decltype(type)>(row, tile, space); });
}

// Completes the status of a row whose argmax was looked for: if nobody was found, nothing has weight.
__device__ __forceinline__ RowPartial with_argmax(RowPartial row) {
  if (row.best.token == kNoToken) row.status |= kStatusNonFinite;
  return row;
}

// By one warp: the whole row from its tiles' words, in an order that depends on `tiles` alone.
template <class F>
__device__ __forceinline__ RowPartial combine_tiles(int32_t tiles, F&& word) {
  RowPartial row = kNoPart;
  unsigned status = 0;
  for (int32_t t = lane_id(); t < tiles; t += 32) {
    const RowPartial tile = unpacked(word(t));
    row.max = max(tile.max, row.max);
    status |= static_cast<unsigned>(tile.status);
  }
  row.max = warp_max(row.max);
  for (int32_t t = lane_id(); t < tiles; t += 32) {
    const RowPartial tile = unpacked(word(t));
    if (tile.sum > 0.0f) row.sum = add(row.sum, sum_below(tile, row.max));
  }
  row.sum = warp_sum(row.sum);
  if (row.max == -kInfinity) status |= kStatusNonFinite;
  row.status = static_cast<int32_t>(__reduce_or_sync(kWarp, status));
  return row;
}

}  // namespace cuda
}  // namespace specdec
