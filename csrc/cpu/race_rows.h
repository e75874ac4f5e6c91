// The rows of race_sample and race_topk, decoded.
#pragma once

#include "race_row.h"
#include "specdec/law.h"
#include "threads.h"

SPECDEC_BEGIN

struct RaceRow {
  Row row;
  Law law;
  Noise noise;
};

// Calls f(row, crew, tokens) for every row; it gives back the row's status bits.
template <class F>
SPECDEC_HD void over_race_rows(const RaceParams& p, int threads, F&& f) {
  over_requests(p.count(), tiles_of(p.rows.vocab), threads, [&](int64_t index, const Crew& crew) {
    const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
    int32_t status = kStatusOk;
    const RaceRow row = {row_at(p.rows, p.rows.offset(i, j)), law_at(p.law, i, j, &status),
                         noise_at(p.noise, i, j, kStreamRace)};
    status |= f(row, crew, p.tokens.data + index * p.k());
    if (p.status.data) p.status.data[index] = status;
  });
}

SPECDEC_END
