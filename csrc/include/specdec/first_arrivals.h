// The winner of a row, from the candidates of its parts, which lay on several devices and were gathered.
#pragma once

#include "c/sharded.h"
#include "partial.h"

SPECDEC_BEGIN

// A row's record is a token, the bits of its score, and a status.
SPECDEC_HD void first_arrival(const FirstArrivalsParams& p, int64_t row) {
  RowPartial all = kNoPartial;
  for (int64_t part = 0; part < p.packed.rows; ++part) {
    const int32_t* const record = p.packed.data + part * p.packed.columns + 3 * row;
    const float score = from_bits(static_cast<uint32_t>(record[1]));
    const Candidate candidate = score == -kInfinity ? kNoCandidate : Candidate{score, record[0]};
    all = together(all, {candidate, record[2]});
  }
  const bool empty = all.best.token == kNoToken;
  p.tokens.data[row] = empty ? 0 : all.best.token;
  p.status.data[row] = all.status | (empty ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK);
  p.empty.data[row] = empty;
}

SPECDEC_END
