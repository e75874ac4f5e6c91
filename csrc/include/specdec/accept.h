// The accept test of speculative decoding: Leviathan, Kalman, Matias 2023 (Algorithm 1), Chen et al. 2023.
#pragma once

#include "noise.h"

SPECDEC_BEGIN

// `drafted` is the probability that the draft chose this token: h q(x), where a draft is made with probability h. The
// comparison is strict, so p = 0 is never accepted; u <= 1 - 2^-24, so p >= drafted is never rejected. epsilon > 0 is
// lossy over-acceptance. A token without weight in the draft was not drawn from it and is refused. So is every token of
// a law of NaNs.
SPECDEC_HD bool accepts(float u, float p, float drafted, float epsilon) {
  return drafted > 0.0f && mul(u, drafted) < add(p, epsilon);
}

// The uniform of a chain's draft slot, or of a tree's node.
SPECDEC_HD float accept_uniform(Noise noise, uint32_t index) {
  noise.stream = kStreamAccept;
  return uniform(noise, index);
}

// The accept test of one draft. `subtracted` is the multiple of q that was subtracted from p before. `Number` is float, or
// Range where sums are bounds.
template <class Number>
struct AcceptTestOf {
  Noise noise;
  uint32_t index;  // the uniform's
  Number subtracted, scale;
  float epsilon;

  SPECDEC_HD bool operator()(float p, float q) const {
    return passes(accept_uniform(noise, index), p, q, subtracted, scale);
  }

  // Writes *accepted; returns whether p and q decide it. Numbers always do.
  SPECDEC_HD bool decided(float p, float q, bool* accepted) const {
    *accepted = (*this)(p, q);
    return true;
  }
  // Ranges decide if both ends give the same answer. The test is monotone: each operation rounds, and rounding keeps
  // order. Only h q = 0 is an exception.
  SPECDEC_HD bool decided(const Range& p, const Range& q, bool* accepted) const {
    const float u = accept_uniform(noise, index);
    *accepted = passes(u, p.low, q.high, high(subtracted), high(scale));
    return *accepted == passes(u, p.high, q.low, low(subtracted), low(scale)) &&
           (mul(low(scale), q.low) > 0.0f) == (mul(high(scale), q.high) > 0.0f);
  }

 private:
  SPECDEC_HD bool passes(float u, float p, float q, float minus, float times) const {
    return accepts(u, sub(p, mul(minus, q)), mul(times, q), epsilon);
  }
};
using AcceptTest = AcceptTestOf<float>;

SPECDEC_END
