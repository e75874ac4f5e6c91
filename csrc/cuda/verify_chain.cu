// verify_chain in one launch. Two shapes:
//
//   race_rows_kernel  method "race", while all rows fit at the same time: rows x splits blocks; the last block of a
//                     request (ticket) walks the chain over the winners.
//   chain_kernel      a team of blocks walks each request in order and stops: rows past the last one decided are not
//                     read. One block a request in large batches; a cluster, or a software cluster, in smaller ones,
//                     which for few requests takes the log-sum-exp of several slots between two barriers.
#include "race_rows.cuh"
#include "specdec/chain.h"
#include "team_rows.cuh"

namespace specdec {
namespace cuda {

namespace {

constexpr int kSlotsAtOnce = 8;  // whose log-sum-exp a team takes between two barriers, at most

__device__ __forceinline__ int64_t chain_draft_token(const ChainParams& p, const ChainRequest& r, int32_t slot) {
  return p.draft_tokens.at(r.first_slot + slot * r.slot_stride);
}

__device__ __forceinline__ Row chain_target(const ChainParams& p, const ChainRequest& r, int32_t slot) {
  return row_at(p.target, r.target_row + slot * p.target.row_stride);
}

// One thread writes the verdict. Every accepted token is the draft's.
__device__ void write_verdict(const ChainParams& p, const ChainRequest& r, int64_t request, int32_t accepted,
                              int32_t token, int32_t status) {
  int64_t* tokens = p.tokens + request * p.tokens_stride;
  for (int32_t slot = 0; slot <= p.max_drafts; ++slot)
    tokens[slot] = slot < accepted ? chain_draft_token(p, r, slot) : slot == accepted ? token : -1;
  p.num_accepted[request] = accepted;
  p.status[request] = status;
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
  __device__ Draw race(int32_t slot, uint32_t) const {
    const Find find = gather_partials(partials, first + static_cast<int64_t>(slot) * splits, splits);
    return draw_of(candidate_of_key(find.key), find.bad ? kStatusNonFinite : kStatusOk);
  }
  __device__ Draw argmax(int32_t slot) const { return race(slot, kStreamRace); }
  __device__ void emit(int32_t, int32_t token) { last_token = token; }
  // The race needs none of these.
  __device__ Draw residual(int32_t, int32_t, float) const { return {0, kStatusOk}; }
  __device__ int32_t laws(int32_t, int32_t, float*, float*) const { return kStatusOk; }
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
  const int32_t rows = p.max_drafts + 1, slot = static_cast<int32_t>(row % rows);
  const int64_t request = row / rows;
  const ChainRequest r = chain_request(p, request);
  if (reachable(p, r, slot)) {
    const Find find = find_winner(chain_target(p, r, slot), r.temperature, chain_noise(r, slot, kStreamRace), p.space,
                                  kNoToken, {rank, a.splits});
    if (threadIdx.x == 0) store_partial(a.room.words, blockIdx.x, find);
  }
  if (!last_to_come(a.room.tickets + request, static_cast<unsigned>(rows * a.splits)) || threadIdx.x >= 32) return;
  WinnerOps ops{p, r, a.room.words, request * rows * a.splits, a.splits};
  int32_t status = r.status;
  const int32_t accepted = r.readable ? walk_chain(r, Method::kRace, p.target.vocab, ops, &status) : 0;
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

// Rows are wide and their code is long, so it stands once, apart from the walk: one thread walks, and where it meets
// rows that are not read yet it leaves an order and the walk is thrown away; the block, with its team, fills the order;
// then the thread walks again. What it passes again it knows: those slots were accepted. Every member of a team walks
// alike; only the token drawn last is known to one alone, the finisher.
struct Order {
  enum Kind : int32_t { kDone, kStats, kDraw };
  Kind kind;
  int32_t slot, slots;     // kStats: how many from `slot` on
  int64_t target, draft;   // where the rows of `slot` start, in elements
  Noise noise;
  float inv_temperature;
  // kDraw
  int32_t greedy, residual;
  int32_t excluded;
  float draft_prob;
};

// What the walking thread remembers between two walks.
struct Memory {
  int32_t stats_from, stats_to;  // the slots whose figures are there
  int32_t stats_status;          // of the slots before them
  int32_t drawn_slot;            // whose draw is there; slots before it were accepted
  int32_t drawn_token, drawn_status;
  int32_t finisher;
};

// The row operations of walk_chain, by the walking thread.
struct OrderingOps {
  const ChainArguments& a;
  const ChainRequest& r;
  const Shared<RowStat>& stats;
  Memory memory;
  Order order;
  int32_t last_token;

  __device__ bool has_draft() const { return a.p.draft.data != nullptr; }
  __device__ int64_t draft_offset(int32_t slot) const { return r.draft_row + slot * a.p.draft.row_stride; }
  __device__ Row draft(int32_t slot) const { return row_at(a.p.draft, draft_offset(slot)); }

  __device__ int64_t draft_token(int32_t slot) const { return chain_draft_token(a.p, r, slot); }
  __device__ float draft_prob(int32_t slot) const {
    return has_draft() ? a.p.draft_prob.at(r.first_prob + slot * a.p.draft_prob.slot_stride) : 1.0f;
  }
  __device__ void emit(int32_t, int32_t token) { last_token = token; }

  __device__ Draw argmax(int32_t slot) { return drawn(slot, false, kStreamRace, kNoToken, 1.0f); }
  __device__ Draw race(int32_t slot, uint32_t stream) { return drawn(slot, false, stream, kNoToken, 1.0f); }
  __device__ Draw residual(int32_t slot, int32_t token, float h) {
    if (has_draft() && a.p.space == Space::kLogits && !known(slot)) return {0, kStatusOk};
    return drawn(slot, true, kStreamResidual, has_draft() || token < 0 ? kNoToken : token, h);
  }

  __device__ int32_t laws(int32_t slot, int32_t token, float* p, float* q) {
    *p = 1.0f, *q = 0.0f;  // what was accepted before is accepted again
    if (a.p.space == Space::kLogits && (slot < memory.stats_from || !known(slot))) return kStatusOk;
    const int32_t status =
        laws_at(chain_target(a.p, r, slot), draft(slot), has_draft(), a.p.space, r.temperature.inverse, token,
                [&](int side) { return stat(slot, side); }, p, q);
    return a.p.space == Space::kLogits ? row_status(slot) : status;
  }

  __device__ RowStat stat(int32_t slot, int side) const { return stats[2 * (slot - memory.stats_from) + side]; }
  __device__ int32_t row_status(int32_t slot) const {
    const bool bad = stat(slot, 0).bad || (has_draft() && stat(slot, 1).bad);
    return memory.stats_status | (bad ? kStatusNonFinite : kStatusOk);
  }

 private:
  __device__ bool known(int32_t slot) {
    if (order.kind != Order::kDone) return false;  // this walk is void
    if (slot >= memory.stats_from && slot < memory.stats_to) return true;
    for (int32_t past = memory.stats_from; past < memory.stats_to; ++past) memory.stats_status |= row_status(past);
    place(Order::kStats, slot, kStreamAccept);
    order.slots = slots_ahead(slot);
    memory.stats_from = slot;
    memory.stats_to = slot + order.slots;
    return false;
  }

  __device__ Draw drawn(int32_t slot, bool residual, uint32_t stream, int32_t excluded, float h) {
    if (order.kind != Order::kDone) return {0, kStatusOk};
    if (slot == memory.drawn_slot) return {memory.drawn_token, memory.drawn_status};
    if (slot < memory.drawn_slot) return {static_cast<int32_t>(draft_token(slot)), kStatusOk};
    place(Order::kDraw, slot, stream);
    order.residual = residual;
    order.excluded = excluded;
    order.draft_prob = h;
    memory.drawn_slot = slot;
    if (residual && has_draft() && a.p.space == Space::kLogits) memory.drawn_status |= row_status(slot);
    return {kNoToken, kStatusOk};
  }

  __device__ void place(Order::Kind kind, int32_t slot, uint32_t stream) {
    const int64_t target = r.target_row + slot * a.p.target.row_stride;
    order = {kind, slot, 1, target, draft_offset(slot), chain_noise(r, slot, stream), r.temperature.inverse,
             r.temperature.greedy, false, kNoToken, 1.0f};
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

// Walks request `request` as far as it is known. What is ordered, or done, then stands in shared memory.
__device__ void walk(const ChainArguments& a, int64_t request, const Shared<RowStat>& stats,
                     const Shared<Memory>& memory, const Shared<Order>& order) {
  const ChainRequest r = chain_request(a.p, request);
  OrderingOps ops{a, r, stats, memory[0], {}, 0};
  ops.order.kind = Order::kDone;
  int32_t status = r.status;
  const int32_t accepted = r.readable ? walk_chain(r, a.p.method, a.p.target.vocab, ops, &status) : 0;
  if (ops.order.kind == Order::kDone && ops.memory.finisher)
    write_verdict(a.p, r, request, accepted, ops.last_token, status);
  memory[0] = ops.memory;
  order[0] = ops.order;
}

// The log-sum-exp of the rows of the slots ordered.
template <class Team>
__device__ __forceinline__ void take_stats(const ChainArguments& a, Team& team, const Order& order,
                                           const Shared<RowStat>& stats) {
  const int sides = a.p.draft.data ? 2 : 1;
  stats_of_rows(
      team, order.slots * sides, a.tiles, order.inv_temperature,
      [&](int row) {
        const int ahead = row / sides;
        return row % sides == 0 ? row_at(a.p.target, order.target + ahead * a.p.target.row_stride)
                                : row_at(a.p.draft, order.draft + ahead * a.p.draft.row_stride);
      },
      [&](int row, const RowStat& stat) { stats[row / sides * 2 + row % sides] = stat; });
}

// The law of the draw ordered.
__device__ __forceinline__ Law law_of_order(const ChainArguments& a, const Order& order, const Row& row,
                                            const Shared<RowStat>& stats, int32_t stats_from) {
  Law law = law_of_row(row, a.p.space, order.inv_temperature, order.excluded);
  if (!order.residual || !a.p.draft.data) return law;
  law.kind = Law::kResidual;
  law.draft = row_at(a.p.draft, order.draft);
  law.draft_prob = order.draft_prob;
  if (a.p.space == Space::kLogits) {
    const int pair = 2 * (order.slot - stats_from);
    const RowStat target = stats[pair], draft = stats[pair + 1];
    law.target_lse = target.lse;
    law.draft_lse = draft.lse;
  }
  return law;
}

// The draw ordered, into memory: of every member, or of the finisher alone where the walk ends with it.
template <class Team>
__device__ __forceinline__ void take_draw(const ChainArguments& a, Team& team, const Order& order,
                                          const Shared<RowStat>& stats, int32_t stats_from,
                                          const Shared<Memory>& memory) {
  const Row row = row_at(a.p.target, order.target);
  Law law = law_of_order(a, order, row, stats, stats_from);
  Part part = {team.rank(), team.size()};
  // A draft row of probabilities is looked through for what is none, and for any weight; nothing else reads it all.
  const bool look_at_draft = law.kind == Law::kResidual && a.p.space == Space::kProbs;
  Find find, looked = {0, false};
  if (order.greedy || look_at_draft) looked = argmax_part(order.greedy ? row : law.draft, a.p.space, part);
  bool finisher = team.rank() == 0;
  int32_t status = kStatusOk;
  for (;;) {
    find = order.greedy ? looked : race_part(law, order.noise, part);
    find.bad |= looked.bad;
    find.draft_weighs = looked.key != 0 || looked.draft_weighs;
    if (order.greedy || a.p.method == Method::kRace) {  // the walk may go on: all must know
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
    law = law_of_row(row, a.p.space, order.inv_temperature, kNoToken);
    part = {0, 1};
    looked = find;
  }
  if (look_at_draft && !find.draft_weighs) find.bad = true;
  if (threadIdx.x == 0) {
    const Draw draw = draw_of(candidate_of_key(find.key), status | (find.bad ? kStatusNonFinite : kStatusOk));
    Memory m = memory[0];
    m.drawn_token = draw.token;
    m.drawn_status |= draw.status;
    m.finisher = finisher;
    memory[0] = m;
  }
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_kernel(const ChainArguments a) {
  SPECDEC_SHARED(RowStat, stats, 2 * kSlotsAtOnce);
  SPECDEC_SHARED(Memory, memory, 1);
  SPECDEC_SHARED(Order, ordered, 1);
  Team team(a.team);
  if (threadIdx.x == 0) memory[0] = Memory{0, 0, kStatusOk, -1, 0, kStatusOk, team.rank() == 0};
  for (;;) {
    if (threadIdx.x == 0) walk(a, team.index(), stats, memory, ordered);
    __syncthreads();
    const Order order = ordered[0];
    const Memory known = memory[0];
    if (order.kind == Order::kDone) break;
    if (order.kind == Order::kStats) take_stats(a, team, order, stats);
    else take_draw(a, team, order, stats, known.stats_from, memory);
    __syncthreads();
  }
  team.leave();
}

// ---- launching ------------------------------------------------------------------------------------------------------

cudaError_t launch_race_rows(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                             int64_t* needed) {
  const int64_t rows = p.batch * (p.max_drafts + 1);
  const int splits = splits_of_row(device, rows, p.target.vocab, p.target.dtype);
  const int64_t words = rows * splits * kWordsAPartial;
  if (p.batch > room.ticket_count || words > room.word_count) return *needed = room_needed(p.batch, words), cudaSuccess;
  const Shape shape = {rows * splits, threads_of_block(p.target.vocab, p.target.dtype)};
  return launch(race_rows_kernel, shape, {p, room, splits}, stream);
}

cudaError_t launch_chain(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                         int64_t* needed) {
  const int sides = p.draft.data ? 2 : 1;
  const bool in_order = p.space == Space::kProbs || p.method == Method::kRace;
  ChainArguments a = {p, {}, nullptr, nullptr, 1, tiles_of(p.target)};
  if (tiles_of(p.draft) > a.tiles) a.tiles = tiles_of(p.draft);
  const TeamShape shape = team_shape(device, p.batch, p.target, in_order ? 1 : sides);
  if (shape.grid && !in_order)
    a.slots_at_once = p.max_drafts < 1 ? 1 : p.max_drafts < kSlotsAtOnce ? p.max_drafts : kSlotsAtOnce;
  const int64_t tickets = shape.size > 1 ? p.batch : 0, partials = tickets * shape.size * kWordsAPartial;
  const TeamPlan plan = team_plan(shape, p.batch, a.slots_at_once * sides * a.tiles, tickets, partials);
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
  if (p.batch == 0) return cudaSuccess;
  Device device;
  const cudaError_t e = this_device(&device);
  if (e != cudaSuccess) return e;
  const Room room = room_in(workspace);
  // Rows that fit at the same time cost one row's time. More would come in a second wave, half of them for nothing.
  const bool few = p.batch * (p.max_drafts + 1) <= blocks_at_once(device);
  return p.method == Method::kRace && few ? launch_race_rows(p, device, room, stream, needed)
                                          : launch_chain(p, device, room, stream, needed);
}

}  // namespace cuda
}  // namespace specdec
