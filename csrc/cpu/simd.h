// Sixteen lanes at a time: one AVX-512 register, two of AVX2 or four of the baseline, by this copy's compiler flags.
// Every operation rounds once per lane, and sums have one fixed shape. So all three give the same bits.
#pragma once

#if defined(__AVX2__)
// GCC 12 warns about _mm512_undefined_epi32 (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#include "specdec/bounds.h"
#include "specdec/philox.h"

SPECDEC_BEGIN

constexpr int kLanes = 16;

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

// Four lanes as the compiler's vector types, which are registers of SSE2 or NEON. Comparisons are -1 where they hold.
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
using Uints = uint32_t __attribute__((vector_size(16)));
SPECDEC_HD Uints bits(Floats x) { return reinterpret_cast<Uints>(x); }
SPECDEC_HD Floats from_bits(Uints x) { return reinterpret_cast<Floats>(x); }
SPECDEC_HD Floats signed_float(Uints x) { return __builtin_convertvector(reinterpret_cast<Ints>(x), Floats); }

// `Word` is uint32_t or Uints, its lower half the bits of a number.
template <class Word>
SPECDEC_HD auto float_of_half(Word half) {
  const Word sign = (half & 0x8000u) << 16, rest = half & 0x7fffu, normal = (rest << 13) + 0x38000000u;
  const Word denormal = bits(signed_float(rest) * 0x1p-24f);
  return from_bits(sign | (rest < 0x0400u ? denormal : rest < 0x7c00u ? normal : normal + 0x38000000u));
}

