// The residual: what is left of the target's law when the draft's share is subtracted.
#pragma once

#include "arithmetic.h"

SPECDEC_BEGIN

// The weight (p - drafted)^+ of a token in the residual, drafted = h q. Never above p, which is what the race over a
// residual uses as its bound. `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float residual_weight(Float p, Float drafted) {
  const Float w = sub(p, drafted);
  return where(at_least(w, Float(kSmallest)), w, Float(0.0f));
}

// The probability that a token is drafted and then rejected. The sum over all tokens, plus the 1 - h of rounds without
// a draft, is the probability that a token is drawn from the residual.
template <class Float>
SPECDEC_HD Float rejected_weight(Float p, Float drafted, Float epsilon) {
  return max(sub(sub(drafted, p), epsilon), Float(0.0f));
}

// That probability, from the sums of both functions. Without over-acceptance it equals the sum of the residual's
// weights, which is more precise.
SPECDEC_HD float residual_mass(float weight, float rejected, float h, float epsilon) {
  return epsilon == 0.0f ? weight : add(sub(1.0f, h), rejected);
}

SPECDEC_END
