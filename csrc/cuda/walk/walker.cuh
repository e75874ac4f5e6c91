// A kernel that walks a tree. The walking warp asks for work on rows (deferred_ops.cuh), its block and team
// do it.
#pragma once

#include "../rows/filtered_row.cuh"
#include "deferred_ops.cuh"

namespace specdec::cuda {

struct WalkArguments {
  TreeParams p;
  TeamRoom team;
  Splits draws;  // what the blocks of a team tell the last to come, who writes
  int tiles;     // of the longest row of logits
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
                                          const Shared<RowStats>& row_stats) {
  const int sides = work.sides == (kTarget | kDraft) ? 2 : 1;
  const auto is_target = [&](int row) { return (work.sides & kTarget) && row == 0; };
  take_sums_of_rows(
      team, sides, a.tiles, dynamic_shared<uint4>(a.held_at, kVectors * kThreads),
      [&](int row) -> LawRow {
        if (is_target(row)) return {row_at(a.p.target, work.target), without_stats(work.target_law)};
        return {row_at(a.p.draft, work.draft), without_stats(work.draft_law)};
      },
      [&](int row, const RowStats& whole) {
        row_stats[is_target(row) ? work.target_place : work.draft_place] = whole;
      });
}

// The rows of a piece of work, with what is known of them. Of rows of probabilities nothing needs to be known.
template <class Shaping>
__device__ __forceinline__ LawRowOf<typename Shaping::Kept> target_of_work(const WalkArguments& a,
                                                                           const RowWork& work,
                                                                           const Shared<RowStats>& row_stats,
                                                                           const Shaping& shaping) {
  RowStats whole = kNoStats;
  if (work.target_law.needs_row()) whole = row_stats[work.target_place];
  return {shaping.of(row_at(a.p.target, work.target), true), with_stats(work.target_law, whole), nullptr,
          shaping.kept(kTarget, work.target_place)};
}
template <class Shaping>
__device__ __forceinline__ LawRowOf<typename Shaping::Kept> draft_of_work(const WalkArguments& a,
                                                                          const RowWork& work,
                                                                          const Shared<RowStats>& row_stats,
                                                                          const Shaping& shaping) {
  RowStats whole = kNoStats;
  if (work.draft_law.needs_row()) whole = row_stats[work.draft_place];
  return {shaping.of(row_at(a.p.draft, work.draft), false), with_stats(work.draft_law, whole), a.p.draft_map.data,
          shaping.kept(kDraft, work.draft_place)};
}

// What is known of the rows that were asked for, and what their filters keep, into shared memory. One node at a time;
// the target's row comes last, so that its list stays.
__device__ __forceinline__ void take_shaped_sums(const ShapedWalkArguments& a, Team& team,
                                                 const Shared<RowWork>& shared_work, const RequestShape& shaping,
                                                 const Shared<RowStats>& row_stats) {
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    const RowWork work = shared_work[0];
    if (!(work.sides >> side & 1u)) continue;
    const EditedRow row = side == 0 ? shaping.of(row_at(a.p.target, work.target), true)
                                    : shaping.of(row_at(a.p.draft, work.draft), false);
    const FilteredRow found = know_filtered(team, row, side == 0 ? work.target_law : work.draft_law,
                                            shaping.filter(side == 0 ? kTarget : kDraft), a.cut);
    if (threadIdx.x != 0) continue;
    const int32_t place = side == 0 ? work.target_place : work.draft_place;
    row_stats[place] = found.stats;
    shaping.cuts[place] = found.kept.cut;
    shaping.listed[0] = side == 0 ? found.listed : -1;
    shaping.listed[1] = work.node;
  }
}

// ---- a draw ---------------------------------------------------------------------------------------------------------

// The weights to draw by.
template <class Shaping>
__device__ __forceinline__ WeightsOf<typename Shaping::Kept> weights_of_work(
    const WalkArguments& a, const Shared<WarpTree::State>& decoded,
    const RowWork& work, const Shared<RowStats>& row_stats, const Shaping& shaping, const Shared<unsigned>& tried) {
  if (work.residual && !work.end) {
    auto residual = weights_of_residual(target_of_work(a, work, row_stats, shaping),
                                        draft_of_work(a, work, row_stats, shaping), work.subtracted);
    residual.leaves_out = work.shares >= 0;
    if (residual.leaves_out)
      residual.tried = dynamic_shared<unsigned>(a.paths_at + sizeof(float) * work.shares * kSharesADepth, kBuckets);
    return residual;
  }
  WeightsOf<typename Shaping::Kept> weights =
      weights_of_row(shaping.of(row_at(a.p.target, work.target), true), work.target_law,
                     shaping.kept(kTarget, work.target_place));
  if (!work.end) return weights;
  weights.tried = tried;
  weights.leaves_out = true;
  return weights;
}

