// race_sample on the CPU: one token a row.
#include "race_request.h"

SPECDEC_BEGIN

namespace {

Candidate winner_of(RaceRequest& race, const Crew& crew) {
  LawRow& r = race.r;
  if (r.known.law.greedy) return row_argmax(r.row, r.known.law, r.cells);
  return r.known.law.in_space([&](auto space) {
    return r.map.tokens ? mapped_row_winner(row_weights(space), r, race.noise, crew, 0)
                        : row_winner(row_weights(space), r, race.noise, crew, 0);
  });
}

}  // namespace

void race_sample(const RaceParams& p, int threads) {
  over_race_requests(p, Look::kForWinner, threads, [&](RaceRequest& race, const Crew& crew, int64_t* tokens) {
    const Draw draw = draw_of(race.token_of(winner_of(race, crew)), race.r.status);
    *tokens = draw.token;
    return draw.status;
  });
}

SPECDEC_END
