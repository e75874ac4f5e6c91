// residual_sums on the CPU: the residual mass in a part of a row, and the draft's mass there.
#include "../rows/edits.h"
#include "../rows/row_cut.h"
#include "../rows/unit_sum.h"
#include "specdec/part_rows.h"

SPECDEC_BEGIN

namespace {

// A part of a row of logits, with the log-sum-exp of the whole row.
struct PartWithLse {
  Row row;
  Logits space;
  LogSumExp lse;
  PartCut cut;
  SPECDEC_HD F32x16 probabilities(int32_t token, int32_t end) const {
    const F32x16 raw = elements(row, token, end - token, -kInfinity);
    const F32x16 p = space.probability(raw, lse);
    if (!cut.on()) return p;
    return where(lanes_in_cut(cut.cut, min(F32x16(kLargest), cut.order.key(raw)), token), p, F32x16(0.0f));
  }
};

PartWithLse part_with_lse(const Rows& rows, int32_t row, const specdec_law& law, int64_t pair, const float* row_stats,
                     const PartCut& cut, int32_t* status) {
  return {row_at(rows, rows.offset_of(row)), law_at(law, pair, 0, status).logits(), {row_stats[0], row_stats[1]}, cut};
}

struct PairSums {
  uint64_t residual_mass, drafted;
  void operator+=(const PairSums& other) { residual_mass += other.residual_mass, drafted += other.drafted; }
};

__attribute__((noinline)) PairSums tile_sums(const PartWithLse& target, const PartWithLse& draft, float subtracted,
                                             int32_t tile) {
  UnitSum<F32x16> residual_mass, drafted;
  const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
  for (int32_t token = begin; token < end; token += kLanes) {
    const F32x16 p = target.probabilities(token, end), q = draft.probabilities(token, end);
    residual_mass.take(residual_weight(p, mul(F32x16(subtracted), q)));
    drafted.take(q);
  }
  return {total(residual_mass), total(drafted)};
}

PairSums pair_sums(const ResidualSumsParams& p, int64_t pair, const ThreadTeam& team, int32_t* status) {
  const float* row_stats = static_cast<const float*>(p.row_stats.data) + p.row_stats.offset(0, pair);
  const int32_t row = p.row.data[pair];
  const RowIndex of_row = {row / p.target.rows, row % p.target.rows};
  PartWithLse target =
      part_with_lse(p.target, row, p.target_law, pair, row_stats, part_cut_at(p.cuts, pair, 0), status);
  Editor editor(p.edits, p.target.vocab, of_row, 0);
  editor.edit(&target.row, of_row);
  *status |= editor.status;
  const PartWithLse draft = part_with_lse(p.draft, p.draft_row.data[pair], p.draft_law, pair, row_stats + 2,
                                     part_cut_at(p.cuts, pair, 1), status);
  const float subtracted = p.subtracted.at(pair);
  PairSums parts[kMaxParts];
  const int count = over_parts(target.row.tiles(), team, [&](int part, int32_t from, int32_t to) {
    PairSums sums = {};
    for (int32_t tile = from; tile < to; ++tile) sums += tile_sums(target, draft, subtracted, tile);
    parts[part] = sums;
  });
  PairSums all = {};
  for (int part = 0; part < count; ++part) all += parts[part];
  return all;
}

}  // namespace

void residual_sums(const ResidualSumsParams& p, int threads) {
  over_requests(p.pairs(), tiles_of(p.target.vocab), threads, [&](int64_t pair, const ThreadTeam& team) {
    const Entry source = decode_entry(p, pair);
    int32_t status = source.status();
    const PairSums sums = source.live() ? pair_sums(p, pair, team, &status) : PairSums{};
    p.sums.data[2 * pair] = static_cast<int64_t>(sums.residual_mass);
    p.sums.data[2 * pair + 1] = static_cast<int64_t>(sums.drafted);
    p.status.data[pair] = status;
  });
}

SPECDEC_END
