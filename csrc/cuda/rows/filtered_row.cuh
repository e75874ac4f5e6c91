// Rows whose filters may be on, found by a team: their laws, the races over what is kept, and pairs of such rows.
#pragma once

#include "cut.cuh"
#include "race_request.cuh"

namespace specdec::cuda {

// What is known of a row of logits, and what its filters keep.
struct FilteredRow {
  RowStats stats;
  Filtered kept;
  int listed;  // as in KeptRow, until the next row is looked through
};

// For every thread of the team. The law needs a sum.
__device__ __forceinline__ FilteredRow know_filtered(Team& team, const EditedRow& row, const Law& law, Filter filter,
                                                     const CutRoom& room) {
  const Logits space = law.logits();
  if (!filter.on()) filter.order = space;
  TeamCutFinder finder(team, row, filter, room);
  KeptRow kept = finder.scan(!filter.on() || filter.of_row());
  FilteredRow found = {kNoStats, {}, -1};
  found.stats.status = kept.status;
  if (kept.top == -kInfinity) return found;
  if (filter.on()) {
    kept = finder.kept(kept);
    found.kept = {kept.cut, filter.order};
    found.listed = kept.listed;
  }
  found.stats.lse = log_sum_exp(kept.top, kept.mass);
  if (filter.order.inverse != space.inverse) {
    const float top_x = space.scaled(kept.infinite ? kInfinity : kept.top);
    found.stats.lse = log_sum_exp(top_x, finder.mass_in(space, top_x, kept.cut));
  }
  return found;
}

// What is known of a row's law, that of entry (n, j), for every thread of the team.
__device__ __forceinline__ void know_law(Team& team, const specdec_law& p, int64_t n, int64_t j, const CutRoom& room,
                                         LawRowOf<Filtered>* side, int32_t* status) {
  const Law law = side->stats.law;
  const Filter filter = filter_at(p, law, side->row.vocab, n, j, status);
  FilteredRow row = {kNoStats, {}, -1};
  if (law.greedy) row.stats = scan_argmax(team, *side);
  else row = know_filtered(team, side->row, law, filter, room);
  side->stats = with_stats(law, row.stats);
  side->kept = row.kept;
  *status |= row.stats.status;
}

// ---- races ----------------------------------------------------------------------------------------------------------

// What the filter of a race keeps, by columns.
__device__ __forceinline__ FilteredRow kept_of_race(Team& team, const RaceRequestOf<EditedRow>& r,
                                                    const Filter& filter, const CutRoom& room) {
  if (!filter.on()) return {kNoStats, {}, -1};
  return know_filtered(team, whole_row(r.row), r.law, filter, room);
}

// The winner among the tokens that are listed, as a column. Every block of a team finds it, without the row's others.
__device__ __forceinline__ RowPartial race_listed(const RaceRequestOf<EditedRow>& r, const WeightsOf<Filtered>& weights,
                                                  int listed, const CutRoom& room, int32_t status) {
  const Shared<WideKey> list = dynamic_shared<WideKey>(room.at, kListed);
  Candidate mine = kNobody;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < listed; i += static_cast<int>(blockDim.x)) {
    const int32_t column = static_cast<int32_t>(~static_cast<uint32_t>(list[i]));
    if (r.map.tokens) {
      mine = best_of(mapped_candidate(r, weights, element(r.row, column), column, mine.score), mine);
      continue;
    }
    const uint32_t token = static_cast<uint32_t>(r.row.vocab_start + column);
    const float log_weight = weights.log_weight(element(r.row, column), column);
    if (log_weight == -kInfinity) continue;
    const Group group = group_at(opaque(r.noise), token / kGroup);
    mine = best_of({race_score(log_weight, arrival(opaque(r.noise), group, token)), column}, mine);
  }
  RowPartial found = best_of_block(mine, false);
  found.status |= status;
  return found;
}

// The winner of a row under a filter, for every thread of the team.
__device__ __forceinline__ RowPartial filtered_winner(Team& team, const RaceRequestOf<EditedRow>& r,
                                                      const Filter& filter, const CutRoom& room) {
  const FilteredRow row = kept_of_race(team, r, filter, room);
  if (row.listed >= 0)
    return race_listed(r, weights_of_row(r.row, r.law, row.kept), row.listed, room, row.stats.status);
  return best_of_team(team, find_winner(r, part_of(team), row.kept));
}

}  // namespace specdec::cuda
