// The memory in which a team searches cuts (cut.cuh), and launches of such teams.
#pragma once

#include "pair_sums.cuh"
#include "specdec/filter.h"

namespace specdec::cuda {

constexpr int kCellLanes = 4, kCellsATile = 32 / kCellLanes;  // a cell: columns of four lanes in a tile
constexpr int kListWords = 2048;

// A block's list of a row's tokens, and behind it the maxima of its cells.
struct CutMemory {
  int wide;   // 2^wide cells of a tile share a maximum, if memory is short: 0 to 2
  size_t at;  // byte of dynamic shared memory
};

__host__ __device__ __forceinline__ int maxima_of(int tiles, int wide) { return tiles * kCellsATile >> wide; }
// Words of a tile between blocks: two maxima a word, then one for its units.
__host__ __device__ __forceinline__ int words_a_tile(int wide) { return (kCellsATile / 2 >> wide) + 1; }

// Shared memory of a CutMemory, with the units of tiles.
inline size_t bytes_of_cut(int32_t vocab, int wide) {
  const int tiles = sum_tiles_of(vocab);
  return (sizeof(WideKey) * (kListWords + tiles) + sizeof(uint32_t) * maxima_of(tiles, wide) + 15) / 16 * 16;
}

// Words that a member of a team brings: those of its tiles, then its flags.
__host__ __device__ __forceinline__ int tiles_of_member(int tiles, int size) { return (tiles + size - 1) / size; }
__host__ __device__ __forceinline__ int words_of_member(int tiles, int size, int wide) {
  return tiles_of_member(tiles, size) * words_a_tile(wide) + 1;
}

// The memory of a launch of teams that cut rows.
struct CutPlan {
  CutMemory memory;
  int items;
  size_t shared_bytes;
};

// The widest layout that fits: maxima and list, the words of the team, and `taken` bytes for other things, in `shared`
// bytes of a block.
inline CutPlan cut_plan(const TeamShape& shape, int64_t requests, int32_t vocab, size_t taken, size_t shared) {
  constexpr int64_t kMostWords = 3 << 15;  // of all software clusters
  const int tiles = sum_tiles_of(vocab);
  CutPlan plan = {};
  for (int wide = 0; wide <= 2; ++wide) {
    const int words = words_of_member(tiles, shape.size, wide);
    plan = {{wide, 0}, items_of_members(shape, words > kMemberWords ? words : kMemberWords),
            bytes_of_cut(vocab, wide)};
    const size_t of_team = team_plan(shape, requests, plan.items, 0, 0).shared_bytes();
    const bool fits = taken + of_team + plan.shared_bytes <= shared;
    if (fits && (!shape.grid || requests * 2 * plan.items <= kMostWords)) break;
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

// A launch of teams that cut rows. `tickets` and `words` as in team_plan, `taken` as in cut_plan.
struct ShapedPlan {
  TeamPlan team;
  CutMemory cut;
  size_t shared_bytes;
};

inline ShapedPlan shaped_plan(const Device& device, const TeamShape& shape, int64_t requests, int32_t vocab,
                              int64_t tickets = 0, int64_t words = 0, size_t taken = 0) {
  const CutPlan cut = cut_plan(shape, requests, vocab, taken, device.dynamic_shared);
  ShapedPlan plan = {team_plan(shape, requests, cut.items, tickets, words), cut.memory, 0};
  plan.cut.at = plan.team.shared_bytes();
  plan.shared_bytes = plan.cut.at + cut.shared_bytes;
  return plan;
}

// The blocks of a request of `work` such rows. All have eight warps, which share each tile.
inline TeamShape shaped_team(const Device& device, int64_t count, Rows rows, int work = 1,
                             Ends ends = Ends::kTogether) {
  rows.dtype = SPECDEC_FLOAT32;  // loads widen elements
  TeamShape shape = team_shape(device, count, rows, work, ends);
  shape.threads = kThreads;
  return shape;
}

}  // namespace specdec::cuda
