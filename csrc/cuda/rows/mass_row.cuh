// The mass of rows of logits, in tiles of 1,024 columns (specdec/mass.h): exact integers, so that no probability
// depends on how many blocks shared a row. A warp takes a chunk at once and holds whole tiles of it: one of float32, two
// of 16-bit types. A tile's weights are complete before anybody else sees them.
#pragma once

#include <type_traits>

#include "race.cuh"
#include "specdec/bounds.h"
#include "specdec/mass.h"

namespace specdec {
namespace cuda {

// What is known of a row that was looked through.
struct RowStats {
  LogSumExp lse;
  int32_t argmax;  // kNoToken where nothing has weight, or where nobody asked
  int32_t status;
};

constexpr RowStats kNoStats = {kNoMass, kNoToken, SPECDEC_STATUS_OK};

__device__ __forceinline__ LawWithStats with_stats(const Law& law, const RowStats& row) {
  return {law, row.lse, row.argmax};
}
__device__ __forceinline__ Draw draw_of(const RowStats& row) {
  return draw_of(Candidate{-kInfinity, row.argmax}, row.status);
}
__device__ __forceinline__ RowStats argmax_stats(const RowPartial& row) {
  return {kNoMass, row.best.token, draw_of(row).status};
}

// ---- chunks ---------------------------------------------------------------------------------------------------------

template <class T>
constexpr int kMassTilesAChunk = Batch<T>::kTokens / kMassTile;
constexpr int kMostMassTiles = kMassTilesAChunk<BFloat16>;

template <class R>
__device__ __forceinline__ int32_t chunks_of(const R& row) {
  const int32_t chunk = loaded_type(row) == SPECDEC_FLOAT32 ? Batch<Float32>::kTokens : Batch<BFloat16>::kTokens;
  return (row.vocab + chunk - 1) / chunk;
}

// With AboutMass, `units` of a tile are the bits of a float, and the status says that the row has no bounds.
struct ChunkMass {
  MassTile tile[kMostMassTiles];
  int32_t status;
};

constexpr ChunkMass kNoChunk = {{kNoTile, kNoTile}, SPECDEC_STATUS_OK};

// A chunk as words: both maxima, then the units of each tile. Units need 41 bits, so there is room for the status in the
// first ones' top bit.
constexpr int kWordsAChunk = 1 + kMostMassTiles;

__device__ __forceinline__ WideKey packed_maxima(const ChunkMass& chunk) {
  return static_cast<WideKey>(bits(chunk.tile[0].max)) << 32 | bits(chunk.tile[1].max);
}
__device__ __forceinline__ WideKey packed_units(const ChunkMass& chunk, int tile) {
  return chunk.tile[tile].units | (tile == 0 && chunk.status ? WideKey{1} << 63 : 0);
}
__device__ __forceinline__ float max_of_packed(WideKey maxima, int tile) {
  return from_bits(static_cast<uint32_t>(tile == 0 ? maxima >> 32 : maxima));
}
__device__ __forceinline__ uint64_t units_of_packed(WideKey units) { return units & ~(WideKey{1} << 63); }
__device__ __forceinline__ int32_t status_of_packed(WideKey units) {
  return units >> 63 ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK;
}

// How the tiles of a chunk are weighed, and put together to a row by a warp. `T` is the type of the elements, `kCount`
// how many vectors of a tile a lane has.
struct ExactMass {
  static constexpr bool kExact = true;
  uint64_t sum = 0;

  template <class T, int kCount>
  __device__ __forceinline__ static uint64_t of_lane(const uint4* vectors, const Logits& space, float tile_top) {
    uint64_t units = 0;
#pragma unroll
    for (int u = 0; u < kCount; ++u)
#pragma unroll
      for (int i = 0; i < T::kPerVector; i += 2)  // two weights fit 32 bits
        units += unit_weight(space.below(T::at(vectors[u], i), tile_top)) +
                 unit_weight(space.below(T::at(vectors[u], i + 1), tile_top));
    return units;
  }
  __device__ static uint64_t of_warp(uint64_t units) { return warp_sum(units); }

