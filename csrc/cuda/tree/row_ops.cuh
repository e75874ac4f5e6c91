// The row operations of a walk (specdec/walk.h), deferred. The code for wide rows is long, so a kernel contains it
// once, at its top level (walk_request.cuh). The first warp of each block walks, and all members of a team make the
// same walk. Where the walk needs a value that is not loaded yet, it returns and leaves a request for work on rows.
// The block and its team do that work, and the walk continues at the same node.
#pragma once

#include "shape.cuh"

namespace specdec::cuda {

// The row operations. All lanes of the walking warp call.
template <class Shaping>
struct DeferredOps {
  const WarpTree& t;
  const WalkMemory& memory;
  WalkState& state;
  RowWork& work;
  const Shaping& shaping;

  using Number = float;
  static constexpr bool kSumsBuckets = true;

  __device__ bool argmax(int32_t node, Draw* draw) {
    if (!require_rows(node, kTarget)) return false;
    *draw = to_draw(stats_of(kTarget));
    return true;
  }

  __device__ bool is_empty(int32_t node, bool* empty) {
    if (!require_rows(node, kTarget)) return false;
    *empty = stats_of(kTarget).is_empty();
    return true;
  }

  __device__ bool race(int32_t node, const Noise& noise, Draw* draw) {
    if (!require_rows(node, rows_cut())) return false;
    *draw = answer().drawn;
    return drawn(node, noise);
  }

  // One token of a row of probabilities needs no look through the row.
  __device__ bool laws(int32_t node, int32_t token, float* p, float* q, int32_t* status) {
    if (!require_rows(node, rows_needed())) return false;
    if constexpr (Shaping::kShaped) {
      // The walk is back at this row, and other edits are decoded.
      if (shaping.rows.edited && static_cast<DecodedEdits>(shaping.rows.edits[0]).node != node) {
        request(RowWork::kEdit, node);
        return false;
      }
    }
    laws_of(node, token, p, q, status);
    return true;
  }

  __device__ bool masses(int32_t node, int32_t child, float subtracted, Masses* masses) {
    if (!require_rows(node, kTarget | kDraft)) return false;
    *masses = answer().masses;
    masses->status = row_status(kTarget | kDraft);
    if (state.masses_child == child) return true;
    request(RowWork::kMasses, node);
    work.end = t.replacement() ? 0 : child;
    work.subtracted = subtracted;
    work.fresh = state.masses_node != node;
    state.masses_node = node;
    state.masses_child = child;
    return false;
  }

  __device__ bool look(int32_t node, int32_t chains, float weight, Look* look, int32_t* status) {
    if (!require_rows(node, kTarget | kDraft)) return false;
    *status |= row_status(kTarget | kDraft);
    if (chosen_at(kShareFew) == 0.0f) {
      request(RowWork::kBuckets, node);
      work.end = chains;
      work.subtracted = weight;
      work.fresh = true;
      work.scales = depth();
      state.masses_node = node;
      state.masses_child = kNoNode;
      return false;
    }
    *look = {static_cast<int32_t>(chosen_at(kShareFew)), static_cast<int32_t>(chosen_at(kShareMany)),
             chosen_at(kShareOfFew)};
    return true;
  }
  __device__ float bucket_scale(float p, float q) const {
    return chosen_at(kShareMany) <= 1.0f ? 1.0f : chosen_at(static_cast<int>(find_bucket(p, q)));
  }

  __device__ bool residual(int32_t node, const Noise& noise, float subtracted, Draw* draw) {
    const unsigned sides = t.has_draft() ? rows_needed() : rows_cut();
    if (!require_rows(node, sides)) return false;
    *draw = answer().drawn;
    draw->status |= row_status(sides);
    if (drawn(node, noise)) return true;
    work.residual = true;
    work.subtracted = subtracted;
    if (!t.has_draft()) work.end = kNoToken;
    // The draw reads a draft row of probabilities only at tokens that could win; the row's status needs all of it.
    else if (!has(kDraft)) work.sides = kDraft;
    return false;
  }

  __device__ void emit(int32_t depth, int32_t node, int32_t token) const {
    if (lane_id() != 0 || !answer().writes) return;
    static_cast<VerdictWriter>(memory.verdict[0]).put(depth, node, token);
  }

  __device__ void enter(int32_t depth, int32_t, int32_t token) const {
    if constexpr (Shaping::kShaped)
      if (lane_id() == 0) dynamic_shared<int32_t>(shaping.rows.drafted_at, t.p.width())[depth] = token;
  }
  __device__ void leave(int32_t depth, int32_t, int32_t) const {
    if (state.target_to > depth + 1) state.target_to = depth + 1;
    if (state.draft_to > depth + 1) state.draft_to = depth + 1;
  }
  __device__ PathNode<float> path(int32_t depth) const { return memory.nodes[depth]; }
  __device__ void put(int32_t depth, const PathNode<float>& node) const {
    __syncwarp();  // every lane has read the old one
    if (lane_id() == 0) memory.nodes[depth] = node;
    __syncwarp();
  }

 private:
  using Support = typename Shaping::Support;

  __device__ WalkAnswers answer() const { return memory.answers[0]; }

