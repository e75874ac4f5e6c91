// Whole rows, read by a team: every member gets their statistics.
#pragma once

#include "../team/team.cuh"
#include "staged_tile.cuh"

namespace specdec::cuda {

// Tiles of a row of logits, on the host.
inline int mass_tiles_of(const Rows& rows) { return rows.data ? (rows.vocab + kMassTile - 1) / kMassTile : 0; }

// Tiles of the longer row of a pair.
template <class Params>
int longest_tiles(const Params& p) {
  const int target = mass_tiles_of(p.target), draft = mass_tiles_of(p.draft);
  return target > draft ? target : draft;
}

// The part of a row that a member reads.
__device__ __forceinline__ Part part_of(const Team& team) { return {team.rank(), team.size()}; }

// The log-sum-exps of rows 0 .. rows - 1, of at most `tiles` tiles each. One thread of this block calls store(row,
// stats). The block needs a barrier before other threads use them. row_at(i) is a row and its law; `fours` as in
// StagedTile.
template <class RowAt, class Store>
__device__ __forceinline__ void take_sums_of_rows(Team& team, int rows, int tiles, const Shared<uint4>& fours,
                                                  RowAt&& row_at, Store&& store) {
  const int stride = word_stride(team, rows * tiles), step = team.size() * warps_in_block();
  // The warps of the team take tiles of all rows in turn.
  int row = 0, tile = team.first_item();
  const auto settle = [&] {
    for (; tile >= tiles && row < rows; tile -= tiles) ++row;
  };
  settle();
#pragma unroll 1
  while (row < rows) {
    const LawRow side = row_at(row);
    const int item = row * tiles + tile, now = tile;
    tile += step;
    settle();
    if (row < rows) prefetch_tile(row_at(row).row, tile);  // weighing this tile hides the prefetch
    const TileMass mass =
        now < mass_tiles_of(side.row.vocab) ? weigh(side.row, now, side.stats.law.logits(), fours) : kNoTileMass;
    if (lane_id() != 0) continue;
    team.put(item, packed_max(mass));
    team.put(stride + item, mass.tile.units);
  }
  team.sync();
  // The words of this warp's next row are on their way while this row is added up.
  TileWords held = {};
#pragma unroll 1
  for (int now = -1, next = warp_id(); now < rows; now = next, next += warps_in_block()) {
    const auto word_of = [&](int whole, int t, int word) { return team.get(word * stride + whole * tiles + t); };
    TileWords words = {};
    if (next < rows) words.load(tiles, [&](int t, int word) { return word_of(next, t, word); });
    if (now >= 0) {
      const RowStats whole = row_of_tiles(tiles, held, [&](int t, int word) { return word_of(now, t, word); });
      if (lane_id() == 0) store(now, whole);
    }
    held = words;
  }
}

// The argmax of a row, and whether it has a value that is impossible in a law. Every thread of the team gets both.
template <class Support>
__device__ __forceinline__ RowStats scan_argmax(Team& team, const LawRowOf<Support>& side) {
  return argmax_stats(best_of_team(team, argmax_part(side.row, side.stats.law, part_of(team))));
}

}  // namespace specdec::cuda
