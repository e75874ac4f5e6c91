// How a walk (specdec/walk.h) asks for rows without reading them. The code for wide rows is long, so a kernel contains
// it once, at its top level (walker.cuh). The first warp of each block walks. All members of a team make the same walk.
// If the walk needs a value that is not known yet, it returns and leaves work on rows. The block and its team do that,
// and the walk continues from the same place.
#pragma once

#include "../rows/bucket_sums.cuh"
#include "../rows/edited_row.cuh"
#include "../rows/mass_row.cuh"
#include "../rows/weights.cuh"
#include "specdec/tree.h"

namespace specdec::cuda {

// A tree that the lanes of a warp search together, 32 parents at a time. Each lane has its own `bits`.
struct WarpTree : TreeRequest {
  using TreeRequest::TreeRequest;

  __device__ int32_t next_child(int32_t node, int32_t after, int32_t* bits) const {
#pragma unroll 1
    for (int32_t first = after + 1; first < nodes(); first += 32) {
      const int32_t child = first + lane_id();
      const unsigned children = __ballot_sync(kWarp, child < nodes() && parent(child, bits) == node);
      if (children) return first + __ffs(static_cast<int>(children)) - 1;
    }
    return kNoNode;
  }

  __device__ bool has_elder(int32_t node, int32_t child, int64_t token, int32_t* bits) const {
    bool found = false;
#pragma unroll 1
    for (int32_t elder = node + 1 + lane_id(); elder < child; elder += 32)
      found |= parent(elder, bits) == node && draft_token(elder) == token;
    return __any_sync(kWarp, found);
  }
};

// The rows of a node, as bits.
constexpr unsigned kTarget = 1, kDraft = 2;

// A row of a node: where it starts, in elements, and where in `row_stats` it is kept what is known of it.
struct NodeRow {
  int64_t at;
  Law law;
  int32_t place;
};

// What a walk asks of its block and team.
struct RowWork {
  // kEdit: the row's edits are decoded, no more
  enum Kind : int32_t { kDone, kSums, kArgmax, kEdit, kMasses, kBuckets, kDraw };
  Kind kind;
  int32_t node;
  NodeRow target, draft;
  unsigned sides;  // kSums, kArgmax: which rows; kDraw: which rows to look through before the draw
  int32_t end;     // kMasses, kDraw: leave out the tokens of the node's children with an index below this; 0: none.
                   // kBuckets: how many chains go on from the node
  bool fresh;      // kMasses, kBuckets: the first work for this node
  bool residual;   // kDraw: from (p - subtracted q)^+, or from p without the tokens left out
  float subtracted;  // the multiple of q that is subtracted; kBuckets: the node's weight
  int32_t shares;    // the depth whose shares q is multiplied with, -1: it counts as it came
  Noise noise;
  __device__ NodeRow row(bool of_target) const { return of_target ? target : draft; }
};

// What the walking warp keeps between two pieces of work. kNoNode: no node, no child.
struct WalkState {
  Walk walk;
  int32_t status;
  int32_t target_from, target_to, draft_from, draft_to;  // the depths whose rows were looked through
  int32_t masses_node, masses_child, drawn_node;         // the nodes of the latest answers
};

// The latest answers to what the walk asked. It reads them only where it needs them.
struct WalkAnswers {
  Masses masses;
  Draw drawn;
  bool writes;  // this member writes the verdict, for its team
};

// What a block keeps of its walk in shared memory.
struct WalkRoom {
  Shared<WarpTree::State> decoded;  // the request
  Shared<VerdictWriter> verdict;
  Shared<RowStats> row_stats;     // by place: see place_of
  Shared<PathNode<float>> nodes;  // of the path, by depth, for walk_traversal
  Shared<float> chosen;           // by depth, for walk_paths: kSharesADepth each
  Shared<unsigned> tried;         // marks of tokens, a bit each
  Shared<WalkState> state;
  Shared<RowWork> work;
  Shared<WalkAnswers> answers;
};

__device__ __forceinline__ WalkState fresh_state() {
  WalkState state = {};
  state.walk = walk_from(0, 0);
  state.masses_node = state.masses_child = state.drawn_node = kNoNode;
  return state;
}

// The filters and edits of a request, in kernels that know none. `Room` is what a block keeps of them in shared memory.
struct NoShape {
  static constexpr bool kShaped = false;
  using Kept = Unfiltered;
  struct Room {};
  __device__ explicit NoShape(const Room&) {}
  __device__ int count(int32_t) const { return -1; }
  __device__ Row of(const Row& row, bool) const { return row; }
  __device__ Unfiltered kept(unsigned, int32_t) const { return {}; }
};

// The decoded filters of a request.
struct RequestFilters {
  Filter target, draft;
  int32_t status = SPECDEC_STATUS_OK;

