// What the race needs to know of a row's weights: whether many tokens can have a weight, by their largest element, and
// the log weight of one token.
#pragma once

#include "rows.cuh"
#include "specdec/bounds.h"
#include "specdec/draft_map.h"
#include "specdec/filter.h"
#include "specdec/paths.h"
#include "specdec/residual.h"

namespace specdec::cuda {

// What is kept of a row in kernels without filters, which do not pay for them: everything.
struct Unfiltered {
  using RowType = Row;
  static constexpr bool kFiltered = false;
  __device__ bool keeps(float, int32_t) const { return true; }
  __device__ bool reaches(float) const { return true; }
};

// What a row's filters keep; everything, tokens without weight too, if they are off.
struct Filtered {
  using RowType = EditedRow;
  static constexpr bool kFiltered = true;
  Cut cut = {-kInfinity, kNoToken};
  Logits order = {1.0f};
  __device__ bool keeps(float raw, int32_t column) const { return cut.keeps(order.scaled(raw), column); }
  // Can an element up to this be kept?
  __device__ bool reaches(float largest) const { return order.scaled(largest) >= cut.value; }
};

// A row and what is known of its law. `Kept` is Unfiltered or Filtered.
template <class Kept>
struct LawRowOf {
  typename Kept::RowType row;
  LawWithStats stats;
  const int32_t* map = nullptr;  // the target's tokens of its columns, if the draft has its own vocabulary
  Kept kept = {};
  __device__ DraftMap columns() const { return {map, row.vocab}; }
  __device__ float probability(int32_t column, float raw) const {
    return kept.keeps(raw, column) ? stats.probability(column, raw) : 0.0f;
  }
  __device__ Weighed<float> weighed(int32_t column, float raw) const {
    return kept.keeps(raw, column) ? stats.weighed(column, raw) : Weighed<float>{0.0f, -kInfinity};
  }
};

using LawRow = LawRowOf<Unfiltered>;

// The weights of a race: p, or (p - h q)^+. The kind and the spaces are the same for a whole block, and only rare code
// looks at them. So one kernel holds all of them.
template <class Kept>
struct WeightsOf {
  LawRowOf<Kept> target, draft;
  bool residual;
  float draft_prob;
  int32_t excluded;  // this token has no weight (a one-hot draft was rejected); kNoToken: none
  // Of p: tokens marked in `tried`, one bit each, have no weight. Of a residual: q is multiplied with the share of its
  // bucket, a float each. One place for both, as registers are few.
  bool leaves_out;
  Shared<unsigned> tried;

  // A token of this log weight or more has a key (specdec/law.h) of this at least. A residual is at most p. What has no
  // weight has a smaller key, whatever is asked for.
  __device__ float needed_key(float log_weight) const {
    const float key = target.stats.law.in_space([&](auto space) {
      return residual ? space.needed_key(log_weight, target.stats.lse) : space.needed_key(log_weight);
    });
    return max(key, -kLargest);
  }

  // Can one of several elements have this key, and be kept? `largest` is their maximum, or a NaN, which hides it.
  __device__ bool reach(float largest, float key) const {
    return !(target.stats.law.key(largest) < key) && (largest != largest || target.kept.reaches(largest));
  }

  // The log weight of a token with the raw element `raw`. Only this function reads the draft row. It does not read the
  // target row.
  __device__ float log_weight(float raw, int32_t token) const {
    if (token == excluded || !target.kept.keeps(raw, token)) return -kInfinity;
    if (leaves_out && !residual && tried[token / 32] >> token % 32 & 1u) return -kInfinity;
    return target.stats.law.in_space([&](auto space) {
      if (!residual) return space.log_weight(raw);
      const float p = space.probability(raw, target.stats.lse);
      const int32_t column = draft.columns().column(token);
      float q = column == kNoColumn ? 0.0f : draft.probability(column, element(draft.row, column));
      if (leaves_out) q = mul(from_bits(tried[bucket_of(p, q)]), q);
      return specdec::log_weight(residual_weight(p, mul(draft_prob, q)));
    });
  }
};

using Weights = WeightsOf<Unfiltered>;

template <class Kept = Unfiltered>
__device__ __forceinline__ WeightsOf<Kept> weights_of_row(const typename Kept::RowType& row, const Law& law, const Kept& kept = {}) {
  WeightsOf<Kept> weights = {};
  weights.target = {row, without_stats(law), nullptr, kept};
  weights.excluded = kNoToken;
  return weights;
}

template <class Kept>
__device__ __forceinline__ WeightsOf<Kept> weights_of_residual(const LawRowOf<Kept>& target,
                                                               const LawRowOf<Kept>& draft, float h) {
  WeightsOf<Kept> weights = {};
  weights.target = target;
  weights.draft = draft;
  weights.residual = true;
  weights.draft_prob = h;
  weights.excluded = kNoToken;
  return weights;
}

// p of a column with the raw element `raw`. Adds the status of that element, unless the law needs the whole row, which
// has its own status.
template <class Kept>
__device__ __forceinline__ float law_of(const LawRowOf<Kept>& side, int32_t column, float raw, int32_t* status) {
  if (!side.stats.law.needs_row() && !side.stats.law.is_element(raw)) *status |= SPECDEC_STATUS_NON_FINITE;
  return side.probability(column, raw);
}

// p(token).
template <class Kept>
__device__ __forceinline__ float law_of(const LawRowOf<Kept>& side, int32_t token, int32_t* status) {
  const int32_t column = side.columns().column(token);
  return column == kNoColumn ? 0.0f : law_of(side, column, element(side.row, column), status);
}

}  // namespace specdec::cuda
