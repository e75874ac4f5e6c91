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

// The coin of a chain's draft slot, or of a tree's node.
SPECDEC_HD float accept_coin(Noise noise, uint32_t index) {
  noise.stream = kStreamAccept;
  return coin(noise, index);
}

SPECDEC_END
