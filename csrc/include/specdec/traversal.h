// The arithmetic of traversal verification (walk.h): what a node on the path weighs. `Number` is float, or Range where
// a backend has only bounds of probabilities and sums; then every weight is a Range, too. All formulas are monotone:
// each operation rounds, and rounding keeps order. So evaluating them at both ends is enough.
#pragma once

#include "noise.h"
#include "residual.h"

SPECDEC_BEGIN

// The multiple of q that the next child's law takes from p: W / R, and 0 once W or R is used up.
SPECDEC_HD float draft_scale(float residual_mass, float untried_mass) {
  return untried_mass >= kSmallest ? min(residual_mass / untried_mass, kLargest) : 0.0f;
}

// Sums over a row pair: W = sum (p - T q)^+, and R = sum of q over the tokens no child tried.
template <class Number>
struct SumsOf {
  Number residual_mass, untried_mass;
  int32_t status;
};
using Masses = SumsOf<float>;

// The weight of a child with token x under a node of weight a: a p^m(x) / q^m(x), at most 1; 0 if q^m(x) = 0.
SPECDEC_HD float child_weight(float a, float p, float q, float subtracted, float scale) {
  const float drafted = mul(scale, q);
  if (!(drafted > 0.0f)) return 0.0f;
  return min(mul(a, div(residual_weight(p, mul(subtracted, q)), drafted)), 1.0f);
}

// T after a child was removed.
SPECDEC_HD float subtracted_after(float subtracted, float scale) { return min(add(subtracted, scale), kLargest); }
SPECDEC_HD float subtracted_after(float subtracted, float scale, float a) {
  return subtracted_after(subtracted, div(scale, a));
}

// The weight of a node after a child was removed, which reduced W from `before` to `residual_mass`.
SPECDEC_HD float weight_after(float a, float before, float residual_mass) {
  if (a >= 1.0f) return 1.0f;
  const float s = mul(a, before >= kSmallest ? div(residual_mass, before) : 0.0f);
  return div(s, add(s, sub(1.0f, a)));
}

// One-hot drafts: the mass of p on tokens not tried, after a token of probability p was.
SPECDEC_HD float untried_after(float untried_mass, float p) { return max(sub(untried_mass, max(p, 0.0f)), 0.0f); }

// ---- by bounds ------------------------------------------------------------------------------------------------------

SPECDEC_HD Range draft_scale(Range residual_mass, Range untried_mass) {
  const bool sure = untried_mass.low >= kSmallest || !(untried_mass.high >= kSmallest);
  if (!sure) return {0.0f, kLargest};
  return {draft_scale(residual_mass.low, untried_mass.high), draft_scale(residual_mass.high, untried_mass.low)};
}
// A draft of probability 0 has weight 0: where q may be 0 or not, the weight may be anything.
SPECDEC_HD Range child_weight(Range a, Range p, Range q, Range subtracted, Range scale) {
  const bool sure = mul(scale.low, q.low) > 0.0f || !(mul(scale.high, q.high) > 0.0f);
  if (!sure) return {0.0f, 1.0f};
  return {child_weight(a.low, p.low, q.high, subtracted.high, scale.high),
          child_weight(a.high, p.high, q.low, subtracted.low, scale.low)};
}
SPECDEC_HD Range subtracted_after(Range subtracted, Range scale) {
  return {subtracted_after(subtracted.low, scale.low), subtracted_after(subtracted.high, scale.high)};
}
SPECDEC_HD Range subtracted_after(Range subtracted, Range scale, Range a) {
  return {subtracted_after(subtracted.low, scale.low, a.high), subtracted_after(subtracted.high, scale.high, a.low)};
}
// s / (s + 1 - a) may fall by roundings where s rises, three of 2^-24 each, so both ends move outwards by more.
SPECDEC_HD Range weight_after(Range a, Range before, Range residual_mass) {
  if (a.low >= 1.0f) return {1.0f, 1.0f};
  const bool sure = before.low >= kSmallest || !(before.high >= kSmallest);
  const float most = sure ? weight_after(a.high, before.low, residual_mass.high) : 1.0f;
  return {mul(weight_after(a.low, before.high, residual_mass.low), 0.999999f), min(mul(most, 1.000001f), 1.0f)};
}
SPECDEC_HD Range untried_after(Range untried_mass, Range p) {
  return {untried_after(untried_mass.low, p.high), untried_after(untried_mass.high, p.low)};
}

// ---- decisions ------------------------------------------------------------------------------------------------------

// *yes: x >= least. Returns false if the bounds of x leave that open.
SPECDEC_HD bool decide_at_least(float x, float least, bool* yes) {
  *yes = x >= least;
  return true;
}
SPECDEC_HD bool decide_at_least(Range x, float least, bool* yes) {
  *yes = x.low >= least;
  return *yes == (x.high >= least);
}
// *yes: u < x. Returns false if the bounds of x leave that open.
SPECDEC_HD bool decide_above(float x, float u, bool* yes) {
  *yes = u < x;
  return true;
}
SPECDEC_HD bool decide_above(Range x, float u, bool* yes) {
  *yes = u < x.low;
  return *yes == (u < x.high);
}

// The uniform of the leaf `node`. Its indices differ from rejection's, so that no uniform decides twice.
constexpr uint32_t kLeafUniforms = 1u << 30;
SPECDEC_HD float leaf_uniform(Noise noise, int32_t node) {
  noise.stream = kStreamAccept;
  return uniform(noise, kLeafUniforms + static_cast<uint32_t>(node - 1));
}

SPECDEC_END
