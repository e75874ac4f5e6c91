// The rows of race_sample and race_topk, decoded.
#pragma once

#include "race_row.h"
#include "specdec/chain.h"
#include "threads.h"

SPECDEC_BEGIN

struct RaceRow {
  Row row;
  Temperature temperature;
  Noise noise;
};

// Calls f(row, crew, tokens) for every row.
template <class F>
SPECDEC_HD void over_race_rows(const RaceParams& p, int threads, F&& f) {
  over_requests(p.outer * p.inner, tiles_of(p.rows.vocab), threads, [&](int64_t index, const Crew& crew) {
    const int64_t i = index / p.inner, j = index % p.inner;
    int32_t status = kStatusOk;
    const RaceRow row = {row_at(p.rows, i * p.rows.request_stride + j * p.rows.row_stride),
                         temperature_of(p.temperature.at(i, j), &status),
                         {key_of(p.seed.at(i, j)), static_cast<uint32_t>(p.position.at(i, j)),
                          static_cast<uint32_t>(p.nonce.at(i, j)), kStreamRace}};
    f(row, crew, p.tokens + index * p.k);
  });
}

SPECDEC_END
