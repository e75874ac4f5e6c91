// Masses: exp as an integer, and sums of it. A sum of integers does not depend on their order, so every backend, split
// and batch has the same normaliser, bit for bit. Every backend must use the numbers below: another polynomial would
// change some decisions.
#pragma once

#include "softmax.h"

SPECDEC_BEGIN

constexpr int32_t kMassTile = 1024;  // tokens of a tile: its weights are first summed relative to the tile's maximum

// exp(d) = q 2^-31 2^-n for d <= 0, with a relative error of at most 4e-7 + 1.4e-8 |d|. For NaN and -inf n is so large
// that every weight below is 0. `Word` is uint32_t or a vector of them.
template <class Word>
struct IntegerExp {
  Word q, n;
};

template <class Float>
SPECDEC_HD auto integer_exp(Float d) {
  using Word = decltype(bits(d));
  const Float magic = Float(12582912.0f), log2_e = Float(1.44269504f);  // 1.5 * 2^23
  const Float rounded = fma(d, log2_e, magic);
  const Float f = fma(d, log2_e, sub(magic, rounded));
  Float r = Float(0x1.5bba24p-10f * 0x1p22f);
  r = fma(r, f, Float(0x1.3cea98p-7f * 0x1p22f));
  r = fma(r, f, Float(0x1.c6b70ep-5f * 0x1p22f));
  r = fma(r, f, Float(0x1.ebf9bep-3f * 0x1p22f));
  r = fma(r, f, Float(0x1.62e42ap-1f * 0x1p22f));
  r = fma(r, f, magic);  // rounds to an integer, which is then in the low bits
  return IntegerExp<Word>{shift_left(bits(r), 9), bits(magic) - bits(rounded)};
}

// A token's weight in units of 2^-30 of the largest of its tile. The sum of two fits 32 bits.
template <class Float>
SPECDEC_HD auto unit_weight(Float below_tile_max) {
  const auto e = integer_exp(below_tile_max);
  using Word = decltype(e.q);
  return shift_right(e.q, e.n + Word(1u));
}

// A token's weight in units of 2^-42 of the largest of its row.
SPECDEC_HD uint64_t row_weight(const IntegerExp<uint32_t>& e) {
  return e.n < 64 ? (static_cast<uint64_t>(e.q) << 11) >> e.n : 0;
}
SPECDEC_HD uint64_t row_weight(float below_max) { return row_weight(integer_exp(below_max)); }

constexpr uint64_t kOneToken = uint64_t{1} << 42;  // the row_weight of a row's largest

// The sum of a tile's weights, `units`, at most 2^40. It must be complete before it is added to other tiles', because
// tile_mass truncates. A row's tiles begin at the multiples of kMassTile.
struct MassTile {
  uint64_t units;
  float max;  // the largest x = logit / T; -inf if no token has weight
};

constexpr MassTile kNoTile = {0, -kInfinity};

// Tiles as 32-bit words in memory: `count` maxima, as many low words of units, as many high ones.
SPECDEC_HD MassTile tile_at(const int32_t* words, int32_t count, int32_t tile) {
  const uint64_t low = static_cast<uint32_t>(words[count + tile]), high = static_cast<uint32_t>(words[2 * count + tile]);
  return {high << 32 | low, from_bits(static_cast<uint32_t>(words[tile]))};
}
SPECDEC_HD void put_tile(int32_t* words, int32_t count, int32_t tile, const MassTile& values) {
  words[tile] = static_cast<int32_t>(bits(values.max));
  words[count + tile] = static_cast<int32_t>(values.units);
  words[2 * count + tile] = static_cast<int32_t>(values.units >> 32);
}

// The mass that a tile adds to a row of this maximum.
SPECDEC_HD uint64_t tile_mass(const MassTile& tile, float row_max) {
  const IntegerExp<uint32_t> e = integer_exp(sub(tile.max, row_max));
  return e.n < 54 ? (tile.units * (e.q >> 9)) >> (10 + e.n) : 0;
}

SPECDEC_HD float largest_of(const MassTile* tiles, int32_t count) {
  float top = -kInfinity;
  for (int32_t tile = 0; tile < count; ++tile) top = max(tiles[tile].max, top);
  return top;
}

SPECDEC_HD uint64_t mass_of(const MassTile* tiles, int32_t count, float row_max) {
  uint64_t mass = 0;
  for (int32_t tile = 0; tile < count; ++tile) mass += tile_mass(tiles[tile], row_max);
  return mass;
}

SPECDEC_HD LogSumExp log_sum_exp(float max, uint64_t mass) {
  return log_sum_exp(max, mul(static_cast<float>(mass), 0x1p-42f));
}

// The log-sum-exp of a row from all of its tiles, in any order.
SPECDEC_HD LogSumExp log_sum_exp(const MassTile* tiles, int32_t count) {
  const float top = largest_of(tiles, count);
  return log_sum_exp(top, mass_of(tiles, count, top));
}

SPECDEC_END
