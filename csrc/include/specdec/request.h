// Which numbers and draft rows a batch row uses: those of its own index or, with request_index, of another one.
#pragma once

#include "params.h"

SPECDEC_BEGIN

struct Entry {
  enum Kind : int32_t { kLive, kIdle, kOutside };
  int64_t index;
  Kind kind;
  SPECDEC_HD bool live() const { return kind == kLive; }
  SPECDEC_HD bool idle() const { return kind == kIdle; }
  // The status and the first token of a request that is not live.
  SPECDEC_HD int32_t status() const { return kind == kOutside ? kStatusParameter : kStatusOk; }
  SPECDEC_HD int32_t token() const { return kind == kOutside ? 0 : -1; }
};

SPECDEC_HD Entry entry_of(const RequestIndex& index, int64_t b) {
  if (!index.data) return {b, Entry::kLive};
  const int32_t i = index.data[b];
  if (i == -1) return {0, Entry::kIdle};
  if (i < 0 || i >= index.entries) return {0, Entry::kOutside};
  return {i, Entry::kLive};
}

// Whether a pair of rows is there: idle if either row is -1.
SPECDEC_HD Entry entry_of(const ResidualSumsParams& p, int64_t pair) {
  const int64_t rows[] = {p.row.data[pair], p.draft_row.data[pair]};
  if (rows[0] == -1 || rows[1] == -1) return {0, Entry::kIdle};
  const bool there = rows[0] >= 0 && rows[0] < p.target.requests * p.target.rows && rows[1] >= 0 &&
                     rows[1] < p.draft.requests * p.draft.rows;
  return {pair, there ? Entry::kLive : Entry::kOutside};
}

SPECDEC_END
