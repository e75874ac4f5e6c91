// residual_race on the CPU: the first arrival in a part of a row, over what a draft left of its law.
#include "specdec/partial.h"
#include "specdec/request.h"
#include "threads.h"
#include "walk_ops.h"

SPECDEC_BEGIN

namespace {

struct OneToken {
  int32_t token;
  SPECDEC_HD bool has(int32_t other) const { return other == token; }
};

// The row of `side` at a place among all rows. What is known of it stands in `known`.
LawRow known_row(const Rows& rows, int32_t place, const LawParams& p, int64_t b, const float* known, int32_t* status) {
  LawRow r = law_row_of(rows, rows.offset_of(place), p, b, 0, {nullptr, rows.vocab}, status);
  r.known.lse = {known[0], known[1]};
  return r;
}

Candidate first_arrival(const ResidualRaceParams& p, int64_t b, const Crew& crew, int32_t* status) {
  const float* known = static_cast<const float*>(p.known.data) + p.known.offset(0, b);
  LawRow target = known_row(p.target, p.row.data[b], p.target_law, b, known, status);
  look_for_race(target, Look::kForCut, crew, 0);
  *status |= target.status;
  if (target.known.law.greedy) return row_argmax(target.row, target.known.law, target.cells);
  const Noise noise = noise_at(p.noise, b, 0, kStreamResidual);
  const Logits space = target.known.law.logits();
  target.known.lse = {known[0], known[1]};  // of the whole row
  if (p.draft_row.data && p.draft_row.data[b] >= 0) {
    LawRow draft = known_row(p.draft, p.draft_row.data[b], p.draft_law, b, known + 2, status);
    if (draft.filter.on() || draft.known.law.greedy) look_for_race(draft, Look::kForCut, crew, 1);
    draft.known.lse = {known[2], known[3]};
    const ResidualWeights<Logits> weights = {target, draft, space, p.taken.at(b)};
    return row_winner(weights, target, noise, crew, 0);
  }
  const OneToken excluded = {p.excluded.data && p.excluded.data[b] >= 0 ? p.excluded.data[b] - p.target.first_token : -1};
  return row_winner(without(row_weights(space), excluded), target, noise, crew, 0);
}

}  // namespace

void residual_race(const ResidualRaceParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads, [&](int64_t b, const Crew& crew) {
    const Arrivals out = {p.tokens.data + b, p.scores.data + b, 1};
    const Entry who = entry_of(p, b);
    int32_t status = who.status();
    if (!who.live()) {
      out.put_unread(0, who.token());
    } else {
      Candidate found = first_arrival(p, b, crew, &status);
      if (found.token != kNoToken) found.token += p.target.first_token;
      out.put(0, found);
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
