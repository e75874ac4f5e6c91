// A row's law: the only way from a raw element, a logit or a probability, to a weight. Nothing outside of this file
// multiplies by an inverse temperature or branches on the space of a row.
#pragma once

#include "race.h"
#include "softmax.h"

SPECDEC_BEGIN

// The roundings of log p are smaller than this; an upper bound of other tokens' log p adds it.
constexpr float kLogProbError = 1e-5f;

// The least logarithm of a probability: smaller ones are raised to it, so that sums of them are finite.
constexpr float kLeastLogProb = -0x1p127f;

// The spaces, as types, so that loops over a row are compiled for one of them. `Float` is float or a vector of them.
//
//   key(raw)                 increases with the raw element; a NaN stays one
//   log_weight(raw)          in a race over the row
//   log_bound(raw)           no token of an element up to this has a larger log weight
//   log_bounds(raw)          log_bound of several elements, none of them NaN
//   needed_key(w)            every token of log weight w or more has this key at least
//   probability(raw, lse)    p; the log-sum-exp is that of the whole row, where the space has one
//   weighed(raw, lse)        p, and log p: -inf without weight, else finite, though p may be so small that it is 0
//   log_bound(s), needed_key with a log-sum-exp: of log p
//   rank(raw)                what argmax compares: -inf without weight
//   is_element(raw)          false for a value that no row should hold, which counts as the nearest valid one
//   foreign(a, b, lanes)     a mask of the lanes where one of two vectors holds such a value; +inf, which a maximum
//   shows,
//                            is left out
template <class Float>
struct Weighed {
  Float p, log_p;
};

struct Logits {
  static constexpr bool kSigned = true;
  float inverse;

  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return mul(raw, Float(inverse)); }
  // x = logit / T as every backend sees it: NaN is -inf, +inf the largest finite number.
  SPECDEC_HD float scaled(float raw) const {
    const float x = key(raw);
    return x == x ? min(x, kLargest) : -kInfinity;
  }
  SPECDEC_HD float log_weight(float raw) const { return scaled(raw); }
  SPECDEC_HD float log_bound(float raw) const { return scaled(raw); }
  template <class Float>
  SPECDEC_HD Float log_bounds(Float raw) const { return min(Float(kLargest), key(raw)); }
  SPECDEC_HD float needed_key(float log_weight) const { return log_weight; }
  template <class Float>
  SPECDEC_HD Float probability(Float raw, const LogSumExp& lse) const {
    return exp_or_zero(log_probability(min(Float(kLargest), key(raw)), lse));  // in this order a NaN stays: p = 0
  }
  template <class Float>
  SPECDEC_HD Float log_p(Float raw, const LogSumExp& lse) const {
    const Float x = min(Float(kLargest), key(raw));
    const Float log = max(log_probability(x, lse), Float(kLeastLogProb));
    return where(at_least(x, Float(-kLargest)), log, Float(-kInfinity));
  }
  template <class Float>
  SPECDEC_HD Weighed<Float> weighed(Float raw, const LogSumExp& lse) const {
    const Float log = log_p(raw, lse);
    return {exp_or_zero(log), log};
  }
  SPECDEC_HD float log_bound(float raw, const LogSumExp& lse) const {
    return log_probability(scaled(raw), lse) + kLogProbError;
  }
  template <class Float>
  SPECDEC_HD Float log_bounds(Float raw, const LogSumExp& lse) const {
    return add(log_probability(log_bounds(raw), lse), Float(kLogProbError));
  }
  SPECDEC_HD float needed_key(float log_weight, const LogSumExp& lse) const {
    return log_weight + lse.log_sum + lse.max - slack(log_weight, lse.max);
  }
  SPECDEC_HD float rank(float raw) const { return raw == raw ? min(raw, kLargest) : -kInfinity; }
  SPECDEC_HD bool is_element(float raw) const { return raw < kInfinity; }
  template <class Float, class Mask>
  SPECDEC_HD Mask foreign(Float a, Float b, Mask) const { return unordered(a, b); }

  // x - top, the argument of a weight (mass.h).
  template <class Float>
  SPECDEC_HD Float below(Float raw, Float top) const { return sub(key(raw), top); }
};

