// The log-sum-exp of rows of logits, by tiles of what a warp holds at once. A tile's figures depend on nothing but the
// tile, and they are combined in one order: so no probability depends on how many blocks shared a row.
#pragma once

#include "scan.cuh"
#include "specdec/softmax.h"

namespace specdec {
namespace cuda {

__device__ __forceinline__ int32_t tiles_of(const Row& row) {
  const int32_t tile = row.dtype == DType::kFloat32 ? Batch<Float32>::kTokens : Batch<BFloat16>::kTokens;
  return (row.vocab + tile - 1) / tile;
}

// The maximum of a tile of x = logit / T, the sum of exp(x - max), and whether a NaN or +inf was met: as one word. The
// sum is never negative, so its sign is free.
struct TileStat {
  float max, sum;
  bool bad;
};

__device__ __forceinline__ WideKey packed(const TileStat& s) {
  return static_cast<WideKey>(bits(s.max)) << 32 | bits(s.sum) | (s.bad ? 0x80000000u : 0u);
}
__device__ __forceinline__ TileStat unpacked(WideKey word) {
  const uint32_t low = static_cast<uint32_t>(word);
  return {from_bits(static_cast<uint32_t>(word >> 32)), from_bits(low & 0x7fffffffu), low >> 31 != 0};
}

constexpr WideKey kNoTile = static_cast<WideKey>(0xff800000u) << 32;  // maximum -inf, sum 0

template <class T>
__device__ __forceinline__ TileStat tile_stat(const Row& row, int32_t tile, const Logits& space) {
  Batch<T> batch;
  const int32_t first = tile * Batch<T>::kTokens;
  batch.load(row, first, kVectors);
  float largest = -kInfinity;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) largest = max_nan(largest, T::largest(batch.vector[u]));
  const bool bad = __any_sync(kWarp, !(largest < kInfinity));
  if (bad) {  // then from memory: a NaN must not count
    largest = -kInfinity;
#pragma unroll 1
    for (int i = 0; i < kVectors * T::kPerVector; ++i) {
      const int32_t token = first + i * 32 + lane_id();
      if (token < row.vocab) largest = max(element(row, token), largest);
    }
  }
  const float top = warp_max(space.scaled(largest));
  if (top == -kInfinity) return {top, 0.0f, bad};
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
        // min: x may overflow where top was capped, and is not rounded before top is taken away. The approximate
        // exponential is within 2^-22 (and what its argument loses is as small beside a sum that holds exp(0)); a law
        // needs 1e-5.
        const float below = fminf(space.fused_below(T::at(batch.vector[u], i), top), 0.0f);
        sum = add(sum, exp2_approx(mul(below, 1.44269504f)));
      }
    }
  }
  return {top, warp_sum(sum), bad};
}

__device__ __forceinline__ TileStat tile_stat(const Row& row, int32_t tile, const Logits& space) {
  return with_type(row.dtype, [&](auto type) { return tile_stat<decltype(type)>(row, tile, space); });
}

// What is known of a row that was looked through.
struct RowStat {
  LogSumExp lse;   // of laws that need it
  int32_t argmax;  // of others, kNoToken where nothing has weight
  bool bad;        // holds what no law has, or has no weight at all
  __device__ KnownLaw known(const Law& law) const { return {law, lse, argmax}; }
};

__device__ __forceinline__ RowStat stat_of(const Find& find) {
  const int32_t argmax = candidate_of_key(find.key).token;
  return {kNoMass, argmax, find.bad || argmax == kNoToken};
}

// One warp: the row's figures from `word(tile)`, in an order that depends on `tiles` alone.
template <class F>
__device__ __forceinline__ RowStat combine_tiles(int32_t tiles, F&& word) {
  float top = -kInfinity;
  bool bad = false;
  for (int32_t t = lane_id(); t < tiles; t += 32) {
    const TileStat s = unpacked(word(t));
    top = max(s.max, top);
    bad |= s.bad;
  }
  top = warp_max(top);
  float sum = 0.0f;
  for (int32_t t = lane_id(); t < tiles; t += 32) {
    const TileStat s = unpacked(word(t));
    if (s.sum > 0.0f) sum = add(sum, mul(s.sum, exp_or_zero(sub(s.max, top))));
  }
  sum = warp_sum(sum);
  return {log_sum_exp(top, sum), kNoToken, __any_sync(kWarp, bad) || top == -kInfinity};
}

}  // namespace cuda
}  // namespace specdec
