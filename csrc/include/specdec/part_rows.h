// Rows of which a device has a part, as the ops of shards (c/sharded.h) name them: whether they are there, and their laws.
#pragma once

#include "c/sharded.h"
#include "law.h"
#include "request.h"

SPECDEC_BEGIN

// Whether the rows of a request are there: idle if it has none of the target. It needs none of the draft.
SPECDEC_HD Entry entry_of(const ResidualRaceParams& p, int64_t b) {
  const int32_t row = p.row.data[b], draft_row = p.draft_row.data ? p.draft_row.data[b] : -1;
  if (row == -1) return {0, Entry::kIdle};
  const bool there = p.target.has(row) && (draft_row == -1 || p.draft.has(draft_row));
  return {b, there ? Entry::kLive : Entry::kOutside};
}

// Whether a pair of rows is there: idle if either row is -1.
SPECDEC_HD Entry entry_of(const ResidualSumsParams& p, int64_t pair) {
  const int32_t row = p.row.data[pair], draft_row = p.draft_row.data[pair];
  if (row == -1 || draft_row == -1) return {0, Entry::kIdle};
  return {pair, p.target.has(row) && p.draft.has(draft_row) ? Entry::kLive : Entry::kOutside};
}

// The status of a temperature is told with the tiles.
SPECDEC_HD Law law_at(const TileLawsParams& p, int64_t row) {
  int32_t reported = SPECDEC_STATUS_OK;
  return law_of(SPECDEC_LOGITS, p.temperature.at(0, row), &reported);
}

SPECDEC_END
