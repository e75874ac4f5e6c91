// race_sample on the CPU: one token a row.
#include "race_request.h"

SPECDEC_BEGIN

void race_sample(const RaceParams& p, int threads) {
  over_race_requests(p, threads, [&](const RaceRequest& r, const Crew& crew, int64_t* tokens) {
    float* maxima = scratch(0, r.row.tiles());
    const int32_t status = row_maxima(r.row, r.law, crew, maxima);
    const Candidate winner = r.law.greedy ? row_argmax(r.row, r.law, maxima) : r.law.in_space([&](auto space) {
      return race_winner(row_weights(space), r.row, r.noise, maxima, crew);
    });
    const Draw draw = draw_of(winner, status);
    *tokens = r.row.first_token + draw.token;
    return draw.status;
  });
}

SPECDEC_END
