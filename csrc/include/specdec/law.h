// A row's law: from a raw logit or probability to a weight.
#pragma once

#include "params.h"

SPECDEC_BEGIN

// Decoded: logits are multiplied by `inverse`; a greedy law has its argmax alone.
struct Law {
  Space space;
  float inverse;
  bool greedy;
};

SPECDEC_HD Law law_at(const LawParams& p, int64_t outer, int64_t inner, int32_t* status) {
  const float t = p.temperature.at(outer, inner);
  if (!(t >= 0.0f)) *status |= kStatusParameter;
  if (!(t >= kSmallest)) return {p.space, 1.0f, true};
  return {p.space, 1.0f / t, false};
}

SPECDEC_END