  template <class Topology>
  __device__ explicit RequestFilters(const Topology& t) {
    if (!t.readable) return;
    target = filter_at(t.p.target_law, t.target_law, t.p.target.vocab, t.entry, 0, &status);
    if (t.has_draft()) draft = filter_at(t.p.draft_law, t.draft_law, t.p.draft.vocab, t.entry, 0, &status);
  }
};

// What they keep of a row is known once the row was looked through. Decoded filters are in shared memory: in registers
// it would be too much.
struct ShapeRoom {
  ShapedRows rows;
  Shared<Filter> filters;  // the target's, the draft's
  Shared<Cut> cuts;        // by place, as `row_stats`
  Shared<int> listed;      // of the target's row that was looked through last: see FilteredRow; and its node
};

struct RequestShape : ShapeRoom {
  static constexpr bool kShaped = true;
  using Kept = Filtered;
  using Room = ShapeRoom;
  __device__ explicit RequestShape(const Room& room) : Room(room) {}
  // How many tokens of a node's target row are listed, -1 if they are not.
  __device__ int count(int32_t node) const { return listed[1] == node ? static_cast<int>(listed[0]) : -1; }
  __device__ Filter filter(unsigned side) const { return filters[opaque(side == kTarget ? 0u : 1u)]; }
  __device__ EditedRow of(const Row& row, bool of_target) const { return rows.of(row, of_target); }
  __device__ Filtered kept(unsigned side, int32_t place) const {
    const Filter decoded = filter(side);
    if (!decoded.on()) return {};
    return {cuts[place], decoded.order};
  }
};

template <class Shaping>
__device__ __forceinline__ auto read_as(const TreeParams& p, const NodeRow& row, bool of_target,
                                        const Shaping& shaping) {
  return shaping.of(of_target ? row_at(p.target, row.at) : row_at(p.draft, row.at), of_target);
}
template <class Shaping>
__device__ __forceinline__ auto known_as(const TreeParams& p, const NodeRow& row, bool of_target,
                                         RowStats whole, const Shaping& shaping) {
  return LawRowOf<typename Shaping::Kept>{read_as(p, row, of_target, shaping), with_stats(row.law, whole),
                                          of_target ? nullptr : p.draft_map.data,
                                          shaping.kept(of_target ? kTarget : kDraft, row.place)};
}

// The row operations, by the lanes of the walking warp together.
template <class Shaping>
struct AskingOps {
  const WarpTree& t;
  const WalkRoom& room;
  WalkState& state;
  RowWork& work;
  const Shaping& shaping;

  using Number = float;
  static constexpr bool kSumsBuckets = true;

  __device__ bool argmax(int32_t node, Draw* draw) {
    if (!know(node, kTarget)) return false;
    *draw = draw_of(stats_of(kTarget));
    return true;
  }

  __device__ bool is_empty(int32_t node, bool* empty) {
    if (!know(node, kTarget)) return false;
    *empty = stats_of(kTarget).is_empty();
    return true;
  }

  __device__ bool race(int32_t node, const Noise& noise, Draw* draw) {
    if (!know(node, rows_cut())) return false;
    *draw = answer().drawn;
    return drawn(node, noise);
  }

  // For one token a row of probabilities need not be looked through.
  __device__ bool laws(int32_t node, int32_t token, float* p, float* q, int32_t* status) {
    if (!know(node, rows_needed())) return false;
    if constexpr (Shaping::kShaped) {
      // The walk came back to this row.
      if (shaping.rows.edited && static_cast<DecodedEdits>(shaping.rows.edits[0]).node != node) {
        place(RowWork::kEdit, node);
        return false;
      }
    }
    laws_of(node, token, p, q, status);
    return true;
  }

  __device__ bool masses(int32_t node, int32_t child, float subtracted, Masses* masses) {
    if (!know(node, kTarget | kDraft)) return false;
    *masses = answer().masses;
    masses->status = row_status(kTarget | kDraft);
    if (state.masses_child == child) return true;
    place(RowWork::kMasses, node);
    work.end = t.replacement() ? 0 : child;
    work.subtracted = subtracted;
    work.fresh = state.masses_node != node;
    state.masses_node = node;
    state.masses_child = child;
    return false;
  }

