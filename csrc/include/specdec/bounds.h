// Bounds of a row's normaliser, from exponentials that are cheaper than those of its mass (mass.h). A test that comes
// out the same at both ends needs no mass (docs/noise.md, "Bounds before masses").
#pragma once

#include "mass.h"

SPECDEC_BEGIN

// A whole number n and f in [0, 1), as the bits of a float, make 2^n (1 + f). This is 2^f / (1 + f), times 2^shift, to a
// relative error of 0.0005677: of 1 + f, minimax.
template <class Float>
SPECDEC_HD Float about_exp2_over_line(Float line) {
  const Float u = add(line, Float(-0x1.d670aap+1f)), w = fma(u, u, Float(-0x1.3ed8e2p+2f));
  return fma(w, w, Float(0x1.33e63p+6f));
}
constexpr float kAboutExp2Shift = 6.3532028f;

// The logarithm of a sum of such exponentials, or of closer ones, differs from that of the row's mass by at most this.
// Beside the polynomial's error it covers that of the mass (5e-6, tiles and all) and the roundings of all sums (of a tile's
// 2,048 weights in sixteen lanes 79 of 2^-24, so 5e-6), logarithms and probabilities. The second part is for the rounding
// of the logits, of which `largest` is the largest, divided by T.
SPECDEC_HD float log_sum_error(float largest) { return 7e-4f + 4e-7f * magnitude(largest); }

// The weights of a tile add up to about sum * 2^whole, where `whole` is an integer; -inf if nothing has weight.
struct BoundTile {
  float sum, whole;
};

// ---- errors of backends' sums and logarithms ------------------------------------------------------------------------

// The error of a weight in whole numbers: half a unit of 2^-42, and a little for weights, which are never below 2^-119.
constexpr double kUnitError = 0x1.001p-43;

// The error of a random word's logarithm from a GPU's log2: it is 32 at most, with a relative error of 2^-22, plus
// roundings.
constexpr float kWordLogError = 1e-4f;

constexpr float kLargestBounded = 1e6f;  // no bounds of rows whose largest x is above it, or below its negative

// Approximates a row's log-sum-exp from its tiles; `largest` is its largest x. The sum in double is exact enough.
SPECDEC_HD LogSumExp about_log_sum_exp(const BoundTile* tiles, int32_t count, float largest) {
  float whole = -kInfinity;
  for (int32_t tile = 0; tile < count; ++tile) whole = max(tiles[tile].whole, whole);
  double sum = 0.0;
  for (int32_t tile = 0; tile < count; ++tile) {
    const float exponent = tiles[tile].whole - whole;
    if (!(exponent >= -126.0f)) continue;
    sum += tiles[tile].sum * from_bits(static_cast<uint32_t>(127 + static_cast<int>(exponent)) << 23);
  }
  const double base = whole * 0.69314718055994530942 - largest;
  return {largest, static_cast<float>(base + log(static_cast<float>(sum)))};
}

SPECDEC_END