SPECDEC_HD float to_float(float x) { return x; }
SPECDEC_HD float to_float(BFloat16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
SPECDEC_HD float to_float(Float16 x) { return float_of_half(static_cast<uint32_t>(x.bits)); }

using Mask = uint32_t;  // one bit a lane

// Two vectors, or Two of Two, as one. Their operations interleave, which hides each vector's latency.
template <class Each>
struct Two {
  Each a, b;
  Two() = default;
  SPECDEC_HD Two(Each x, Each y) : a(x), b(y) {}
  template <class Number>
  SPECDEC_HD explicit Two(Number x) : a(x), b(x) {}
};
template <class Each>
SPECDEC_HD Two<Each> both(Each a, Each b) { return {a, b}; }

#define SPECDEC_OF_ONE(f) \
  template <class V>      \
  SPECDEC_HD auto f(Two<V> x) { return both(f(x.a), f(x.b)); }
#define SPECDEC_OF_TWO(f) \
  template <class V>      \
  SPECDEC_HD auto f(Two<V> x, Two<V> y) { return both(f(x.a, y.a), f(x.b, y.b)); }
#define SPECDEC_BETWEEN(op) \
  template <class V>        \
  SPECDEC_HD Two<V> operator op(Two<V> x, Two<V> y) { return {x.a op y.a, x.b op y.b}; }
#define SPECDEC_BY_NUMBER(f) \
  template <class V>         \
  SPECDEC_HD Two<V> f(Two<V> x, int n) { return {f(x.a, n), f(x.b, n)}; }
SPECDEC_OF_ONE(bits) SPECDEC_OF_ONE(from_bits) SPECDEC_OF_ONE(magnitude) SPECDEC_OF_ONE(signed_float)
SPECDEC_OF_ONE(unsigned_float) SPECDEC_OF_ONE(whole_number) SPECDEC_OF_ONE(with_exponent_0)
SPECDEC_OF_TWO(add) SPECDEC_OF_TWO(sub) SPECDEC_OF_TWO(mul) SPECDEC_OF_TWO(div) SPECDEC_OF_TWO(min) SPECDEC_OF_TWO(max)
SPECDEC_OF_TWO(mulhi) SPECDEC_OF_TWO(shift_right)
SPECDEC_OF_TWO(at_least) SPECDEC_OF_TWO(greater) SPECDEC_OF_TWO(unordered) SPECDEC_OF_TWO(at_most)
SPECDEC_BETWEEN(+) SPECDEC_BETWEEN(-) SPECDEC_BETWEEN(*) SPECDEC_BETWEEN(^)
SPECDEC_BY_NUMBER(shift_left) SPECDEC_BY_NUMBER(shift_right_signed)
#undef SPECDEC_OF_ONE
#undef SPECDEC_OF_TWO
#undef SPECDEC_BETWEEN
#undef SPECDEC_BY_NUMBER
template <class V>
SPECDEC_HD Two<V> fma(Two<V> x, Two<V> y, Two<V> z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }
template <class V>
SPECDEC_HD auto gather(const float* p, Two<V> i) { return both(gather(p, i.a), gather(p, i.b)); }
template <class M, class V>
SPECDEC_HD Two<V> where(Two<M> m, Two<V> x, Two<V> y) { return {where(m.a, x.a, y.a), where(m.b, x.b, y.b)}; }

#if defined(__AVX512F__) && defined(__AVX512BW__)

struct F32x16 {
  __m512 v;
  F32x16() = default;
  SPECDEC_HD F32x16(__m512 x) : v(x) {}
  SPECDEC_HD explicit F32x16(float x) : v(_mm512_set1_ps(x)) {}
};
struct U32x16 {
  __m512i v;
  U32x16() = default;
  SPECDEC_HD U32x16(__m512i x) : v(x) {}
  SPECDEC_HD explicit U32x16(uint32_t x) : v(_mm512_set1_epi32(static_cast<int>(x))) {}
};

SPECDEC_HD F32x16 load(const float* p) { return _mm512_loadu_ps(p); }
SPECDEC_HD F32x16 load(const BFloat16* p) {
  // One permutation instead of a widening and a shift: element i becomes the upper half of lane i.
  const __m512i half = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, _mm512_slli_epi32(lane, 16), half));
}
SPECDEC_HD F32x16 load(const Float16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SPECDEC_HD U32x16 load(const uint32_t* p) { return _mm512_loadu_si512(p); }
SPECDEC_HD void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
SPECDEC_HD void store(uint32_t* p, U32x16 a) { _mm512_storeu_si512(p, a.v); }
SPECDEC_HD F32x16 add(F32x16 a, F32x16 b) { return _mm512_add_ps(a.v, b.v); }
SPECDEC_HD F32x16 sub(F32x16 a, F32x16 b) { return _mm512_sub_ps(a.v, b.v); }
SPECDEC_HD F32x16 mul(F32x16 a, F32x16 b) { return _mm512_mul_ps(a.v, b.v); }
SPECDEC_HD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a.v, b.v, c.v); }
SPECDEC_HD F32x16 max(F32x16 a, F32x16 b) { return _mm512_max_ps(a.v, b.v); }
SPECDEC_HD F32x16 min(F32x16 a, F32x16 b) { return _mm512_min_ps(a.v, b.v); }
SPECDEC_HD U32x16 bits(F32x16 a) { return _mm512_castps_si512(a.v); }
SPECDEC_HD F32x16 from_bits(U32x16 a) { return _mm512_castsi512_ps(a.v); }
SPECDEC_HD U32x16 operator+(U32x16 a, U32x16 b) { return _mm512_add_epi32(a.v, b.v); }
SPECDEC_HD U32x16 operator^(U32x16 a, U32x16 b) { return _mm512_xor_si512(a.v, b.v); }
SPECDEC_HD U32x16 operator*(U32x16 a, U32x16 b) { return _mm512_mullo_epi32(a.v, b.v); }
SPECDEC_HD U32x16 operator-(U32x16 a, U32x16 b) { return _mm512_sub_epi32(a.v, b.v); }
SPECDEC_HD U32x16 shift_left(U32x16 a, int n) { return _mm512_slli_epi32(a.v, static_cast<unsigned>(n)); }
SPECDEC_HD U32x16 shift_right(U32x16 a, U32x16 n) { return _mm512_srlv_epi32(a.v, n.v); }
SPECDEC_HD U32x16 shift_right_signed(U32x16 a, int n) { return _mm512_srai_epi32(a.v, static_cast<unsigned>(n)); }
SPECDEC_HD F32x16 signed_float(U32x16 a) { return _mm512_cvtepi32_ps(a.v); }
SPECDEC_HD U32x16 whole_number(F32x16 a) { return _mm512_cvtps_epi32(a.v); }  // of one in [0, 2^31)
// The bits of a positive float, moved into [1, 2).
SPECDEC_HD F32x16 with_exponent_0(U32x16 a) {
  const __m512i mantissa = _mm512_set1_epi32(0x7fffff), one = _mm512_set1_epi32(0x3f800000);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(a.v, mantissa, one, 0xea));  // a & mantissa | one
}
SPECDEC_HD F32x16 div(F32x16 a, F32x16 b) { return _mm512_div_ps(a.v, b.v); }
SPECDEC_HD F32x16 unsigned_float(U32x16 a) { return _mm512_cvtepu32_ps(a.v); }
SPECDEC_HD F32x16 magnitude(F32x16 a) { return _mm512_abs_ps(a.v); }
// The elements p[0], p[2] ... p[30], and p[1] ... p[31].
SPECDEC_HD F32x16 gather(const float* p, U32x16 i) { return _mm512_i32gather_ps(i.v, p, 4); }
SPECDEC_HD void load_pairs(const float* p, F32x16* even, F32x16* odd) {
  const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
  *even = _mm512_permutex2var_ps(low, index, high);
  *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(index, _mm512_set1_epi32(1)), high);
}
SPECDEC_HD U32x16 mulhi(U32x16 a, U32x16 b) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return _mm512_mask_blend_epi32(0xAAAA, even, odd);
}
SPECDEC_HD Mask at_least(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
SPECDEC_HD Mask greater(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
// Where either is a NaN.
SPECDEC_HD Mask unordered(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
SPECDEC_HD Mask at_most(U32x16 a, U32x16 b) { return _mm512_cmple_epu32_mask(a.v, b.v); }
SPECDEC_HD F32x16 where(Mask m, F32x16 a, F32x16 b) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(m), b.v, a.v);
}
// `x`, but the lanes of `m` are the next elements of p, by rising lane. May read sixteen of them.
SPECDEC_HD F32x16 expand(Mask m, const float* p, F32x16 x) {
  return _mm512_mask_expand_ps(x.v, static_cast<__mmask16>(m), _mm512_loadu_ps(p));
}
// Writes the lanes of `m` to p, without gaps. May write sixteen elements.
SPECDEC_HD void compress(float* p, Mask m, F32x16 a) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(m), a.v));
}