  __device__ bool look(int32_t node, int32_t chains, float weight, Look* look, int32_t* status) {
    if (!know(node, kTarget | kDraft)) return false;
    *status |= row_status(kTarget | kDraft);
    if (chosen_at(kShareFew) == 0.0f) {
      place(RowWork::kBuckets, node);
      work.end = chains;
      work.subtracted = weight;
      work.fresh = true;
      work.shares = depth();
      state.masses_node = node;
      state.masses_child = kNoNode;
      return false;
    }
    *look = {static_cast<int32_t>(chosen_at(kShareFew)), static_cast<int32_t>(chosen_at(kShareMany)),
             chosen_at(kShareOfFew)};
    return true;
  }
  __device__ float share(float p, float q) const {
    return chosen_at(kShareMany) <= 1.0f ? 1.0f : chosen_at(static_cast<int>(bucket_of(p, q)));
  }

  __device__ bool residual(int32_t node, const Noise& noise, float subtracted, Draw* draw) {
    const unsigned sides = t.has_draft() ? rows_needed() : rows_cut();
    if (!know(node, sides)) return false;
    *draw = answer().drawn;
    draw->status |= row_status(sides);
    if (drawn(node, noise)) return true;
    work.residual = true;
    work.subtracted = subtracted;
    if (!t.has_draft()) work.end = kNoToken;
    // The draw reads a draft row of probabilities only at tokens that could win. The row's status needs all of it.
    else if (!knows(kDraft)) work.sides = kDraft;
    return false;
  }

  __device__ void emit(int32_t depth, int32_t node, int32_t token) const {
    if (lane_id() != 0 || !answer().writes) return;
    static_cast<VerdictWriter>(room.verdict[0]).put(depth, node, token);
  }

  __device__ void enter(int32_t depth, int32_t, int32_t token) const {
    if constexpr (Shaping::kShaped)
      if (lane_id() == 0) dynamic_shared<int32_t>(shaping.rows.drafted_at, t.p.places())[depth] = token;
  }
  __device__ void leave(int32_t depth, int32_t, int32_t) const {
    if (state.target_to > depth + 1) state.target_to = depth + 1;
    if (state.draft_to > depth + 1) state.draft_to = depth + 1;
  }
  __device__ PathNode<float> path(int32_t depth) const { return room.nodes[depth]; }
  __device__ void put(int32_t depth, const PathNode<float>& node) const {
    __syncwarp();  // every lane has read what was there
    if (lane_id() == 0) room.nodes[depth] = node;
    __syncwarp();
  }

 private:
  using Kept = typename Shaping::Kept;

  __device__ WalkAnswers answer() const { return room.answers[0]; }

  // The row that must be looked through before a race over it.
  __device__ unsigned rows_cut() const {
    if constexpr (Shaping::kShaped) return shaping.filter(kTarget).on() ? kTarget : 0u;
    return 0u;
  }
  // The rows that must be looked through before their probabilities are known.
  __device__ unsigned rows_needed() const {
    return (t.target_law.needs_row() ? kTarget : 0u) | (t.has_draft() && t.draft_law.needs_row() ? kDraft : 0u);
  }
  __device__ unsigned rows_with_sums() const {
    return (t.target_law.needs_sum() ? kTarget : 0u) | (t.has_draft() && t.draft_law.needs_sum() ? kDraft : 0u);
  }

  __device__ NodeRow row_of(int32_t node, bool of_target) const {
    if (of_target) return {t.target_row(node), t.target_law, place_of(kTarget)};
    return {t.draft_row(node), t.draft_law, place_of(kDraft)};
  }

  // p and q of a token, of rows that were looked through.
  __device__ void laws_of(int32_t node, int32_t token, float* p, float* q, int32_t* status) const {
    const RowStats target_stats = stats_of(kTarget), draft_stats = stats_of(kDraft);
    if (t.target_law.needs_row()) *status |= target_stats.status;
    const LawRowOf<Kept> target = known_as(t.p, row_of(node, true), true, target_stats, shaping);
    const float raw = element(target.row, token);
    *p = law_of(target, token, raw, status);
    if constexpr (Shaping::kShaped)
      if (forbids(target.row, raw) || (shaping.filter(kTarget).on() && !target.kept.keeps(raw, token))) *p = kNever;
    *q = 1.0f;
    if (!t.has_draft()) return;
    if (t.draft_law.needs_row()) *status |= draft_stats.status;
    *q = law_of(known_as(t.p, row_of(node, false), false, draft_stats, shaping), token, status);
  }

