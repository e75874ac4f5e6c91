// What is left of the target once the draft had its share.
#pragma once

#include "race.h"

SPECDEC_BEGIN

// The weight (p - drafted)^+ of a token in the residual, drafted = h q. Never above p, which is what the race over a
// residual uses as its bound.
SPECDEC_HD float residual_weight(float p, float drafted) {
  const float w = sub(p, drafted);
  return w >= kSmallest ? w : 0.0f;
}

// How much more than its acceptance the draft puts on a token: summed, and with the 1 - h of undrafted rounds, it is
// the probability that a token is drawn from the residual.
SPECDEC_HD float rejected_weight(float p, float drafted, float epsilon) {
  return max(sub(sub(drafted, p), epsilon), 0.0f);
}

SPECDEC_END
