// A pair of a target row and a draft row, read by a team: for residual and overlap, which sum over both.
#pragma once

#include "filtered_row.cuh"
#include "specdec/request.h"

namespace specdec::cuda {

template <class Params>
struct PairArguments {
  Params p;
  TeamLayout team;
  int tiles;      // of the longer row of logits
  CutMemory cut;  // `at` is where tiles are weighed; the rest serves filters
};

// A pair: rows (i, j) of the call, and the entry of their request.
struct PairIndex {
  int64_t index, i, j;
  Entry entry;
  template <class Params>
  __device__ PairIndex(const Params& p, int64_t pair)
      : index(pair), i(pair / p.target.rows), j(pair % p.target.rows), entry(decode_entry(p.request_index, i)) {}
};

// Row (i, j) of the target (side 0), or row (n, j) of the draft.
template <class Params, class Reader>
__device__ __forceinline__ auto row_of_pair(const Params& p, const Reader& reader, int side, int64_t i, int64_t n,
                                            int64_t j) {
  const Rows& rows = side == 0 ? p.target : p.draft;
  return reader.of(row_at(rows, rows.offset(side == 0 ? i : n, j)), side == 0);
}

// Loads the statistics that the laws of both rows need, for every thread of the team. Rows of probabilities have none,
// and are looked through only if the call returns a status.
__device__ __forceinline__ void load_row_stats(Team& team, int tiles, const Shared<uint4>& fours, LawRow (&sides)[2],
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

// load_row_stats with the filters of entry (n, j). The rows are looked through one after the other. Results wait in
// shared memory, since they would take too many registers.
template <class Params>
__device__ __forceinline__ void load_filtered_rows(Team& team, const Params& p, const ShapedRows& reader, int64_t i,
                                                   int64_t n, int64_t j, const CutMemory& memory,
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
    FilteredRow filtered = {kNoStats, {}, -1};
    if (law.needs_sum()) filtered = load_filtered_row(team, row, law, filter, memory);
    else if (law.greedy || p.status.data) filtered.stats = scan_argmax(team, law_row<Filtered>(row, law));
    if (threadIdx.x == 0) {
      stats[side] = filtered.stats;
      cuts[side] = filtered.support.cut;
      orders[side] = filtered.support.order.inverse;
    }
    __syncthreads();  // all threads have read the argmax from the team
  }
  *status |= bits;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const RowStats row = stats[side];
    const Law law = law_at(side == 0 ? p.target_law : p.draft_law, n, j, &bits);
    sides[side] = law_row<Filtered>(row_of_pair(p, reader, side, i, n, j), law,
                                    side == 0 ? nullptr : p.draft_map.data);
    sides[side].stats = with_stats(law, row);
    sides[side].support = {cuts[side], {orders[side]}};
    *status |= row.status;
  }
}

// Loads both rows of a pair, for every thread of the team.
template <class Params, class Reader>
__device__ __forceinline__ void load_pair(Team& team, const PairArguments<Params>& a, const PairIndex& at,
                                          const Reader& reader, LawRowOf<typename Reader::Support> (&sides)[2],
                                          int32_t* status) {
  using Support = typename Reader::Support;
  const Params& p = a.p;
  const int64_t n = at.entry.index;
  *status |= reader.decode(p.edits, p.target.vocab, {n, at.j}, {at.i, at.j});
  if constexpr (Support::kFiltered) {
    load_filtered_rows(team, p, reader, at.i, n, at.j, a.cut, sides, status);
  } else {
    sides[0] = law_row<Support>(row_of_pair(p, reader, 0, at.i, n, at.j), law_at(p.target_law, n, at.j, status));
    sides[1] = law_row<Support>(row_of_pair(p, reader, 1, at.i, n, at.j), law_at(p.draft_law, n, at.j, status),
                                p.draft_map.data);
    const Shared<uint4> fours = dynamic_shared<uint4>(a.cut.at, kVectors * kThreads);
    load_row_stats(team, a.tiles, fours, sides, p.status.data != nullptr, status);
  }
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Launches one of an op's two kernels: for plain rows, and for rows with filters or edits.
template <auto plain, auto with_cuts, class Params>
cudaError_t launch_pairs(const Params& p, const Call& call) {
  static const Kernels kernels(plain, with_cuts);
  return on_device(call, p.count(), kernels, [&](const Device& device) {
    const bool shaped = is_shaped(p);
    PairArguments<Params> a = {};
    a.p = p, a.tiles = longest_tiles(p);
    const TeamShape shape = shaped ? shaped_team(device, p.count(), p.target, 2)
                                   : team_shape(device, p.count(), p.target, 2, Ends::kTogether);
    const CutPlan cut = cut_plan(shape, p.count(), longest(p), 0, device.dynamic_shared);
    const int masses = shaped ? cut.items : words_of_items(shape, 2 * a.tiles, kWordsATile);
    const int sums = words_of_items(shape, sum_tiles_of(p.target.vocab), 2);
    const TeamPlan plan = team_plan(shape, p.count(), sums > masses ? sums : masses, 0, 0);
    if (plan.lacks(device.workspace)) return cudaSuccess;
    a.team = plan.team(device.workspace);
    a.cut = cut.memory;
    a.cut.at = plan.shared_bytes();
    if (shaped) return launch_teams(with_cuts, plan, device, a, a.cut.at + cut.shared_bytes);
    return launch_teams(plain, plan, device, a, a.cut.at + kStagedBytes);
  });
}

}  // namespace specdec::cuda
