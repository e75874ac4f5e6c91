// The row operations of a walk (specdec/walk.h), deferred. The code for wide rows is long, so a kernel contains it
// once, at its top level (walker.cuh). The first warp of each block walks, and all members of a team make the same
// walk. Where the walk needs a value that is not loaded yet, it returns and leaves a request for work on rows. The
// block and its team do that work, and the walk continues at the same node.
#pragma once

#include "../rows/bucket_sums.cuh"
#include "../rows/edited_row.cuh"
#include "../rows/mass_row.cuh"
#include "../rows/weights.cuh"
#include "specdec/tree.h"

namespace specdec::cuda {

// A tree that the lanes of a warp search together, 32 nodes at a time. `bits` differ between lanes.
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
    bool match = false;
#pragma unroll 1
    for (int32_t elder = node + 1 + lane_id(); elder < child; elder += 32)
      match |= parent(elder, bits) == node && draft_token(elder) == token;
    return __any_sync(kWarp, match);
  }
};

// Rows of a node, as bits.
constexpr unsigned kTarget = 1, kDraft = 2;

// A row of a node: its first element, counted in elements, and its index in `row_stats`.
struct NodeRow {
  int64_t at;
  Law law;
  int32_t stats_index;
};

// The work that a walk requests from its block and team.
struct RowWork {
  // kEdit: only decodes the row's edits
  enum Kind : int32_t { kDone, kSums, kArgmax, kEdit, kMasses, kBuckets, kDraw };
  Kind kind;
  int32_t node;
  NodeRow target, draft;
  unsigned sides;  // kSums, kArgmax: which rows; kDraw: which rows to look through before the draw
  int32_t end;     // kMasses, kDraw: leave out the tokens of the node's children with an index below this; 0: none.
                   // kBuckets: how many chains go on from the node
  bool fresh;        // kMasses, kBuckets: the first work for this node
  bool residual;     // kDraw: from (p - subtracted q)^+, or from p without the tokens left out
  float subtracted;  // the multiple of q that is subtracted; kBuckets: the node's weight
  int32_t scales;    // the depth whose scales multiply q by bucket; -1: q is not scaled
  Noise noise;
  __device__ NodeRow row(bool of_target) const { return of_target ? target : draft; }
};

// The state of the walking warp between two pieces of work. kNoNode: no node, no child.
struct WalkState {
  Walk walk;
  int32_t status;
  int32_t target_from, target_to, draft_from, draft_to;  // depths with row_stats: [from, to)
  int32_t masses_node, masses_child, drawn_node;         // the nodes of the latest answers
};

// The latest results of work. The walk reads each only after it requested it.
struct WalkAnswers {
  Masses masses;
  Draw drawn;
  bool writes;  // this member writes its team's verdict
};

// The shared memory of a walk.
struct WalkMemory {
  Shared<WarpTree::State> decoded;  // the request
  Shared<VerdictWriter> verdict;
  Shared<RowStats> row_stats;     // by stats_index_of
  Shared<PathNode<float>> nodes;  // walk_traversal: the path, [depth]
  Shared<float> chosen;           // walk_paths: [depth, kSharesADepth]
  Shared<unsigned> tried;         // a bit for each token
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

// Stands for RequestShape in kernels without filters and edits.
struct NoShape {
  static constexpr bool kShaped = false;
  using Support = Unfiltered;
  struct Memory {};
  __device__ explicit NoShape(const Memory&) {}
  __device__ int count(int32_t) const { return -1; }
  __device__ Row of(const Row& row, bool) const { return row; }
  __device__ Unfiltered support(unsigned, int32_t) const { return {}; }
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

// The filters and edits of a request. The support of a row is there once the row was looked through. Decoded filters
// are in shared memory, since they would take too many registers.
struct ShapeMemory {
  ShapedRows rows;
  Shared<Filter> filters;  // [2]: the target's, the draft's
  Shared<Cut> cuts;        // as `row_stats`
  Shared<int> listed;      // [2]: `listed` of FilteredRow for the last target row, and its node
};

struct RequestShape : ShapeMemory {
  static constexpr bool kShaped = true;
  using Support = Filtered;
  using Memory = ShapeMemory;
  __device__ explicit RequestShape(const Memory& memory) : Memory(memory) {}
  // Tokens in the list of a node's target row, -1 if they are not listed.
  __device__ int count(int32_t node) const { return listed[1] == node ? static_cast<int>(listed[0]) : -1; }
  __device__ Filter filter(unsigned side) const { return filters[opaque(side == kTarget ? 0u : 1u)]; }
  __device__ EditedRow of(const Row& row, bool of_target) const { return rows.of(row, of_target); }
  __device__ Filtered support(unsigned side, int32_t stats_index) const {
    const Filter decoded = filter(side);
    if (!decoded.on()) return {};
    return {cuts[stats_index], decoded.order};
  }
};

template <class Shaping>
__device__ __forceinline__ auto read_node_row(const TreeParams& p, const NodeRow& row, bool of_target,
                                              const Shaping& shaping) {
  return shaping.of(of_target ? row_at(p.target, row.at) : row_at(p.draft, row.at), of_target);
}
template <class Shaping>
__device__ __forceinline__ auto node_law(const TreeParams& p, const NodeRow& row, bool of_target,
                                         RowStats whole, const Shaping& shaping) {
  return LawRowOf<typename Shaping::Support>{read_node_row(p, row, of_target, shaping), with_stats(row.law, whole),
                                             of_target ? nullptr : p.draft_map.data,
                                             shaping.support(of_target ? kTarget : kDraft, row.stats_index)};
}

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

// Ends a verdict: clears the columns after the last token, and those of nodes off the path. All lanes of a warp call.
__device__ __forceinline__ void finish(const VerdictWriter& verdict, int32_t accepted, int32_t status) {
  for (int32_t depth = accepted + 1 + lane_id(); depth < verdict.columns; depth += 32) verdict.clear(depth);
  if (const int32_t nodes = verdict.zeroed_nodes()) {
    __syncwarp();  // lane 0 has written the path
#pragma unroll 1
    for (int32_t node = lane_id(); node < nodes; node += 32) verdict.zero_off_path(node, accepted);
  }
  if (lane_id() == 0) verdict.count(accepted, status);
}

// The request that another thread decoded.
template <class Topology>
__device__ __forceinline__ Topology decoded_request(const typename Topology::Params& p,
                                                    const Shared<typename Topology::State>& decoded) {
  const typename Topology::State state = decoded[0];
  return Topology(p, state);
}

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