  __device__ void add_tile(uint64_t units, float tile_top, float top) { sum += tile_mass({units, tile_top}, top); }
  __device__ RowStats row(float top, unsigned status) const {
    if (top == -kInfinity) status |= SPECDEC_STATUS_NON_FINITE;
    return {log_sum_exp(top, warp_sum(sum)), kNoToken, static_cast<int32_t>(__reduce_or_sync(kWarp, status))};
  }
};

// By the device's own exponential (specdec/bounds.h). Its error is far below that of the polynomial there, and so are
// the errors of scaling: 2.1e-7 of the largest x. A row without bounds has an infinite log_sum, and no status.
struct AboutMass {
  static constexpr bool kExact = false;
  static constexpr float kLog2E = 1.44269504f;
  float sum = 0.0f;

  template <class T, int kCount>
  __device__ __forceinline__ static float of_lane(const uint4* vectors, const Logits& space, float tile_top) {
    if (tile_top == -kInfinity) return 0.0f;
    const float scale = mul(space.inverse, kLog2E), down = -mul(tile_top, kLog2E);
    float weights = 0.0f;
#pragma unroll
    for (int u = 0; u < kCount; ++u)
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i)
        weights = add(weights, exp2_approx(fma(T::at(vectors[u], i), scale, down)));
    return weights;
  }
  __device__ static uint64_t of_warp(float weights) { return bits(warp_sum(weights)); }

  __device__ void add_tile(uint64_t units, float tile_top, float top) {
    const float weights = from_bits(static_cast<uint32_t>(units));
    if (weights > 0.0f) sum = add(sum, mul(weights, exp2_approx(mul(sub(tile_top, top), kLog2E))));
  }
  __device__ RowStats row(float top, unsigned status) const {
    const float whole = warp_sum(sum);
    const bool bounded = !__reduce_or_sync(kWarp, status) && magnitude(top) <= kLargestBounded;
    return {{top, bounded ? log(whole) : kInfinity}, kNoToken, SPECDEC_STATUS_OK};
  }
};

// A tile of which some elements are no logits, or are scaled to infinity: by element, from a cache.
template <class R>
__device__ __forceinline__ MassTile weigh_odd_tile(const R& row, const Logits& space, int32_t begin, bool* bad) {
  const int32_t end = row.vocab - begin < kMassTile ? row.vocab : begin + kMassTile;
  float top = -kInfinity;
#pragma unroll 1
  for (int32_t token = begin + lane_id(); token < end; token += 32) {
    const float raw = element(row, token);
    *bad |= !space.is_element(raw);
    top = max(space.scaled(raw), top);
  }
  top = warp_max(top);
  uint64_t units = 0;
#pragma unroll 1
  for (int32_t token = begin + lane_id(); token < end; token += 32)  // in this order min lets a NaN through
    units += unit_weight(min(0.0f, space.below(element(row, token), top)));
  return {warp_sum(units), top};
}

// Of a chunk of one tile, weigh_chunk can also say the largest x of each lane's elements. Here nobody wants to know.
struct NoTops {
  static constexpr bool kWanted = false;
};

// The largest x of a lane's elements in a tile with odd ones, from a cache, without NaNs. Says whether +inf was met.
template <class T, class R>
__device__ __forceinline__ float top_of_lane(const R& row, const Logits& space, int32_t begin, bool* infinite) {
  float top = -kInfinity;
#pragma unroll 1
  for (int u = 0; u < kVectors / kMassTilesAChunk<T>; ++u) {
    const int32_t first = Batch<T>::token(begin, u);
#pragma unroll 1
    for (int32_t token = first; token < first + T::kPerVector && token < row.vocab; ++token) {
      const float raw = element(row, token);
      *infinite |= raw == kInfinity;
      top = max(space.scaled(raw), top);
    }
  }
  return top;
}

template <class T, class R, class Tops = NoTops, class Mass = ExactMass>
__device__ __forceinline__ ChunkMass weigh_chunk(const R& row, int32_t chunk, const Logits& space,
                                                 Tops&& tops = {}, Mass = {}) {
  constexpr bool kTops = std::remove_reference_t<Tops>::kWanted;
  constexpr int kTiles = kMassTilesAChunk<T>, kSteps = kVectors / kTiles;
  static_assert(!kTops || kTiles == 1, "a chunk is a tile");
  const int32_t first = chunk * Batch<T>::kTokens;
  Batch<T> batch;
  batch.load(row, first, kVectors);
  float top[kTiles];
  bool plain = true;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    top[t] = -kInfinity;
#pragma unroll
    for (int u = 0; u < kSteps; ++u) top[t] = max_nan(top[t], T::largest(batch.vector[t * kSteps + u]));
    top[t] = space.key(top[t]);
    plain &= top[t] < kInfinity;
  }
  ChunkMass mass = kNoChunk;
  if (!__all_sync(kWarp, plain)) {
    if constexpr (!Mass::kExact) {
      mass.status = SPECDEC_STATUS_NON_FINITE;
      return mass;
    }
    bool bad = false;
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t) {
      const MassTile tile = weigh_odd_tile(row, space, first + t * kMassTile, &bad);
      if (t == 0) mass.tile[0] = tile;
      else mass.tile[1] = tile;
      if constexpr (kTops) tops.put(top_of_lane<T>(row, space, first, &tops.infinite));
    }
    mass.status = __any_sync(kWarp, bad) ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK;
    return mass;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if constexpr (kTops) {
      tops.put(top[t]);
      if (!tops.weigh) continue;
    }
    const float tile_top = warp_max(top[t]);
    const auto weights = Mass::template of_lane<T, kSteps>(batch.vector + t * kSteps, space, tile_top);
    mass.tile[t] = {Mass::of_warp(weights), tile_top};
  }
  return mass;
}

