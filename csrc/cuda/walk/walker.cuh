// A kernel that walks a tree. The walking warp asks for work on rows (deferred_ops.cuh), its block and team
// do it.
#pragma once

#include "../rows/filtered_row.cuh"
#include "deferred_ops.cuh"

namespace specdec::cuda {

struct WalkArguments {
  TreeParams p;
  TeamRoom team;
  Splits draws;       // what the blocks of a team tell the last to come, who writes
  int tiles;          // of the longest row of logits
  size_t known_at;    // what is known of a path and of rows, in bytes of shared memory
  int places, nodes;  // of so many rows; and the nodes of the path if it is walked back, else 0
  // If nodes have siblings, bytes of shared memory:
  size_t tried_at;  // marks of the tokens tried, a bit each
  size_t held_at;   // p and q of a node; tiles are weighed there, too
  int held_fours;   // vectors of each; 0 if they do not fit
  size_t paths_at;  // what is kept if paths are walked, in bytes of shared memory
};

// What walk_paths chose, by depth.
__host__ __device__ __forceinline__ size_t bytes_of_chosen(int depths) {
  return (sizeof(float) * kSharesADepth * depths + 15) / 16 * 16;
}

// What a block keeps of rows at a place, and of a path's node at a depth.
constexpr size_t kBytesAPlace = sizeof(RowStats) + sizeof(Cut), kBytesANode = sizeof(PathNode<float>);

struct ShapedWalkArguments : WalkArguments {
  CutRoom cut;
  bool edited;        // whether the target's rows have edits
  size_t drafted_at;  // the tokens of the path so far, in bytes of shared memory
};

// ---- what is known of rows ------------------------------------------------------------------------------------------

// Puts the log-sum-exps that were asked for into shared memory.
__device__ __forceinline__ void take_sums(const WalkArguments& a, Team& team, const RowWork& work,
                                          const WalkRoom& room) {
  const auto is_target = [&](int row) { return (work.sides & kTarget) && row == 0; };
  take_sums_of_rows(
      team, work.sides == (kTarget | kDraft) ? 2 : 1, a.tiles, dynamic_shared<uint4>(a.held_at, kVectors * kThreads),
      [&](int row) -> LawRow { return known_as(a.p, work.row(is_target(row)), is_target(row), kNoStats, NoShape({})); },
      [&](int row, const RowStats& whole) { room.row_stats[work.row(is_target(row)).place] = whole; });
}

// The rows of a piece of work, with what is known of them. Of rows of probabilities nothing needs to be known.
template <class Shaping>
__device__ __forceinline__ auto row_of_work(const WalkArguments& a, const RowWork& work, bool of_target,
                                            const WalkRoom& room, const Shaping& shaping) {
  const NodeRow row = work.row(of_target);
  RowStats whole = kNoStats;
  if (row.law.needs_row()) whole = room.row_stats[row.place];
  return known_as(a.p, row, of_target, whole, shaping);
}

// What is known of the rows that were asked for, and what their filters keep, into shared memory. One node at a time;
// the target's row comes last, so that its list stays.
__device__ __forceinline__ void take_shaped_sums(const ShapedWalkArguments& a, Team& team, const WalkRoom& room,
                                                 const RequestShape& shaping) {
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    const RowWork work = room.work[0];
    if (!(work.sides >> side & 1u)) continue;
    const NodeRow row = work.row(side == 0);
    const FilteredRow found = know_filtered(team, read_as(a.p, row, side == 0, shaping), row.law,
                                            shaping.filter(side == 0 ? kTarget : kDraft), a.cut);
    if (threadIdx.x != 0) continue;
    room.row_stats[row.place] = found.stats;
    shaping.cuts[row.place] = found.kept.cut;
    shaping.listed[0] = side == 0 ? found.listed : -1;
    shaping.listed[1] = work.node;
  }
}

// ---- a draw ---------------------------------------------------------------------------------------------------------

