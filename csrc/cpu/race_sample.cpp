// race_sample on the CPU: one token a row.
#include "ops.h"
#include "race_rows.h"

SPECDEC_BEGIN

void race_sample(const RaceParams& p, int threads) {
  over_race_rows(p, threads, [&](const RaceRow& r, int threads_a_row, int64_t* tokens) {
    float* maxima = scratch(0, r.row.tiles());
    row_maxima(r.row, p.space, threads_a_row, maxima);
    Candidate winner;
    if (r.temperature.greedy) {
      winner = row_argmax(r.row, p.space, maxima);
    } else if (p.space == Space::kLogits) {
      winner = race_row(LogitLaw{r.row, r.temperature.inverse}, r.row, r.noise, maxima, threads_a_row);
    } else {
      winner = race_row(ProbLaw{r.row}, r.row, r.noise, maxima, threads_a_row);
    }
    *tokens = draw_of(winner, kStatusOk).token;
  });
}

SPECDEC_END
