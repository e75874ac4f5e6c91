// What is known of a part of a row, or of all of it. A row may be cut into tiles, into the shares of blocks, or into
// shards of the vocabulary. Each part is looked at on its own. Then the records are put together.
#pragma once

#include "law.h"
#include "race.h"

SPECDEC_BEGIN

// A record holds what was asked for. The other fields are those of kNoPart.
struct RowPartial {
  float max;       // of x = logit / T; -inf if nothing has weight
  float sum;       // of exp(x - max); 0 if nothing has weight
  Candidate best;  // the winner of a race, or the argmax
  int32_t status;  // bits, as in config.h
};

constexpr RowPartial kNoPart = {-kInfinity, 0.0f, kNobody, kStatusOk};

// A part's share of the sum for the whole row, whose maximum is `top`.
SPECDEC_HD float sum_below(const RowPartial& part, float top) {
  return part.sum > 0.0f ? mul(part.sum, exp_or_zero(sub(part.max, top))) : 0.0f;
}

// Puts two parts of one row together. The order of parts does not matter for maxima, candidates and status. It does for
// the last bits of sums. So for the same bits always take the parts in the same order.
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
