// A target row and a draft row side by side, sixteen probabilities at a time: residual and overlap.
#pragma once

#include "row.h"
#include "specdec/law.h"

SPECDEC_BEGIN

SPECDEC_HD F16 vector_exp_or_zero(F16 x) {
  const Mask in_range = at_least(x, F16(kExpUnderflow));
  return where(in_range, exp_in_range(min(max(x, F16(kExpUnderflow)), F16(88.0f))), F16(0.0f));
}

// One side of the pair as probabilities.
struct LawRow {
  Row row;
  Law law;
  LogSumExp lse;     // logits
  Candidate greedy;  // temperature 0

  // Sixteen probabilities from `token` on, zero from `end` and from the row's own vocabulary on.
  SPECDEC_HD F16 at(int32_t token, int32_t end) const {
    const int32_t count = (end < row.vocab ? end : row.vocab) - token;
    if (count <= 0) return F16(0.0f);
    if (law.greedy) {
      float lane[kLanes];
      for (int i = 0; i < kLanes; ++i) lane[i] = token + i == greedy.token ? 1.0f : 0.0f;
      return load(lane);
    }
    if (law.space == Space::kProbs) {
      const F16 p = elements(row, token, count, 0.0f);
      return where(at_least(p, F16(kSmallest)), min(p, F16(kLargest)), F16(0.0f));
    }
    // A NaN stays one, and has probability 0.
    const F16 x = min(F16(kLargest), mul(elements(row, token, count, -kInfinity), F16(law.inverse)));
    return vector_exp_or_zero(sub(sub(x, F16(lse.max)), F16(lse.log_sum)));
  }
};

// What the law needs to know of its whole row. A row of probabilities needs nothing: it is looked through for its status
// alone, where somebody wants that.
SPECDEC_HD LawRow law_row(const Row& row, const Law& law, const Crew& crew, int scratch_slot, int32_t* status) {
  LawRow side = {row, law, kNoMass, kNobody};
  if (law.space == Space::kLogits && !law.greedy) {
    const RowFigures figures = row_log_sum_exp(row, law.inverse, crew, scratch_slot);
    side.lse = figures.lse;
    if (status) *status |= figures.status;
  } else if (law.greedy || status) {
    float* maxima = scratch(scratch_slot, row.tiles());
    const int32_t bits = row_maxima(row, law.space, crew, maxima);
    side.greedy = row_argmax(row, law.space, maxima);
    if (status) *status |= draw_of(side.greedy, bits).status;
  }
  return side;
}

SPECDEC_END
