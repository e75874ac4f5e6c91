// A draft's vocabulary of its own: column i of its rows is the target's token tokens[i], which rise. A map of a GPU is
// never looked at before the kernels run, so whatever stands in it, nothing is read outside of it or of the row.
#pragma once

#include "race.h"

SPECDEC_BEGIN

constexpr int32_t kNoColumn = -1;

struct DraftMap {
  const int32_t* tokens;  // null: column i is token i
  int32_t columns;

  // The first column whose token is at least this one; `columns` if there is none.
  SPECDEC_HD int32_t first_at_least(int32_t token) const {
    int32_t from = 0, to = columns;
    while (from < to) {
      const int32_t middle = from + (to - from) / 2;
      if (tokens[middle] < token) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  // Where the draft has a token; kNoColumn where it does not know it.
  SPECDEC_HD int32_t column(int32_t token) const {
    if (!tokens) return token < columns ? token : kNoColumn;
    const int32_t at = first_at_least(token);
    return at < columns && tokens[at] == token ? at : kNoColumn;
  }

  // A candidate among the columns as one among the target's tokens; nobody where the map has no token.
  SPECDEC_HD Candidate to_target(const Candidate& c) const {
    if (!tokens || c.token == kNoToken) return c;
    return tokens[c.token] >= 0 ? Candidate{c.score, tokens[c.token]} : kNobody;
  }
};

SPECDEC_HD DraftMap draft_map_of(const Vector<const int32_t>& map, const Rows& rows) { return {map.data, rows.vocab}; }

SPECDEC_END
