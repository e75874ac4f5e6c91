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

constexpr RowPartial kNoPart = {kNobody, kStatusOk};

SPECDEC_HD RowPartial together(const RowPartial& a, const RowPartial& b) {
  return {best_of(a.best, b.best), a.status | b.status};
}

SPECDEC_HD Draw draw_of(const RowPartial& row) { return draw_of(row.best, row.status); }

SPECDEC_END
