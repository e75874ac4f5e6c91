// What the race needs to know of a row's weights: a bound for many tokens from their largest element, and the log
// weight of one token.
#pragma once

#include "rows.cuh"
#include "specdec/draft_map.h"
#include "specdec/residual.h"

namespace specdec {
namespace cuda {

// The approximate logarithm is within 1e-6. Ten times that is added, so the result is never too small.
struct LogAbove {
  __device__ float operator()(float x) const { return log2_approx(x) * 0.69314718f + 1e-5f; }
};

// A row and what is known of its law.
struct LawRow {
  Row row;
  KnownLaw known;
  const int32_t* map = nullptr;  // the target's tokens of its columns, if the draft has its own vocabulary
  __device__ DraftMap columns() const { return {map, row.vocab}; }
};

// The weights of a race: p, or (p - h q)^+. The kind and the spaces are the same for a whole block, and only rare code
// looks at them. So one kernel holds all of them.
struct Weights {
  LawRow target, draft;
  bool residual;
  float draft_prob;
  int32_t excluded;  // this token has no weight (a one-hot draft was rejected); kNoToken: none
  bool leaves_out;   // tokens marked in `tried`, one bit each, have no weight
  Shared<unsigned> tried;

  // At least the log weight of every token whose element is at most `largest`. A residual is at most p.
  __device__ float log_bound(float largest) const {
    return target.known.law.in_space([&](auto space) {
      return residual ? space.log_bound(largest, target.known.lse, LogAbove{}) : space.log_bound(largest, LogAbove{});
    });
  }

  // The log weight of a token with the raw element `raw`. If it is below `needed`, any smaller value will do, so this
  // may stop early. Only this function reads the draft row. It does not read the target row.
  __device__ float log_weight(float raw, int32_t token, float needed) const {
    if (token == excluded || !(log_bound(raw) >= needed)) return -kInfinity;
    if (leaves_out && tried[token / 32] >> token % 32 & 1u) return -kInfinity;
    return target.known.law.in_space([&](auto space) {
      if (!residual) return space.log_weight(raw);
      const float p = space.probability(raw, target.known.lse);
      const int32_t column = draft.columns().column(token);
      const float q = column == kNoColumn ? 0.0f : draft.known.probability(column, element(draft.row, column));
      return specdec::log_weight(residual_weight(p, mul(draft_prob, q)));
    });
  }
};

__device__ __forceinline__ Weights weights_of_row(const Row& row, const Law& law) {
  Weights weights = {};
  weights.target = {row, nothing_known(law)};
  weights.excluded = kNoToken;
  return weights;
}

__device__ __forceinline__ Weights weights_of_residual(const LawRow& target, const LawRow& draft, float h) {
  Weights weights = {};
  weights.target = target;
  weights.draft = draft;
  weights.residual = true;
  weights.draft_prob = h;
  weights.excluded = kNoToken;
  return weights;
}

// p(token). Adds the status of the one element, unless the law needs the whole row, which has its own status.
__device__ __forceinline__ float law_of(const LawRow& side, int32_t token, int32_t* status) {
  const int32_t column = side.columns().column(token);
  if (column == kNoColumn) return 0.0f;
  const float raw = element(side.row, column);
  if (!side.known.law.needs_row() && !side.known.law.is_element(raw)) *status |= kStatusNonFinite;
  return side.known.probability(column, raw);
}

}  // namespace cuda
}  // namespace specdec