// Looks through rows, then draws, as asked. Afterwards every member knows the draw, unless the walk ends with it.
// Then only the last member to come knows it. That member writes the verdict, and nobody waits for it.
template <class Shaping, class Arguments>
__device__ __forceinline__ void take_draw(const Arguments& a, Team& team, const RowWork& work,
                                          const Shared<WarpTree::State>& decoded,
                                          const Shared<RowStats>& row_stats, const Shaping& shaping,
                                          const Shared<unsigned>& tried, const Shared<WalkAnswers>& answers) {
  RowPartial found, scanned = kNoPart;
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    if (!(work.sides >> side & 1u)) continue;
    scanned = argmax_part(side == 0 ? shaping.of(row_at(a.p.target, work.target), true)
                                   : shaping.of(row_at(a.p.draft, work.draft), false),
                         side == 0 ? work.target_law : work.draft_law, part_of(team));
    if (work.kind != RowWork::kArgmax) continue;
    const RowStats whole = argmax_stats(best_of_team(team, scanned));
    if (threadIdx.x == 0) row_stats[side == 0 ? work.target_place : work.draft_place] = whole;
  }
  if (work.kind == RowWork::kArgmax) return;

  auto weights = weights_of_work(a, decoded, work, row_stats, shaping, tried);
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
      found = race_listed(race_of(weights.target.row, work.target_law, work.noise), weights, listed, a.cut,
                          static_cast<RowStats>(row_stats[work.target_place]).status);
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
    weights = weights_of_row(weights.target.row, work.target_law, weights.target.kept);
  }
  if (!(found.status & kDraftWeighs)) found.status |= SPECDEC_STATUS_NON_FINITE;
  found.status &= ~kDraftWeighs;
  if (threadIdx.x == 0) {
    WalkAnswers answer = {};
    answer.drawn = draw_of(found);
    answer.writes = writes;
    answers[0] = answer;
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
template <class Kept, class F, class End>
__device__ __forceinline__ void over_pairs(const WalkArguments& a, Team& team, const RowWork& work,
                                           const LawRowOf<Kept>& target, const LawRowOf<Kept>& draft,
                                           const Shared<Four>& held, F&& f, End&& end) {
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
                                            const Shared<RowStats>& row_stats, const Shaping& shaping,
                                            const Shared<unsigned>& tried, const Shared<float>& chosen,
                                            const Shared<WalkAnswers>& answers) {
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  const auto target = target_of_work(a, work, row_stats, shaping);
  const auto draft = draft_of_work(a, work, row_stats, shaping);
  TwoUnitSums sums;  // W and R
  over_pairs(
      a, team, work, target, draft, held,
      [&](int32_t token, const Four& law_p, const Four& law_q) {
        unsigned gone = 0u;
        if (work.end) gone = tried[token / 32] >> token % 32;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float q = law_q.value[i];
          sums.b.take(gone >> i & 1u ? 0.0f : q);
          if (work.shares >= 0) q = mul(chosen[work.shares * kSharesADepth + bucket_of(law_p.value[i], q)], q);
          sums.a.take(residual_weight(law_p.value[i], mul(work.subtracted, q)));
        }
      },
      [&] { sums.end_tile(); });
  const TwoSums all = add_up(team, sums);
  if (threadIdx.x == 0) {
    WalkAnswers answer = answers[0];
    answer.masses = {all.a, all.b, SPECDEC_STATUS_OK};
    answers[0] = answer;
  }
}

// Sums of p and q by buckets, and what they say about the chains that go on.
template <class Shaping>
__device__ __forceinline__ void take_buckets(const WalkArguments& a, Team& team, const RowWork& work,
                                             const Shared<RowStats>& row_stats, const Shaping& shaping,
                                             const Shared<float>& chosen) {
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  const BucketRoom room = bucket_room(a.paths_at + bytes_of_chosen(a.nodes), warps_in_block());
  BucketCounts counts(room);
  over_pairs(
      a, team, work, target_of_work(a, work, row_stats, shaping), draft_of_work(a, work, row_stats, shaping), held,
      [&](int32_t, const Four& law_p, const Four& law_q) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) counts.take(law_p.value[i], law_q.value[i]);
      },
      [&] { counts.end_tile(); });
  counts.add_up(team);
  if (warp_id() == 0) choose_look(room, work.end, work.subtracted, &chosen[work.shares * kSharesADepth]);
}

// ---- edits ----------------------------------------------------------------------------------------------------------

// The tokens of a path.
inline size_t bytes_of_drafts(const TreeParams& p) { return (p.places() + 3) / 4 * size_t{16}; }

// By one thread.
__device__ __forceinline__ void remember_status(const Shared<WalkState>& state, int32_t status) {
  WalkState own = state[0];
  own.status |= status;
  state[0] = own;
}

