// Whole rows, read by a team: every member learns what is known of them.
#pragma once

#include "../team/team.cuh"
#include "mass_row.cuh"

namespace specdec {
namespace cuda {

// Chunks of a row of logits, on the host.
inline int chunks_of(const Rows& rows) {
  if (!rows.data) return 0;
  const int chunk = rows.dtype == SPECDEC_FLOAT32 ? Batch<Float32>::kTokens : Batch<BFloat16>::kTokens;
  return (rows.vocab + chunk - 1) / chunk;
}

// What a member takes of a row.
__device__ __forceinline__ Part part_of(const Team& team) { return {team.rank(), team.size()}; }

// The log-sum-exps of rows 0 .. rows - 1, of at most `chunks` chunks each. One thread of this block calls store(row,
// what is known of it). The block needs a barrier before other threads use that. row_at(i) is a row and its law.
template <class Mass = ExactMass, class RowAt, class Store>
__device__ __forceinline__ void take_sums_of_rows(Team& team, int rows, int chunks, RowAt&& row_at, Store&& store) {
  const int items = rows * chunks, stride = word_stride(team, items);
  for (int i = team.rank() * warps_in_block() + warp_id(); i < items; i += team.size() * warps_in_block()) {
    const LawRow side = row_at(i / chunks);
    const int chunk = i % chunks;
    const ChunkMass mass =
        chunk < chunks_of(side.row) ? weigh(side.row, chunk, side.stats.law.logits(), Mass{}) : kNoChunk;
    if (lane_id() != 0) continue;
    team.put(i, packed_maxima(mass));
#pragma unroll
    for (int t = 0; t < kMostMassTiles; ++t) team.put((1 + t) * stride + i, packed_units(mass, t));
  }
  team.sync();
  for (int row = warp_id(); row < rows; row += warps_in_block()) {
    const RowStats whole = row_of_chunks<Mass>(
        chunks, [&](int chunk, int word) { return team.get(word * stride + row * chunks + chunk); });
    if (lane_id() == 0) store(row, whole);
  }
}

// The argmax of a row, and whether it has a value that is impossible in a law. Every thread of the team gets both.
template <class Kept>
__device__ __forceinline__ RowStats scan_argmax(Team& team, const LawRowOf<Kept>& side) {
  return argmax_stats(best_of_team(team, argmax_part(side.row, side.stats.law, part_of(team))));
}

}  // namespace cuda
}  // namespace specdec
