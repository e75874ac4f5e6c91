// A team: the blocks that share one request. A member puts a word under an item, and after the next sync every member
// can get it. The members own the items in turn, and so do a member's warps: so few items are spread over all blocks.
// Only the warp that owns an item may put it.
//
// What kind of team it is, is known at run time:
//
//   kBlock    one block; items in its shared memory
//   kCluster  a thread-block cluster (sm_90 and newer); items in its members' shared memory
//   kGrid     a software cluster: co-resident blocks of a cooperative launch, meeting at a counter; items in the
//             workspace
//
// There are two sets of items, used in turn. So a fast member can fill one while a slow member still reads the other.
#pragma once

#include "launch.cuh"

namespace specdec::cuda {

enum class TeamKind : int { kBlock, kCluster, kGrid };

struct TeamRoom {
  TeamKind kind;
  int size;            // blocks a team
  Quotient members;    // unless kBlock
  int items;           // of one set that a member has room for; kGrid: that all members have
  unsigned* counters;  // kGrid: one a team
  WideKey* words;      // kGrid: 2 * items a team
};

inline TeamRoom team_room(TeamKind kind, int size, int items, unsigned* counters, WideKey* words) {
  return {kind, size, quotient(size), items, counters, words};
}

// The places that a member of a team of `size` needs for `items` of the team.
inline int own_slots(int items, int size) { return (items + size - 1) / size; }

struct Team {
  TeamRoom room;
  unsigned phase = 0;          // how often its members met
  mutable bool wrote = false;  // whether this thread put an item since then

  __device__ explicit Team(const TeamRoom& of) : room(of) {}
  // Opaque, so that neither takes a register for the whole kernel.
  __device__ int index() const {
    const int block = static_cast<int>(opaque(blockIdx.x));
    return room.kind == TeamKind::kBlock ? block : room.members.of(block);
  }
  __device__ int rank() const { return static_cast<int>(opaque(blockIdx.x)) - index() * room.size; }
  __device__ int size() const { return room.size; }
  // The first item that this warp owns. The next one is all warps of the team further.
  __device__ int first_item() const { return warp_id() * size() + rank(); }
  // Where its owner keeps an item.
  __device__ int own_slot(int item) const { return room.kind == TeamKind::kBlock ? item : room.members.of(item); }

  __device__ void put(int item, WideKey word) const {
    if (room.kind == TeamKind::kGrid) return put_word(words(phase) + item, word);
    wrote = true;
    set(phase)[own_slot(item)] = word;
  }
  __device__ WideKey get(int item) const {
    if (room.kind == TeamKind::kGrid) return load_fresh(words(phase - 1) + item);
    const int slot = own_slot(item);
    if (!in_cluster()) return set(phase - 1)[slot];
    return peer(set(phase - 1), static_cast<unsigned>(item - slot * size()))[slot];
  }

  // Words that each member brings, by number: any of its threads may.
  __device__ void bring(int number, WideKey word) const {
    if (room.kind == TeamKind::kGrid) return put_word(words(phase) + number * room.size + rank(), word);
    wrote = true;
    set(phase)[number] = word;
  }
  __device__ WideKey brought(int member, int number) const {
    if (room.kind == TeamKind::kGrid) return load_fresh(words(phase - 1) + number * room.size + member);
    return in_cluster() ? peer(set(phase - 1), static_cast<unsigned>(member))[number] : set(phase - 1)[number];
  }

  __device__ void sync() {
    ++phase;
    if (in_cluster()) {
      // A fence costs time, so only those have one who put something, and one thread for what the block read: a barrier
      // of the block stands between these reads and the next sync.
      if (wrote || threadIdx.x == 0) fence_cluster();
      wrote = false;
      return sync_cluster();
    }
    __syncthreads();
    if (room.kind == TeamKind::kBlock) return;
    if (threadIdx.x == 0) {
      add_acquire_release(counter(), 1u);
      while (load_acquire(counter()) < phase * static_cast<unsigned>(room.size)) {
      }
    }
    __syncthreads();
  }

  __device__ void leave() const {
    if (room.kind == TeamKind::kBlock) return;
    if (in_cluster()) {  // other members may still read this block's shared memory
      fence_cluster();
      return sync_cluster();
    }
    // The last member to leave sets the counter to zero. Nobody can be waiting then, and nobody reads what another one
    // wrote: so this needs no fence, which would wait for all that the block has written.
    const unsigned last = (phase + 1) * static_cast<unsigned>(room.size) - 1;
    if (threadIdx.x == 0 && atomicAdd(counter(), 1u) == last) atomicAdd(counter(), 0u - (last + 1));
  }

 private:
  // A constant where there are none: their code is not compiled.
  __device__ bool in_cluster() const { return kHasClusters && room.kind == TeamKind::kCluster; }
  __device__ unsigned* counter() const { return room.counters + index(); }
  __device__ WideKey* words(unsigned which) const {
    return room.words + (static_cast<int64_t>(index()) * 2 + (which & 1)) * room.items;
  }
  __device__ Shared<WideKey> set(unsigned which) const {
    return dynamic_shared<WideKey>((which & 1) * room.items * sizeof(WideKey), room.items);
  }
};

// Items of several words: how far the words of an item lie apart. A multiple of the team's size, so that who owns the
// first word owns all of them.
__host__ __device__ __forceinline__ int rounded_up(int items, int size) { return (items + size - 1) / size * size; }
__device__ __forceinline__ int word_stride(const Team& team, int items) { return rounded_up(items, team.size()); }

constexpr int kMemberWords = 32;  // that a member brings to a sum or a list, mostly

// The best of the members' parts. Every member gets it.
__device__ __forceinline__ RowPartial best_of_team(Team& team, const RowPartial& mine) {
  if (team.size() == 1) return mine;
  if (threadIdx.x == 0) {
    team.bring(0, key_of_candidate(mine.best));
    team.bring(1, static_cast<uint32_t>(mine.status));
  }
  team.sync();
  return best_of_parts(team.size(), [&](int member, int k) { return team.brought(member, k); });
}

// Adds up `count` words that the members brought, into `sums`, for every thread.
__device__ __forceinline__ void sum_members(Team& team, int count, const Shared<WideKey>& sums) {
  team.sync();
#pragma unroll 1
  for (int number = warp_id(); number < count; number += warps_in_block()) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int member = lane_id(); member < team.size(); member += 32) sum += team.brought(member, number);
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[number] = sum;
  }
  __syncthreads();
}

