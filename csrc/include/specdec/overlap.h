// Sums over the vocabulary of a pair of laws, one term a token, which predict how speculation does.
#pragma once

#include "law.h"

SPECDEC_BEGIN

// `Float` is float or a vector of them.
template <class Float>
struct OverlapSums {
  Float accept;    // sum of min(p, q): the acceptance of rejection
  Float tv;        // sum of |p - q|, twice the total variation
  Float kl;        // KL(p || q)
  Float harmonic;  // sum of p q / (p + q): a lower bound of a race's acceptance
};

// log(p / q) where p has weight, else 0. A p of at least kSmallest has a finite logarithm. So has a q with any weight,
// also where q itself is too small for a float.
template <class Float>
SPECDEC_HD Float log_ratio(Float p, Float log_p, Float log_q) {
  return where(at_least(p, Float(kSmallest)), sub(log_p, log_q), Float(0.0f));
}
template <class Float>
SPECDEC_HD OverlapSums<Float> overlap_terms(Float p, Float q, Float log_ratio) {
  const Float both = div(mul(p, q), max(add(p, q), Float(kSmallest)));
  return {min(p, q), magnitude(sub(p, q)), mul(p, log_ratio), both};
}
template <class Float>
SPECDEC_HD OverlapSums<Float> overlap_terms(const Weighed<Float>& p, const Weighed<Float>& q) {
  return overlap_terms(p.p, q.p, log_ratio(p.p, p.log_p, q.log_p));
}

template <class Float>
SPECDEC_HD OverlapSums<Float> add(const OverlapSums<Float>& a, const OverlapSums<Float>& b) {
  return {add(a.accept, b.accept), add(a.tv, b.tv), add(a.kl, b.kl), add(a.harmonic, b.harmonic)};
}

SPECDEC_END
