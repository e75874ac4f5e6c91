// log and -log1p(-u) in float32, bit for bit the same on every backend: only additions and multiplications, each
// rounded separately, in this order. The coefficients are a minimax fit (relative error 2^-27.9) of
// (log1p(f) - f) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1]. Measured: tests/ops/test_noise.py, docs/noise.md.
#pragma once

#include "arithmetic.h"

SPECDEC_BEGIN

// For normal, positive x. `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float log(Float x) {
  using Word = decltype(bits(x));
  // x = 2^exponent * [sqrt(1/2), sqrt(2))
  const Word exponent = shift_right_signed(bits(x) - Word(0x3f3504f3u), 23);
  const Float f = sub(from_bits(bits(x) - shift_left(exponent, 23)), Float(1.0f));
  Float r = Float(-0.07622108608484268f);
  r = add(mul(r, f), Float(0.12904690206050873f));
  r = add(mul(r, f), Float(-0.13242976367473602f));
  r = add(mul(r, f), Float(0.14181779325008392f));
  r = add(mul(r, f), Float(-0.16609077155590057f));
  r = add(mul(r, f), Float(0.20001976191997528f));
  r = add(mul(r, f), Float(-0.25001582503318787f));
  r = add(mul(r, f), Float(0.33333325386047363f));
  r = add(mul(r, f), Float(-0.49999988079071045f));
  const Float e = signed_float(exponent);
  r = mul(r, mul(f, f));
  r = add(r, mul(e, Float(-2.12194440e-4f)));  // ln 2 - 0.693359375, so that the last product below is exact
  return add(add(r, f), mul(e, Float(0.693359375f)));
}

// -log(1 - u) for u in (0, 1) with at most 24 significant bits. 1 - u is rounded; a correction adds what rounding lost.
// `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float neg_log1p_neg(Float u) {
  const Float y = sub(Float(1.0f), u);
  const Float lost = sub(sub(Float(1.0f), y), u);  // exact
  return sub(Float(0.0f), add(log(y), mul(lost, sub(Float(2.0f), y))));
}

SPECDEC_END
