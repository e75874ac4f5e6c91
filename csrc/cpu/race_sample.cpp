// race_sample on the CPU: one token a row.
#include "mapped_race.h"
#include "race_request.h"

SPECDEC_BEGIN

namespace {

Candidate winner_of(const RaceRequest& r, const float* maxima, const Crew& crew) {
  if (r.law.greedy) return row_argmax(r.row, r.law, maxima);
  return r.law.in_space([&](auto space) {
    const auto weights = row_weights(space);
    return r.map.tokens ? mapped_race_winner(weights, r.row, r.map, r.noise, maxima, crew)
                        : race_winner(weights, r.row, r.noise, maxima, crew);
  });
}

}  // namespace

void race_sample(const RaceParams& p, int threads) {
  over_race_requests(p, threads, [&](const RaceRequest& r, const Crew& crew, int64_t* tokens) {
    float* maxima = scratch(0, r.row.tiles());
    const int32_t status = row_maxima(r.row, r.law, crew, maxima);
    const Draw draw = draw_of(r.token_of(winner_of(r, maxima, crew)), status);
    *tokens = draw.token;
    return draw.status;
  });
}

SPECDEC_END
