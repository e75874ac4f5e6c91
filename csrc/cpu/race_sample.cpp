// race_sample on the CPU: one token a row.
#include "race_rows.h"

SPECDEC_BEGIN

void race_sample(const RaceParams& p, int threads) {
  over_race_rows(p, threads, [&](const RaceRow& r, const Crew& crew, int64_t* tokens) {
    float* maxima = scratch(0, r.row.tiles());
    const int32_t status = row_maxima(r.row, r.law.space, crew, maxima);
    Candidate winner;
    if (r.law.greedy) {
      winner = row_argmax(r.row, r.law.space, maxima);
    } else if (r.law.space == Space::kLogits) {
      winner = race_row(LogitLaw{r.row, r.law.inverse}, r.row, r.noise, maxima, crew);
    } else {
      winner = race_row(ProbLaw{r.row}, r.row, r.noise, maxima, crew);
    }
    const Draw draw = draw_of(winner, status);
    *tokens = draw.token;
    return draw.status;
  });
}

SPECDEC_END
