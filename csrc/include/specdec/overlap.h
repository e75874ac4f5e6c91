// What a pair of laws says about speculation before it is tried: sums over the vocabulary, one term a token.
#pragma once

#include "race.h"

SPECDEC_BEGIN

struct OverlapSums {
  float accept;    // sum of min(p, q): the acceptance of rejection
  float tv;        // sum of |p - q|, twice the total variation
  float kl;        // KL(p || q)
  float harmonic;  // sum of p q / (p + q): what a race accepts at least
};

SPECDEC_HD OverlapSums overlap_terms(float p, float q) {
  const float kl = q > 0.0f ? mul(p, sub(log(max(p, kSmallest)), log(q))) : kInfinity;
  const float both = mul(p, q) / max(add(p, q), kSmallest);
  return {min(p, q), magnitude(sub(p, q)), p > 0.0f ? kl : 0.0f, both};
}

SPECDEC_HD OverlapSums add(const OverlapSums& a, const OverlapSums& b) {
  return {add(a.accept, b.accept), add(a.tv, b.tv), add(a.kl, b.kl), add(a.harmonic, b.harmonic)};
}

SPECDEC_END
