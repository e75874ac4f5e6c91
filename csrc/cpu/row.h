// One row of a vocabulary on the CPU, in tiles of 2,048 tokens. A tile's figures never depend on which thread took it
// and are combined in order, so no result depends on how a row was split.
#pragma once

#include "simd.h"
#include "specdec/softmax.h"
#include "threads.h"

SPECDEC_BEGIN

constexpr int kTile = 2048;  // 32 groups of the race: one vector of Philox counters

SPECDEC_HD int32_t tiles_of(int32_t vocab) { return (vocab + kTile - 1) / kTile; }

struct Row {
  const void* data;
  DType dtype;
  int32_t vocab;
  SPECDEC_HD int32_t tiles() const { return tiles_of(vocab); }
  SPECDEC_HD int32_t tile_size(int32_t tile) const {
    const int32_t left = vocab - tile * kTile;
    return left < kTile ? left : kTile;
  }
};

SPECDEC_HD Row row_at(const Rows& rows, int64_t offset) {
  const int64_t size = rows.dtype == DType::kFloat32 ? 4 : 2;
  return {static_cast<const char*>(rows.data) + offset * size, rows.dtype, rows.vocab};
}

// Calls f with the row's elements as their own type, from `token` on.
template <class F>
SPECDEC_HD auto with_elements(const Row& row, int32_t token, F&& f) {
  switch (row.dtype) {
    case DType::kBFloat16: return f(static_cast<const BFloat16*>(row.data) + token);
    case DType::kFloat16: return f(static_cast<const Float16*>(row.data) + token);
    default: return f(static_cast<const float*>(row.data) + token);
  }
}

SPECDEC_HD float element(const Row& row, int32_t token) {
  return with_elements(row, token, [](auto p) { return to_float(*p); });
}

// Sixteen elements from `token` on; those at or past `count` are `fill`.
SPECDEC_HD F16 elements(const Row& row, int32_t token, int32_t count, float fill) {
  return with_elements(row, token, [=](auto p) { return load_first(p, count, fill); });
}

// The largest element of a tile (NaN does not count), and whether one met that no law has: NaN and +inf among logits,
// NaN, negative and +inf among probabilities.
struct TileMax {
  float value;
  bool bad;
};

template <class T>
SPECDEC_HD TileMax tile_max_of(const T* p, int32_t count, Space space) {
  constexpr int kStep = 4;
  const F16 zero(0.0f);
  F16 best[kStep] = {F16(-kInfinity), F16(-kInfinity), F16(-kInfinity), F16(-kInfinity)};
  Mask bad = 0;
  const auto take = [&](F16 x, int k, Mask lanes) {
    best[k] = max(x, best[k]);
    bad |= space == Space::kLogits ? unordered(x) : ~at_least(x, zero) & lanes;
  };
  int32_t i = 0;
  for (; i + kStep * kLanes <= count; i += kStep * kLanes)
    for (int k = 0; k < kStep; ++k) take(load(p + i + k * kLanes), k, 0xffff);
  for (; i < count; i += kLanes) {
    const int lanes = count - i;
    take(load_first(p + i, lanes, -kInfinity), 0, lanes >= kLanes ? 0xffffu : (1u << lanes) - 1u);
  }
  const float value = largest(max(max(best[0], best[1]), max(best[2], best[3])));
  return {value, bad != 0 || value == kInfinity};
}

SPECDEC_HD TileMax tile_max(const Row& row, int32_t tile, Space space) {
  return with_elements(row, tile * kTile, [&](auto p) { return tile_max_of(p, row.tile_size(tile), space); });
}

