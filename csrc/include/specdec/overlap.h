// What a pair of laws says about speculation before it is tried: sums over the vocabulary, one term a token.
#pragma once

#include "race.h"

SPECDEC_BEGIN

// `Float` is float or a vector of them.
template <class Float>
struct OverlapSums {
  Float accept;    // sum of min(p, q): the acceptance of rejection
  Float tv;        // sum of |p - q|, twice the total variation
  Float kl;        // KL(p || q)
  Float harmonic;  // sum of p q / (p + q): what a race accepts at least
};

// What p is multiplied by for its part of KL(p || q), of log p - log q; p and q are 0 or at least kSmallest.
template <class Float>
SPECDEC_HD Float log_ratio(Float p, Float q, Float difference) {
  const Float smallest(kSmallest);
  return where(at_least(p, smallest), where(at_least(q, smallest), difference, Float(kInfinity)), Float(0.0f));
}
template <class Float>
SPECDEC_HD OverlapSums<Float> overlap_terms(Float p, Float q, Float log_ratio) {
  const Float both = div(mul(p, q), max(add(p, q), Float(kSmallest)));
  return {min(p, q), magnitude(sub(p, q)), mul(p, log_ratio), both};
}
template <class Float>
SPECDEC_HD OverlapSums<Float> overlap_terms(Float p, Float q) {
  const Float smallest(kSmallest);
  return overlap_terms(p, q, log_ratio(p, q, sub(log(max(p, smallest)), log(max(q, smallest)))));
}

template <class Float>
SPECDEC_HD OverlapSums<Float> add(const OverlapSums<Float>& a, const OverlapSums<Float>& b) {
  return {add(a.accept, b.accept), add(a.tv, b.tv), add(a.kl, b.kl), add(a.harmonic, b.harmonic)};
}

SPECDEC_END
