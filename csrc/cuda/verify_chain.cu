// verify_chain in one launch. Two shapes:
//
//   race_rows_kernel  method "race", while all rows fit at the same time: rows x splits blocks; the last block of a
//                     request (ticket) walks the chain over the winners.
//   chain_kernel      a team of blocks walks each request in order and stops: rows past the last one decided are not
//                     read. One block a request in large batches; a cluster, or a software cluster, in smaller ones,
//                     which for few requests takes the log-sum-exp of several slots between two barriers.
//
// Rows are wide and their code is long, so it stands once, apart from the walk (specdec/chain.h). In chain_kernel one
// thread of each block walks, all members of a team alike. Where the walk asks for what is not there yet the thread
// leaves it with an order; the block, with its team, fills the order; then the thread goes on from the same slot.
#include "race_rows.cuh"
#include "specdec/chain.h"
#include "team_rows.cuh"

namespace specdec {
namespace cuda {

namespace {

constexpr int kSlotsAtOnce = 8;  // whose log-sum-exp a team takes between two barriers, at most

__device__ __forceinline__ Row chain_target(const ChainParams& p, const ChainRequest& r, int32_t slot) {
  return row_at(p.target, r.target_row + slot * p.target.row_stride);
}

// One thread writes the verdict. Every accepted token is the draft's.
__device__ void write_verdict(const ChainParams& p, const ChainRequest& r, int64_t request, int32_t accepted,
                              int32_t token, int32_t status) {
  int64_t* tokens = p.tokens.data + request * p.tokens.row_stride;
  for (int32_t slot = 0; slot <= p.max_drafts(); ++slot)
    tokens[slot] = slot < accepted ? chain_draft_token(p, r, slot) : slot == accepted ? token : -1;
  p.num_accepted.data[request] = accepted;
  p.status.data[request] = status;
}

// ---- all rows at once -----------------------------------------------------------------------------------------------

struct RaceRowsArguments {
  ChainParams p;
  Room room;
  int splits;
};

// The walk over winners that are there already.
struct WinnerOps {
  const ChainParams& p;
  const ChainRequest& r;
  const WideKey* partials;
  int64_t first;  // of slot 0
  int splits;
  int32_t last_token = 0;

  __device__ int64_t draft_token(int32_t slot) const { return chain_draft_token(p, r, slot); }
  __device__ bool race(int32_t slot, uint32_t, Draw* draw) const {
    *draw = draw_of(gather_partials(partials, first + static_cast<int64_t>(slot) * splits, splits), kStatusOk);
    return true;
  }
  __device__ bool argmax(int32_t slot, Draw* draw) const { return race(slot, kStreamRace, draw); }
  __device__ void emit(int32_t, int32_t token) { last_token = token; }
  // The race needs none of these.
  __device__ bool residual(int32_t, int32_t, float, Draw*) const { return false; }
  __device__ bool laws(int32_t, int32_t, float*, float*, int32_t*) const { return false; }
  __device__ float draft_prob(int32_t) const { return 1.0f; }
};

// Is the row of `slot` ever looked at? Only if every draft before it could be accepted.
__device__ __forceinline__ bool reachable(const ChainParams& p, const ChainRequest& r, int32_t slot) {
  if (!r.readable || slot > r.slots) return false;
  for (int32_t before = 0; before < slot; ++before) {
    const int64_t token = chain_draft_token(p, r, before);
    if (token < 0 || token >= p.target.vocab) return false;
  }
  return true;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) race_rows_kernel(const RaceRowsArguments a) {
  const ChainParams& p = a.p;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const int64_t row = blockIdx.x / a.splits;
  const int32_t rows = p.max_drafts() + 1, slot = static_cast<int32_t>(row % rows);
  const int64_t request = row / rows;
  const ChainRequest r = chain_request(p, request);
  if (reachable(p, r, slot)) {
    const Find find = find_winner(chain_target(p, r, slot), r.target_law, chain_noise(r, slot, kStreamRace),
                                  {rank, a.splits});
    if (threadIdx.x == 0) store_partial(a.room.words, blockIdx.x, find);
  }
  if (!last_to_come(a.room.tickets + request, static_cast<unsigned>(rows * a.splits)) || threadIdx.x >= 32) return;
  WinnerOps ops{p, r, a.room.words, request * rows * a.splits, a.splits};
  int32_t accepted = 0, status = r.status;
  if (r.readable) walk_chain(r, Method::kRace, p.target.vocab, ops, &accepted, &status);
  if (threadIdx.x == 0) write_verdict(p, r, request, accepted, ops.last_token, status);
}

// ---- row by row -----------------------------------------------------------------------------------------------------

struct ChainArguments {
  ChainParams p;
  TeamRoom team;
  unsigned* tickets;   // one a request
  WideKey* partials;   // one a block
  int slots_at_once;
  int tiles;           // of the longest row
};

struct Order {
  enum Kind : int32_t { kDone, kStats, kLook, kDraw };
  Kind kind;
  int32_t slots;          // kStats: how many from this one on
  unsigned sides;         // kStats: of which rows
  int64_t target, draft;  // where the slot's rows start, in elements
  Law target_law, draft_law;
  // kDraw
  bool residual;
  int32_t excluded;
  float draft_prob;
  int32_t first_stat;  // residual: where the log-sum-exps of its rows are
  Noise noise;
};

// The rows of a slot, as bits.
constexpr unsigned kTarget = 1, kDraft = 2;

// What the walking thread remembers while it waits.
struct Memory {
  int32_t at, status;            // the walk's
  int32_t stats_from, stats_to;  // the slots whose log-sum-exps were asked for last
  int32_t looked_slot;           // whose draft row was to be looked through last: one of temperature 0
  RowStat looked;
  int32_t drawn_slot;  // whose draw was asked for last
  Draw drawn;
  bool finisher;  // knows the verdict and writes it, alone in its team
};

// The row operations of walk_chain, by the walking thread.
struct AskingOps {
  const ChainArguments& a;
  const ChainRequest& r;
  const Shared<RowStat>& stats;
  Memory& memory;
  Order& order;
  int32_t last_token = 0;

