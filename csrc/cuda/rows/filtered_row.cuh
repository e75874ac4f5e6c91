// Rows whose filters may be on, found by a team: their laws, the races over what is kept, and pairs of such rows.
#pragma once

#include "cut.cuh"
#include "race_request.cuh"

namespace specdec {
namespace cuda {

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

// Row (i, j) of the target (side 0), or row (n, j) of the draft.
template <class Params, class Reader>
__device__ __forceinline__ auto row_of_pair(const Params& p, const Reader& reader, int side, int64_t i, int64_t n,
                                            int64_t j) {
  const Rows& rows = side == 0 ? p.target : p.draft;
  return reader.of(row_at(rows, rows.offset(side == 0 ? i : n, j)), side == 0);
}

// know_rows of pair_sums.cuh, with the filters of entry (n, j). Rows of logits are looked through one after the other.
// What is found waits in shared memory: in registers it would be too much.
template <class Params>
__device__ __forceinline__ void know_filtered_rows(Team& team, const Params& p, const ShapedRows& reader, int64_t i,
                                                   int64_t n, int64_t j, const CutRoom& room,
                                                   LawRowOf<Filtered> (&sides)[2], int32_t* status) {
  SPECDEC_SHARED(RowStats, stats, 2);
  SPECDEC_SHARED(Cut, cuts, 2);
  SPECDEC_SHARED(float, orders, 2);
  int32_t bits = SPECDEC_STATUS_OK;
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    const specdec_law& params = side == 0 ? p.target_law : p.draft_law;
    const EditedRow row = row_of_pair(p, reader, side, i, n, j);
    const Law law = law_at(params, n, j, &bits);
    const Filter filter = filter_at(params, law, row.vocab, n, j, &bits);
    FilteredRow found = {kNoStats, {}, -1};
    if (law.needs_sum()) found = know_filtered(team, row, law, filter, room);
    else if (law.greedy || p.status.data) found.stats = scan_argmax(team, law_row<Filtered>(row, law));
    if (threadIdx.x == 0) {
      stats[side] = found.stats;
      cuts[side] = found.kept.cut;
      orders[side] = found.kept.order.inverse;
    }
    __syncthreads();  // what an argmax got of the team is read before the next row's sync, too
  }
  *status |= bits;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const RowStats row = stats[side];
    const Law law = law_at(side == 0 ? p.target_law : p.draft_law, n, j, &bits);
    sides[side] = law_row<Filtered>(row_of_pair(p, reader, side, i, n, j), law,
                                         side == 0 ? nullptr : p.draft_map.data);
    sides[side].stats = with_stats(law, row);
    sides[side].kept = {cuts[side], {orders[side]}};
    *status |= row.status;
  }
}

}  // namespace cuda
}  // namespace specdec
