// A pair of a target row and a draft row by a team, in ops that are asked for sums over both: residual and overlap.
#pragma once

#include "filtered_row.cuh"
#include "specdec/request.h"

namespace specdec::cuda {

template <class Params>
struct PairArguments {
  Params p;
  TeamRoom team;
  int tiles;    // of the longer row of logits
  CutRoom cut;  // where there may be filters or edits; else only where it is: tiles are weighed there
};

// Which pair it is: (i, j) of the call's rows, and the entry of its request.
struct PairPlace {
  int64_t index, i, j;
  Entry who;
  template <class Params>
  __device__ PairPlace(const Params& p, int64_t pair)
      : index(pair), i(pair / p.target.rows), j(pair % p.target.rows), who(entry_of(p.request_index, i)) {}
};

// Row (i, j) of the target (side 0), or row (n, j) of the draft.
template <class Params, class Reader>
__device__ __forceinline__ auto row_of_pair(const Params& p, const Reader& reader, int side, int64_t i, int64_t n,
                                            int64_t j) {
  const Rows& rows = side == 0 ? p.target : p.draft;
  return reader.of(row_at(rows, rows.offset(side == 0 ? i : n, j)), side == 0);
}

// Finds out what the laws of both sides need to know of their rows, for every thread of the team. Rows of probabilities
// need nothing. They are looked through only if their status is wanted.
__device__ __forceinline__ void know_rows(Team& team, int tiles, const Shared<uint4>& fours, LawRow (&sides)[2],
                                          bool wants_status, int32_t* status) {
  SPECDEC_SHARED(RowStats, stats, 2);
  const bool sums_target = sides[0].stats.law.needs_sum(), sums_draft = sides[1].stats.law.needs_sum();
  const auto side_of = [&](int row) { return row == 0 && sums_target ? 0 : 1; };
  if (sums_target || sums_draft) {
    take_sums_of_rows(
        team, sums_target && sums_draft ? 2 : 1, tiles, fours,
        [&](int row) { return side_of(row) == 0 ? sides[0] : sides[1]; },
        [&](int row, const RowStats& whole) { stats[side_of(row)] = whole; });
    __syncthreads();
  }
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    const LawRow row = side == 0 ? sides[0] : sides[1];
    RowStats whole = kNoStats;
    if (row.stats.law.needs_sum()) whole = stats[side];
    else if (row.stats.law.greedy || wants_status) whole = scan_argmax(team, row);
    if (side == 0) sides[0].stats = with_stats(row.stats.law, whole);
    else sides[1].stats = with_stats(row.stats.law, whole);
    *status |= whole.status;
  }
}

// know_rows, with the filters of entry (n, j). Rows of logits are looked through one after the other.
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

// Both sides of a pair that is read, for every thread of the team.
template <class Params, class Reader>
__device__ __forceinline__ void know_pair(Team& team, const PairArguments<Params>& a, const PairPlace& at,
                                          const Reader& reader, LawRowOf<typename Reader::Kept> (&sides)[2],
                                          int32_t* status) {
  using Kept = typename Reader::Kept;
  const Params& p = a.p;
  const int64_t n = at.who.index;
  *status |= reader.decode(p.edits, p.target.vocab, {n, at.j}, {at.i, at.j});
  if constexpr (Kept::kFiltered) {
    know_filtered_rows(team, p, reader, at.i, n, at.j, a.cut, sides, status);
  } else {
    sides[0] = law_row<Kept>(row_of_pair(p, reader, 0, at.i, n, at.j), law_at(p.target_law, n, at.j, status));
    sides[1] = law_row<Kept>(row_of_pair(p, reader, 1, at.i, n, at.j), law_at(p.draft_law, n, at.j, status),
                             p.draft_map.data);
    const Shared<uint4> fours = dynamic_shared<uint4>(a.cut.at, kVectors * kThreads);
    know_rows(team, a.tiles, fours, sides, p.status.data != nullptr, status);
  }
}

// ---- launching ------------------------------------------------------------------------------------------------------

// An op of two kernels: of rows as they come, and of rows with filters or edits.
template <auto plain, auto with_cuts, class Params>
cudaError_t launch_pairs(const Params& p, const Call& call) {
  static const Kernels kernels(plain, with_cuts);
  return on_device(call, p.count(), kernels, [&](const Device& device) {
    const bool shaped = is_shaped(p);
    PairArguments<Params> a = {p, {}, longest_tiles(p), {}};
    const TeamShape shape = shaped ? shaped_team(device, p.count(), p.target, 2)
                                   : team_shape(device, p.count(), p.target, 2, Ends::kTogether);
    const CutPlan cut = cut_plan(shape, p.count(), longest(p), 0, device.dynamic_shared);
    const int masses = shaped ? cut.items : places_of(shape, 2 * a.tiles, kWordsATile);
    const int sums = places_of(shape, sum_tiles_of(p.target.vocab), 2);
    const TeamPlan plan = team_plan(shape, p.count(), sums > masses ? sums : masses, 0, 0);
    if (plan.lacks(device.room)) return cudaSuccess;
    a.team = plan.team(device.room);
    a.cut = cut.room;
    a.cut.at = plan.shared_bytes();
    if (shaped) return launch_teams(with_cuts, plan, device, a, a.cut.at + cut.shared_bytes);
    return launch_teams(plain, plan, device, a, a.cut.at + kStagedBytes);
  });
}

}  // namespace specdec::cuda
