// A draft with a smaller vocabulary: column i of its rows is the target's token tokens[i], and tokens rise with i. The
// host cannot check a map in a GPU's memory. So whatever a map holds, nothing outside of the map and the row is read.
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

  // The column of a token; kNoColumn if the draft does not have it.
  SPECDEC_HD int32_t column(int32_t token) const {
    if (!tokens) return token < columns ? token : kNoColumn;
    const int32_t at = first_at_least(token);
    return at < columns && tokens[at] == token ? at : kNoColumn;
  }

  // A candidate among the columns as one among the target's tokens; kNoCandidate if the map's entry is negative.
  SPECDEC_HD Candidate to_target(const Candidate& c) const {
    if (!tokens || c.token == kNoToken) return c;
    return tokens[c.token] >= 0 ? Candidate{c.score, tokens[c.token]} : kNoCandidate;
  }
};

SPECDEC_HD DraftMap draft_map_of(const specdec_indices& map, const Rows& rows) { return {map.data, rows.vocab}; }

SPECDEC_END
