// Whole rows, read by a team: every member learns what is known of them.
#pragma once

#include "softmax.cuh"
#include "team.cuh"

namespace specdec {
namespace cuda {

// Tiles of a row of logits, on the host.
inline int tiles_of(const Rows& rows) {
  if (!rows.data) return 0;
  const int tile = rows.dtype == DType::kFloat32 ? Batch<Float32>::kTokens : Batch<BFloat16>::kTokens;
  return (rows.vocab + tile - 1) / tile;
}

// The log-sum-exps of rows 0 .. rows - 1, of at most `tiles` tiles each. One thread of this block calls store(row, what
// is known of it). The block needs a barrier before other threads use that. row_at(i) is a row and its law.
template <class Team, class RowAt, class Store>
__device__ __forceinline__ void take_sums_of_rows(Team& team, int rows, int tiles, RowAt&& row_at, Store&& store) {
  for (int i = team.rank() * warps_in_block() + warp_id(); i < rows * tiles; i += team.size() * warps_in_block()) {
    const LawRow side = row_at(i / tiles);
    const int tile = i % tiles;
    const WideKey word =
        tile < tiles_of(side.row) ? packed(look_at_tile(side.row, tile, side.known.law.logits())) : kNoTile;
    if (lane_id() == 0) team.put(i, word);
  }
  team.sync();
  for (int row = warp_id(); row < rows; row += warps_in_block()) {
    const RowPartial whole = combine_tiles(tiles, [&](int tile) { return team.get(row * tiles + tile); });
    if (lane_id() == 0) store(row, whole);
  }
}

// The argmax of a row, and whether it has a value that is impossible in a law. Every thread of the team gets both.
template <class Team>
__device__ __forceinline__ RowPartial look_through(Team& team, const LawRow& side) {
  return with_argmax(best_of_team(team, argmax_part(side.row, side.known.law, {team.rank(), team.size()})));
}

}  // namespace cuda
}  // namespace specdec
