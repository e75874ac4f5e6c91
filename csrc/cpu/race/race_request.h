// The rows of race_sample and race_topk, decoded.
#pragma once

#include "../rows/edits.h"
#include "../rows/law_row.h"
#include "../threads.h"
#include "specdec/c/races.h"
#include "specdec/partial.h"
#include "specdec/request.h"

SPECDEC_BEGIN

struct RaceRequest {
  LawRow r;
  Noise noise;

  // Turns a candidate's column into the target's token.
  Candidate to_target_token(const Candidate& c) const {
    const Candidate target = r.map.to_target(c);
    return target.token == kNoToken ? target : Candidate{target.score, r.row.vocab_start + target.token};
  }
};

// Calls f(row, team, arrivals) for every row that is not idle. f returns the row's status bits.
template <class F>
inline void over_race_requests(const RaceParams& p, ScanFor goal, int threads, F&& f) {
  over_requests(p.count(), tiles_of(p.rows.vocab), threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
    const Arrivals arrivals = arrivals_at(p, index);
    const Entry source = decode_entry(p.request_index, i);
    int32_t status = source.status();
    if (source.live()) {
      RaceRequest request = {law_row_of(p.rows, p.rows.offset(i, j), p.law, source.index, j,
                                        draft_map_of(p.draft_map, p.rows), &status),
                             noise_at(p.noise, source.index, j, kStreamRace)};
      Editor editor(p.edits, p.rows.vocab, {source.index, j}, 0);
      editor.edit(&request.r.row, {i, j});
      status |= editor.status;
      scan_maxima(request.r, goal, team, 0);
      status |= f(request, team, arrivals);
    } else {
      for (int32_t column = 0; column < p.k(); ++column) arrivals.put_unread(column, source.token());
    }
    if (p.status.data) p.status.data[index] = status;
  });
}

SPECDEC_END
