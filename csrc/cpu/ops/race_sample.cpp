// race_sample on the CPU: one token a row.
#include "../race/race_request.h"
#include "../race/race_row.h"

SPECDEC_BEGIN

namespace {

Candidate find_winner(RaceRequest& race, const ThreadTeam& team) {
  LawRow& r = race.r;
  return r.stats.law.greedy ? row_argmax(r.row, r.stats.law, r.cells) : row_winner(r, {}, race.noise, team, 0);
}

}  // namespace

void race_sample(const RaceParams& p, int threads) {
  over_race_requests(p, ScanFor::kWinner, threads, [&](RaceRequest& race, const ThreadTeam& team, const Arrivals& out) {
    const Candidate winner = race.to_target_token(find_winner(race, team));
    out.put(0, winner);
    if (!out.of_part()) *out.tokens = to_draw(winner, SPECDEC_STATUS_OK).token;
    return out.status_of(winner, race.r.status);
  });
}

SPECDEC_END