// The weights to draw by.
template <class Shaping>
__device__ __forceinline__ WeightsOf<typename Shaping::Kept> weights_of_work(const WalkArguments& a,
                                                                             const RowWork& work, const WalkRoom& room,
                                                                             const Shaping& shaping) {
  if (work.residual && !work.end) {
    auto residual = weights_of_residual(row_of_work(a, work, true, room, shaping),
                                        row_of_work(a, work, false, room, shaping), work.subtracted);
    residual.leaves_out = work.shares >= 0;
    if (residual.leaves_out)
      residual.tried = dynamic_shared<unsigned>(a.paths_at + sizeof(float) * work.shares * kSharesADepth, kBuckets);
    return residual;
  }
  WeightsOf<typename Shaping::Kept> weights =
      weights_of_row(read_as(a.p, work.target, true, shaping), work.target.law,
                     shaping.kept(kTarget, work.target.place));
  if (!work.end) return weights;
  weights.tried = room.tried;
  weights.leaves_out = true;
  return weights;
}

// Looks through rows, then draws, as asked. Afterwards every member knows the draw, unless the walk ends with it.
// Then only the last member to come knows it. That member writes the verdict, and nobody waits for it.
template <class Shaping, class Arguments>
__device__ __forceinline__ void take_draw(const Arguments& a, Team& team, const RowWork& work, const WalkRoom& room,
                                          const Shaping& shaping) {
  RowPartial found, scanned = kNoPart;
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    if (!(work.sides >> side & 1u)) continue;
    const NodeRow row = work.row(side == 0);
    scanned = argmax_part(read_as(a.p, row, side == 0, shaping), row.law, part_of(team));
    if (work.kind != RowWork::kArgmax) continue;
    const RowStats whole = argmax_stats(best_of_team(team, scanned));
    if (threadIdx.x == 0) room.row_stats[row.place] = whole;
  }
  if (work.kind == RowWork::kArgmax) return;

  auto weights = weights_of_work(a, work, room, shaping);
  bool writes;
  int32_t status = scanned.status;
  if (!work.sides || scanned.best.token != kNoToken) status |= kDraftWeighs;
  for (;;) {
    // What a race does not need is not kept over it.
    const auto alone = [&] { return (status & SPECDEC_STATUS_EMPTY_RESIDUAL) != 0; };
    const int listed = shaping.count(work.node);
    if (listed < 0)
      found = race_part(weights, work.noise, alone() ? Part{0, 1} : part_of(team));
    else if constexpr (Shaping::kShaped)
      found = race_listed(race_of(weights.target.row, work.target.law, work.noise), weights, listed, a.cut,
                          static_cast<RowStats>(room.row_stats[work.target.place]).status);
    found.status |= status;
    writes = alone() || team.rank() == 0;
    if (a.p.method == SPECDEC_RACE) {  // the walk may go on
      if (shaping.count(work.node) < 0) found = best_of_team(team, found);
    } else if (!alone() && team.size() > 1) {
      writes = a.draws.gather(&found);
      if (!writes) break;
    }
    if (found.best.token != kNoToken || !work.residual || alone()) break;
    // p and q are equal up to rounding. The last member alone draws from p.
    status = found.status | SPECDEC_STATUS_EMPTY_RESIDUAL;
    weights = weights_of_row(weights.target.row, work.target.law, weights.target.kept);
  }
  if (!(found.status & kDraftWeighs)) found.status |= SPECDEC_STATUS_NON_FINITE;
  found.status &= ~kDraftWeighs;
  if (found.best.token == kNoToken) found.status &= ~SPECDEC_STATUS_EMPTY_RESIDUAL;  // p is empty, too
  if (threadIdx.x == 0) {
    WalkAnswers answer = {};
    answer.drawn = draw_of(found);
    answer.writes = writes;
    room.answers[0] = answer;
  }
}

// ---- sums over both rows --------------------------------------------------------------------------------------------

// Marks the tokens of the node's children with an index below `end`, for the whole block.
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