// Adds up x over the team, for every thread.
template <int N>
__device__ __forceinline__ void team_sums(Team& team, uint64_t (&x)[N]) {
  static_assert(N <= kMemberWords, "room for so many");
  SPECDEC_SHARED(WideKey, sums, N);
  block_sums(x);
  if (team.size() == 1) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (threadIdx.x == 0) team.bring(i, x[i]);
  sum_members(team, N, sums);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = static_cast<WideKey>(sums[i]);
  __syncthreads();
}

// ---- launching ------------------------------------------------------------------------------------------------------

struct TeamShape {
  int threads;
  int size;
  bool grid;  // a software cluster
};

constexpr int kMostOfCluster = 8;  // blocks that a cluster may have on every device with clusters

// When the teams of a launch end: all after the same work, or one by one, so that their slots are free soon.
enum class Ends { kTogether, kOneByOne };

// The blocks of a team, for requests that have `work` rows like `rows` to read at once: as many as have room. With few
// requests that is a software cluster; all of them run at the same time, because its blocks wait for each other by
// spinning. With more it is a cluster, which starts when it has room. So where teams end one by one, and the device
// would not be full, a team has one block more and a few teams start late. With many requests a team is one block.
// Devices without clusters have software clusters only. A shape that is asked for by the environment is taken as far as
// its blocks can wait for each other.
inline TeamShape team_shape(const Device& device, int64_t requests, const Rows& rows, int work, Ends ends) {
  const int64_t slots = blocks_at_once(device), share = slots / requests;
  const int64_t useful = int64_t{work} * splits_of_row(device, 1, rows.vocab, rows.dtype);
  const int threads = threads_of_block(rows.vocab, rows.dtype);
  if (const AskedTeam asked = asked_team(); asked.size > 0 && device.teams) {
    const bool grid = asked.grid || !device.clusters;
    const int64_t most = grid ? share : kMostOfCluster, fits = most < useful ? most : useful;
    const int size = static_cast<int>(asked.size < fits ? asked.size : fits);
    return size <= 1 ? TeamShape{threads, 1, false} : TeamShape{threads, size, grid};
  }
  const bool clusters = device.clusters && share < kMostOfCluster;
  const bool full = 11 * share * requests >= 10 * slots;
  const int64_t wanted = clusters && ends == Ends::kOneByOne && !full ? share + 1 : share;
  const int size = static_cast<int>(wanted < useful ? wanted : useful);
  if (size <= 1 || !device.teams) return {threads, 1, false};
  return {threads, size, !clusters};
}

// The places that `items` of so many words take.
inline int places_of(const TeamShape& shape, int items, int words) {
  return words * rounded_up(items, shape.size);
}

// The items of a team whose members bring so many words each.
inline int items_of_members(const TeamShape& shape, int words = kMemberWords) { return words * shape.size; }

// What the teams of a launch share. `tickets` and `words` count the kernel's own; those of the teams come after them.
struct TeamPlan {
  TeamShape shape;
  int64_t requests;
  int items;
  int64_t tickets, words;
  int64_t all_tickets() const { return tickets + (shape.grid ? requests : 0); }
  int64_t all_words() const { return words + (shape.grid ? requests * 2 * items : 0); }
  // Items of one set that a member keeps.
  int kept() const { return shape.grid ? items : own_slots(items, shape.size); }
  // The shared memory that a block needs for its team.
  size_t shared_bytes() const { return shape.grid ? 0 : 2 * sizeof(WideKey) * kept(); }
  bool lacks(const Room& room) const { return room.lacks(all_tickets(), all_words()); }
  TeamRoom team(const Room& room) const {
    const TeamKind kind = shape.grid ? TeamKind::kGrid : shape.size > 1 ? TeamKind::kCluster : TeamKind::kBlock;
    return team_room(kind, shape.size, kept(), room.tickets + tickets, room.words + words);
  }
};

inline TeamPlan team_plan(const TeamShape& shape, int64_t requests, int items, int64_t tickets, int64_t words) {
  const int least = items_of_members(shape, 2);  // of best_of_team
  return {shape, requests, items > least ? items : least, tickets, words};
}

// `shared`: bytes of dynamic shared memory, plan.shared_bytes() and what the kernel keeps after them.
template <class Arguments>
cudaError_t launch_teams(void (*kernel)(Arguments), const TeamPlan& plan, const Device& device, const Arguments& a,
                         size_t shared) {
  Shape shape = {plan.requests * plan.shape.size, plan.shape.threads};
  shape.dynamic_shared = shared;
  shape.overlaps = true;
  if (shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  shape.cooperative = plan.shape.grid;
  if (plan.shape.grid) shape.multiprocessors = device.multiprocessors;
  else shape.cluster = plan.shape.size;
  return launch(kernel, shape, a, device.stream);
}

}  // namespace specdec::cuda
