// verify_tree in one launch: a team of blocks walks each request's tree and stops; rows off the accepted path are not
// read.
//
// Rows are wide and their code is long, so it stands once, apart from the walk (specdec/tree.h). The first warp of each
// block walks, all members of a team alike. Where the walk asks for what is not there yet the warp leaves it with an
// order; the block, with its team, fills the order; then the warp goes on from the same child.
//
// A node's rows come out of memory once, for their figures. What its second child and later ones ask of them, sums over
// the whole pair, is taken from p and q as the members of the team hold them in shared memory; where a member's part
// does not fit, from the L2 cache.
#include "pair_rows.cuh"
#include "specdec/tree.h"

namespace specdec {
namespace cuda {

namespace {

struct TreeArguments {
  TreeParams p;
  TeamRoom team;
  int tiles;         // of the longest row of logits
  size_t tried_at;   // where in shared memory the tokens tried are marked, a bit each
  size_t held_at;    // where p and q of a node are held
  int held_fours;    // of each; 0 where they do not fit
};

__device__ __forceinline__ int64_t target_offset(const TreeParams& p, int64_t request, int32_t node) {
  return request * p.target.request_stride + node * p.target.row_stride;
}
__device__ __forceinline__ int64_t draft_offset(const TreeParams& p, int64_t request, int32_t node) {
  return request * p.draft.request_stride + node * p.draft.row_stride;
}
__device__ __forceinline__ int64_t tree_draft_token(const TreeParams& p, int64_t request, int32_t node) {
  return p.draft_tokens.at(request * p.draft_tokens.request_stride + node * p.draft_tokens.slot_stride);
}

// ---- the walk -------------------------------------------------------------------------------------------------------

// The rows of a node, as bits.
constexpr unsigned kTarget = 1, kDraft = 2;

struct Order {
  enum Kind : int32_t { kDone, kStats, kLook, kMasses, kRace };
  Kind kind;
  int32_t node;
  int64_t target, draft;  // where the node's rows start, in elements
  Law target_law, draft_law;
  unsigned sides;  // kStats, kLook: of which rows
  int32_t end;     // kMasses, kRace: what the node's children before this one have is left out; 0: nothing is
  bool fresh;      // kMasses: the first of this node
  bool residual;   // kRace
  float taken;
  Noise noise;
};

// What the walking warp remembers while it waits, and what it waited for; a node or child of -1 is none.
struct Memory {
  TreeWalk walk;
  int32_t status;
  int32_t known_node;  // which of its rows were looked through: `stats` has what was found
  unsigned known;
  int32_t masses_node, masses_child, drawn_node;  // what was asked last
  Masses masses;
  Draw drawn;
};

__device__ __forceinline__ Memory nothing_remembered() {
  return {walk_from(0, 0), kStatusOk, -1, 0u, -1, -1, -1, {0.0f, 0.0f, kStatusOk}, {0, kStatusOk}};
}

// The row operations of walk_tree, by the lanes of a warp together. `status` is each lane's own until the end.
struct AskingOps {
  const TreeParams& p;
  const TreeRequest& r;
  int64_t request;
  const Shared<RowStat>& stats;
  bool writes;  // the verdict, for the team
  Memory& memory;
  Order& order;
  int32_t* status;

  __device__ bool has_draft() const { return p.draft.data != nullptr; }
  __device__ int64_t draft_token(int32_t node) const { return tree_draft_token(p, request, node); }

  __device__ int32_t next_child(int32_t node, int32_t after) {
#pragma unroll 1
    for (int32_t first = after + 1; first < p.nodes(); first += 32) {
      const int32_t child = first + lane_id();
      const bool found = child < p.nodes() && parent_of(p.parents, r.first_parent, child, status) == node;
      const unsigned children = __ballot_sync(kWarp, found);
      if (children) return first + __ffs(static_cast<int>(children)) - 1;
    }
    return p.nodes();
  }

  __device__ bool tried(int32_t node, int32_t child, int64_t token) {
    bool found = false;
#pragma unroll 1
    for (int32_t elder = node + 1 + lane_id(); elder < child; elder += 32)
      found |= parent_of(p.parents, r.first_parent, elder, status) == node && draft_token(elder) == token;
    return __any_sync(kWarp, found);
  }

