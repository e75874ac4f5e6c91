// The weights of a race: whether a token of a chunk can win, by the chunk's largest element, and the log weight of one
// token.
#pragma once

#include "rows.cuh"
#include "specdec/bounds.h"
#include "specdec/draft_map.h"
#include "specdec/filter.h"
#include "specdec/paths.h"
#include "specdec/residual.h"

namespace specdec::cuda {

// The support of a row in kernels without filters: all tokens, at no cost.
struct Unfiltered {
  using RowType = Row;
  static constexpr bool kFiltered = false;
  __device__ bool keeps(float, int32_t) const { return true; }
  __device__ bool reaches(float) const { return true; }
};

// The support of a row with filters; all tokens, even those without weight, if the filters are off.
struct Filtered {
  using RowType = EditedRow;
  static constexpr bool kFiltered = true;
  Cut cut = {-kInfinity, kNoToken};
  Logits order = {1.0f};
  __device__ bool keeps(float raw, int32_t column) const { return cut.keeps(order.scaled(raw), column); }
  // Whether an element up to `largest` can be in the support.
  __device__ bool reaches(float largest) const { return order.scaled(largest) >= cut.value; }
};

// A row, its law and statistics. `Support` is Unfiltered or Filtered.
template <class Support>
struct LawRowOf {
  typename Support::RowType row;
  LawWithStats stats;
  const int32_t* map = nullptr;  // a smaller draft vocabulary: the target's token of each column
  Support support = {};
  __device__ DraftMap columns() const { return {map, row.vocab}; }
  __device__ float probability(int32_t column, float raw) const {
    return support.keeps(raw, column) ? stats.probability(column, raw) : 0.0f;
  }
  __device__ Weighed<float> weighed(int32_t column, float raw) const {
    return support.keeps(raw, column) ? stats.weighed(column, raw) : Weighed<float>{0.0f, -kInfinity};
  }
};

using LawRow = LawRowOf<Unfiltered>;

// The weights of a race: p, or (p - h q)^+. The kind and the spaces are the same for a whole block, and only rare code
// branches on them, so one kernel serves all of them.
template <class Support>
struct WeightsOf {
  LawRowOf<Support> target, draft;
  bool residual;
  float draft_prob;
  int32_t excluded;  // has no weight: a one-hot draft was rejected; kNoToken: none
  // With p, tokens marked in `tried`, one bit each, have no weight. With a residual, `tried` has a float for each
  // bucket that scales q. They share a field, as registers are few.
  bool leaves_out;
  Shared<unsigned> tried;

  // A lower bound of the key (specdec/law.h) of tokens with at least this log weight. A residual is at most p. Tokens
  // without weight have a smaller key than any bound.
  __device__ float needed_key(float log_weight) const {
    const float key = target.stats.law.in_space([&](auto space) {
      return residual ? space.needed_key(log_weight, target.stats.lse) : space.needed_key(log_weight);
    });
    return max(key, -kLargest);
  }

  // Whether an element may have this key and be in the support, if `largest` is the maximum, or a NaN, which hides it.
  __device__ bool reach(float largest, float key) const {
    return !(target.stats.law.key(largest) < key) && (largest != largest || target.support.reaches(largest));
  }

  // The log weight of a token with the raw element `raw`. This function alone reads the draft row; it does not read the
  // target row.
  __device__ float log_weight(float raw, int32_t token) const {
    if (token == excluded || !target.support.keeps(raw, token)) return -kInfinity;
    if (leaves_out && !residual && tried[token / 32] >> token % 32 & 1u) return -kInfinity;
    return target.stats.law.in_space([&](auto space) {
      if (!residual) return space.log_weight(raw);
      const float p = space.probability(raw, target.stats.lse);
      const int32_t column = draft.columns().column(token);
      float q = column == kNoColumn ? 0.0f : draft.probability(column, element(draft.row, column));
      if (leaves_out) q = mul(from_bits(tried[find_bucket(p, q)]), q);
      return specdec::log_weight(residual_weight(p, mul(draft_prob, q)));
    });
  }
};

using Weights = WeightsOf<Unfiltered>;

template <class Support = Unfiltered>
__device__ __forceinline__ WeightsOf<Support> weights_of_row(const typename Support::RowType& row, const Law& law,
                                                             const Support& support = {}) {
  WeightsOf<Support> weights = {};
  weights.target.row = row, weights.target.stats = without_stats(law), weights.target.support = support;
  weights.excluded = kNoToken;
  return weights;
}

template <class Support>
__device__ __forceinline__ WeightsOf<Support> weights_of_residual(const LawRowOf<Support>& target,
                                                                  const LawRowOf<Support>& draft, float h) {
  WeightsOf<Support> weights = {};
  weights.target = target;
  weights.draft = draft;
  weights.residual = true;
  weights.draft_prob = h;
  weights.excluded = kNoToken;
  return weights;
}

// p of a column with the raw element `raw`. Adds the status of that element, unless the law has one of the whole row.
template <class Support>
__device__ __forceinline__ float law_of(const LawRowOf<Support>& side, int32_t column, float raw, int32_t* status) {
  if (!side.stats.law.needs_row() && !side.stats.law.is_element(raw)) *status |= SPECDEC_STATUS_NON_FINITE;
  return side.probability(column, raw);
}

template <class Support>
__device__ __forceinline__ float law_of(const LawRowOf<Support>& side, int32_t token, int32_t* status) {
  const int32_t column = side.columns().column(token);
  return column == kNoColumn ? 0.0f : law_of(side, column, element(side.row, column), status);
}

}  // namespace specdec::cuda
