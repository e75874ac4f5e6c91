// The kernel that walks a tree: its first warp walks and requests work on rows (deferred_ops.cuh), and the block and
// its team do that work.
#pragma once

#include "../rows/filtered_row.cuh"
#include "deferred_ops.cuh"

namespace specdec::cuda {

struct WalkArguments {
  TreeParams p;
  TeamLayout team;
  Splits draws;          // partial results of a team's blocks; the last one writes
  int tiles;             // of the longest row of logits
  size_t nodes_at;       // bytes of shared memory: PathNode [nodes], RowStats [row_count], Cut [row_count]
  int row_count, nodes;  // nodes: of the path if the walk goes back, else 0
  // The rest are bytes of shared memory. If nodes have siblings:
  size_t tried_at;  // a bit for each token tried
  size_t held_at;   // p and q of a node; tiles are weighed there, too
  int held_fours;   // vectors of each; 0: they do not fit
  size_t paths_at;  // walk_paths: `chosen`, then BucketMemory
};

// WalkMemory::chosen, which walk_paths fills by depth.
__host__ __device__ __forceinline__ size_t bytes_of_chosen(int depths) {
  return (sizeof(float) * kSharesADepth * depths + 15) / 16 * 16;
}

// Shared memory for a row, and for a node of the path.
constexpr size_t kBytesARow = sizeof(RowStats) + sizeof(Cut), kBytesANode = sizeof(PathNode<float>);

struct ShapedWalkArguments : WalkArguments {
  CutMemory cut;
  bool edited;        // the target's rows have edits
  size_t drafted_at;  // bytes of shared memory: the tokens of the path so far
};

// ---- statistics of rows ---------------------------------------------------------------------------------------------

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

// ---- a draw ---------------------------------------------------------------------------------------------------------

// The weights of the draw that the work requests.
template <class Shaping>
__device__ __forceinline__ WeightsOf<typename Shaping::Support> weights_of_work(const WalkArguments& a,
                                                                                const RowWork& work,
                                                                                const WalkMemory& memory,
                                                                                const Shaping& shaping) {
  if (work.residual && !work.end) {
    auto residual = weights_of_residual(row_of_work(a, work, true, memory, shaping),
                                        row_of_work(a, work, false, memory, shaping), work.subtracted);
    residual.leaves_out = work.scales >= 0;
    if (residual.leaves_out)
      residual.tried = dynamic_shared<unsigned>(a.paths_at + sizeof(float) * work.scales * kSharesADepth, kBuckets);
    return residual;
  }
  WeightsOf<typename Shaping::Support> weights =
      weights_of_row(read_node_row(a.p, work.target, true, shaping), work.target.law,
                     shaping.support(kTarget, work.target.stats_index));
  if (!work.end) return weights;
  weights.tried = memory.tried;
  weights.leaves_out = true;
  return weights;
}

// Looks through rows, then draws. Every member gets the draw of a walk that goes on. If the walk ends with it, only the
// last member to arrive gets it and writes the verdict, and no block waits.
template <class Shaping, class Arguments>
__device__ __forceinline__ void take_draw(const Arguments& a, Team& team, const RowWork& work, const WalkMemory& memory,
                                          const Shaping& shaping) {
  RowPartial partial, scanned = kNoPartial;
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    if (!(work.sides >> side & 1u)) continue;
    const NodeRow row = work.row(side == 0);
    scanned = argmax_part(read_node_row(a.p, row, side == 0, shaping), row.law, part_of(team));
    if (work.kind != RowWork::kArgmax) continue;
    const RowStats whole = argmax_stats(best_of_team(team, scanned));
    if (threadIdx.x == 0) memory.row_stats[row.stats_index] = whole;
  }
  if (work.kind == RowWork::kArgmax) return;

  auto weights = weights_of_work(a, work, memory, shaping);
  bool writes;
  int32_t status = scanned.status;
  if (!work.sides || scanned.best.token != kNoToken) status |= kDraftWeighs;
  for (;;) {
    // Only `status` lives across the race: registers are few.
    const auto alone = [&] { return (status & SPECDEC_STATUS_EMPTY_RESIDUAL) != 0; };
    const int listed = shaping.count(work.node);
    if (listed < 0)
      partial = race_part(weights, work.noise, alone() ? Part{0, 1} : part_of(team));
    else if constexpr (Shaping::kShaped)
      partial = race_listed(race_of(weights.target.row, work.target.law, work.noise), weights, listed, a.cut,
                            static_cast<RowStats>(memory.row_stats[work.target.stats_index]).status);
    partial.status |= status;
    writes = alone() || team.rank() == 0;
    if (a.p.method == SPECDEC_RACE) {  // the walk may go on
      if (shaping.count(work.node) < 0) partial = best_of_team(team, partial);
    } else if (!alone() && team.size() > 1) {
      writes = a.draws.gather(&partial);
      if (!writes) break;
    }
    if (partial.best.token != kNoToken || !work.residual || alone()) break;
    // Nothing is left of p - q after rounding: the last member alone draws from p.
    status = partial.status | SPECDEC_STATUS_EMPTY_RESIDUAL;
    weights = weights_of_row(weights.target.row, work.target.law, weights.target.support);
  }
  if (!(partial.status & kDraftWeighs)) partial.status |= SPECDEC_STATUS_NON_FINITE;
  partial.status &= ~kDraftWeighs;
  if (partial.best.token == kNoToken) partial.status &= ~SPECDEC_STATUS_EMPTY_RESIDUAL;  // p is empty, too
  if (threadIdx.x == 0) {
    WalkAnswers answer = {};
    answer.drawn = to_draw(partial);
    answer.writes = writes;
    memory.answers[0] = answer;
  }
}