// Lane i: the largest lane of v[i].
SPECDEC_HD F32x16 largest_of_each(const F32x16* v) {
  __m512 four[4];
  for (int i = 0; i < 4; ++i) {
    __m512 two[2];
    for (int j = 0; j < 2; ++j) {
      const __m512 a = v[4 * i + 2 * j].v, b = v[4 * i + 2 * j + 1].v;
      two[j] = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    const __m512d a = _mm512_castps_pd(two[0]), b = _mm512_castps_pd(two[1]);
    four[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halves(halves(four[0], four[1]), halves(four[2], four[3]));
}

// Sums of 32-bit numbers, and of weights in their row, in 64 bits.
struct Sum16 {
  // Pairs are added as one number of 64 bits. `upper` is the sum of upper halves, which then counts 2^32 times.
  __m512i a = _mm512_setzero_si512(), b = a, upper = a;
  SPECDEC_HD void add(U32x16 x) {
    a = _mm512_add_epi64(a, x.v);
    upper = _mm512_add_epi64(upper, _mm512_srli_epi64(x.v, 32));
  }
  // (q << 11) >> n of the lanes chosen.
  SPECDEC_HD void add(U32x16 q, U32x16 n, Mask lanes) {
    const auto half = [&](__m256i q8, __m256i n8, Mask chosen) {
      return _mm512_maskz_srlv_epi64(static_cast<__mmask8>(chosen), _mm512_slli_epi64(_mm512_cvtepu32_epi64(q8), 11),
                                     _mm512_cvtepu32_epi64(n8));
    };
    a = _mm512_add_epi64(a, half(_mm512_castsi512_si256(q.v), _mm512_castsi512_si256(n.v), lanes));
    b = _mm512_add_epi64(b, half(_mm512_extracti64x4_epi64(q.v, 1), _mm512_extracti64x4_epi64(n.v, 1), lanes >> 8));
  }
  SPECDEC_HD uint64_t total() const {
    const __m512i excess = _mm512_sub_epi64(_mm512_slli_epi64(upper, 32), upper);
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_sub_epi64(_mm512_add_epi64(a, b), excess)));
  }
};

#elif defined(__AVX2__)

struct F32x8 {
  __m256 v;
  F32x8() = default;
  SPECDEC_HD F32x8(__m256 x) : v(x) {}
  SPECDEC_HD explicit F32x8(float x) : v(_mm256_set1_ps(x)) {}
};
struct U32x8 {
  __m256i v;
  U32x8() = default;
  SPECDEC_HD U32x8(__m256i x) : v(x) {}
  SPECDEC_HD explicit U32x8(uint32_t x) : v(_mm256_set1_epi32(static_cast<int>(x))) {}
};
using F32x16 = Two<F32x8>;
using U32x16 = Two<U32x8>;

// Eight lanes of a mask.
struct Mask8 { Mask bits; };
SPECDEC_HD Mask both(Mask8 a, Mask8 b) { return a.bits | b.bits << 8; }

SPECDEC_HD __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
SPECDEC_HD F32x8 load_eight(const float* p) { return _mm256_loadu_ps(p); }
SPECDEC_HD F32x8 load_eight(const BFloat16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
}
SPECDEC_HD F32x8 load_eight(const Float16* p) { return _mm256_cvtph_ps(load_half(p)); }
SPECDEC_HD U32x8 load_eight(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
template <class T>
SPECDEC_HD auto load(const T* p) { return both(load_eight(p), load_eight(p + 8)); }
SPECDEC_HD void store(float* p, F32x16 x) { _mm256_storeu_ps(p, x.a.v), _mm256_storeu_ps(p + 8, x.b.v); }
SPECDEC_HD void store(uint32_t* p, U32x16 x) {
  __m256i* q = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(q, x.a.v), _mm256_storeu_si256(q + 1, x.b.v);
}
SPECDEC_HD F32x8 add(F32x8 x, F32x8 y) { return _mm256_add_ps(x.v, y.v); }
SPECDEC_HD F32x8 sub(F32x8 x, F32x8 y) { return _mm256_sub_ps(x.v, y.v); }
SPECDEC_HD F32x8 mul(F32x8 x, F32x8 y) { return _mm256_mul_ps(x.v, y.v); }
SPECDEC_HD F32x8 div(F32x8 x, F32x8 y) { return _mm256_div_ps(x.v, y.v); }
SPECDEC_HD F32x8 fma(F32x8 x, F32x8 y, F32x8 z) { return _mm256_fmadd_ps(x.v, y.v, z.v); }
SPECDEC_HD F32x8 max(F32x8 x, F32x8 y) { return _mm256_max_ps(x.v, y.v); }
SPECDEC_HD F32x8 min(F32x8 x, F32x8 y) { return _mm256_min_ps(x.v, y.v); }
SPECDEC_HD U32x8 bits(F32x8 x) { return _mm256_castps_si256(x.v); }
SPECDEC_HD F32x8 from_bits(U32x8 x) { return _mm256_castsi256_ps(x.v); }
SPECDEC_HD U32x8 operator+(U32x8 x, U32x8 y) { return _mm256_add_epi32(x.v, y.v); }
SPECDEC_HD U32x8 operator^(U32x8 x, U32x8 y) { return _mm256_xor_si256(x.v, y.v); }
SPECDEC_HD U32x8 operator*(U32x8 x, U32x8 y) { return _mm256_mullo_epi32(x.v, y.v); }
SPECDEC_HD U32x8 operator-(U32x8 x, U32x8 y) { return _mm256_sub_epi32(x.v, y.v); }
SPECDEC_HD U32x8 shift_left(U32x8 x, int n) { return _mm256_slli_epi32(x.v, n); }
SPECDEC_HD U32x8 shift_right(U32x8 x, U32x8 n) { return _mm256_srlv_epi32(x.v, n.v); }
SPECDEC_HD U32x8 shift_right_signed(U32x8 x, int n) { return _mm256_srai_epi32(x.v, n); }
SPECDEC_HD F32x8 signed_float(U32x8 x) { return _mm256_cvtepi32_ps(x.v); }
SPECDEC_HD U32x8 whole_number(F32x8 x) { return _mm256_cvtps_epi32(x.v); }
SPECDEC_HD F32x8 with_exponent_0(U32x8 x) {
  const __m256i mantissa = _mm256_set1_epi32(0x7fffff), one = _mm256_set1_epi32(0x3f800000);
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(x.v, mantissa), one));
}
// Halves of 16 bits: both are exact, so the sum rounds once.
SPECDEC_HD F32x8 unsigned_float(U32x8 x) {
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x.v, 16));
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(x.v, _mm256_set1_epi32(0xffff)));
  return _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)), low);
}
SPECDEC_HD F32x8 magnitude(F32x8 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.v); }
SPECDEC_HD F32x8 gather(const float* p, U32x8 i) { return _mm256_i32gather_ps(p, i.v, 4); }
SPECDEC_HD void load_pairs(const float* p, F32x16* even, F32x16* odd) {
  const auto take = [](F32x8 low, F32x8 high, auto pick) {
    return F32x8(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pick(low.v, high.v)), 0xd8)));
  };
  const auto evens = [](__m256 low, __m256 high) { return _mm256_shuffle_ps(low, high, 0x88); };
  const auto odds = [](__m256 low, __m256 high) { return _mm256_shuffle_ps(low, high, 0xdd); };
  const F32x16 first = load(p), second = load(p + 16);
  *even = {take(first.a, first.b, evens), take(second.a, second.b, evens)};
  *odd = {take(first.a, first.b, odds), take(second.a, second.b, odds)};
}
SPECDEC_HD U32x8 mulhi(U32x8 x, U32x8 y) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x.v, y.v), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x.v, 32), _mm256_srli_epi64(y.v, 32));
  return _mm256_blend_epi32(even, odd, 0xAA);
}
SPECDEC_HD Mask8 lanes(__m256 held) { return {static_cast<Mask>(_mm256_movemask_ps(held))}; }
SPECDEC_HD Mask8 at_least(F32x8 x, F32x8 y) { return lanes(_mm256_cmp_ps(x.v, y.v, _CMP_GE_OQ)); }
SPECDEC_HD Mask8 greater(F32x8 x, F32x8 y) { return lanes(_mm256_cmp_ps(x.v, y.v, _CMP_GT_OQ)); }
SPECDEC_HD Mask8 unordered(F32x8 x, F32x8 y) { return lanes(_mm256_cmp_ps(x.v, y.v, _CMP_UNORD_Q)); }
SPECDEC_HD Mask8 at_most(U32x8 x, U32x8 y) {
  return lanes(_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_min_epu32(x.v, y.v), x.v)));
}
SPECDEC_HD __m256 spread(Mask m) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(m)), bit), bit));
}
SPECDEC_HD F32x16 where(Mask m, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.a.v, x.a.v, spread(m)), _mm256_blendv_ps(y.b.v, x.b.v, spread(m >> 8))};
}

