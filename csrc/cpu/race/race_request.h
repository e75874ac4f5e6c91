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
  Candidate token_of(const Candidate& c) const {
    const Candidate found = r.map.to_target(c);
    return found.token == kNoToken ? found : Candidate{found.score, r.row.vocab_start + found.token};
  }
};

// Calls f(row, team, arrivals) for every row that is not idle. f returns the row's status bits.
template <class F>
inline void over_race_requests(const RaceParams& p, ScanFor goal, int threads, F&& f) {
  over_requests(p.count(), tiles_of(p.rows.vocab), threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
    const Arrivals arrivals = arrivals_at(p, index);
    const Entry who = entry_of(p.request_index, i);
    int32_t status = who.status();
    if (who.live()) {
      RaceRequest request = {law_row_of(p.rows, p.rows.offset(i, j), p.law, who.index, j,
                                        draft_map_of(p.draft_map, p.rows), &status),
                             noise_at(p.noise, who.index, j, kStreamRace)};
      Editor editor(p.edits, p.rows.vocab, {who.index, j}, 0);
      editor.edit(&request.r.row, {i, j});
      status |= editor.status;
      scan_maxima(request.r, goal, team, 0);
      status |= f(request, team, arrivals);
    } else {
      for (int32_t place = 0; place < p.k(); ++place) arrivals.put_unread(place, who.token());
    }
    if (p.status.data) p.status.data[index] = status;
  });
}

SPECDEC_END
