// What the race asks of a row: a bound for many tokens from their largest element, and the log weight of one token.
#pragma once

#include "rows.cuh"
#include "specdec/law.h"
#include "specdec/residual.h"
#include "specdec/softmax.h"

namespace specdec {
namespace cuda {

// The weights of a race. Which of the three it is, is the same for a whole block, and only what is rare asks: so one
// kernel holds them all.
struct Weights {
  enum Kind { kLogits, kProbs, kResidual };  // p from logits; p from probabilities; (p - h q)^+ from either
  Kind kind;
  Law law;
  Row row, draft;
  int32_t excluded;  // has no weight: the residual of a one-hot draft; kNoToken for none
  float draft_prob;
  LogSumExp target_lse, draft_lse;
  bool leaves_out;         // tokens marked in `tried`, a bit each, have no weight
  Shared<unsigned> tried;

  // At least the log weight of every token whose element is at most `largest`. p bounds the residual.
  __device__ float log_bound(float largest) const {
    if (law.space == Space::kProbs) return log_bound_of(largest);
    const float x = scaled(largest, law.inverse);
    return kind == kLogits ? x : log_probability(x, target_lse) + 1e-5f;
  }

  // Below `needed` the caller does not care, and the law may give up early. A draft row is read only here.
  __device__ float log_weight(int32_t token, float needed) const {
    const float raw = element(row, token);
    const float bound = log_bound(raw);
    if (token == excluded || !(bound >= needed)) return -kInfinity;
    if (leaves_out && tried[token / 32] >> token % 32 & 1u) return -kInfinity;
    if (kind == kLogits) return bound;
    const float p = law.space == Space::kProbs
                        ? clean_probability(raw)
                        : exp_or_zero(log_probability(scaled(raw, law.inverse), target_lse));
    return specdec::log_weight(kind == kProbs ? p : residual_weight(p, mul(draft_prob, draft_probability(token))));
  }

 private:
  // The approximate logarithm is within 1e-6 of the true one; the bound adds ten times that.
  __device__ static float log_bound_of(float p) {
    return p >= kSmallest ? log2_approx(min(p, kLargest)) * 0.69314718f + 1e-5f : -kInfinity;
  }
  __device__ float draft_probability(int32_t token) const {
    if (token >= draft.vocab) return 0.0f;
    const float raw = element(draft, token);
    return law.space == Space::kProbs ? clean_probability(raw) : probability(scaled(raw, law.inverse), draft_lse);
  }
};

__device__ __forceinline__ Weights weights_of_row(const Row& row, const Law& law, int32_t excluded) {
  Weights weights = {};
  weights.kind = law.space == Space::kLogits ? Weights::kLogits : Weights::kProbs;
  weights.law = law;
  weights.row = row;
  weights.excluded = excluded;
  return weights;
}

// That of (p - h q)^+. stat(side) has the log-sum-exp of rows of logits.
template <class Stat>
__device__ __forceinline__ Weights weights_of_residual(const Row& target, const Row& draft, const Law& law, float h,
                                                       Stat&& stat) {
  Weights weights = weights_of_row(target, law, kNoToken);
  weights.kind = Weights::kResidual;
  weights.draft = draft;
  weights.draft_prob = h;
  if (law.space == Space::kLogits) {
    weights.target_lse = stat(0).lse;
    weights.draft_lse = stat(1).lse;
  }
  return weights;
}

// p(token) and q(token) of a pair of rows, q = 1 without a draft. stat(side) has the log-sum-exp of rows of logits. The
// status is that of the two elements of rows of probabilities.
template <class Stat>
__device__ __forceinline__ int32_t laws_at(const Row& target, const Row& draft, bool has_draft, const Law& law,
                                           int32_t token, Stat&& stat, float* p, float* q) {
  const bool drafted = has_draft && token < draft.vocab;
  const float x = element(target, token), y = drafted ? element(draft, token) : 0.0f;
  if (law.space == Space::kProbs) {
    *p = clean_probability(x);
    *q = has_draft ? clean_probability(y) : 1.0f;
    return x >= 0.0f && y >= 0.0f && x < kInfinity && y < kInfinity ? kStatusOk : kStatusNonFinite;
  }
  *p = probability(scaled(x, law.inverse), stat(0).lse);
  *q = !has_draft ? 1.0f : drafted ? probability(scaled(y, law.inverse), stat(1).lse) : 0.0f;
  return kStatusOk;
}

}  // namespace cuda
}  // namespace specdec
