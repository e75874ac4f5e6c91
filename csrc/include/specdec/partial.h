// What is known of a part of a row, or of all of it. A row may be cut into tiles, blocks or shards of the vocabulary:
// each part is looked at on its own, and the records are put together.
#pragma once

#include "law.h"
#include "race.h"

SPECDEC_BEGIN

// Whoever fills a record fills what was asked for; the rest stays as it is in kNoPart.
struct RowPartial {
  float max;       // of x = logit / T; -inf where nothing has weight
  float sum;       // of exp(x - max); 0 where nothing has weight
  Candidate best;  // the winner of a race, or the argmax
  int32_t status;  // bits of what was met
};

constexpr RowPartial kNoPart = {-kInfinity, 0.0f, kNobody, kStatusOk};

// A part's share of the sum for the whole row, whose maximum is `top`.
SPECDEC_HD float sum_below(const RowPartial& part, float top) {
  return part.sum > 0.0f ? mul(part.sum, exp_or_zero(sub(part.max, top))) : 0.0f;
}

// Two parts of one row. Maxima, candidates and status do not depend on the order in which parts are put together; sums
// do in their last bits. So whoever promises the same bits always takes the parts in the same order.
SPECDEC_HD RowPartial together(const RowPartial& a, const RowPartial& b) {
  const float top = max(a.max, b.max);
  return {top, add(sum_below(a, top), sum_below(b, top)), best_of(a.best, b.best), a.status | b.status};
}

// The law of a row that was looked through from end to end.
SPECDEC_HD KnownLaw known_law(const Law& law, const RowPartial& row) {
  return {law, log_sum_exp(row.max, row.sum), row.best.token};
}

SPECDEC_HD Draw draw_of(const RowPartial& row) { return draw_of(row.best, row.status); }

SPECDEC_END
