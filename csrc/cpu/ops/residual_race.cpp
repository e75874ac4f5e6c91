// residual_race on the CPU: the first arrival in a part of a row, with the weights of the residual.
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

// A row by its index among all rows, with its log-sum-exp from `row_stats` [2].
LawRow row_with_lse(const Rows& rows, int32_t row, const specdec_law& p, int64_t b, const float* row_stats,
                 int32_t* status) {
  LawRow r = law_row(row_at(rows, rows.offset_of(row)), law_at(p, b, 0, status), {}, {nullptr, rows.vocab});
  r.stats.lse = {row_stats[0], row_stats[1]};
  return r;
}

// Restricts the row to a cut that was computed from the whole row.
void apply_cut(LawRow* r, const PartCut& part) {
  if (!part.on()) return;
  r->filter.top_k = 0;  // turns the filter on; which one does not matter after the cut
  r->filter.order = part.order;
  r->in_support.cut = part.cut;
}

Candidate first_arrival(const ResidualRaceParams& p, int64_t b, const ThreadTeam& team, int32_t* status) {
  const float* row_stats = static_cast<const float*>(p.row_stats.data) + p.row_stats.offset(0, b);
  const int32_t row = p.row.data[b];
  const RowIndex of_row = {row / p.target.rows, row % p.target.rows};
  LawRow target = row_with_lse(p.target, row, p.target_law, b, row_stats, status);
  Editor editor(p.edits, p.target.vocab, of_row, 0);
  editor.edit(&target.row, of_row);
  scan_maxima(target, ScanFor::kCut, team, 0);
  *status |= target.status | editor.status;
  if (target.stats.law.greedy) return row_argmax(target.row, target.stats.law, target.cells);
  const Noise noise = noise_at(p.noise, b, 0, kStreamResidual);
  apply_cut(&target, part_cut_at(p.cuts, b, 0));
  if (p.draft_row.data && p.draft_row.data[b] >= 0) {
    LawRow draft = row_with_lse(p.draft, p.draft_row.data[b], p.draft_law, b, row_stats + 2, status);
    draft.stats.law.greedy = false;
    apply_cut(&draft, part_cut_at(p.cuts, b, 1));
    return residual_winner(target, draft, p.subtracted.at(b), nullptr, noise, team, 0);
  }
  return row_winner(target, excluded_at(p, b), noise, team, 0);
}

}  // namespace

void residual_race(const ResidualRaceParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads, [&](int64_t b, const ThreadTeam& team) {
    const Arrivals out = {p.tokens.data + b, p.scores.data + b, 1};
    const Entry source = decode_entry(p, b);
    int32_t status = source.status();
    if (!source.live()) {
      out.put_unread(0, source.token());
    } else {
      Candidate winner = first_arrival(p, b, team, &status);
      if (winner.token != kNoToken) winner.token += p.target.vocab_start;
      out.put(0, winner);
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
