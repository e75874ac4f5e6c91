// The accept test of speculative decoding: Leviathan, Kalman, Matias 2023 (Algorithm 1), Chen et al. 2023.
#pragma once

#include "noise.h"

SPECDEC_BEGIN

// `drafted` is the probability that the draft put this token here: h q(x), h the probability that the slot is drafted.
// The comparison is strict, so p = 0 is never accepted; u <= 1 - 2^-24, so p >= drafted is never rejected. epsilon > 0
// is lossy over-acceptance. A token without weight in the draft was not drawn from it and is refused. So is every token
// of a law of NaNs.
SPECDEC_HD bool accepts(float u, float p, float drafted, float epsilon) {
  return drafted > 0.0f && mul(u, drafted) < add(p, epsilon);
}

// The uniform of a chain's draft slot, or of a tree's node.
SPECDEC_HD float accept_uniform(Noise noise, uint32_t index) {
  noise.stream = kStreamAccept;
  return uniform(noise, index);
}

// The accept test of one draft. `subtracted` is the multiple of q that was subtracted from p before. `Number` is float, or
// Range where sums are known by bounds.
template <class Number>
struct AcceptTestOf {
  Noise noise;
  uint32_t index;  // of the uniform
  Number subtracted, share;
  float epsilon;

  SPECDEC_HD bool operator()(float p, float q) const {
    return passes(accept_uniform(noise, index), p, q, subtracted, share);
  }

  // Whether it is known how it comes out; *accepted says so.
  SPECDEC_HD bool decided(float p, float q, bool* accepted) const {
    *accepted = (*this)(p, q);
    return true;
  }
  // It is if it comes out the same for all numbers of these ranges. The test is monotone: each operation rounds, and
  // rounding keeps order. Only h q = 0 is an exception.
  SPECDEC_HD bool decided(const Range& p, const Range& q, bool* accepted) const {
    const float u = accept_uniform(noise, index);
    *accepted = passes(u, p.low, q.high, high(subtracted), high(share));
    return *accepted == passes(u, p.high, q.low, low(subtracted), low(share)) &&
           (mul(low(share), q.low) > 0.0f) == (mul(high(share), q.high) > 0.0f);
  }

 private:
  SPECDEC_HD bool passes(float u, float p, float q, float minus, float times) const {
    return accepts(u, sub(p, mul(minus, q)), mul(times, q), epsilon);
  }
};
using AcceptTest = AcceptTestOf<float>;

SPECDEC_END