// Decodes the edits of a node's row, if there are any, unless they are. What does not depend on the row is decoded once.
__device__ __forceinline__ void edit_row(const TreeParams& p,
                                         const Shared<WarpTree::State>& decoded, int64_t request, int32_t node,
                                         const ShapedRows& rows, const Shared<WalkState>& state) {
  if (!rows.edited) return;
  const int32_t before = static_cast<DecodedEdits>(rows.edits[0]).node;
  if (before == node) return;
  const int32_t drafts = static_cast<WalkState>(state[0]).walk.depth;
  __syncthreads();
  if (before == kNoNode || p.edits.by_row) {
    const WarpTree t = decoded_request<WarpTree>(p, decoded);
    const int32_t status =
        rows.decode(p.edits, p.target.vocab, {t.entry, 0}, t.target_place(request, node), drafts);
    if (threadIdx.x == 0) remember_status(state, status);
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
  const auto nodes = dynamic_shared<PathNode<float>>(a.known_at, a.nodes);
  const auto row_stats = dynamic_shared<RowStats>(places_at, a.places);
  SPECDEC_SHARED(WalkState, state, 1);
  SPECDEC_SHARED(WalkAnswers, answers, 1);
  SPECDEC_SHARED(RowWork, shared_work, 1);
  SPECDEC_SHARED(WarpTree::State, decoded, 1);
  SPECDEC_SHARED(VerdictWriter, verdict, 1);
  const auto tried = dynamic_shared<unsigned>(a.tried_at, (a.paths_at - a.tried_at) / 4);
  const int32_t choices = a.p.method == SPECDEC_PATHS ? a.nodes * kSharesADepth : 0;
  const auto chosen = dynamic_shared<float>(a.paths_at, choices);
  over_block(choices, [&](int32_t i) { chosen[i] = 0.0f; });
  Team team(a.team);
  if (threadIdx.x == 0) {
    state[0] = fresh_state();
    WalkAnswers none = {};
    none.writes = team.rank() == 0;
    answers[0] = none;
    decoded[0] = WarpTree(a.p, team.index());
    verdict[0] = verdict_at(a.p, team.index());
  }
  if (threadIdx.x == 0 && a.nodes > 0) nodes[0] = path_node<float>(0);
  typename Shaping::Room room = {};
  if constexpr (Shaping::kShaped) {
    SPECDEC_SHARED(int, listed, 2);
    SPECDEC_SHARED(Filter, filters, 2);
    SPECDEC_SHARED(DecodedEdits, edits, 1);
    room = {{edits, a.edited, a.drafted_at},
            filters,
            dynamic_shared<Cut>(places_at + a.places * sizeof(RowStats), a.places),
            listed};
    if (threadIdx.x == 0) {
      listed[1] = kNoNode;
      const RequestFilters found(decoded_request<WarpTree>(a.p, decoded));
      filters[0] = found.target, filters[1] = found.draft;
      remember_status(state, found.status);
      DecodedEdits none = {};
      none.node = kNoNode;
      edits[0] = none;
    }
  }
  for (;;) {
    __syncthreads();
    if (warp_id() == 0)
      walk_on<Shaping>(a.p, team.index(), decoded, verdict, row_stats, nodes, room, chosen, answers, state,
                                 shared_work);
    __syncthreads();
    const RowWork work = shared_work[0];
    if (work.kind == RowWork::kDone) break;
    if constexpr (Shaping::kShaped) edit_row(a.p, decoded, team.index(), work.node, room.rows, state);
    const Shaping shaping(room);
    if (work.kind == RowWork::kSums) {
      if constexpr (Shaping::kShaped) take_shaped_sums(a, team, shared_work, shaping, row_stats);
      else take_sums(a, team, work, row_stats);
      continue;
    }
    if (work.kind == RowWork::kEdit) continue;
    if (work.kind == RowWork::kBuckets) {
      take_buckets(a, team, work, row_stats, shaping, chosen);
      continue;
    }
    if (work.end) mark_tried(decoded_request<WarpTree>(a.p, decoded), work.node, work.end, tried);
    if (work.kind == RowWork::kMasses) {
      take_masses(a, team, work, row_stats, shaping, tried, chosen, answers);
      continue;
    }
    // Read again, not kept: registers are few.
    take_draw(a, team, shared_work[0], decoded, row_stats, shaping, tried, answers);
  }
  team.leave();
}

// ---- launching ------------------------------------------------------------------------------------------------------

inline WalkArguments walk_arguments(const TreeParams& p) {
  const int target = mass_tiles_of(p.target), draft = mass_tiles_of(p.draft);
  WalkArguments a = {};
  a.p = p;
  a.tiles = target > draft ? target : draft;
  return a;
}

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

// A team of more than one block also needs a ticket, and memory for what each of its blocks drew.
inline TeamPlan walk_plan(const TeamShape& shape, const TreeParams& p, int items) {
  const int sums = items_of_members(shape, p.method == SPECDEC_PATHS ? kBucketSums : 2);
  const int64_t tickets = shape.size > 1 ? p.batch() : 0;
  return team_plan(shape, p.batch(), items > sums ? items : sums, tickets, tickets * shape.size * kWordsAPartial);
}

inline void use_room(WalkArguments& a, const TeamPlan& plan, const Room& room) {
  a.team = plan.team(room);
  a.draws = {room.tickets, room.words, plan.shape.size};
}

}  // namespace specdec::cuda
