// What the race asks of a row's weights: a bound for many tokens from their largest element, and the log weight of one
// token.
#pragma once

#include "rows.cuh"
#include "specdec/draft_map.h"
#include "specdec/residual.h"

namespace specdec {
namespace cuda {

// Within 1e-6 of the logarithm, and ten times that added.
struct LogAbove {
  __device__ float operator()(float x) const { return log2_approx(x) * 0.69314718f + 1e-5f; }
};

// A row and what is known of its law.
struct LawRow {
  Row row;
  KnownLaw known;
  const int32_t* map = nullptr;  // the tokens of its columns, where they are a draft's own
  __device__ DraftMap columns() const { return {map, row.vocab}; }
};

// The weights of a race: p, or (p - h q)^+. Which of the two, and in which spaces, is the same for a whole block, and
// only what is rare asks: so one kernel holds them all.
struct Weights {
  LawRow target, draft;
  bool residual;
  float draft_prob;
  int32_t excluded;  // has no weight: the residual of a one-hot draft; kNoToken for none
  bool leaves_out;   // tokens marked in `tried`, a bit each, have no weight
  Shared<unsigned> tried;

  // At least the log weight of every token whose element is at most `largest`. p bounds the residual.
  __device__ float log_bound(float largest) const {
    return target.known.law.in_space([&](auto space) {
      return residual ? space.log_bound(largest, target.known.lse, LogAbove{}) : space.log_bound(largest, LogAbove{});
    });
  }

  // Of a token and its raw element. Below `needed` the caller does not care, and the weights may give up early. A draft
  // row is read only here; the target's is not read.
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

// p(token). The status is that of the one element, where the law did not ask for the whole row.
__device__ __forceinline__ float law_of(const LawRow& side, int32_t token, int32_t* status) {
  const int32_t column = side.columns().column(token);
  if (column == kNoColumn) return 0.0f;
  const float raw = element(side.row, column);
  if (!side.known.law.needs_row() && !side.known.law.is_element(raw)) *status |= kStatusNonFinite;
  return side.known.probability(column, raw);
}

}  // namespace cuda
}  // namespace specdec
