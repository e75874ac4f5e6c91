// exp for softmax rows: arguments at most 0. Scalar and vector text are one, with explicit fused multiply-adds, so
// that the CPU backend's instruction sets agree bit for bit. Relative error below 2.4e-7.
#pragma once

#include "arithmetic.h"

SPECDEC_BEGIN

constexpr float kExpUnderflow = -87.3f;  // exp below this counts as zero

// exp(x) for x in [kExpUnderflow, 88]. `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float exp_in_range(Float x) {
  const Float magic = Float(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits
  const Float shifted = fma(x, Float(1.4426950216293335f), magic);
  const Float minus_whole = sub(magic, shifted);
  const Float f = fma(x, Float(1.9259629911266175e-8f), fma(x, Float(1.4426950216293335f), minus_whole));
  Float r = Float(0x1.5c08e4p-10f);
  r = fma(r, f, Float(0x1.3d0c52p-7f));
  r = fma(r, f, Float(0x1.c6b6e4p-5f));
  r = fma(r, f, Float(0x1.ebf918p-3f));
  r = fma(r, f, Float(0x1.62e428p-1f));
  r = fma(r, f, Float(0x1.000002p+0f));
  return from_bits(bits(r) + shift_left(bits(shifted), 23));
}

// exp(x) for x up to 88. A NaN gives 0, as it does below.
template <class Float>
SPECDEC_HD Float exp_up_to_88(Float x) {
  return where(at_least(x, Float(kExpUnderflow)), exp_in_range(x), Float(0.0f));
}

SPECDEC_HD float exp_or_zero(float x) { return x >= kExpUnderflow ? exp_in_range(min(x, 88.0f)) : 0.0f; }

template <class Float>
SPECDEC_HD Float exp_or_zero(Float x) {
  return where(at_least(x, Float(kExpUnderflow)), exp_in_range(min(x, Float(88.0f))), Float(0.0f));
}

SPECDEC_END