  __device__ bool has_draft() const { return a.p.draft.data != nullptr; }
  __device__ int64_t draft_offset(int32_t slot) const { return r.draft_row + slot * a.p.draft.row_stride; }

  __device__ int64_t draft_token(int32_t slot) const { return chain_draft_token(a.p, r, slot); }
  __device__ float draft_prob(int32_t slot) const { return chain_draft_prob(a.p, r, slot); }
  __device__ void emit(int32_t, int32_t token) { last_token = token; }

  __device__ bool argmax(int32_t slot, Draw* draw) { return race(slot, kStreamRace, draw); }
  __device__ bool race(int32_t slot, uint32_t stream, Draw* draw) {
    return drawn(slot, stream, false, kNoToken, 1.0f, draw);
  }
  __device__ bool residual(int32_t slot, int32_t token, float h, Draw* draw) {
    if (has_draft() && !know(slot)) return false;
    const int32_t excluded = has_draft() || token < 0 ? kNoToken : token;
    if (!drawn(slot, kStreamResidual, true, excluded, h, draw)) return false;
    if (has_draft()) draw->status |= row_status(slot);
    return true;
  }

  __device__ bool laws(int32_t slot, int32_t token, float* p, float* q, int32_t* bits) {
    if (!know(slot)) return false;
    *bits |= row_status(slot);
    const RowStat target = sums() & kTarget ? stat(slot, 0) : RowStat{};
    *p = law_of({chain_target(a.p, r, slot), target.known(r.target_law)}, token, bits);
    *q = 1.0f;
    if (!has_draft()) return true;
    const RowStat draft = sums() & kDraft ? stat(slot, 1) : memory.looked;
    *q = law_of({row_at(a.p.draft, draft_offset(slot)), draft.known(r.draft_law)}, token, bits);
    return true;
  }

 private:
  __device__ int32_t first_stat(int32_t slot) const { return 2 * (slot - memory.stats_from); }
  __device__ RowStat stat(int32_t slot, int side) const { return stats[first_stat(slot) + side]; }

  // The rows whose log-sum-exp the walk needs.
  __device__ unsigned sums() const {
    return (r.target_law.needs_sum() ? kTarget : 0u) | (has_draft() && r.draft_law.needs_sum() ? kDraft : 0u);
  }
  __device__ bool looks() const { return has_draft() && r.draft_law.greedy; }

  // Of what `know` looks through.
  __device__ int32_t row_status(int32_t slot) const {
    bool bad = looks() && memory.looked.bad;
    if (sums() & kTarget) bad |= stat(slot, 0).bad;
    if (sums() & kDraft) bad |= stat(slot, 1).bad;
    return bad ? kStatusNonFinite : kStatusOk;
  }

  // Are the rows of a slot looked through that must be before their laws are known?
  __device__ bool know(int32_t slot) {
    if (sums() && slot >= memory.stats_to) {
      place(Order::kStats, slot);
      order.sides = sums();
      order.slots = slots_ahead(slot);
      memory.stats_from = slot;
      memory.stats_to = slot + order.slots;
      return false;
    }
    if (looks() && memory.looked_slot != slot) {
      place(Order::kLook, slot);
      memory.looked_slot = slot;
      return false;
    }
    return true;
  }

  __device__ bool drawn(int32_t slot, uint32_t stream, bool residual, int32_t excluded, float h, Draw* draw) {
    *draw = memory.drawn;
    if (memory.drawn_slot == slot) return true;
    place(Order::kDraw, slot);
    order.residual = residual;
    order.excluded = excluded;
    order.draft_prob = h;
    order.first_stat = first_stat(slot);
    order.noise = chain_noise(r, slot, stream);
    memory.drawn_slot = slot;
    return false;
  }