  // Rows of probabilities are not looked through for one token.
  __device__ bool laws(int32_t node, int32_t token, float* law_p, float* law_q, int32_t* bits) {
    const unsigned sides = (r.target_law.needs_row() ? kTarget : 0u) | (r.draft_law.needs_row() ? kDraft : 0u);
    if (!know(node, sides & rows())) return false;
    *bits |= row_status(sides & rows());
    *law_p = law_of({row_at(p.target, target_offset(p, request, node)), stat(0).known(r.target_law)}, token, bits);
    *law_q = has_draft() ? law_of({row_at(p.draft, draft_offset(p, request, node)), stat(1).known(r.draft_law)}, token,
                                  bits)
                         : 1.0f;
    return true;
  }

  __device__ bool masses(int32_t node, int32_t child, float taken, Masses* masses) {
    if (!know(node, rows())) return false;
    if (memory.masses_child != child) {
      place(Order::kMasses, node);
      order.end = p.replacement ? 0 : child;
      order.taken = taken;
      order.fresh = memory.masses_node != node;
      memory.masses_node = node;
      memory.masses_child = child;
      return false;
    }
    *masses = memory.masses;
    masses->status = row_status(rows());
    return true;
  }

  __device__ bool argmax(int32_t node, Draw* draw) {
    if (!know(node, kTarget)) return false;
    const int32_t token = stat(0).argmax;
    *draw = {token == kNoToken ? 0 : token, row_status(kTarget)};
    return true;
  }

  __device__ bool race(int32_t node, int32_t depth, uint32_t stream, Draw* draw) {
    if (drawn(node, draw)) return true;
    place(Order::kRace, node);
    order.noise = tree_noise(r, depth, stream);
    return false;
  }

  __device__ bool residual(int32_t node, int32_t depth, float taken, Draw* draw) {
    if (has_draft() && !know(node, rows())) return false;
    if (drawn(node, draw)) {
      if (has_draft()) draw->status |= row_status(rows());
      return true;
    }
    place(Order::kRace, node);
    order.end = has_draft() ? 0 : p.nodes();
    order.residual = true;
    order.taken = taken;
    order.noise = tree_noise(r, depth, kStreamResidual);
    return false;
  }

  __device__ void emit(int32_t depth, int32_t node, int32_t token) const {
    if (!writes || lane_id() != 0) return;
    p.path.data[request * p.path.row_stride + depth] = node;
    p.tokens.data[request * p.tokens.row_stride + depth] = token;
  }

 private:
  __device__ RowStat stat(int side) const {
    if (memory.known >> side & 1u) return stats[side];
    return {};
  }
  __device__ unsigned rows() const { return has_draft() ? kTarget | kDraft : kTarget; }

  __device__ int32_t row_status(unsigned sides) const {
    const bool bad = ((sides & kTarget) && stat(0).bad) || ((sides & kDraft) && stat(1).bad);
    return bad ? kStatusNonFinite : kStatusOk;
  }

  // Are these rows of the node looked through?
  __device__ bool know(int32_t node, unsigned sides) {
    if (memory.known_node != node) memory.known_node = node, memory.known = 0;
    const unsigned missing = sides & ~memory.known;
    if (!missing) return true;
    const unsigned of_logits = (r.target_law.needs_sum() ? kTarget : 0u) | (r.draft_law.needs_sum() ? kDraft : 0u);
    const unsigned sums = missing & of_logits;
    place(sums ? Order::kStats : Order::kLook, node);
    order.sides = sums ? sums : missing;
    memory.known |= order.sides;
    return false;
  }

  __device__ bool drawn(int32_t node, Draw* draw) {
    *draw = memory.drawn;
    if (memory.drawn_node == node) return true;
    memory.drawn_node = node;
    return false;
  }