// Calls f(token, p, q) for four tokens of this thread at a time, of the rows of a node, and end() after each tile.
template <class Shaping, class F, class End>
__device__ __forceinline__ void over_pairs(const WalkArguments& a, Team& team, const RowWork& work,
                                           const WalkRoom& room, const Shaping& shaping, F&& f, End&& end) {
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  const auto target = row_of_work(a, work, true, room, shaping), draft = row_of_work(a, work, false, room, shaping);
  const int32_t vocab = a.p.target.vocab;
  over_sum_tiles(
      part_of(team), vocab, [](int) {},  // the rows were looked through: they are in the L2 cache
      [&](int32_t token) {
        const int place = (team.own_slot(token / kSumTile) * kSumTile + token % kSumTile) / 4;
        Four law_p, law_q;
        if (a.held_fours && !work.fresh) {  // every thread gets the same tokens as before
          law_p = held[place], law_q = held[a.held_fours + place];
        } else {
          law_p = probabilities(target, token, vocab), law_q = probabilities(draft, token, vocab);
          if (a.held_fours) held[place] = law_p, held[a.held_fours + place] = law_q;
        }
        f(token, law_p, law_q);
      },
      [&](int) { end(); });
}

// A node's rows are read from memory once, for their log-sum-exps. From the second child on, or if a leaf is taken off,
// sums over both rows are needed. They are taken from p and q in the team's shared memory or, if a member's part does
// not fit, read again from the L2 cache.
template <class Shaping>
__device__ __forceinline__ void take_masses(const WalkArguments& a, Team& team, const RowWork& work,
                                            const WalkRoom& room, const Shaping& shaping) {
  TwoUnitSums sums;  // W and R
  over_pairs(
      a, team, work, room, shaping,
      [&](int32_t token, const Four& law_p, const Four& law_q) {
        unsigned gone = 0u;
        if (work.end) gone = room.tried[token / 32] >> token % 32;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float q = law_q.value[i];
          sums.b.take(gone >> i & 1u ? 0.0f : q);
          if (work.shares >= 0) q = mul(room.chosen[work.shares * kSharesADepth + bucket_of(law_p.value[i], q)], q);
          sums.a.take(residual_weight(law_p.value[i], mul(work.subtracted, q)));
        }
      },
      [&] { sums.end_tile(); });
  const TwoSums all = add_up(team, sums);
  if (threadIdx.x == 0) {
    WalkAnswers answer = room.answers[0];
    answer.masses = {all.a, all.b, SPECDEC_STATUS_OK};
    room.answers[0] = answer;
  }
}

// Sums of p and q by buckets, and what they say about the chains that go on.
template <class Shaping>
__device__ __forceinline__ void take_buckets(const WalkArguments& a, Team& team, const RowWork& work,
                                             const WalkRoom& room, const Shaping& shaping) {
  const BucketRoom buckets = bucket_room(a.paths_at + bytes_of_chosen(a.nodes), warps_in_block());
  BucketCounts counts(buckets);
  over_pairs(
      a, team, work, room, shaping,
      [&](int32_t, const Four& law_p, const Four& law_q) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) counts.take(law_p.value[i], law_q.value[i]);
      },
      [&] { counts.end_tile(); });
  counts.add_up(team);
  if (warp_id() == 0) choose_look(buckets, work.end, work.subtracted, &room.chosen[work.shares * kSharesADepth]);
}

// ---- edits ----------------------------------------------------------------------------------------------------------

// The tokens of a path.
inline size_t bytes_of_drafts(const TreeParams& p) { return (p.places() + 3) / 4 * size_t{16}; }

// By one thread.
__device__ __forceinline__ void remember_status(const WalkRoom& room, int32_t status) {
  WalkState own = room.state[0];
  own.status |= status;
  room.state[0] = own;
}