// ---- sums over both rows --------------------------------------------------------------------------------------------

// Marks the tokens of the node's children with an index below `end`. All threads of the block call.
__device__ __forceinline__ void mark_tried(const WarpTree& t, int32_t node, int32_t end,
                                           const Shared<unsigned>& tried) {
  over_block((t.vocab() + 31) / 32, [&](int32_t word) { tried[word] = 0; });
  __syncthreads();
  int32_t reported = SPECDEC_STATUS_OK;
  over_block(node + 1, end < t.nodes() ? end : t.nodes(), [&](int32_t child) {
    if (t.parent(child, &reported) != node) return;
    const int64_t token = t.draft_token(child);
    if (in_vocab(t, token)) atomicOr(&tried[token / 32], 1u << token % 32);
  });
  __syncthreads();
}

// Calls f(token, p, q) for four tokens of a thread at a time, over the rows of a node, and end() after each tile.
template <class Shaping, class F, class End>
__device__ __forceinline__ void over_pairs(const WalkArguments& a, Team& team, const RowWork& work,
                                           const WalkMemory& memory, const Shaping& shaping, F&& f, End&& end) {
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  const auto target = row_of_work(a, work, true, memory, shaping), draft = row_of_work(a, work, false, memory, shaping);
  const int32_t vocab = a.p.target.vocab;
  over_sum_tiles(
      part_of(team), vocab, [](int) {},  // the rows are in the L2 cache
      [&](int32_t token) {
        const int index = (team.item_index(token / kSumTile) * kSumTile + token % kSumTile) / 4;
        Four law_p, law_q;
        if (a.held_fours && !work.fresh) {  // a thread gets the same tokens each time
          law_p = held[index], law_q = held[a.held_fours + index];
        } else {
          law_p = probabilities(target, token, vocab), law_q = probabilities(draft, token, vocab);
          if (a.held_fours) held[index] = law_p, held[a.held_fours + index] = law_q;
        }
        f(token, law_p, law_q);
      },
      [&](int) { end(); });
}

// A node's rows come from memory once, for their log-sum-exps. From the second child on, or if a leaf is removed, the
// walk needs sums over both rows. They are taken from p and q in the team's shared memory or, if a member's part does
// not fit, from the L2 cache.
template <class Shaping>
__device__ __forceinline__ void take_masses(const WalkArguments& a, Team& team, const RowWork& work,
                                            const WalkMemory& memory, const Shaping& shaping) {
  TwoUnitSums sums;  // a: W, b: R
  over_pairs(
      a, team, work, memory, shaping,
      [&](int32_t token, const Four& law_p, const Four& law_q) {
        unsigned gone = 0u;
        if (work.end) gone = memory.tried[token / 32] >> token % 32;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float q = law_q.value[i];
          sums.b.take(gone >> i & 1u ? 0.0f : q);
          if (work.scales >= 0) q = mul(memory.chosen[work.scales * kSharesADepth + find_bucket(law_p.value[i], q)], q);
          sums.a.take(residual_weight(law_p.value[i], mul(work.subtracted, q)));
        }
      },
      [&] { sums.end_tile(); });
  const TwoSums all = add_up(team, sums);
  if (threadIdx.x == 0) {
    WalkAnswers answer = memory.answers[0];
    answer.masses = {all.a, all.b, SPECDEC_STATUS_OK};
    memory.answers[0] = answer;
  }
}

// Sums p and q by buckets, and chooses how many of the remaining chains to look at.
template <class Shaping>
__device__ __forceinline__ void take_buckets(const WalkArguments& a, Team& team, const RowWork& work,
                                             const WalkMemory& memory, const Shaping& shaping) {
  const BucketMemory buckets = bucket_memory(a.paths_at + bytes_of_chosen(a.nodes), warps_in_block());
  BucketCounts counts(buckets);
  over_pairs(
      a, team, work, memory, shaping,
      [&](int32_t, const Four& law_p, const Four& law_q) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) counts.take(law_p.value[i], law_q.value[i]);
      },
      [&] { counts.end_tile(); });
  counts.add_up(team);
  if (warp_id() == 0) choose_look(buckets, work.end, work.subtracted, &memory.chosen[work.scales * kSharesADepth]);
}

// ---- edits ----------------------------------------------------------------------------------------------------------

// Shared memory for the tokens of a path.
inline size_t bytes_of_drafts(const TreeParams& p) { return (p.width() + 3) / 4 * size_t{16}; }

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

// ---- the kernel -----------------------------------------------------------------------------------------------------

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
