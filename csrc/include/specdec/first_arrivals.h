// The winner of a row, from what each part of it found. Parts lie on several devices, and were gathered.
#pragma once

#include "c/sharded.h"
#include "partial.h"

SPECDEC_BEGIN

// A record of a row is a token, a score as bits, and a status.
SPECDEC_HD void first_arrival(const FirstArrivalsParams& p, int64_t row) {
  RowPartial all = kNoPart;
  for (int64_t part = 0; part < p.packed.rows; ++part) {
    const int32_t* const words = p.packed.data + part * p.packed.columns + 3 * row;
    const float score = from_bits(static_cast<uint32_t>(words[1]));
    const Candidate found = score == -kInfinity ? kNobody : Candidate{score, words[0]};
    all = together(all, {found, words[2]});
  }
  const bool empty = all.best.token == kNoToken;
  p.tokens.data[row] = empty ? 0 : all.best.token;
  p.status.data[row] = all.status | (empty ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK);
  p.empty.data[row] = empty;
}

SPECDEC_END