// Sum of exp(x - max) over a tile, x = logit / T.
template <class T>
SPECDEC_HD float tile_sum_of(const T* p, int32_t count, float inv_temperature, float max_x) {
  constexpr int kStep = 4;
  const F16 scale(inv_temperature), top(max_x), low(kExpUnderflow), zero(0.0f);
  F16 sum[kStep] = {zero, zero, zero, zero};
  // The order of operands lets a NaN through to `low`.
  const auto term = [&](F16 logit) { return exp_in_range(max(min(zero, sub(mul(logit, scale), top)), low)); };
  int32_t i = 0;
  for (; i + kStep * kLanes <= count; i += kStep * kLanes) {
    for (int k = 0; k < kStep; ++k) {
      __builtin_prefetch(p + i + k * kLanes + kTile);  // the next tile, while this one is busy with exponentials
      sum[k] = add(sum[k], term(load(p + i + k * kLanes)));
    }
  }
  for (; i < count; i += kLanes) sum[0] = add(sum[0], term(load_first(p + i, count - i, -kInfinity)));
  return total(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

// What the passes over a row leave behind.
struct RowFigures {
  float* tile_max;  // raw maxima, one a tile, in scratch memory
  LogSumExp lse;
  int32_t status;
};

// Fills tile_max[0 .. tiles).
SPECDEC_HD int32_t row_maxima(const Row& row, Space space, const Crew& crew, float* tile_maxima) {
  bool bad[kMaxParts] = {};
  over_parts(row.tiles(), crew, [&](int part, int32_t from, int32_t to) {
    for (int32_t tile = from; tile < to; ++tile) {
      const TileMax m = tile_max(row, tile, space);
      tile_maxima[tile] = m.value;
      bad[part] |= m.bad;
    }
  });
  for (bool b : bad)
    if (b) return kStatusNonFinite;
  return kStatusOk;
}

// Log-sum-exp of logits / T; each tile is read twice, the second time from the L1 cache.
SPECDEC_HD RowFigures row_log_sum_exp(const Row& row, float inv_temperature, const Crew& crew, int scratch_slot) {
  const int32_t tiles = row.tiles();
  float* maxima = scratch(scratch_slot, 2 * static_cast<int64_t>(tiles));
  float* sums = maxima + tiles;
  bool bad[kMaxParts] = {};
  over_parts(tiles, crew, [&](int part, int32_t from, int32_t to) {
    for (int32_t tile = from; tile < to; ++tile) {
      const TileMax m = tile_max(row, tile, Space::kLogits);
      const float top = scaled(m.value, inv_temperature);
      maxima[tile] = m.value;
      bad[part] |= m.bad;
      sums[tile] = top == -kInfinity ? 0.0f : with_elements(row, tile * kTile, [&](auto p) {
        return tile_sum_of(p, row.tile_size(tile), inv_temperature, top);
      });
    }
  });
  float top = -kInfinity;
  for (int32_t tile = 0; tile < tiles; ++tile) top = max(scaled(maxima[tile], inv_temperature), top);
  float sum = 0.0f;
  for (int32_t tile = 0; tile < tiles; ++tile)
    if (sums[tile] > 0.0f) sum = add(sum, mul(sums[tile], exp_or_zero(sub(scaled(maxima[tile], inv_temperature), top))));
  int32_t status = top == -kInfinity ? kStatusNonFinite : kStatusOk;
  for (bool b : bad)
    if (b) status = kStatusNonFinite;
  return {maxima, log_sum_exp(top, sum), status};
}

// The first element of a tile that is at least `value`, or kNoToken.
SPECDEC_HD int32_t first_at_least(const Row& row, int32_t tile, float value) {
  const F16 wanted(value);
  const int32_t begin = tile * kTile, end = begin + row.tile_size(tile);
  for (int32_t token = begin; token < end; token += kLanes) {
    const Mask found = at_least(elements(row, token, end - token, __builtin_nanf("")), wanted);
    if (found) return token + __builtin_ctz(found);
  }
  return kNoToken;
}

// The most probable token, lowest id on ties; tile_maxima as row_maxima left them.
SPECDEC_HD Candidate row_argmax(const Row& row, Space space, const float* tile_maxima) {
  float top = -kInfinity;
  int32_t tile = 0;
  for (int32_t t = 0; t < row.tiles(); ++t) {
    const float m = min(tile_maxima[t], kLargest);
    if (m > top) top = m, tile = t;
  }
  if (top == -kInfinity || (space == Space::kProbs && !(top >= kSmallest))) return kNobody;
  return {top, first_at_least(row, tile, top)};
}

SPECDEC_END
