// residual_race on the CPU: the first arrival in a part of a row, over what a draft left of its law.
#include "../race/race_row.h"
#include "../rows/edits.h"
#include "specdec/part_rows.h"
#include "specdec/partial.h"

SPECDEC_BEGIN

namespace {

// The tokens that have no weight in a request's part of a row.
TokenList excluded_at(const ResidualRaceParams& p, int64_t b) {
  if (!p.excluded.data) return {};
  return {p.excluded.data + b * p.excluded.row_stride, p.excluded.columns, p.target.vocab_start};
}

// The row of `side` at a place among all rows. What is known of it stands in `known`.
LawRow known_row(const Rows& rows, int32_t place, const specdec_law& p, int64_t b, const float* known,
                 int32_t* status) {
  LawRow r = law_row(row_at(rows, rows.offset_of(place)), law_at(p, b, 0, status), {}, {nullptr, rows.vocab});
  r.stats.lse = {known[0], known[1]};
  return r;
}

// The row has what a cut keeps alone. It was found elsewhere, of the whole row.
void keep(LawRow* r, const PartCut& part) {
  if (!part.on()) return;
  r->filter.top_k = 0;  // which filters were on does not matter any more
  r->filter.order = part.order;
  r->kept.cut = part.cut;
}

Candidate first_arrival(const ResidualRaceParams& p, int64_t b, const ThreadTeam& team, int32_t* status) {
  const float* known = static_cast<const float*>(p.known.data) + p.known.offset(0, b);
  const int32_t place = p.row.data[b];
  const RowPlace of_row = {place / p.target.rows, place % p.target.rows};
  LawRow target = known_row(p.target, place, p.target_law, b, known, status);
  Editor editor(p.edits, p.target.vocab, of_row, 0);
  editor.edit(&target.row, of_row);
  scan_maxima(target, ScanFor::kCut, team, 0);
  *status |= target.status | editor.status;
  if (target.stats.law.greedy) return row_argmax(target.row, target.stats.law, target.cells);
  const Noise noise = noise_at(p.noise, b, 0, kStreamResidual);
  keep(&target, part_cut_at(p.cuts, b, 0));
  if (p.draft_row.data && p.draft_row.data[b] >= 0) {
    LawRow draft = known_row(p.draft, p.draft_row.data[b], p.draft_law, b, known + 2, status);
    draft.stats.law.greedy = false;
    keep(&draft, part_cut_at(p.cuts, b, 1));
    return residual_winner(target, draft, p.subtracted.at(b), nullptr, noise, team, 0);
  }
  return row_winner(target, excluded_at(p, b), noise, team, 0);
}

}  // namespace

void residual_race(const ResidualRaceParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads, [&](int64_t b, const ThreadTeam& team) {
    const Arrivals out = {p.tokens.data + b, p.scores.data + b, 1};
    const Entry who = entry_of(p, b);
    int32_t status = who.status();
    if (!who.live()) {
      out.put_unread(0, who.token());
    } else {
      Candidate found = first_arrival(p, b, team, &status);
      if (found.token != kNoToken) found.token += p.target.vocab_start;
      out.put(0, found);
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