struct Probs {
  static constexpr bool kSigned = false;

  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return raw; }
  SPECDEC_HD float log_weight(float raw) const { return specdec::log_weight(probability(raw, {})); }
  SPECDEC_HD float log_bound(float raw) const {
    return raw >= kSmallest ? log(min(raw, kLargest)) : -kInfinity;
  }
  template <class Float>
  SPECDEC_HD Float log_bounds(Float raw) const {
    const Float x = min(raw, Float(kLargest)), small(kSmallest);
    return where(at_least(x, small), add(log_below(max(x, small)), Float(0.061f)), Float(-kInfinity));
  }
  SPECDEC_HD float needed_key(float log_weight) const {
    return log_weight < kExpUnderflow ? kSmallest : exp_in_range(min(log_weight, 88.0f)) * 0.99999f;
  }
  template <class Float>
  SPECDEC_HD Float probability(Float raw, const LogSumExp&) const {
    return where(at_least(raw, Float(kSmallest)), min(raw, Float(kLargest)), Float(0.0f));
  }
  template <class Float>
  SPECDEC_HD Weighed<Float> weighed(Float raw, const LogSumExp& lse) const {
    const Float p = probability(raw, lse), small(kSmallest);
    return {p, where(at_least(p, small), log(max(p, small)), Float(-kInfinity))};
  }
  SPECDEC_HD float log_bound(float raw, const LogSumExp&) const { return log_bound(raw); }
  template <class Float>
  SPECDEC_HD Float log_bounds(Float raw, const LogSumExp&) const { return log_bounds(raw); }
  SPECDEC_HD float needed_key(float log_weight, const LogSumExp&) const { return needed_key(log_weight); }
  SPECDEC_HD float rank(float raw) const { return raw >= kSmallest ? min(raw, kLargest) : -kInfinity; }
  SPECDEC_HD bool is_element(float raw) const { return raw >= 0.0f && raw < kInfinity; }
  template <class Float, class Mask>
  SPECDEC_HD Mask foreign(Float a, Float b, Mask lanes) const {
    return ~(at_least(a, Float(0.0f)) & at_least(b, Float(0.0f))) & lanes;
  }
};

// A decoded law. Logits are multiplied by `inverse`; a greedy law has weight only at the argmax.
struct Law {
  int32_t space;
  float inverse;
  bool greedy;

  // Whether probabilities need the row's log-sum-exp; and whether they need a pass, for that or the argmax.
  SPECDEC_HD bool needs_sum() const { return space == SPECDEC_LOGITS && !greedy; }
  SPECDEC_HD bool needs_row() const { return space == SPECDEC_LOGITS || greedy; }

  SPECDEC_HD Logits logits() const { return {inverse}; }

  // Calls f with the space as a type.
  SPECDEC_CALLS_BACK
  template <class F>
  SPECDEC_HD auto in_space(F&& f) const { return space == SPECDEC_LOGITS ? f(logits()) : f(Probs{}); }

  SPECDEC_HD bool is_signed() const {
    return in_space([](auto s) { return s.kSigned; });
  }
  // The key of either space, without a branch.
  SPECDEC_HD float key(float raw) const { return mul(raw, space == SPECDEC_LOGITS ? inverse : 1.0f); }
  SPECDEC_HD float rank(float raw) const {
    return in_space([=](auto s) { return s.rank(raw); });
  }
  SPECDEC_HD bool is_element(float raw) const {
    return in_space([=](auto s) { return s.is_element(raw); });
  }
};

// A law, and the statistics of the whole row that its probabilities need.
struct LawWithStats {
  Law law;
  LogSumExp lse;
  int32_t argmax;  // kNoToken where nothing has weight

  // Whether no token of the row has weight. Valid after a pass over the row for its log-sum-exp or its argmax.
  SPECDEC_HD bool is_empty() const { return argmax == kNoToken && !(lse.log_sum < kInfinity); }

  SPECDEC_HD float probability(int32_t token, float raw) const {
    if (law.greedy) return token == argmax ? 1.0f : 0.0f;
    return law.in_space([&](auto s) { return s.probability(raw, lse); });
  }
  SPECDEC_HD Weighed<float> weighed(int32_t token, float raw) const {
    if (law.greedy) return token == argmax ? Weighed<float>{1.0f, 0.0f} : Weighed<float>{0.0f, -kInfinity};
    return law.in_space([&](auto s) { return s.weighed(raw, lse); });
  }
};

SPECDEC_HD LawWithStats without_stats(const Law& law) { return {law, kNoMass, kNoToken}; }

// Temperatures are clamped to [kColdest, kHottest], 0 excepted. A smaller one would scale all logits to the largest
// float, where they are equal; logits that differ do so by far more than 2^-64. An infinite one turns +inf into NaN.
constexpr float kColdest = 0x1p-64f, kHottest = 0x1p64f;

SPECDEC_HD Law decode_law(int32_t space, float t, int32_t* status) {
  if (!(t >= 0.0f)) *status |= SPECDEC_STATUS_PARAMETER;
  if (!(t >= kSmallest)) return {space, 1.0f, true};
  return {space, 1.0f / min(max(t, kColdest), kHottest), false};
}

SPECDEC_HD Law law_at(const specdec_law& p, int64_t outer, int64_t inner, int32_t* status) {
  Law law = decode_law(p.space, p.temperature.at(outer, inner), status);
  if (p.rules & SPECDEC_DIVIDED) law.inverse = 1.0f;
  return law;
}

SPECDEC_END