template <class R, class Mass = ExactMass>
__device__ __forceinline__ ChunkMass weigh(const R& row, int32_t chunk, const Logits& space, Mass mass = {}) {
  return with_type(row, [&](auto type) { return weigh_chunk<decltype(type)>(row, chunk, space, NoTops{}, mass); });
}

// By one warp: the whole row from its chunks' words. word(chunk, k) is word k of a chunk. The words of a lane's first
// chunks stay in registers: rows of up to 128 Ki 16-bit tokens are read once, all words together.
template <class Mass = ExactMass, class F>
__device__ __forceinline__ RowStats row_of_chunks(int32_t chunks, F&& word) {
  constexpr int kHeld = 2;
  const ChunkMass none = kNoChunk;
  WideKey held[kHeld][kWordsAChunk];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int32_t c = lane_id() + 32 * h;
#pragma unroll
    for (int k = 0; k < kWordsAChunk; ++k) held[h][k] = c < chunks ? word(c, k) : k == 0 ? packed_maxima(none) : 0;
  }
  float top = -kInfinity;
  const auto see = [&](WideKey maxima) {
    top = max(max(max_of_packed(maxima, 0), max_of_packed(maxima, 1)), top);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) see(held[h][0]);
  for (int32_t c = lane_id() + 32 * kHeld; c < chunks; c += 32) see(word(c, 0));
  top = warp_max(top);
  Mass mass = {};
  unsigned status = SPECDEC_STATUS_OK;
  const auto weigh = [&](WideKey maxima, WideKey units, int tile) {
    mass.add_tile(units_of_packed(units), max_of_packed(maxima, tile), top);
    status |= static_cast<unsigned>(status_of_packed(units));
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
#pragma unroll
    for (int t = 0; t < kMostMassTiles; ++t) weigh(held[h][0], held[h][1 + t], t);
  for (int32_t c = lane_id() + 32 * kHeld; c < chunks; c += 32)
#pragma unroll
    for (int t = 0; t < kMostMassTiles; ++t) weigh(word(c, 0), word(c, 1 + t), t);
  return mass.row(top, status);
}

}  // namespace cuda
}  // namespace specdec
