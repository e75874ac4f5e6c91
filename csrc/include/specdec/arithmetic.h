// float32 operations that round once each, on every compiler. The polynomials of logarithm.h and exponential.h are
// written with these names, so that the CPU backend can run the same text on vectors (csrc/cpu/simd.h).
#pragma once

#include <cstring>

#include "config.h"

SPECDEC_BEGIN

#if defined(__CUDA_ARCH__)
SPECDEC_HD float mul(float a, float b) { return __fmul_rn(a, b); }
SPECDEC_HD float add(float a, float b) { return __fadd_rn(a, b); }
SPECDEC_HD float sub(float a, float b) { return __fsub_rn(a, b); }
SPECDEC_HD float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SPECDEC_HD uint32_t bits(float a) { return __float_as_uint(a); }
SPECDEC_HD float from_bits(uint32_t a) { return __uint_as_float(a); }
SPECDEC_HD uint32_t mulhi(uint32_t a, uint32_t b) { return __umulhi(a, b); }
SPECDEC_HD int leading_zeros(uint64_t a) { return __clzll(static_cast<long long>(a)); }
SPECDEC_HD uint32_t shift_right(uint32_t a, uint32_t n) { return __funnelshift_rc(a, 0u, n); }  // by 32 and more: 0
#else
// Compile with -ffp-contract=off: a fused multiply-add here would change the last bit.
SPECDEC_HD float mul(float a, float b) { return a * b; }
SPECDEC_HD float add(float a, float b) { return a + b; }
SPECDEC_HD float sub(float a, float b) { return a - b; }
SPECDEC_HD float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SPECDEC_HD uint32_t bits(float a) { uint32_t r; std::memcpy(&r, &a, 4); return r; }
SPECDEC_HD float from_bits(uint32_t a) { float r; std::memcpy(&r, &a, 4); return r; }
SPECDEC_HD uint32_t mulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}
SPECDEC_HD int leading_zeros(uint64_t a) { return __builtin_clzll(a); }
SPECDEC_HD uint32_t shift_right(uint32_t a, uint32_t n) { return n < 32 ? a >> n : 0; }  // by 32 and more: 0
#endif

// A NaN on the left loses, as in the x86 instructions.
SPECDEC_HD float max(float a, float b) { return a > b ? a : b; }
SPECDEC_HD float min(float a, float b) { return a < b ? a : b; }
SPECDEC_HD float magnitude(float a) { return from_bits(bits(a) & 0x7fffffffu); }
SPECDEC_HD uint32_t shift_left(uint32_t a, int n) { return a << n; }
SPECDEC_HD uint32_t shift_right_signed(uint32_t a, int n) { return static_cast<uint32_t>(static_cast<int32_t>(a) >> n); }
SPECDEC_HD float signed_float(uint32_t a) { return static_cast<float>(static_cast<int32_t>(a)); }
SPECDEC_HD float div(float a, float b) { return a / b; }
SPECDEC_HD bool at_least(float a, float b) { return a >= b; }
SPECDEC_HD bool greater(float a, float b) { return a > b; }
SPECDEC_HD float where(bool m, float a, float b) { return m ? a : b; }

// Floats as unsigned integers of the same order.
SPECDEC_HD uint32_t ordered(float x) {
  const uint32_t b = bits(x + 0.0f);  // -0 and 0 are equal
  return b >> 31 ? ~b : b | 0x80000000u;
}
SPECDEC_HD float from_ordered(uint32_t o) { return from_bits(o >> 31 ? o ^ 0x80000000u : ~o); }

// Bounds of a number. Functions below exist for float and Range, so that templates take either.
struct Range {
  float low, high;
};
SPECDEC_HD float low(float x) { return x; }
SPECDEC_HD float low(Range x) { return x.low; }
SPECDEC_HD float high(float x) { return x; }
SPECDEC_HD float high(Range x) { return x.high; }
SPECDEC_HD bool is_exact(float) { return true; }
SPECDEC_HD bool is_exact(Range x) { return x.low == x.high; }
SPECDEC_HD void set(float* number, float x) { *number = x; }
SPECDEC_HD void set(Range* number, float x) { *number = {x, x}; }

SPECDEC_END