// Decodes the edits of a node's row, if there are any, unless they are. What does not depend on the row is decoded once.
__device__ __forceinline__ void edit_row(const TreeParams& p, int64_t request, int32_t node, const WalkRoom& room,
                                         const ShapedRows& rows) {
  if (!rows.edited) return;
  const int32_t before = static_cast<DecodedEdits>(rows.edits[0]).node;
  if (before == node) return;
  const int32_t drafts = static_cast<WalkState>(room.state[0]).walk.depth;
  __syncthreads();
  if (before == kNoNode || p.edits.by_row) {
    const WarpTree t = decoded_request<WarpTree>(p, room.decoded);
    const int32_t status =
        rows.decode(p.edits, p.target.vocab, {t.entry, 0}, t.target_place(request, node), drafts);
    if (threadIdx.x == 0) remember_status(room, status);
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

// A team walks one request.
template <class Shaping, class Arguments>
__device__ __forceinline__ void walk_request(const Arguments& a) {
  const size_t places_at = a.known_at + a.nodes * kBytesANode;
  SPECDEC_SHARED(WalkState, state, 1);
  SPECDEC_SHARED(WalkAnswers, answers, 1);
  SPECDEC_SHARED(RowWork, asked, 1);
  SPECDEC_SHARED(WarpTree::State, decoded, 1);
  SPECDEC_SHARED(VerdictWriter, verdict, 1);
  const int32_t choices = a.p.method == SPECDEC_PATHS ? a.nodes * kSharesADepth : 0;
  const WalkRoom room = {decoded,
                         verdict,
                         dynamic_shared<RowStats>(places_at, a.places),
                         dynamic_shared<PathNode<float>>(a.known_at, a.nodes),
                         dynamic_shared<float>(a.paths_at, choices),
                         dynamic_shared<unsigned>(a.tried_at, (a.paths_at - a.tried_at) / 4),
                         state,
                         asked,
                         answers};
  over_block(choices, [&](int32_t i) { room.chosen[i] = 0.0f; });
  Team team(a.team);
  if (threadIdx.x == 0) {
    state[0] = fresh_state();
    WalkAnswers none = {};
    none.writes = team.rank() == 0;
    answers[0] = none;
    decoded[0] = WarpTree(a.p, team.index());
    verdict[0] = verdict_at(a.p, team.index());
  }
  if (threadIdx.x == 0 && a.nodes > 0) room.nodes[0] = path_node<float>(0);
  typename Shaping::Room shape = {};
  if constexpr (Shaping::kShaped) {
    SPECDEC_SHARED(int, listed, 2);
    SPECDEC_SHARED(Filter, filters, 2);
    SPECDEC_SHARED(DecodedEdits, edits, 1);
    shape = {{edits, a.edited, a.drafted_at},
             filters,
             dynamic_shared<Cut>(places_at + a.places * sizeof(RowStats), a.places),
             listed};
    if (threadIdx.x == 0) {
      listed[1] = kNoNode;
      const RequestFilters found(decoded_request<WarpTree>(a.p, decoded));
      filters[0] = found.target, filters[1] = found.draft;
      remember_status(room, found.status);
      DecodedEdits none = {};
      none.node = kNoNode;
      edits[0] = none;
    }
  }
  const Shaping shaping(shape);
  for (;;) {
    __syncthreads();
    if (warp_id() == 0) walk_on(a.p, room, shaping);
    __syncthreads();
    const RowWork work = asked[0];
    if (work.kind == RowWork::kDone) break;
    if constexpr (Shaping::kShaped) edit_row(a.p, team.index(), work.node, room, shaping.rows);
    if (work.kind == RowWork::kSums) {
      if constexpr (Shaping::kShaped) take_shaped_sums(a, team, room, shaping);
      else take_sums(a, team, work, room);
    } else if (work.kind == RowWork::kBuckets) {
      take_buckets(a, team, work, room, shaping);
    } else if (work.kind != RowWork::kEdit) {
      if (work.end) mark_tried(decoded_request<WarpTree>(a.p, decoded), work.node, work.end, room.tried);
      if (work.kind == RowWork::kMasses) take_masses(a, team, work, room, shaping);
      else take_draw(a, team, asked[0], room, shaping);  // read again, not kept: registers are few
    }
  }
  team.leave();
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Plans what the walk keeps, from this byte of shared memory on. Returns where that ends.
inline size_t keep_rows(WalkArguments& a, size_t at) {
  static_assert(kBytesANode == 32, "Nodes come first, then rows, then cuts: each at a multiple of its size");
  a.known_at = (at + 31) / 32 * 32;
  a.places = 2;
  if (goes_back(a.p.method)) {
    a.nodes = a.p.places();
    a.places = 2 * a.nodes;
  }
  return (a.known_at + a.places * kBytesAPlace + a.nodes * kBytesANode + 15) / 16 * 16;
}

}  // namespace specdec::cuda
