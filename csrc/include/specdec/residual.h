// The residual: the target's law minus the draft's, where that is positive.
#pragma once

#include "arithmetic.h"

SPECDEC_BEGIN

// The weight (p - drafted)^+ of a token in the residual, drafted = h q. It is never above p, so the race over a
// residual uses p as its bound. `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float residual_weight(Float p, Float drafted) {
  const Float w = sub(p, drafted);
  return where(at_least(w, Float(kSmallest)), w, Float(0.0f));
}

// ---- sums -----------------------------------------------------------------------------------------------------------

// The sum of several numbers that are handled as one. csrc/cpu/simd.h has the overloads for vectors.
template <class Word>
SPECDEC_HD Word in_one(Word x) { return x; }

// Weights of at most 1 as whole numbers, in units of 2^-42, to the nearest, ties to even (docs/noise.md, section 5). A
// sum of them does not depend on its order. `Float` is float or a vector of them.
//
// Adding 12 leaves a multiple of 2^-20 in the low bits, and 3 * 2^-20 one of 2^-42. So a weight costs no number of more
// than 32 bits. `high` counts units of 2^-20. `low` counts those of 2^-42, at most 2^21 up or down a weight, so 1,023
// weights can be added before they are taken.
template <class Float>
class UnitSum {
  using Word = decltype(bits(Float(0.0f)));

 public:
  Word high = Word(0u), low = Word(0u);  // low is signed

  // Returns the weights that it added. `Weights` is Float, or several of them handled as one.
  template <class Weights>
  SPECDEC_HD Weights take(Weights weight) {
    const Weights coarse(12.0f), fine(0x1.8p-19f);
    const Weights w = min(weight, Weights(1.0f)), a = add(w, coarse), b = add(sub(w, sub(a, coarse)), fine);
    high = high + in_one(bits(a) - bits(coarse));
    low = low + in_one(bits(b) - bits(fine));
    return w;
  }
};

SPECDEC_HD uint64_t units_of(uint32_t high, uint32_t low) {
  return (static_cast<uint64_t>(high) << 22) + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(low)));
}

SPECDEC_HD float sum_of_units(uint64_t units) { return mul(static_cast<float>(units), 0x1p-42f); }

SPECDEC_END
