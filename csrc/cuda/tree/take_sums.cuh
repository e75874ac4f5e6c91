// Work on rows: their log-sum-exps, filters and edits.
#pragma once

#include "../rows/filtered_row.cuh"
#include "shape.cuh"

namespace specdec::cuda {

// Writes the log-sum-exps that the work requests to shared memory.
__device__ __forceinline__ void take_sums(const WalkArguments& a, Team& team, const RowWork& work,
                                          const WalkMemory& memory) {
  const auto is_target = [&](int row) { return (work.sides & kTarget) && row == 0; };
  take_sums_of_rows(
      team, work.sides == (kTarget | kDraft) ? 2 : 1, a.tiles, dynamic_shared<uint4>(a.held_at, kVectors * kThreads),
      [&](int row) -> LawRow { return node_law(a.p, work.row(is_target(row)), is_target(row), kNoStats, NoShape({})); },
      [&](int row, const RowStats& whole) { memory.row_stats[work.row(is_target(row)).stats_index] = whole; });
}

// A row of the work with its statistics. Rows of probabilities have none.
template <class Shaping>
__device__ __forceinline__ auto row_of_work(const WalkArguments& a, const RowWork& work, bool of_target,
                                            const WalkMemory& memory, const Shaping& shaping) {
  const NodeRow row = work.row(of_target);
  RowStats whole = kNoStats;
  if (row.law.needs_row()) whole = memory.row_stats[row.stats_index];
  return node_law(a.p, row, of_target, whole, shaping);
}

// Writes the statistics and cuts that the work requests to shared memory. The target's row is second, since the list of
// the last row stays.
__device__ __forceinline__ void take_shaped_sums(const ShapedWalkArguments& a, Team& team, const WalkMemory& memory,
                                                 const RequestShape& shaping) {
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    const RowWork work = memory.work[0];
    if (!(work.sides >> side & 1u)) continue;
    const NodeRow row = work.row(side == 0);
    const FilteredRow filtered = load_filtered_row(team, read_node_row(a.p, row, side == 0, shaping), row.law,
                                                   shaping.filter(side == 0 ? kTarget : kDraft), a.cut);
    if (threadIdx.x != 0) continue;
    memory.row_stats[row.stats_index] = filtered.stats;
    shaping.cuts[row.stats_index] = filtered.support.cut;
    shaping.listed[0] = side == 0 ? filtered.listed : -1;
    shaping.listed[1] = work.node;
  }
}

}  // namespace specdec::cuda