  // All of these are about the rows of the node where the walk stands.
  __device__ int32_t depth() const { return state.walk.depth; }
  __device__ bool knows(unsigned side) const {
    return side == kTarget ? depth() >= state.target_from && depth() < state.target_to
                           : depth() >= state.draft_from && depth() < state.draft_to;
  }
  __device__ int32_t place_of(unsigned side) const {
    return side == kTarget ? 2 * (depth() - state.target_from) : 2 * (depth() - state.draft_from) + 1;
  }
  __device__ RowStats stats_of(unsigned side) const {
    if (!knows(side)) return kNoStats;
    return room.row_stats[place_of(side)];
  }
  __device__ int32_t row_status(unsigned sides) const {
    return (sides & kTarget ? stats_of(kTarget).status : SPECDEC_STATUS_OK) |
           (sides & kDraft ? stats_of(kDraft).status : SPECDEC_STATUS_OK);
  }

  // Were these rows of the node looked through? If not, that is asked for, log-sum-exps first.
  __device__ bool know(int32_t node, unsigned sides) {
    const unsigned missing = sides & ~known_sides(), sums = missing & rows_with_sums();
    if (!missing) return true;
    const unsigned wanted = sums ? sums : missing;
    if (wanted & kTarget) add_row(&state.target_from, &state.target_to);
    if (wanted & kDraft) add_row(&state.draft_from, &state.draft_to);
    place(sums ? RowWork::kSums : RowWork::kArgmax, node);
    if (sums) state.masses_node = kNoNode;  // p and q of a node do not outlive the weighing of tiles
    work.sides = wanted;
    return false;
  }
  __device__ unsigned known_sides() const { return (knows(kTarget) ? kTarget : 0u) | (knows(kDraft) ? kDraft : 0u); }
  // The node's row will be known. Those right above stay so for walk_traversal, which comes back to them. `from` may lie
  // below the node, if the walk went back and no row of the nodes above was looked through.
  __device__ void add_row(int32_t* from, int32_t* to) const {
    if (!goes_back(t.p.method) || *to != depth() || *from > depth()) *from = depth();
    *to = depth() + 1;
  }

  // Of the node where paths are walked.
  __device__ float chosen_at(int what) const { return room.chosen[depth() * kSharesADepth + what]; }

  // Was the node's token drawn? If not, the draw is asked for.
  __device__ bool drawn(int32_t node, const Noise& noise) {
    if (state.drawn_node == node) return true;
    state.drawn_node = node;
    place(RowWork::kDraw, node);
    work.noise = noise;
    return false;
  }

  __device__ void place(RowWork::Kind kind, int32_t node) {
    work.kind = kind;
    work.node = node;
    work.target = row_of(node, true);
    work.draft = row_of(node, false);
    work.shares = -1;
    if (t.p.method == SPECDEC_PATHS && chosen_at(kShareMany) > 1.0f) work.shares = depth();
  }
};

// By a warp: the end of a verdict. Clears the places after the last token, and those of nodes off the path.
__device__ __forceinline__ void finish(const VerdictWriter& verdict, int32_t accepted, int32_t status) {
  for (int32_t depth = accepted + 1 + lane_id(); depth < verdict.places; depth += 32) verdict.clear(depth);
  if (const int32_t nodes = verdict.zeroed_nodes()) {
    __syncwarp();  // the first lane has written the path
#pragma unroll 1
    for (int32_t node = lane_id(); node < nodes; node += 32) verdict.zero_off_path(node, accepted);
  }
  if (lane_id() == 0) verdict.count(accepted, status);
}

// A request that was decoded before.
template <class Topology>
__device__ __forceinline__ Topology decoded_request(const typename Topology::Params& p,
                                                    const Shared<typename Topology::State>& decoded) {
  const typename Topology::State state = decoded[0];
  return Topology(p, state);
}

// A warp walks its request as far as values are known. Then the next work, or kDone, is in shared memory.
template <class Shaping>
__device__ void walk_on(const TreeParams& p, const WalkRoom& room, const Shaping& shaping) {
  const WarpTree t = decoded_request<WarpTree>(p, room.decoded);
  WalkState state = room.state[0];
  RowWork work = {};
  int32_t status = state.status | t.status;  // each lane's own until the end
  AskingOps<Shaping> ops{t, room, state, work, shaping};
  const bool through = walk(t, p.method, ops, &state.walk, &status);
  state.status = static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(status)));
  if (through && static_cast<WalkAnswers>(room.answers[0]).writes)
    finish(room.verdict[0], accepted_by(t, state.walk), state.status);
  __syncwarp();  // every lane has read its state
  if (lane_id() != 0) return;
  room.state[0] = state;
  room.work[0] = work;
}

}  // namespace specdec::cuda