  __device__ void place(Order::Kind kind, int32_t node) {
    order.kind = kind;
    order.node = node;
    order.target = target_offset(p, request, node);
    order.draft = draft_offset(p, request, node);
    order.target_law = r.target_law;
    order.draft_law = r.draft_law;
  }
};

// A warp walks request `request` as far as it is known. What is ordered, or done, then stands in shared memory.
__device__ void walk(const TreeParams& p, int64_t request, bool writes, const Shared<RowStat>& stats,
                     const Shared<Memory>& shared_memory, const Shared<Order>& shared_order) {
  const TreeRequest r = tree_request(p, request);
  Memory memory = shared_memory[0];
  Order order = {};
  int32_t status = memory.status | r.status;
  AskingOps ops{p, r, request, stats, writes, memory, order, &status};
  const bool through =
      walk_tree(r, p.method, p.replacement, p.nodes(), p.max_depth(), p.target.vocab, ops, &memory.walk, &status);
  memory.status = static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(status)));
  __syncwarp();  // every lane has read its memory
  if (lane_id() == 0) {
    shared_memory[0] = memory;
    shared_order[0] = order;
  }
  if (!through || !writes) return;
  for (int32_t depth = memory.walk.depth + 1 + lane_id(); depth <= p.max_depth(); depth += 32)
    p.path.data[request * p.path.row_stride + depth] = -1, p.tokens.data[request * p.tokens.row_stride + depth] = -1;
  if (lane_id() != 0) return;
  p.num_accepted.data[request] = memory.walk.depth;
  p.status.data[request] = memory.status;
}

// ---- what it asks for -----------------------------------------------------------------------------------------------

// Marks the tokens of the node's children before `end`, for the whole block.
__device__ __forceinline__ void mark_tried(const TreeParams& p, int64_t request, int32_t node, int32_t end,
                                           const Shared<unsigned>& tried) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
#pragma unroll 1
  for (int32_t word = thread; word < (p.target.vocab + 31) / 32; word += threads) tried[word] = 0;
  __syncthreads();
  int32_t known = kStatusOk;
#pragma unroll 1
  for (int32_t child = node + 1 + thread; child < end; child += threads) {
    if (parent_of(p.parents, request * p.parents.request_stride, child, &known) != node) continue;
    const int64_t token = tree_draft_token(p, request, child);
    if (token >= 0 && token < p.target.vocab) atomicOr(&tried[token / 32], 1u << token % 32);
  }
  __syncthreads();
}

// One of the rows ordered, with what is known of it.
__device__ __forceinline__ LawRow ordered_row(const TreeArguments& a, const Order& order, int side,
                                              const Shared<RowStat>& stats) {
  const RowStat stat = stats[side];
  return side == 0 ? LawRow{row_at(a.p.target, order.target), stat.known(order.target_law)}
                   : LawRow{row_at(a.p.draft, order.draft), stat.known(order.draft_law)};
}

template <class Team>
__device__ __forceinline__ Masses take_masses(const TreeArguments& a, Team& team, const Order& order,
                                              const Shared<RowStat>& stats, const Shared<unsigned>& tried) {
  const TreeParams& p = a.p;
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  const LawRow target = ordered_row(a, order, 0, stats), draft = ordered_row(a, order, 1, stats);
  float left = 0.0f, untried = 0.0f;
  over_sum_tiles(
      team, p.target.vocab, [](int) {},  // the figures were taken: the rows are in the L2 cache
      [&](int32_t token) {
        const int place = (own_slot(token / kSumTile, team.size()) * kSumTile + token % kSumTile) / 4;
        Four law_p, law_q;
        if (a.held_fours && !order.fresh) {  // every thread meets its own tokens again
          law_p = held[place], law_q = held[a.held_fours + place];
        } else {
          law_p = probabilities(target, token), law_q = probabilities(draft, token);
          if (a.held_fours) held[place] = law_p, held[a.held_fours + place] = law_q;
        }
        const unsigned gone = order.end ? tried[token / 32] >> token % 32 : 0u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          left = add(left, residual_weight(law_p.value[i], mul(order.taken, law_q.value[i])));
          untried = add(untried, gone >> i & 1u ? 0.0f : law_q.value[i]);
        }
      },
      [&](int tile) {
        const WideKey word = packed(warp_sum(left), warp_sum(untried));
        if (lane_id() == 0) team.put(tile, word);
        left = untried = 0.0f;
      });
  team.sync();
  const TwoSums sums = sum_items(team, 0, sum_tiles_of(p.target.vocab));
  return {sums.a, sums.b, kStatusOk};
}

// The log-sum-exp of the rows ordered, into shared memory.
template <class Team>
__device__ __forceinline__ void take_stats(const TreeArguments& a, Team& team, const Order& order,
                                           const Shared<RowStat>& stats) {
  const int first = order.sides & kTarget ? 0 : 1;
  stats_of_rows(
      team, order.sides == (kTarget | kDraft) ? 2 : 1, a.tiles,
      [&](int row) -> LawRow {
        if (first + row == 0) return {row_at(a.p.target, order.target), nothing_known(order.target_law)};
        return {row_at(a.p.draft, order.draft), nothing_known(order.draft_law)};
      },
      [&](int row, const RowStat& stat) { stats[first + row] = stat; });
}

// The largest element of the rows ordered, likewise.
template <class Team>
__device__ __forceinline__ void take_look(const TreeArguments& a, Team& team, const Order& order,
                                          const Shared<RowStat>& stats) {
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    if (!(order.sides >> side & 1u)) continue;
    const RowStat stat = look_through(
        team, side == 0 ? LawRow{row_at(a.p.target, order.target), nothing_known(order.target_law)}
                        : LawRow{row_at(a.p.draft, order.draft), nothing_known(order.draft_law)});
    if (threadIdx.x == 0) stats[side] = stat;
  }
}