  // The rows that a race needs looked through.
  __device__ unsigned rows_cut() const {
    if constexpr (Shaping::kShaped) return shaping.filter(kTarget).on() ? kTarget : 0u;
    return 0u;
  }
  // The rows that p and q need looked through.
  __device__ unsigned rows_needed() const {
    return (t.target_law.needs_row() ? kTarget : 0u) | (t.has_draft() && t.draft_law.needs_row() ? kDraft : 0u);
  }
  __device__ unsigned rows_with_sums() const {
    return (t.target_law.needs_sum() ? kTarget : 0u) | (t.has_draft() && t.draft_law.needs_sum() ? kDraft : 0u);
  }

  __device__ NodeRow row_of(int32_t node, bool of_target) const {
    if (of_target) return {t.target_row(node), t.target_law, stats_index_of(kTarget)};
    return {t.draft_row(node), t.draft_law, stats_index_of(kDraft)};
  }

  // p and q of a token, of rows that were looked through.
  __device__ void laws_of(int32_t node, int32_t token, float* p, float* q, int32_t* status) const {
    const RowStats target_stats = stats_of(kTarget), draft_stats = stats_of(kDraft);
    if (t.target_law.needs_row()) *status |= target_stats.status;
    const LawRowOf<Support> target = node_law(t.p, row_of(node, true), true, target_stats, shaping);
    const float raw = element(target.row, token);
    *p = law_of(target, token, raw, status);
    if constexpr (Shaping::kShaped)
      if (forbids(target.row, raw) || (shaping.filter(kTarget).on() && !target.support.keeps(raw, token))) *p = kNever;
    *q = 1.0f;
    if (!t.has_draft()) return;
    if (t.draft_law.needs_row()) *status |= draft_stats.status;
    *q = law_of(node_law(t.p, row_of(node, false), false, draft_stats, shaping), token, status);
  }

  // The rest are about the rows of the node where the walk stands.
  __device__ int32_t depth() const { return state.walk.depth; }
  __device__ bool has(unsigned side) const {
    return side == kTarget ? depth() >= state.target_from && depth() < state.target_to
                           : depth() >= state.draft_from && depth() < state.draft_to;
  }
  __device__ int32_t stats_index_of(unsigned side) const {
    return side == kTarget ? 2 * (depth() - state.target_from) : 2 * (depth() - state.draft_from) + 1;
  }
  __device__ RowStats stats_of(unsigned side) const {
    if (!has(side)) return kNoStats;
    return memory.row_stats[stats_index_of(side)];
  }
  __device__ int32_t row_status(unsigned sides) const {
    return (sides & kTarget ? stats_of(kTarget).status : SPECDEC_STATUS_OK) |
           (sides & kDraft ? stats_of(kDraft).status : SPECDEC_STATUS_OK);
  }

  // Returns whether the rows of the node were looked through. If not, requests it, log-sum-exps first.
  __device__ bool require_rows(int32_t node, unsigned sides) {
    const unsigned missing = sides & ~loaded_sides(), sums = missing & rows_with_sums();
    if (!missing) return true;
    const unsigned wanted = sums ? sums : missing;
    if (wanted & kTarget) add_row(&state.target_from, &state.target_to);
    if (wanted & kDraft) add_row(&state.draft_from, &state.draft_to);
    request(sums ? RowWork::kSums : RowWork::kArgmax, node);
    if (sums) state.masses_node = kNoNode;  // p and q of a node lie where tiles are weighed
    work.sides = wanted;
    return false;
  }
  __device__ unsigned loaded_sides() const { return (has(kTarget) ? kTarget : 0u) | (has(kDraft) ? kDraft : 0u); }
  // Adds the node's row to row_stats. Those right above stay for walk_traversal, which comes back to them. `from` lies
  // below the node if the walk went back over nodes whose rows were not looked through.
  __device__ void add_row(int32_t* from, int32_t* to) const {
    if (!goes_back(t.p.method) || *to != depth() || *from > depth()) *from = depth();
    *to = depth() + 1;
  }

  // The choice of walk_paths at this node.
  __device__ float chosen_at(int what) const { return memory.chosen[depth() * kSharesADepth + what]; }

  // Returns whether the node's token was drawn. If not, requests the draw.
  __device__ bool drawn(int32_t node, const Noise& noise) {
    if (state.drawn_node == node) return true;
    state.drawn_node = node;
    request(RowWork::kDraw, node);
    work.noise = noise;
    return false;
  }

  __device__ void request(RowWork::Kind kind, int32_t node) {
    work.kind = kind;
    work.node = node;
    work.target = row_of(node, true);
    work.draft = row_of(node, false);
    work.scales = -1;
    if (t.p.method == SPECDEC_PATHS && chosen_at(kShareMany) > 1.0f) work.scales = depth();
  }
};

// A warp walks its request as far as values are loaded. Then the next work, or kDone, is in shared memory.
template <class Shaping>
__device__ void walk_on(const TreeParams& p, const WalkMemory& memory, const Shaping& shaping) {
  const WarpTree t = decoded_request<WarpTree>(p, memory.decoded);
  WalkState state = memory.state[0];
  RowWork work = {};
  int32_t status = state.status | t.status;  // differs between lanes until the end
  DeferredOps<Shaping> ops{t, memory, state, work, shaping};
  const bool through = walk(t, p.method, ops, &state.walk, &status);
  state.status = static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(status)));
  if (through && static_cast<WalkAnswers>(memory.answers[0]).writes)
    finish(memory.verdict[0], accepted_by(t, state.walk), state.status);
  __syncwarp();  // every lane has read its state
  if (lane_id() != 0) return;
  memory.state[0] = state;
  memory.work[0] = work;
}

}  // namespace specdec::cuda
