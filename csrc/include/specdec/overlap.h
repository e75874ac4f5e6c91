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

// p and q are 0 or at least kSmallest.
template <class Float>
SPECDEC_HD OverlapSums<Float> overlap_terms(Float p, Float q) {
  const Float zero(0.0f), smallest(kSmallest);
  const Float ratio = sub(log(max(p, smallest)), log(max(q, smallest)));
  const Float kl = where(at_least(q, smallest), mul(p, ratio), Float(kInfinity));
  const Float both = div(mul(p, q), max(add(p, q), smallest));
  return {min(p, q), max(sub(p, q), sub(q, p)), where(at_least(p, smallest), kl, zero), both};
}

template <class Float>
SPECDEC_HD OverlapSums<Float> add(const OverlapSums<Float>& a, const OverlapSums<Float>& b) {
  return {add(a.accept, b.accept), add(a.tv, b.tv), add(a.kl, b.kl), add(a.harmonic, b.harmonic)};
}

SPECDEC_END