template <class Team>
__device__ __forceinline__ Draw take_race(const TreeArguments& a, Team& team, const Order& order,
                                          const Shared<RowStat>& stats, const Shared<unsigned>& tried) {
  const Row row = row_at(a.p.target, order.target);
  Weights weights = weights_of_row(row, order.target_law);
  if (order.end) {
    weights.tried = tried;
    weights.leaves_out = true;
  } else if (order.residual) {
    weights = weights_of_residual(ordered_row(a, order, 0, stats), ordered_row(a, order, 1, stats), order.taken);
  }
  int32_t status = kStatusOk;
  for (;;) {
    const Find find = team_find(team, race_part(weights, order.noise, {team.rank(), team.size()}));
    if (find.bad) status |= kStatusNonFinite;
    if (find.key != 0 || !order.residual || status & kStatusEmptyResidual) return draw_of(find, status);
    status |= kStatusEmptyResidual;  // p and q equal to rounding: from p
    weights = weights_of_row(row, order.target_law);
  }
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) tree_kernel(const TreeArguments a) {
  SPECDEC_SHARED(RowStat, stats, 2);
  SPECDEC_SHARED(Memory, memory, 1);
  SPECDEC_SHARED(Order, ordered, 1);
  const Shared<unsigned> tried = dynamic_shared<unsigned>(a.tried_at, (a.held_at - a.tried_at) / 4);
  Team team(a.team);
  if (threadIdx.x == 0) memory[0] = nothing_remembered();
  for (;;) {
    __syncthreads();
    if (warp_id() == 0) walk(a.p, team.index(), team.rank() == 0, stats, memory, ordered);
    __syncthreads();
    const Order order = ordered[0];
    if (order.kind == Order::kDone) break;
    if (order.end) mark_tried(a.p, team.index(), order.node, order.end, tried);
    Masses masses = {0.0f, 0.0f, kStatusOk};
    Draw draw = {0, kStatusOk};
    switch (order.kind) {
      case Order::kStats: take_stats(a, team, order, stats); break;
      case Order::kLook: take_look(a, team, order, stats); break;
      case Order::kMasses: masses = take_masses(a, team, order, stats, tried); break;
      default: draw = take_race(a, team, order, stats, tried);
    }
    if (threadIdx.x == 0) {
      Memory known = memory[0];
      known.masses = masses;
      known.drawn = draw;
      memory[0] = known;
    }
  }
  team.leave();
}

}  // namespace

cudaError_t verify_tree(const TreeParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  if (p.batch() == 0) return cudaSuccess;
  Device device;
  const cudaError_t e = this_device(&device);
  if (e != cudaSuccess) return e;
  const int sides = p.draft.data ? 2 : 1, sums = sum_tiles_of(p.target.vocab);
  TreeArguments a = {p, {}, tiles_of(p.target) > tiles_of(p.draft) ? tiles_of(p.target) : tiles_of(p.draft), 0, 0, 0};
  const size_t marks = p.method == Method::kRejection ? (p.target.vocab + 127) / 128 * size_t{16} : 0;
  // What leaves room for another block beside this one, and for what both declare.
  const size_t room_of_block = static_cast<size_t>(device.shared_limit) / kBlocksAMultiprocessor - 2048;
  TeamShape shape = team_shape(device, p.batch(), p.target, sides);
  // Blocks that wait for each other must run at the same time.
  if (shape.grid && marks > room_of_block) shape = {shape.threads, 1, false};
  const TeamPlan plan = team_plan(shape, p.batch(), sides * a.tiles > sums ? sides * a.tiles : sums, 0, 0);
  const Room room = room_in(workspace);
  if (!plan.fits(room)) return *needed = plan.bytes(), cudaSuccess;
  a.team = plan.team(room);
  a.tried_at = plan.shared_bytes();
  a.held_at = a.tried_at + marks;
  const int fours = own_slots(sums, shape.size, shape.threads / 32) * kSumTile / 4;
  const size_t held = 2 * sizeof(Four) * fours;
  if (sides == 2 && a.held_at + held <= room_of_block) a.held_fours = fours;
  const size_t shared = a.held_at + (a.held_fours ? held : 0);
  return launch_teams(tree_kernel<LocalTeam>, tree_kernel<ClusterTeam>, tree_kernel<GridTeam>, plan, device, a, shared,
                      stream);
}

}  // namespace cuda
}  // namespace specdec
