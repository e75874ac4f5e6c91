// The memory in which a team finds cuts (cut.cuh), and the launches in which it does.
#pragma once

#include "law_sums.cuh"
#include "specdec/filter.h"

namespace specdec {
namespace cuda {

constexpr int kMostCells = 4096;  // of a row, unless it has more tiles
constexpr int kListed = 2048;     // the most tokens that are listed and sorted
constexpr int kMemberWords = 32;  // that a member brings to a sum or a list, at most

// Where a block keeps the cells and the list of a row.
struct CutRoom {
  int lanes;  // that share a cell: a power of 2
  int cells;
  size_t at;  // in dynamic shared memory
};

// The words of a tile between the blocks: two cells each, then one for the tile's units and flags.
__host__ __device__ __forceinline__ int cells_a_tile(int lanes) { return 32 / lanes; }
__host__ __device__ __forceinline__ int cell_words(int lanes) { return (cells_a_tile(lanes) + 1) / 2; }
__host__ __device__ __forceinline__ int words_a_tile(int lanes) { return cell_words(lanes) + 1; }
__host__ __device__ __forceinline__ int mass_tiles_a_chunk(DType dtype) {
  return dtype == DType::kFloat32 ? kMassTilesAChunk<Float32> : kMassTilesAChunk<BFloat16>;
}

// What a launch needs for the cuts of rows like `a` and `b`.
struct CutPlan {
  CutRoom room;
  int items;
  size_t shared_bytes() const { return sizeof(WideKey) * kListed + (room.cells + 3) / 4 * size_t{16}; }
};

// Cells are as narrow as they can be, so that few tokens are looked at one by one. But all of it has to fit: cells and
// list, with the words of the team and `taken` bytes of other things, into `shared` bytes of a block.
inline CutPlan cut_plan(const TeamShape& shape, int64_t requests, const Rows& a, const Rows& b, size_t taken,
                        size_t shared) {
  constexpr int64_t kMostWords = 3 << 15;  // of all software clusters
  const int warps = shape.threads / 32, words = rounded_up(kMemberWords, warps) * shape.size;
  const int tiles = sum_tiles_of(a.vocab > b.vocab ? a.vocab : b.vocab);
  const auto items_of = [&](const Rows& rows, int lanes) {
    return places_of(shape, chunks_of(rows), mass_tiles_a_chunk(rows.dtype) * words_a_tile(lanes));
  };
  CutPlan plan = {};
  for (int lanes = 2; lanes <= 32; lanes *= 2) {
    const int cells_a = chunks_of(a) * mass_tiles_a_chunk(a.dtype) * cells_a_tile(lanes);
    const int cells_b = chunks_of(b) * mass_tiles_a_chunk(b.dtype) * cells_a_tile(lanes);
    const int items_a = items_of(a, lanes), items_b = items_of(b, lanes);
    plan.room = {lanes, cells_a > cells_b ? cells_a : cells_b, 0};
    plan.items = items_a > items_b ? items_a : items_b;
    if (plan.items < words) plan.items = words;
    if (plan.items < tiles) plan.items = tiles;
    const size_t of_team = team_plan(shape, requests, plan.items, 0, 0).shared_bytes();
    const bool fits = taken + of_team + plan.shared_bytes() <= shared;
    if (fits && plan.room.cells <= kMostCells && (!shape.grid || requests * 2 * plan.items <= kMostWords)) break;
  }
  return plan;
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Whether rows of either side may be filtered, or have edits: the kernels for edits know filters, too.
template <class Params>
bool has_filters(const Params& p) {
  return p.edits.on() || ((p.target_law.rules | (p.draft.data ? p.draft_law.rules : 0)) & kFiltered) != 0;
}

// The blocks that share a row whose filters or edits are looked at, and the rows as they are loaded. Kernels with edits
// are not compiled for small clusters, which saves a third of them.
inline TeamShape cut_shape(const Device& device, int64_t requests, const Rows& rows, int work, bool edited,
                           Ends ends = Ends::kTogether) {
  return team_shape(device, requests, rows, work, ends, !edited);
}
inline Rows loaded(Rows rows, bool edited) {
  if (edited) rows.dtype = DType::kFloat32;
  return rows;
}

// A launch in which a team finds the cuts of its row or rows. `tickets` and `words` as in team_plan, `taken` as in
// cut_plan.
struct FilteredPlan {
  TeamPlan team;
  CutRoom cut;
  size_t shared_bytes;
};

inline FilteredPlan filtered_plan(const Device& device, const TeamShape& shape, int64_t requests, const Rows& rows,
                                  int64_t tickets = 0, int64_t words = 0, size_t taken = 0) {
  const CutPlan cut = cut_plan(shape, requests, rows, rows, taken, device.dynamic_shared);
  FilteredPlan plan = {team_plan(shape, requests, cut.items, tickets, words), cut.room, 0};
  plan.cut.at = plan.team.shared_bytes();
  plan.shared_bytes = plan.cut.at + cut.shared_bytes();
  return plan;
}

// The same for one row a team.
inline FilteredPlan filtered_plan(const Device& device, int64_t count, const Rows& rows, bool edited) {
  const Rows as_loaded = loaded(rows, edited);
  return filtered_plan(device, cut_shape(device, count, as_loaded, 1, edited), count, as_loaded);
}

template <class Params>
void plan_pair(const Params& p, const Workspace& workspace, int64_t* needed, const Device& device, TeamPlan* plan,
               PairArguments* pair, CutPlan* cut) {
  pair->chunks = chunks_of(p.target) > chunks_of(p.draft) ? chunks_of(p.target) : chunks_of(p.draft);
  const bool edited = p.edits.on();
  const Rows target = loaded(p.target, edited), draft = loaded(p.draft, edited);
  const TeamShape shape = cut_shape(device, p.count(), target, 2, edited);
  *cut = cut_plan(shape, p.count(), target, draft, 0, device.dynamic_shared);
  const int masses = has_filters(p) ? cut->items : places_of(shape, 2 * pair->chunks, kWordsAChunk);
  const int sums = places_of(shape, sum_tiles_of(p.target.vocab), 2);
  const Room room = room_in(workspace);
  *plan = team_plan(shape, p.count(), sums > masses ? sums : masses, 0, 0);
  if (!plan->fits(room)) *needed = plan->bytes();
  pair->team = plan->team(room);
  cut->room.at = plan->shared_bytes();
}

}  // namespace cuda
}  // namespace specdec
