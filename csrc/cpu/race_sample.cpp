// race_sample on the CPU: one token a row.
#include "ops.h"
#include "race_rows.h"

SPECDEC_BEGIN

void race_sample(const RaceParams& p, int threads) {
  over_race_rows(p, threads, [&](const RaceRow& r, const Crew& crew, int64_t* tokens) {
    float* maxima = scratch(0, r.row.tiles());
    row_maxima(r.row, p.space, crew, maxima);
    Candidate winner;
    if (r.temperature.greedy) {
      winner = row_argmax(r.row, p.space, maxima);
    } else if (p.space == Space::kLogits) {
      winner = race_row(LogitLaw{r.row, r.temperature.inverse}, r.row, r.noise, maxima, crew);
    } else {
      winner = race_row(ProbLaw{r.row}, r.row, r.noise, maxima, crew);
    }
    *tokens = draw_of(winner, kStatusOk).token;
  });
}

SPECDEC_END
