// A request in a kernel: the first warp walks its tree and requests work on rows (row_ops.cuh), and the block and its
// team do that work (take_sums.cuh, take_draw.cuh, take_masses.cuh).
#pragma once

#include "row_ops.cuh"
#include "take_draw.cuh"
#include "take_masses.cuh"

namespace specdec::cuda {

// One thread calls.
__device__ __forceinline__ void add_status(const WalkMemory& memory, int32_t status) {
  WalkState state = memory.state[0];
  state.status |= status;
  memory.state[0] = state;
}

// Decodes the edits of a node's row, unless they are decoded already. The parts that all rows share are decoded once.
__device__ __forceinline__ void edit_row(const TreeParams& p, int64_t request, int32_t node, const WalkMemory& memory,
                                         const ShapedRows& rows) {
  if (!rows.edited) return;
  const int32_t before = static_cast<DecodedEdits>(rows.edits[0]).node;
  if (before == node) return;
  const int32_t drafts = static_cast<WalkState>(memory.state[0]).walk.depth;
  __syncthreads();
  if (before == kNoNode || p.edits.by_row) {
    const WarpTree t = decoded_request<WarpTree>(p, memory.decoded);
    const int32_t status =
        rows.decode(p.edits, p.target.vocab, {t.entry, 0}, t.target_index(request, node), drafts);
    if (threadIdx.x == 0) add_status(memory, status);
  }
  if (threadIdx.x == 0) {
    DecodedEdits edits = rows.edits[0];
    edits.node = node;
    if (edits.penalties.on()) edits.drafts = drafts;
    rows.edits[0] = edits;
  }
  __syncthreads();
}

template <class Shaping, class Arguments>
__device__ __forceinline__ void walk_request(const Arguments& a) {
  const size_t stats_at = a.nodes_at + a.nodes * kBytesANode;
  SPECDEC_SHARED(WalkState, state, 1);
  SPECDEC_SHARED(WalkAnswers, answers, 1);
  SPECDEC_SHARED(RowWork, shared_work, 1);
  SPECDEC_SHARED(WarpTree::State, decoded, 1);
  SPECDEC_SHARED(VerdictWriter, verdict, 1);
  const int32_t choices = a.p.method == SPECDEC_PATHS ? a.nodes * kSharesADepth : 0;
  WalkMemory memory = {};
  memory.decoded = decoded, memory.verdict = verdict, memory.state = state;
  memory.work = shared_work, memory.answers = answers;
  memory.row_stats = dynamic_shared<RowStats>(stats_at, a.row_count);
  memory.nodes = dynamic_shared<PathNode<float>>(a.nodes_at, a.nodes);
  memory.chosen = dynamic_shared<float>(a.paths_at, choices);
  memory.tried = dynamic_shared<unsigned>(a.tried_at, (a.paths_at - a.tried_at) / 4);
  over_block(choices, [&](int32_t i) { memory.chosen[i] = 0.0f; });
  Team team(a.team);
  if (threadIdx.x == 0) {
    state[0] = fresh_state();
    WalkAnswers none = {};
    none.writes = team.rank() == 0;
    answers[0] = none;
    decoded[0] = WarpTree(a.p, team.index());
    verdict[0] = verdict_at(a.p, team.index());
  }
  if (threadIdx.x == 0 && a.nodes > 0) memory.nodes[0] = path_node<float>(0);
  typename Shaping::Memory shape = {};
  if constexpr (Shaping::kShaped) {
    SPECDEC_SHARED(int, listed, 2);
    SPECDEC_SHARED(Filter, filters, 2);
    SPECDEC_SHARED(DecodedEdits, edits, 1);
    shape.rows = {edits, a.edited, a.drafted_at};
    shape.filters = filters, shape.listed = listed;
    shape.cuts = dynamic_shared<Cut>(stats_at + a.row_count * sizeof(RowStats), a.row_count);
    if (threadIdx.x == 0) {
      listed[1] = kNoNode;
      const RequestFilters both(decoded_request<WarpTree>(a.p, decoded));
      filters[0] = both.target, filters[1] = both.draft;
      add_status(memory, both.status);
      DecodedEdits none = {};
      none.node = kNoNode;
      edits[0] = none;
    }
  }
  const Shaping shaping(shape);
  for (;;) {
    __syncthreads();
    if (warp_id() == 0) walk_on(a.p, memory, shaping);
    __syncthreads();
    const RowWork work = shared_work[0];
    if (work.kind == RowWork::kDone) break;
    if constexpr (Shaping::kShaped) edit_row(a.p, team.index(), work.node, memory, shaping.rows);
    if (work.kind == RowWork::kSums) {
      if constexpr (Shaping::kShaped) take_shaped_sums(a, team, memory, shaping);
      else take_sums(a, team, work, memory);
    } else if (work.kind == RowWork::kBuckets) {
      take_buckets(a, team, work, memory, shaping);
    } else if (work.kind != RowWork::kEdit) {
      if (work.end) mark_tried(decoded_request<WarpTree>(a.p, decoded), work.node, work.end, memory.tried);
      if (work.kind == RowWork::kMasses) take_masses(a, team, work, memory, shaping);
      else take_draw(a, team, shared_work[0], memory, shaping);  // read again: registers are few
    }
  }
  team.leave();
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Shared memory for the tokens of a path.
inline size_t bytes_of_drafts(const TreeParams& p) { return (p.width() + 3) / 4 * size_t{16}; }

// Plans the walk's shared memory from byte `at` on. Returns its end.
inline size_t plan_rows(WalkArguments& a, size_t at) {
  static_assert(kBytesANode == 32, "Nodes come first, then rows, then cuts: each at a multiple of its size");
  a.nodes_at = (at + 31) / 32 * 32;
  a.row_count = 2;
  if (goes_back(a.p.method)) {
    a.nodes = a.p.width();
    a.row_count = 2 * a.nodes;
  }
  return (a.nodes_at + a.row_count * kBytesARow + a.nodes * kBytesANode + 15) / 16 * 16;
}

}  // namespace specdec::cuda
