// log and -log1p(-u) in float32, bit for bit the same on every backend: only additions and multiplications, each
// rounded on its own, in this order. The coefficients are a minimax fit (relative error 2^-27.9) of
// (log1p(f) - f) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1]. Measured: tests/test_noise.py, docs/noise.md.
#pragma once

#include "arithmetic.h"

SPECDEC_BEGIN

// For normal, positive x.
SPECDEC_HD float log(float x) {
  const int32_t exponent = (static_cast<int32_t>(bits(x)) - 0x3f3504f3) >> 23;  // x = 2^exponent * [sqrt(1/2), sqrt(2))
  const float f = sub(from_bits(bits(x) - (static_cast<uint32_t>(exponent) << 23)), 1.0f);
  float r = -0.07622108608484268f;
  r = add(mul(r, f), 0.12904690206050873f);
  r = add(mul(r, f), -0.13242976367473602f);
  r = add(mul(r, f), 0.14181779325008392f);
  r = add(mul(r, f), -0.16609077155590057f);
  r = add(mul(r, f), 0.20001976191997528f);
  r = add(mul(r, f), -0.25001582503318787f);
  r = add(mul(r, f), 0.33333325386047363f);
  r = add(mul(r, f), -0.49999988079071045f);
  const float e = static_cast<float>(exponent);
  r = mul(r, mul(f, f));
  r = add(r, mul(e, -2.12194440e-4f));  // ln 2 - 0.693359375, so that the last product below is exact
  return add(add(r, f), mul(e, 0.693359375f));
}

// -log(1 - u) for u in (0, 1) with at most 24 significant bits. 1 - u is rounded; what the rounding lost is put back.
SPECDEC_HD float neg_log1p_neg(float u) {
  const float y = sub(1.0f, u);
  const float lost = sub(sub(1.0f, y), u);  // exact
  return sub(0.0f, add(log(y), mul(lost, sub(2.0f, y))));
}

SPECDEC_END
