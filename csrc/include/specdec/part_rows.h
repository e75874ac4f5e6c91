// Rows of which a device has a part, as the ops of shards (c/sharded.h) index them: whether they exist, and their laws.
#pragma once

#include "c/sharded.h"
#include "law.h"
#include "request.h"

SPECDEC_BEGIN

// A request is idle without a target row. It needs no draft row.
SPECDEC_HD Entry decode_entry(const ResidualRaceParams& p, int64_t b) {
  const int32_t row = p.row.data[b], draft_row = p.draft_row.data ? p.draft_row.data[b] : -1;
  if (row == -1) return {0, Entry::kIdle};
  const bool there = p.target.has(row) && (draft_row == -1 || p.draft.has(draft_row));
  return {b, there ? Entry::kLive : Entry::kOutside};
}

// A pair is idle if either row is -1.
SPECDEC_HD Entry decode_entry(const ResidualSumsParams& p, int64_t pair) {
  const int32_t row = p.row.data[pair], draft_row = p.draft_row.data[pair];
  if (row == -1 || draft_row == -1) return {0, Entry::kIdle};
  return {pair, p.target.has(row) && p.draft.has(draft_row) ? Entry::kLive : Entry::kOutside};
}

// mass_tiles reports the status of a temperature, so this op does not.
SPECDEC_HD Law law_at(const TileLawsParams& p, int64_t row) {
  int32_t reported = SPECDEC_STATUS_OK;
  return decode_law(SPECDEC_LOGITS, p.temperature.at(0, row), &reported);
}

SPECDEC_END
