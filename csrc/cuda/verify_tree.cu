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

struct Order {
  enum Kind : int32_t { kDone, kStats, kLook, kMasses, kRace };
  Kind kind;
  int32_t node;
  int64_t target, draft;  // where the node's rows start, in elements
  Law law;
  int32_t rows;   // kStats, kLook: 1 for the target's, 2 for both
  int32_t end;    // kMasses, kRace: what the node's children before this one have is left out; 0: nothing is
  bool fresh;     // kMasses: the first of this node
  bool residual;  // kRace
  float taken;
  Noise noise;
};

// What the walking warp remembers while it waits, and what it waited for; a node or child of -1 is none.
struct Memory {
  TreeWalk walk;
  int32_t status;
  int32_t figures_node, masses_node, masses_child, drawn_node;  // what was asked last
  int32_t figures_status;  // of the node's rows; of logits their figures are in `stats`
  Masses masses;
  Draw drawn;
};

__device__ __forceinline__ Memory nothing_known() {
  return {walk_from(0, 0), kStatusOk, -1, -1, -1, -1, kStatusOk, {0.0f, 0.0f, kStatusOk}, {0, kStatusOk}};
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

  __device__ bool laws(int32_t node, int32_t token, float* law_p, float* law_q, int32_t* bits) {
    if (r.target_law.space == Space::kLogits) {
      if (!figures(node)) return false;
      *bits |= memory.figures_status;
    }
    *bits |= laws_at(row_at(p.target, target_offset(p, request, node)), row_at(p.draft, draft_offset(p, request, node)),
                     has_draft(), r.target_law, token,
                     [&](int side) -> RowStat { return stats[side]; }, law_p, law_q);
    return true;
  }

  __device__ bool masses(int32_t node, int32_t child, float taken, Masses* masses) {
    if (!figures(node)) return false;
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
    masses->status = memory.figures_status;
    return true;
  }

  __device__ bool argmax(int32_t node, Draw* draw) {
    if (drawn(node, draw)) return true;
    place(Order::kLook, node);
    return false;
  }

  __device__ bool race(int32_t node, int32_t depth, uint32_t stream, Draw* draw) {
    if (drawn(node, draw)) return true;
    place(Order::kRace, node);
    order.noise = tree_noise(r, depth, stream);
    return false;
  }

  __device__ bool residual(int32_t node, int32_t depth, float taken, Draw* draw) {
    if (has_draft() && !figures(node)) return false;
    if (drawn(node, draw)) {
      if (has_draft()) draw->status |= memory.figures_status;
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
  __device__ bool figures(int32_t node) {
    if (memory.figures_node == node) return true;
    place(r.target_law.space == Space::kLogits ? Order::kStats : Order::kLook, node);
    order.rows = has_draft() ? 2 : 1;
    memory.figures_node = node;
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
    order.law = r.target_law;
    order.rows = 1;
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

template <class Team>
__device__ __forceinline__ Masses take_masses(const TreeArguments& a, Team& team, const Order& order,
                                              const Shared<RowStat>& stats, const Shared<unsigned>& tried) {
  const TreeParams& p = a.p;
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  LawRow sides[2] = {{row_at(p.target, order.target), order.law, kNoMass, kNoToken},
                     {row_at(p.draft, order.draft), order.law, kNoMass, kNoToken}};
  if (order.law.space == Space::kLogits) {
    const RowStat target = stats[0], draft = stats[1];
    sides[0].lse = target.lse;
    sides[1].lse = draft.lse;
  }
  float left = 0.0f, untried = 0.0f;
  over_sum_tiles(
      team, p.target.vocab, [](int) {},  // the figures were taken: the rows are in the L2 cache
      [&](int32_t token) {
        const int place = (own_slot(token / kSumTile, team.size()) * kSumTile + token % kSumTile) / 4;
        Four law_p, law_q;
        if (a.held_fours && !order.fresh) {  // every thread meets its own tokens again
          law_p = held[place], law_q = held[a.held_fours + place];
        } else {
          law_p = sides[0].probabilities(token), law_q = sides[1].probabilities(token);
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

// The rows' log-sum-exp into shared memory, and their status.
template <class Team>
__device__ __forceinline__ Draw take_stats(const TreeArguments& a, Team& team, const Order& order,
                                           const Shared<RowStat>& stats) {
  stats_of_rows(
      team, order.rows, a.tiles, order.law,
      [&](int side) { return side == 0 ? row_at(a.p.target, order.target) : row_at(a.p.draft, order.draft); },
      [&](int side, const RowStat& stat) { stats[side] = stat; });
  __syncthreads();
  bool bad = false;
  for (int side = 0; side < order.rows; ++side) bad |= static_cast<RowStat>(stats[side]).bad;
  return {0, bad ? kStatusNonFinite : kStatusOk};
}

// The target's largest element, and the status of the rows.
template <class Team>
__device__ __forceinline__ Draw take_look(const TreeArguments& a, Team& team, const Order& order) {
  Draw look = {0, kStatusOk};
#pragma unroll 1
  for (int side = order.rows - 1; side >= 0; --side) {
    const Row row = side == 0 ? row_at(a.p.target, order.target) : row_at(a.p.draft, order.draft);
    const Find find = team_find(team, argmax_part(row, order.law.space, {team.rank(), team.size()}));
    look = draw_of(find, look.status);
  }
  return look;
}

template <class Team>
__device__ __forceinline__ Draw take_race(const TreeArguments& a, Team& team, const Order& order,
                                          const Shared<RowStat>& stats, const Shared<unsigned>& tried) {
  const Row row = row_at(a.p.target, order.target);
  Weights weights = weights_of_row(row, order.law, kNoToken);
  if (order.end) {
    weights.tried = tried;
    weights.leaves_out = true;
  } else if (order.residual) {
    weights = weights_of_residual(row, row_at(a.p.draft, order.draft), order.law, order.taken,
                                  [&](int side) -> RowStat { return stats[side]; });
  }
  int32_t status = kStatusOk;
  for (;;) {
    const Find find = team_find(team, race_part(weights, order.noise, {team.rank(), team.size()}));
    if (find.bad) status |= kStatusNonFinite;
    if (find.key != 0 || !order.residual || status & kStatusEmptyResidual) return draw_of(find, status);
    status |= kStatusEmptyResidual;  // p and q equal to rounding: from p
    weights = weights_of_row(row, order.law, kNoToken);
  }
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) tree_kernel(const TreeArguments a) {
  SPECDEC_SHARED(RowStat, stats, 2);
  SPECDEC_SHARED(Memory, memory, 1);
  SPECDEC_SHARED(Order, ordered, 1);
  const Shared<unsigned> tried = dynamic_shared<unsigned>(a.tried_at, (a.held_at - a.tried_at) / 4);
  Team team(a.team);
  if (threadIdx.x == 0) memory[0] = nothing_known();
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
      case Order::kStats: draw = take_stats(a, team, order, stats); break;
      case Order::kLook: draw = take_look(a, team, order); break;
      case Order::kMasses: masses = take_masses(a, team, order, stats, tried); break;
      default: draw = take_race(a, team, order, stats, tried);
    }
    if (threadIdx.x == 0) {
      Memory known = memory[0];
      known.masses = masses;
      known.drawn = draw;
      if (order.kind == Order::kStats || order.kind == Order::kLook) known.figures_status = draw.status;
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
