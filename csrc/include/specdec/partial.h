// What was found in a part of a row. A row may be cut into the shares of warps, of blocks, or into shards of the
// vocabulary. Each part is looked at on its own. Then the records are put together, in any order. For the normaliser of
// a row that was cut see MassTile (mass.h).
#pragma once

#include "race.h"

SPECDEC_BEGIN

struct RowPartial {
  Candidate best;  // the winner of a race, or the argmax
  int32_t status;  // bits, as in config.h
};

constexpr RowPartial kNoPart = {kNobody, SPECDEC_STATUS_OK};

SPECDEC_HD RowPartial together(const RowPartial& a, const RowPartial& b) {
  return {best_of(a.best, b.best), a.status | b.status};
}

SPECDEC_HD Draw draw_of(const RowPartial& row) { return draw_of(row.best, row.status); }

// Where the first arrivals of a row go. With scores the row is a part of one: then it is no fault if no token of it has
// weight, since others may have some. -1 and a score of -inf are nobody.
struct Arrivals {
  int64_t* tokens;  // [k]
  float* scores;    // [k]; null for whole rows
  int32_t k;

  SPECDEC_HD bool of_part() const { return scores != nullptr; }
  SPECDEC_HD void put(int32_t place, const Candidate& c) const {
    tokens[place] = c.token == kNoToken ? -1 : c.token;
    if (scores) scores[place] = c.score;
  }
  // Of a request that is not live: its one token wins against all parts' candidates.
  SPECDEC_HD void put_unread(int32_t place, int32_t token) const {
    tokens[place] = place == 0 ? token : -1;
    if (scores) scores[place] = place == 0 ? kInfinity : -kInfinity;
  }
  // Of a row whose elements have the bits `status`.
  SPECDEC_HD int32_t status_of(const Candidate& first, int32_t status) const {
    return of_part() ? status : draw_of(first, status).status;
  }
};

// Of RaceParams.
template <class Params>
SPECDEC_HD Arrivals arrivals_at(const Params& p, int64_t index) {
  const int32_t k = p.k();
  return {p.tokens.data + index * k, p.scores.data ? p.scores.data + index * k : nullptr, k};
}

SPECDEC_END