// Lane i: the largest lane of v[i].
SPECDEC_HD F32x16 largest_of_each(const F32x16* v) {
  __m256 four[4];
  for (int i = 0; i < 4; ++i) {
    __m256 two[2];
    for (int j = 0; j < 2; ++j) {
      const F32x16 &x = v[4 * i + 2 * j], &y = v[4 * i + 2 * j + 1];
      const __m256 a = _mm256_max_ps(x.a.v, x.b.v), b = _mm256_max_ps(y.a.v, y.b.v);
      two[j] = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    }
    const __m256d a = _mm256_castps_pd(two[0]), b = _mm256_castps_pd(two[1]);
    four[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  const auto halves = [](__m256 a, __m256 b) {
    return _mm256_max_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  return {halves(four[0], four[1]), halves(four[2], four[3])};
}

// Sums of 32-bit numbers, and of weights in their row, in 64 bits.
struct Sum16 {
  __m256i a = _mm256_setzero_si256(), b = a, upper = a;  // as above
  SPECDEC_HD void add(U32x16 x) {
    a = _mm256_add_epi64(a, x.a.v), b = _mm256_add_epi64(b, x.b.v);
    upper = _mm256_add_epi64(upper, _mm256_add_epi64(_mm256_srli_epi64(x.a.v, 32), _mm256_srli_epi64(x.b.v, 32)));
  }
  // (q << 11) >> n of the lanes chosen.
  SPECDEC_HD void add(U32x16 q, U32x16 n, Mask lanes) {
    const auto eight = [](__m256i q8, __m256i n8, Mask chosen) {
      q8 = _mm256_and_si256(q8, _mm256_castps_si256(spread(chosen)));
      const auto four = [](__m128i q4, __m128i n4) {
        return _mm256_srlv_epi64(_mm256_slli_epi64(_mm256_cvtepu32_epi64(q4), 11), _mm256_cvtepu32_epi64(n4));
      };
      return _mm256_add_epi64(four(_mm256_castsi256_si128(q8), _mm256_castsi256_si128(n8)),
                              four(_mm256_extracti128_si256(q8, 1), _mm256_extracti128_si256(n8, 1)));
    };
    a = _mm256_add_epi64(a, eight(q.a.v, n.a.v, lanes));
    b = _mm256_add_epi64(b, eight(q.b.v, n.b.v, lanes >> 8));
  }
  SPECDEC_HD uint64_t total() const {
    uint64_t lane[4];
    const __m256i excess = _mm256_sub_epi64(_mm256_slli_epi64(upper, 32), upper);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lane), _mm256_sub_epi64(_mm256_add_epi64(a, b), excess));
    return lane[0] + lane[1] + lane[2] + lane[3];
  }
};

#else

using Longs = uint64_t __attribute__((vector_size(16)));

struct F32x4 {
  Floats v;
  F32x4() = default;
  SPECDEC_HD F32x4(Floats x) : v(x) {}
  SPECDEC_HD explicit F32x4(float x) : v{x, x, x, x} {}
};
struct U32x4 {
  Uints v;
  U32x4() = default;
  SPECDEC_HD U32x4(Uints x) : v(x) {}
  SPECDEC_HD explicit U32x4(uint32_t x) : v{x, x, x, x} {}
};
using F32x16 = Two<Two<F32x4>>;
using U32x16 = Two<Two<U32x4>>;

// Four and eight lanes of a mask: a bit of 0 to 3, or 0 to 7, in each word.
struct Mask4 { Uints bits; };
struct Mask8 { Uints bits; };
SPECDEC_HD Mask8 both(Mask4 a, Mask4 b) { return {a.bits | b.bits << 4}; }
SPECDEC_HD Mask both(Mask8 a, Mask8 b) {
  const Longs all = reinterpret_cast<Longs>(a.bits | b.bits << 8);
  const uint64_t two = all[0] | all[1];
  return static_cast<Mask>(two | two >> 32);
}

template <class Vector>
SPECDEC_HD Vector load_vector(const void* p) {
  Vector x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
SPECDEC_HD Uints load_halves(const void* p) {
  using Halves = uint16_t __attribute__((vector_size(8)));
  return __builtin_convertvector(load_vector<Halves>(p), Uints);
}
SPECDEC_HD F32x4 load_four(const float* p) { return load_vector<Floats>(p); }
SPECDEC_HD F32x4 load_four(const BFloat16* p) { return from_bits(load_halves(p) << 16); }
SPECDEC_HD F32x4 load_four(const Float16* p) { return float_of_half(load_halves(p)); }
SPECDEC_HD U32x4 load_four(const uint32_t* p) { return load_vector<Uints>(p); }
template <class T>
SPECDEC_HD auto load(const T* p) {
  return both(both(load_four(p), load_four(p + 4)), both(load_four(p + 8), load_four(p + 12)));
}
template <class T, class V>
SPECDEC_HD void store(T* p, Two<Two<V>> x) { std::memcpy(p, &x, kLanes * sizeof(T)); }
SPECDEC_HD F32x4 add(F32x4 x, F32x4 y) { return x.v + y.v; }
SPECDEC_HD F32x4 sub(F32x4 x, F32x4 y) { return x.v - y.v; }
SPECDEC_HD F32x4 mul(F32x4 x, F32x4 y) { return x.v * y.v; }
SPECDEC_HD F32x4 div(F32x4 x, F32x4 y) { return x.v / y.v; }
SPECDEC_HD F32x4 fma(F32x4 x, F32x4 y, F32x4 z) {
  const Floats a = x.v, b = y.v, c = z.v;
  return Floats{fma(a[0], b[0], c[0]), fma(a[1], b[1], c[1]), fma(a[2], b[2], c[2]), fma(a[3], b[3], c[3])};
}
SPECDEC_HD F32x4 max(F32x4 x, F32x4 y) { return x.v > y.v ? x.v : y.v; }
SPECDEC_HD F32x4 min(F32x4 x, F32x4 y) { return x.v < y.v ? x.v : y.v; }
SPECDEC_HD U32x4 bits(F32x4 x) { return bits(x.v); }
SPECDEC_HD F32x4 from_bits(U32x4 x) { return from_bits(x.v); }
SPECDEC_HD U32x4 operator+(U32x4 x, U32x4 y) { return x.v + y.v; }
SPECDEC_HD U32x4 operator^(U32x4 x, U32x4 y) { return x.v ^ y.v; }
SPECDEC_HD U32x4 operator*(U32x4 x, U32x4 y) { return x.v * y.v; }
SPECDEC_HD U32x4 operator-(U32x4 x, U32x4 y) { return x.v - y.v; }
SPECDEC_HD U32x4 shift_left(U32x4 x, int n) { return x.v << n; }
SPECDEC_HD Uints shift_right(Uints x, Uints n) { return n < 32 ? x >> (n & 31) : Uints{}; }
SPECDEC_HD U32x4 shift_right(U32x4 x, U32x4 n) { return shift_right(x.v, n.v); }
SPECDEC_HD U32x4 shift_right_signed(U32x4 x, int n) {
  return reinterpret_cast<Uints>(reinterpret_cast<Ints>(x.v) >> n);
}
SPECDEC_HD F32x4 signed_float(U32x4 x) { return signed_float(x.v); }
SPECDEC_HD F32x4 unsigned_float(U32x4 x) { return __builtin_convertvector(x.v, Floats); }
SPECDEC_HD U32x4 whole_number(F32x4 x) { return reinterpret_cast<Uints>(__builtin_convertvector(x.v, Ints)); }
SPECDEC_HD F32x4 with_exponent_0(U32x4 x) { return from_bits((x.v & 0x7fffff) | 0x3f800000); }
SPECDEC_HD F32x4 magnitude(F32x4 x) { return from_bits(bits(x.v) & 0x7fffffff); }
SPECDEC_HD F32x4 gather(const float* p, U32x4 i) { return Floats{p[i.v[0]], p[i.v[1]], p[i.v[2]], p[i.v[3]]}; }
SPECDEC_HD void load_pairs(const float* p, F32x16* even, F32x16* odd) {
  const auto four = [](const float* q) { return F32x4(Floats{q[0], q[2], q[4], q[6]}); };
  *even = {{four(p), four(p + 8)}, {four(p + 16), four(p + 24)}};
  *odd = {{four(p + 1), four(p + 9)}, {four(p + 17), four(p + 25)}};
}
SPECDEC_HD U32x4 mulhi(U32x4 x, U32x4 y) {
  const Uints a = x.v, b = y.v;
  return Uints{mulhi(a[0], b[0]), mulhi(a[1], b[1]), mulhi(a[2], b[2]), mulhi(a[3], b[3])};
}
SPECDEC_HD Mask4 lanes(Ints held) { return {reinterpret_cast<Uints>(held) & Uints{1, 2, 4, 8}}; }
SPECDEC_HD Mask4 at_least(F32x4 x, F32x4 y) { return lanes(x.v >= y.v); }
SPECDEC_HD Mask4 greater(F32x4 x, F32x4 y) { return lanes(x.v > y.v); }
SPECDEC_HD Mask4 unordered(F32x4 x, F32x4 y) { return lanes((x.v != x.v) | (y.v != y.v)); }
SPECDEC_HD Mask4 at_most(U32x4 x, U32x4 y) { return lanes(x.v <= y.v); }
SPECDEC_HD F32x16 where(Mask m, F32x16 x, F32x16 y) {
  const auto four = [](Mask chosen, F32x4 p, F32x4 q) {
    return F32x4((U32x4(chosen).v & Uints{1, 2, 4, 8}) != 0 ? p.v : q.v);
  };
  return {{four(m, x.a.a, y.a.a), four(m >> 4, x.a.b, y.a.b)},
          {four(m >> 8, x.b.a, y.b.a), four(m >> 12, x.b.b, y.b.b)}};
}

// Lane i: the largest lane of v[i].
inline F32x16 largest_of_each(const F32x16* v) {
  const auto four = [](const F32x16* w) {
    Floats x[4];
    for (int i = 0; i < 4; ++i) x[i] = max(max(w[i].a.a, w[i].a.b), max(w[i].b.a, w[i].b.b)).v;
    const auto column = [&](int lane) { return F32x4(Floats{x[0][lane], x[1][lane], x[2][lane], x[3][lane]}); };
    return max(max(column(0), column(1)), max(column(2), column(3)));
  };
  return {{four(v), four(v + 4)}, {four(v + 8), four(v + 12)}};
}

// Sums of 32-bit numbers, and of weights in their row, in 64 bits.
struct Sum16 {
  Longs sum = {};
  SPECDEC_HD void add(U32x16 x) {
    const auto pairs = [](U32x4 four) {
      const Longs two = reinterpret_cast<Longs>(four.v);
      return (two & 0xffffffff) + (two >> 32);
    };
    sum += (pairs(x.a.a) + pairs(x.a.b)) + (pairs(x.b.a) + pairs(x.b.b));
  }
  // (q << 11) >> n of the lanes chosen.
  SPECDEC_HD void add(U32x16 q, U32x16 n, Mask lanes) {
    uint32_t each[kLanes], by[kLanes];
    store(each, q), store(by, n);
    for (; lanes; lanes &= lanes - 1) {
      const int i = __builtin_ctz(lanes);
      if (by[i] < 64) sum[0] += (static_cast<uint64_t>(each[i]) << 11) >> by[i];
    }
  }
  SPECDEC_HD uint64_t total() const { return sum[0] + sum[1]; }
};

#endif

#if !(defined(__AVX512F__) && defined(__AVX512BW__))
// `x`, but the lanes of `m` are the next elements of p, by rising lane.
SPECDEC_HD F32x16 expand(Mask m, const float* p, F32x16 x) {
  if (!m) return x;
  float lane[kLanes];
  store(lane, x);
  for (; m; m &= m - 1) lane[__builtin_ctz(m)] = *p++;
  return load(lane);
}
// Writes the lanes of `m` to p, without gaps.
SPECDEC_HD void compress(float* p, Mask m, F32x16 a) {
  float lane[kLanes];
  store(lane, a);
  for (; m; m &= m - 1) *p++ = lane[__builtin_ctz(m)];
}
#endif

SPECDEC_HD U32x16 where(Mask m, U32x16 a, U32x16 b) { return bits(where(m, from_bits(a), from_bits(b))); }

SPECDEC_HD U32x16 in_one(U32x16 x) { return x; }
template <class V>
SPECDEC_HD auto in_one(Two<V> x) { return in_one(x.a) + in_one(x.b); }

using Four = Two<Two<F32x16>>;

template <class T>
SPECDEC_HD Two<F32x16> load_two(const T* p) { return {load(p), load(p + kLanes)}; }

// Lanes past `count` read as `fill`.
template <class T>
inline F32x16 load_some(const T* p, int count, float fill) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = i < count ? to_float(p[i]) : fill;
  return load(lane);
}
template <class T>
SPECDEC_HD F32x16 load_first(const T* p, int count, float fill) {
  return count >= kLanes ? load(p) : load_some(p, count, fill);
}

#if defined(__AVX2__)
SPECDEC_HD float largest(F32x16 x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
#else
  const __m256 eight = _mm256_max_ps(x.a.v, x.b.v);
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
SPECDEC_HD float largest(F32x16 a) {
  float lane[kLanes];
  store(lane, a);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] = max(lane[i], lane[i + width]);
  return lane[0];
}
#endif

SPECDEC_HD float total(F32x16 a) {
  float lane[kLanes];
  store(lane, a);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] = add(lane[i], lane[i + width]);
  return lane[0];
}

