// A race over chains whose rows do not all fit the device at once: blocks take parts of rows from a queue.
//
// A row is cut into P parts. The queue is a list of rows that are to be read. It begins with the first row of each
// request. A block takes the next part by a counter: part i is part i mod P of the row at place i / P. When it has read
// the part, it takes a ticket. The last block to come has all winners. It takes the steps of the walk that they decide
// (walk_race), and then ends the request or pushes its next row. So the blocks of a request that has ended are free for
// the others.
//
// A block may take a part of a place where no row is yet. Then it waits until there is one, or until all requests have
// ended. For that, blocks need not all run at the same time. Parts are taken in order, and only by blocks that run. So
// at the first empty place all parts of the rows before it have been taken. The blocks that have them run, and wait for
// nobody while they read. If a request still runs, one of its rows is among these. The last block to come there pushes
// its next row to the empty place, or ends the request. So that place is filled, or no request is left, and all who
// wait go on.
//
// The fewer requests are left, the more a row costs by its latency and not by its bytes. So when there are few, several
// rows of a request are pushed together: rows_together says how many. docs/cuda.md, section 3, has the arithmetic.
#pragma once

#include "../rows/race_request.cuh"
#include "../team/launch.cuh"
#include "race_walk.cuh"

namespace specdec {
namespace cuda {

struct QueueArguments {
  ChainParams p;
  unsigned* counters;   // kTaken and those after it
  unsigned* tickets;    // one a request
  unsigned* list;       // a word of QueuedRow for each row that is pushed; 0 while it is not there
  WideKey* statuses;    // of each request, up to the rows that are in the queue
  WideKey* partials;    // one for each part of each row
  unsigned parts;       // of a row
  unsigned first_rows;  // of each request, in the queue from the start
  unsigned ahead;       // see rows_together
};

enum QueueCounter { kTaken, kPushed, kEnded, kLeft, kQueueCounters };

// A row in the queue: the one `behind` the first of `count` rows that were pushed together.
struct QueuedRow {
  unsigned row, behind, count;
};

// What a word has room for.
constexpr unsigned kRowsTogether = 16, kMostQueuedRows = (1u << 24) - 1;

// Never 0.
__device__ __forceinline__ unsigned word_of(const QueuedRow& q) {
  return (q.row + 1) << 8 | q.behind << 4 | (q.count - 1);
}
__device__ __forceinline__ QueuedRow queued_row(unsigned word) {
  return {(word >> 8) - 1, word >> 4 & 15u, (word & 15u) + 1};
}

// How many rows of a request are worth reading together. While more than `ahead` requests run, their rows keep the
// memory busy, and a row that is not needed costs time. With fewer, the memory would wait for decisions.
__host__ __device__ __forceinline__ unsigned rows_together(unsigned ahead, unsigned running, unsigned left) {
  const unsigned share = ahead / running, most = left < kRowsTogether ? left : kRowsTogether;
  return share < 1 ? 1 : share < most ? share : most;
}

// A part that a block took.
struct QueueItem {
  unsigned word;   // of its row; 0: none, all requests have ended
  unsigned part;
  unsigned place;  // of its row in `list`; kFromStart if it was never pushed
};

constexpr unsigned kFromStart = 0xffffffffu;

// By one thread.
__device__ __forceinline__ unsigned take_part(const QueueArguments& a) { return atomicAdd(a.counters + kTaken, 1u); }

__device__ __forceinline__ QueueItem wait_for_row(const QueueArguments& a, unsigned taken) {
  const unsigned requests = static_cast<unsigned>(a.p.batch()), rows = static_cast<unsigned>(a.p.places());
  const unsigned place = taken / a.parts, part = taken % a.parts, from_start = requests * a.first_rows;
  if (place < from_start) {
    const unsigned request = place / a.first_rows, behind = place % a.first_rows;
    return {word_of({request * rows + behind, behind, a.first_rows}), part, kFromStart};
  }
  const unsigned* at = a.list + (place - from_start);
  unsigned word;
  while ((word = load_acquire(at)) == 0)
    if (load_acquire(a.counters + kEnded) == requests) break;
  return {word, part, place - from_start};
}

// Rows that are to be pushed: `count` from `row` on, to `place` and those after it.
struct Push {
  unsigned row, count, place;
};

// By one thread: a place in the list for the rows from `node` on. What the block does next is to push them.
__device__ __forceinline__ Push place_for_rows(const QueueArguments& a, int64_t request, int32_t node,
                                               int32_t in_reach, int32_t status) {
  const unsigned running = static_cast<unsigned>(a.p.batch()) - load_acquire(a.counters + kEnded);
  const unsigned count = rows_together(a.ahead, running, static_cast<unsigned>(in_reach - node));
  put_word(a.statuses + request, static_cast<WideKey>(static_cast<uint32_t>(status)));
  return {static_cast<unsigned>(request * a.p.places() + node), count, atomicAdd(a.counters + kPushed, count)};
}

__device__ __forceinline__ void read_part(const QueueArguments& a, const QueueItem& item) {
  const QueuedRow queued = queued_row(item.word);
  const int64_t row = queued.row;
  const int32_t rows = a.p.places(), node = static_cast<int32_t>(row % rows);
  const ChainRequest r(a.p, row / rows);
  if (node < rows_in_reach(r)) {
    const RowPartial found =
        find_winner<true>(row_at(a.p.target, r.target_row(node)), r.target_law, r.race_noise(node, node),
                          {static_cast<int>(item.part), static_cast<int>(a.parts)});
    if (threadIdx.x == 0) store_partial(a.partials, row * a.parts + item.part, found);
  }
}

// By the last block to come of rows that were pushed together. Their places in the list are 0 again.
__device__ __forceinline__ void decide_rows(const QueueArguments& a, const QueueItem& item) {
  const QueuedRow queued = queued_row(item.word);
  const unsigned rows = static_cast<unsigned>(a.p.places());
  const int64_t request = queued.row / rows;
  const ChainRequest r(a.p, request);
  const int32_t in_reach = rows_in_reach(r);
  int32_t status = r.status;
  if (item.place != kFromStart) {
    if (threadIdx.x < queued.count) a.list[item.place - queued.behind + threadIdx.x] = 0;
    status |= static_cast<int32_t>(load_fresh(a.statuses + request));
  }
  const int32_t first = static_cast<int32_t>(queued.row % rows - queued.behind);
  const int32_t end = first + static_cast<int32_t>(queued.count);
  const WalkedOn on = walk_winners(r, request, {first, end < in_reach ? end : in_reach}, a.partials,
                                   static_cast<int>(a.parts), 0, status);
  SPECDEC_SHARED(Push, push, 1);
  if (threadIdx.x == 0) {
    Push found = {};
    if (on.node != kNoNode) found = place_for_rows(a, request, on.node, in_reach, on.status);
    else atomicAdd(a.counters + kEnded, 1u);
    push[0] = found;
  }
  __syncthreads();  // whoever sees a row in the list sees all that this block did before
  const Push next = push[0];
  const unsigned behind = threadIdx.x;
  if (behind < next.count)
    add_acquire_release(a.list + next.place + behind, word_of({next.row + behind, behind, next.count}));
}

static __global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    race_queue_kernel(const QueueArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(QueueItem, item, 1);  // read anew behind each barrier: so it takes no registers while a part is read
  unsigned taken = 0;
  if (threadIdx.x == 0) taken = take_part(a);
#pragma unroll 1
  for (;;) {
    if (threadIdx.x == 0) item[0] = wait_for_row(a, taken);
    __syncthreads();
    if (static_cast<QueueItem>(item[0]).word == 0) break;
    if (threadIdx.x == 0) taken = take_part(a);  // the answer comes while this part is read
    read_part(a, item[0]);
    const QueuedRow queued = queued_row(static_cast<QueueItem>(item[0]).word);
    unsigned* const ticket = a.tickets + queued.row / static_cast<unsigned>(a.p.places());
    if (last_to_come(ticket, queued.count * a.parts)) decide_rows(a, item[0]);
  }
  if (!last_to_come(a.counters + kLeft, gridDim.x)) return;
  if (threadIdx.x < kLeft) a.counters[threadIdx.x] = 0;
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Chunks that a warp has in a part of a row, at most. With one a row has the shortest latency. But each part costs a
// block a guess, six or seven barriers and a ticket. So where the first rows alone have more parts than blocks, parts
// are larger.
constexpr int64_t kChunksAPart = 4;

// Rows that are worth having in the queue together, as a multiple of those that fit the device at once in parts of one
// chunk.
constexpr unsigned kWavesAhead = 3;

struct QueuePlan {
  int threads;
  unsigned parts, first_rows, ahead;
  int64_t blocks, listed, tickets, words;
  bool fits(const Room& room) const { return tickets <= room.ticket_count && words <= room.word_count; }
};

// If there are too many rows for the words of the list, the plan has no blocks.
inline QueuePlan queue_plan(const Device& device, const ChainParams& p) {
  const int threads = threads_of_block(p.target.vocab, p.target.dtype);
  const int64_t chunk = int64_t{tokens_a_step(p.target.dtype)} * kVectors * (threads / 32);
  const int64_t slots = blocks_at_once(device), requests = p.batch(), rows = requests * p.places();
  const auto parts_of = [&](int64_t chunks) { return (p.target.vocab + chunks * chunk - 1) / (chunks * chunk); };
  int64_t chunks_a_part = 1;
  while (chunks_a_part < kChunksAPart && requests * parts_of(chunks_a_part) > slots) chunks_a_part *= 2;
  const int64_t parts = parts_of(chunks_a_part);
  QueuePlan plan = {};
  if (rows > kMostQueuedRows || rows * parts + slots > 0x7fffffff) return plan;
  plan.threads = threads;
  plan.parts = static_cast<unsigned>(parts);
  plan.ahead = static_cast<unsigned>(kWavesAhead * slots / parts_of(1));
  plan.first_rows = rows_together(plan.ahead, static_cast<unsigned>(requests), static_cast<unsigned>(p.places()));
  plan.blocks = rows * parts < slots ? rows * parts : slots;
  // Each block may take one part behind all rows, and look whether its row is there.
  plan.listed = rows - requests * plan.first_rows + (plan.blocks + parts - 1) / parts;
  plan.tickets = kQueueCounters + requests + plan.listed;
  plan.words = requests + rows * parts * kWordsAPartial;
  return plan;
}

inline cudaError_t launch_race_queue(const ChainParams& p, const QueuePlan& plan, const Room& room,
                                     cudaStream_t stream, int64_t* needed) {
  if (!plan.fits(room)) return *needed = room_needed(plan.tickets, plan.words), cudaSuccess;
  Shape shape = {plan.blocks, plan.threads};
  shape.dynamic_shared = bytes_of_winners(p);
  shape.overlaps = true;
  QueueArguments a = {};
  a.p = p;
  a.counters = room.tickets;
  a.tickets = a.counters + kQueueCounters;
  a.list = a.tickets + p.batch();
  a.statuses = room.words;
  a.partials = a.statuses + p.batch();
  a.parts = plan.parts, a.first_rows = plan.first_rows, a.ahead = plan.ahead;
  return launch(race_queue_kernel, shape, a, stream);
}

}  // namespace cuda
}  // namespace specdec