  __device__ void place(Order::Kind kind, int32_t slot) {
    order.kind = kind;
    order.target = r.target_row + slot * a.p.target.row_stride;
    order.draft = draft_offset(slot);
    order.target_law = r.target_law;
    order.draft_law = r.draft_law;
  }

  // How many slots from `slot` on the walk could still ask for.
  __device__ int32_t slots_ahead(int32_t slot) const {
    int32_t count = 1;
    for (; count < a.slots_at_once && slot + count < r.slots; ++count) {
      const int64_t before = draft_token(slot + count - 1);
      if (before < 0 || before >= a.p.target.vocab) break;
    }
    return count;
  }
};

// A thread walks request `request` as far as it is known. What is ordered, or done, then stands in shared memory.
__device__ void walk(const ChainArguments& a, int64_t request, const Shared<RowStat>& stats,
                     const Shared<Memory>& shared_memory, const Shared<Order>& shared_order) {
  const ChainRequest r = chain_request(a.p, request);
  Memory memory = shared_memory[0];
  Order order = {};
  memory.status |= r.status;
  AskingOps ops{a, r, stats, memory, order};
  const bool through = !r.readable || walk_chain(r, a.p.method, a.p.target.vocab, ops, &memory.at, &memory.status);
  if (through && memory.finisher) write_verdict(a.p, r, request, memory.at, ops.last_token, memory.status);
  shared_memory[0] = memory;
  shared_order[0] = order;
}

// The log-sum-exp of the rows of the slots ordered.
template <class Team>
__device__ __forceinline__ void take_stats(const ChainArguments& a, Team& team, const Order& order,
                                           const Shared<RowStat>& stats) {
  const int sides = order.sides == (kTarget | kDraft) ? 2 : 1;
  const auto is_target = [&](int row) { return (order.sides & kTarget) && row % sides == 0; };
  stats_of_rows(
      team, order.slots * sides, a.tiles,
      [&](int row) -> LawRow {
        const int ahead = row / sides;
        if (is_target(row))
          return {row_at(a.p.target, order.target + ahead * a.p.target.row_stride), nothing_known(order.target_law)};
        return {row_at(a.p.draft, order.draft + ahead * a.p.draft.row_stride), nothing_known(order.draft_law)};
      },
      [&](int row, const RowStat& stat) { stats[row / sides * 2 + (is_target(row) ? 0 : 1)] = stat; });
}

// The weights to draw by.
__device__ __forceinline__ Weights ordered_weights(const ChainArguments& a, const Order& order,
                                                   const Shared<RowStat>& stats, const RowStat& looked) {
  const Row target = row_at(a.p.target, order.target);
  if (order.residual && a.p.draft.data) {
    RowStat of_target = {}, of_draft = looked;
    if (order.target_law.needs_sum()) of_target = stats[order.first_stat];
    if (order.draft_law.needs_sum()) of_draft = stats[order.first_stat + 1];
    return weights_of_residual({target, of_target.known(order.target_law)},
                               {row_at(a.p.draft, order.draft), of_draft.known(order.draft_law)}, order.draft_prob);
  }
  Weights weights = weights_of_row(target, order.target_law);
  weights.excluded = order.excluded;
  return weights;
}

// The draw ordered, into memory: of every member, or of the finisher alone where the walk ends with it. Or the look
// through the draft's row.
template <class Team>
__device__ __forceinline__ void take_draw(const ChainArguments& a, Team& team, const Order& order,
                                          const Shared<RowStat>& stats, const Shared<Memory>& memory) {
  const bool look = order.kind == Order::kLook, greedy = !look && order.target_law.greedy;
  Weights weights = ordered_weights(a, order, stats, static_cast<Memory>(memory[0]).looked);
  Part part = {team.rank(), team.size()};
  // A draft row of probabilities is looked through for what is none, and for any weight; nothing else reads it all.
  const bool look_at_draft = weights.residual && !order.draft_law.needs_row();
  Find find, looked = {0, false};
  if (greedy || look || look_at_draft)
    looked = argmax_part(greedy ? weights.target.row : row_at(a.p.draft, order.draft),
                         greedy ? order.target_law : order.draft_law, part);
  if (look) {
    const RowStat known = stat_of(team_find(team, looked));
    if (threadIdx.x == 0) {
      Memory remembered = memory[0];
      remembered.looked = known;
      memory[0] = remembered;
    }
    return;
  }
  bool finisher = team.rank() == 0;
  int32_t status = kStatusOk;
  for (;;) {
    find = greedy ? looked : race_part(weights, order.noise, part);
    find.bad |= looked.bad;
    find.draft_weighs = looked.key != 0 || looked.draft_weighs;
    if (greedy || a.p.method == Method::kRace) {  // the walk may go on: all must know
      find = team_find(team, find);
    } else if (part.size > 1) {
      const int64_t first = static_cast<int64_t>(team.index()) * part.size;
      if (threadIdx.x == 0) store_partial(a.partials, first + part.rank, find);
      finisher = last_to_come(a.tickets + team.index(), static_cast<unsigned>(part.size));
      if (!finisher) break;
      find = gather_partials(a.partials, first, part.size);
    }
    if (find.key != 0 || !order.residual || status != kStatusOk) break;
    // p and q equal to rounding: the finisher alone draws from p.
    status = kStatusEmptyResidual;
    weights = weights_of_row(weights.target.row, order.target_law);
    part = {0, 1};
    looked = find;
  }
  if (look_at_draft && !find.draft_weighs) find.bad = true;
  if (threadIdx.x == 0) {
    Memory known = memory[0];
    known.drawn = draw_of(find, status);
    known.finisher = finisher;
    memory[0] = known;
  }
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_kernel(const ChainArguments a) {
  SPECDEC_SHARED(RowStat, stats, 2 * kSlotsAtOnce);
  SPECDEC_SHARED(Memory, memory, 1);
  SPECDEC_SHARED(Order, ordered, 1);
  Team team(a.team);
  if (threadIdx.x == 0) memory[0] = Memory{0, kStatusOk, 0, 0, -1, {}, -1, {0, kStatusOk}, team.rank() == 0};
  for (;;) {
    if (threadIdx.x == 0) walk(a, team.index(), stats, memory, ordered);
    __syncthreads();
    const Order order = ordered[0];
    if (order.kind == Order::kDone) break;
    if (order.kind == Order::kStats) take_stats(a, team, order, stats);
    else take_draw(a, team, order, stats, memory);
    __syncthreads();
  }
  team.leave();
}

// ---- launching ------------------------------------------------------------------------------------------------------

cudaError_t launch_race_rows(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                             int64_t* needed) {
  const int64_t rows = p.batch() * (p.max_drafts() + 1);
  const int splits = splits_of_row(device, rows, p.target.vocab, p.target.dtype);
  const int64_t words = rows * splits * kWordsAPartial;
  if (p.batch() > room.ticket_count || words > room.word_count)
    return *needed = room_needed(p.batch(), words), cudaSuccess;
  const Shape shape = {rows * splits, threads_of_block(p.target.vocab, p.target.dtype)};
  return launch(race_rows_kernel, shape, {p, room, splits}, stream);
}

cudaError_t launch_chain(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                         int64_t* needed) {
  // Log-sum-exps of a slot; without any, rows are read in order.
  const int target_sums = p.method != Method::kRace && may_need_sum(p.target_law) ? 1 : 0;
  const int draft_sums = p.draft.data && may_need_sum(p.draft_law) ? 1 : 0, sums = target_sums + draft_sums;
  ChainArguments a = {p, {}, nullptr, nullptr, 1, tiles_of(p.target)};
  if (tiles_of(p.draft) > a.tiles) a.tiles = tiles_of(p.draft);
  const TeamShape shape = team_shape(device, p.batch(), p.target, sums > 1 ? sums : 1);
  if (shape.grid && sums > 0)
    a.slots_at_once = p.max_drafts() < 1 ? 1 : p.max_drafts() < kSlotsAtOnce ? p.max_drafts() : kSlotsAtOnce;
  const int64_t tickets = shape.size > 1 ? p.batch() : 0, partials = tickets * shape.size * kWordsAPartial;
  const TeamPlan plan = team_plan(shape, p.batch(), a.slots_at_once * sums * a.tiles, tickets, partials);
  if (!plan.fits(room)) return *needed = plan.bytes(), cudaSuccess;
  a.team = plan.team(room);
  a.tickets = room.tickets;
  a.partials = room.words;
  return launch_teams(chain_kernel<LocalTeam>, chain_kernel<ClusterTeam>, chain_kernel<GridTeam>, plan, device, a,
                      plan.shared_bytes(), stream);
}

}  // namespace

cudaError_t verify_chain(const ChainParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  if (p.batch() == 0) return cudaSuccess;
  Device device;
  const cudaError_t e = this_device(&device);
  if (e != cudaSuccess) return e;
  const Room room = room_in(workspace);
  // Rows that fit at the same time cost one row's time. More would come in a second wave, half of them for nothing.
  const bool few = p.batch() * (p.max_drafts() + 1) <= blocks_at_once(device);
  return p.method == Method::kRace && few ? launch_race_rows(p, device, room, stream, needed)
                                          : launch_chain(p, device, room, stream, needed);
}

}  // namespace cuda
}  // namespace specdec