// About 2^(x scale + down), for exponents up to 100 (specdec/bounds.h). Below -119 it is that of -119: denormal numbers
// would be slow.
class AboutExp2 {
 public:
  AboutExp2(float scale, float down) : scale_(0x1p23f * scale), down_(0x1p23f * (down + (127.0f - kAboutExp2Shift))) {}
  SPECDEC_HD F32x16 operator()(F32x16 x) const {
    const U32x16 line = line_of(x);
    return mul(from_bits(line), about_exp2_over_line(with_exponent_0(line)));
  }
  SPECDEC_HD F32x16 added(F32x16 x, F32x16 sum) const {
    const U32x16 line = line_of(x);
    return fma(from_bits(line), about_exp2_over_line(with_exponent_0(line)), sum);
  }

 private:
  // The bits of 2^n (1 + f): n + f, with 23 bits after the point.
  SPECDEC_HD U32x16 line_of(F32x16 x) const { return whole_number(max(F32x16(0x1p24f), fma(x, scale_, down_))); }

  F32x16 scale_, down_;
};

#if defined(__AVX512F__) && defined(__AVX512BW__)
// The lanes of a U32x16 as 64-bit numbers, even and odd ones apart; their upper halves are not defined. A multiplication
// then gives both halves of the product at once.
struct Split16 {
  __m512i even, odd;
  SPECDEC_HD Split16(__m512i e, __m512i o) : even(e), odd(o) {}
  SPECDEC_HD explicit Split16(U32x16 x) : even(x.v), odd(_mm512_srli_epi64(x.v, 32)) {}
  SPECDEC_HD explicit Split16(uint32_t x) : Split16(_mm512_set1_epi64(x), _mm512_set1_epi64(x)) {}
  SPECDEC_HD U32x16 joined() const { return _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32)); }
};
SPECDEC_HD Split16 operator*(Split16 a, Split16 b) {
  return {_mm512_mul_epu32(a.even, b.even), _mm512_mul_epu32(a.odd, b.odd)};
}
SPECDEC_HD Split16 mulhi(Split16 a, Split16 b) {
  const Split16 product = a * b;
  return {_mm512_srli_epi64(product.even, 32), _mm512_srli_epi64(product.odd, 32)};
}
SPECDEC_HD Split16 operator^(Split16 a, Split16 b) {
  return {_mm512_xor_si512(a.even, b.even), _mm512_xor_si512(a.odd, b.odd)};
}

SPECDEC_HD Words<U32x16> philox(Key key, U32x16 c0, U32x16 c1, U32x16 c2, U32x16 c3) {
  const Words<Split16> w = philox(key, Split16(c0), Split16(c1), Split16(c2), Split16(c3));
  return {{w.word[0].joined(), w.word[1].joined(), w.word[2].joined(), w.word[3].joined()}};
}
#endif

SPECDEC_HD U32x16 lane_index() {
  uint32_t lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<uint32_t>(i);
  return load(lane);
}

SPECDEC_END
