// The memory in which a team finds cuts (cut.cuh), and the launches in which it does.
#pragma once

#include "pair_sums.cuh"
#include "specdec/filter.h"

namespace specdec::cuda {

constexpr int kMostCells = 4096;  // of a row, unless it has more tiles
constexpr int kListed = 2048;     // the most tokens that are listed and sorted

// Where a block keeps the cells and the list of a row.
struct CutRoom {
  int lanes;  // that share a cell: a power of 2
  int cells;
  size_t at;  // in dynamic shared memory
};

// The words of a tile between the blocks: two cells each, then one for the tile's units and flags. Rows that are cut are
// loaded as float32, so a chunk is a tile.
__host__ __device__ __forceinline__ int cells_a_tile(int lanes) { return 32 / lanes; }
__host__ __device__ __forceinline__ int cell_words(int lanes) { return (cells_a_tile(lanes) + 1) / 2; }
__host__ __device__ __forceinline__ int words_a_tile(int lanes) { return cell_words(lanes) + 1; }

// What a launch needs for the cuts of rows.
struct CutPlan {
  CutRoom room;
  int items;
  size_t shared_bytes() const { return sizeof(WideKey) * kListed + (room.cells + 3) / 4 * size_t{16}; }
};

// Cells are as narrow as they can be, so that few tokens are looked at one by one. But all of it has to fit: cells and
// list, with the words of the team and `taken` bytes of other things, into `shared` bytes of a block.
inline CutPlan cut_plan(const TeamShape& shape, int64_t requests, int32_t vocab, size_t taken, size_t shared) {
  constexpr int64_t kMostWords = 3 << 15;  // of all software clusters
  const int words = items_of_members(shape);
  const int tiles = sum_tiles_of(vocab);
  CutPlan plan = {};
  for (int lanes = 2; lanes <= 32; lanes *= 2) {
    plan.room = {lanes, tiles * cells_a_tile(lanes), 0};
    plan.items = places_of(shape, tiles, words_a_tile(lanes));
    if (plan.items < words) plan.items = words;
    const size_t of_team = team_plan(shape, requests, plan.items, 0, 0).shared_bytes();
    const bool fits = taken + of_team + plan.shared_bytes() <= shared;
    if (fits && plan.room.cells <= kMostCells && (!shape.grid || requests * 2 * plan.items <= kMostWords)) break;
  }
  return plan;
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Whether rows of either side may have filters or edits.
template <class Params>
bool is_shaped(const Params& p) {
  return p.edits.on() || ((p.target_law.rules | (p.draft.data ? p.draft_law.rules : 0)) & SPECDEC_FILTERED) != 0;
}

// The longest row of both sides.
template <class Params>
int32_t longest(const Params& p) {
  return p.draft.data && p.draft.vocab > p.target.vocab ? p.draft.vocab : p.target.vocab;
}

// Rows as they are loaded where they may have filters or edits.
inline Rows widened(Rows rows) {
  rows.dtype = SPECDEC_FLOAT32;
  return rows;
}

// A launch in which a team finds the cuts of its row or rows. `tickets` and `words` as in team_plan, `taken` as in
// cut_plan.
struct ShapedPlan {
  TeamPlan team;
  CutRoom cut;
  size_t shared_bytes;
};

inline ShapedPlan shaped_plan(const Device& device, const TeamShape& shape, int64_t requests, int32_t vocab,
                              int64_t tickets = 0, int64_t words = 0, size_t taken = 0) {
  const CutPlan cut = cut_plan(shape, requests, vocab, taken, device.dynamic_shared);
  ShapedPlan plan = {team_plan(shape, requests, cut.items, tickets, words), cut.room, 0};
  plan.cut.at = plan.team.shared_bytes();
  plan.shared_bytes = plan.cut.at + cut.shared_bytes();
  return plan;
}

// The blocks that share a row, of `count`.
inline TeamShape shaped_team(const Device& device, int64_t count, const Rows& rows) {
  return team_shape(device, count, widened(rows), 1, Ends::kTogether);
}

}  // namespace specdec::cuda
