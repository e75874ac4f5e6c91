// The result of a scan of a part of a row. Rows are split between warps, blocks, or shards of the vocabulary. Each part
// is scanned independently, and results merge in any order. For the normaliser of a split row see MassTile (mass.h).
#pragma once

#include "race.h"

SPECDEC_BEGIN

struct RowPartial {
  Candidate best;  // the winner of a race, or the argmax
  int32_t status;  // bits, as in config.h
};

constexpr RowPartial kNoPartial = {kNoCandidate, SPECDEC_STATUS_OK};

SPECDEC_HD RowPartial together(const RowPartial& a, const RowPartial& b) {
  return {best_of(a.best, b.best), a.status | b.status};
}

SPECDEC_HD Draw to_draw(const RowPartial& row) { return to_draw(row.best, row.status); }

// Writes the first arrivals of a row. With scores the row is a part of one: then a part without weight is no fault,
// since other parts may have some. -1 and a score of -inf mean no candidate.
struct Arrivals {
  int64_t* tokens;  // [k]
  float* scores;    // [k]; null for whole rows
  int32_t k;

  SPECDEC_HD bool of_part() const { return scores != nullptr; }
  SPECDEC_HD void put(int32_t column, const Candidate& c) const {
    tokens[column] = c.token == kNoToken ? -1 : c.token;
    if (scores) scores[column] = c.score;
  }
  // A request that is not live: its one token wins against all parts' candidates.
  SPECDEC_HD void put_unread(int32_t column, int32_t token) const {
    tokens[column] = column == 0 ? token : -1;
    if (scores) scores[column] = column == 0 ? kInfinity : -kInfinity;
  }
  // `status` holds the bits of the row's elements.
  SPECDEC_HD int32_t status_of(const Candidate& first, int32_t status) const {
    return of_part() ? status : to_draw(first, status).status;
  }
};

template <class Params>
SPECDEC_HD Arrivals arrivals_at(const Params& p, int64_t index) {
  const int32_t k = p.k();
  return {p.tokens.data + index * k, p.scores.data ? p.scores.data + index * k : nullptr, k};
}

SPECDEC_END
