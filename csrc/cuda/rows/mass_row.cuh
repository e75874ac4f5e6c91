// The mass of rows of logits, in tiles of 1,024 columns (specdec/mass.h): exact integers, so that no probability
// depends on how many blocks share a row. One warp weighs a whole tile.
#pragma once

#include "race.cuh"
#include "specdec/mass.h"

namespace specdec {

// Two floats, or two words: the maths of specdec/mass.h for two tokens at once, each rounded as one alone. On sm_100
// and newer one instruction has both floats. There is no product of two: ptxas 13.0 fuses mul.rn.f32x2 and add.rn.f32x2
// into an fma, which rounds once.
template <class X>
struct Both {
  X a, b;
  SPECDEC_HD Both(X first, X second) : a(first), b(second) {}
  SPECDEC_HD explicit Both(X x) : a(x), b(x) {}
};
using Floats = Both<float>;
using TwoWords = Both<uint32_t>;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && CUDART_VERSION >= 13000
SPECDEC_HD Floats sub(Floats x, Floats y) {
  const float2 r = __fadd2_rn({x.a, x.b}, {-y.a, -y.b});
  return {r.x, r.y};
}
SPECDEC_HD Floats fma(Floats x, Floats y, Floats z) {
  const float2 r = __ffma2_rn({x.a, x.b}, {y.a, y.b}, {z.a, z.b});
  return {r.x, r.y};
}
#else
SPECDEC_HD Floats sub(Floats x, Floats y) { return {sub(x.a, y.a), sub(x.b, y.b)}; }
SPECDEC_HD Floats fma(Floats x, Floats y, Floats z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }
#endif
SPECDEC_HD TwoWords bits(Floats x) { return {bits(x.a), bits(x.b)}; }
SPECDEC_HD TwoWords operator+(TwoWords x, TwoWords y) { return {x.a + y.a, x.b + y.b}; }
SPECDEC_HD TwoWords operator-(TwoWords x, TwoWords y) { return {x.a - y.a, x.b - y.b}; }
SPECDEC_HD TwoWords shift_left(TwoWords x, int n) { return {shift_left(x.a, n), shift_left(x.b, n)}; }
SPECDEC_HD TwoWords shift_right(TwoWords x, TwoWords n) { return {shift_right(x.a, n.a), shift_right(x.b, n.b)}; }

namespace cuda {

// Statistics of a row that was looked through.
struct RowStats {
  LogSumExp lse;
  int32_t argmax;  // kNoToken: nothing has weight, or it was not looked for
  int32_t status;
  // As LawWithStats::is_empty: no token has weight.
  __device__ bool is_empty() const { return argmax == kNoToken && !(lse.log_sum < kInfinity); }
};

constexpr RowStats kNoStats = {kNoMass, kNoToken, SPECDEC_STATUS_OK};

__device__ __forceinline__ LawWithStats with_stats(const Law& law, const RowStats& row) {
  return {law, row.lse, row.argmax};
}
__device__ __forceinline__ Draw to_draw(const RowStats& row) {
  return to_draw(Candidate{-kInfinity, row.argmax}, row.status);
}
__device__ __forceinline__ RowStats argmax_stats(const RowPartial& row) {
  return {kNoMass, row.best.token, to_draw(row).status};
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int32_t mass_tiles_of(int32_t vocab) { return (vocab + kMassTile - 1) / kMassTile; }

struct TileMass {
  MassTile tile;
  int32_t status;
};

constexpr TileMass kNoTileMass = {kNoTile, SPECDEC_STATUS_OK};

// A tile as two words: its maximum with a bit for a bad status, then its units.
constexpr int kWordsATile = 2;

__device__ __forceinline__ WideKey packed_max(const TileMass& mass) {
  return static_cast<WideKey>(bits(mass.tile.max)) << 32 | (mass.status != SPECDEC_STATUS_OK);
}
__device__ __forceinline__ float max_of_packed(WideKey max) { return from_bits(static_cast<uint32_t>(max >> 32)); }
__device__ __forceinline__ int32_t status_of_packed(WideKey max) {
  return max & 1 ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK;
}

// Adds the tiles of a row, a warp a row.
struct ExactMass {
  uint64_t sum = 0;

  __device__ void add_tile(uint64_t units, float tile_top, float top) { sum += tile_mass({units, tile_top}, top); }
  __device__ RowStats row(float top, unsigned status) const {
    if (top == -kInfinity) status |= SPECDEC_STATUS_NON_FINITE;
    return {log_sum_exp(top, warp_sum(sum)), kNoToken, static_cast<int32_t>(__reduce_or_sync(kWarp, status))};
  }
};

// Weighs a tile with elements that are no logits, or that are scaled to infinity: by element, from a cache.
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

// Brings a tile into the L2 cache; a lane brings a part of a line.
__device__ __forceinline__ void prefetch_tile(const Row& row, int32_t tile) {
  const int64_t size = row.dtype == SPECDEC_FLOAT32 ? 4 : 2;
  const int64_t token = int64_t{tile} * kMassTile + lane_id() * (kMassTile / 32);
  if (token < row.vocab) prefetch_line(static_cast<const char*>(row.data) + token * size);
}

// The words of a lane's first tiles; word(tile, k) is word k of a tile. Rows of up to 128 Ki tokens have no others, and
// all loads are in flight together.
struct TileWords {
  static constexpr int kHeld = 4;
  WideKey maxima[kHeld], units[kHeld];

  template <class F>
  __device__ __forceinline__ void load(int32_t tiles, F&& word) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int32_t t = lane_id() + 32 * h;
      maxima[h] = t < tiles ? word(t, 0) : packed_max({kNoTile, SPECDEC_STATUS_OK});
      units[h] = t < tiles ? word(t, 1) : 0;
    }
  }
};

// Adds up a row from its tiles' words. All lanes of a warp call.
template <class F>
__device__ __forceinline__ RowStats row_of_tiles(int32_t tiles, const TileWords& held, F&& word) {
  constexpr int kHeld = TileWords::kHeld;
  float top = -kInfinity;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) top = max(max_of_packed(held.maxima[h]), top);
  for (int32_t t = lane_id() + 32 * kHeld; t < tiles; t += 32) top = max(max_of_packed(word(t, 0)), top);
  top = warp_max(top);
  ExactMass mass = {};
  unsigned status = SPECDEC_STATUS_OK;
  const auto weigh = [&](WideKey max, WideKey tile_units) {
    mass.add_tile(tile_units, max_of_packed(max), top);
    status |= static_cast<unsigned>(status_of_packed(max));
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) weigh(held.maxima[h], held.units[h]);
  for (int32_t t = lane_id() + 32 * kHeld; t < tiles; t += 32) weigh(word(t, 0), word(t, 1));
  return mass.row(top, status);
}

}  // namespace cuda
}  // namespace specdec
