// A team: the blocks that share one request. A member puts a word under an item, and after the next sync every member
// can get it. Items belong to the members in turn, and so do a member's warps: few items are spread over all blocks. Only
// the warp that owns an item may put it.
//
// The launch chooses the kind of team:
//
//   kBlock    one block; items in its shared memory
//   kCluster  a thread-block cluster (sm_90 and newer); items in its members' shared memory
//   kGrid     a software cluster: co-resident blocks of a cooperative launch, which wait at a counter; items in the
//             workspace
//
// There are two sets of items, used in turn. So a fast member can fill one while a slow member still reads the other.
#pragma once

#include "launch.cuh"

namespace specdec::cuda {

enum class TeamKind : int { kBlock, kCluster, kGrid };

struct TeamLayout {
  TeamKind kind;
  int size;            // blocks
  Quotient members;    // divides by `size`, unless kBlock
  int items;           // items of one set in a member's memory; kGrid: of the whole team
  unsigned* counters;  // kGrid: [teams]
  WideKey* words;      // kGrid: [teams, 2, items]
};

inline TeamLayout team_layout(TeamKind kind, int size, int items, unsigned* counters, WideKey* words) {
  TeamLayout team = {};
  team.kind = kind, team.size = size, team.members = quotient(size);
  team.items = items, team.counters = counters, team.words = words;
  return team;
}

// Items that a member of a team of `size` stores, of `items` in all.
inline int items_a_member(int items, int size) { return (items + size - 1) / size; }

struct Team {
  TeamLayout layout;
  unsigned phase = 0;          // syncs so far
  mutable bool wrote = false;  // this thread has put an item since the last sync

  __device__ explicit Team(const TeamLayout& of) : layout(of) {}
  // Opaque, so that neither takes a register for the whole kernel.
  __device__ int index() const {
    const int block = static_cast<int>(opaque(blockIdx.x));
    return layout.kind == TeamKind::kBlock ? block : layout.members.of(block);
  }
  __device__ int rank() const { return static_cast<int>(opaque(blockIdx.x)) - index() * layout.size; }
  __device__ int size() const { return layout.size; }
  // The first item that this warp owns. The next one is all warps of the team further.
  __device__ int first_item() const { return warp_id() * size() + rank(); }
  // The index of an item in its owner's memory.
  __device__ int item_index(int item) const { return layout.kind == TeamKind::kBlock ? item : layout.members.of(item); }

  __device__ void put(int item, WideKey word) const {
    if (layout.kind == TeamKind::kGrid) return put_word(words(phase) + item, word);
    wrote = true;
    set(phase)[item_index(item)] = word;
  }
  __device__ WideKey get(int item) const {
    if (layout.kind == TeamKind::kGrid) return load_fresh(words(phase - 1) + item);
    const int index = item_index(item);
    if (!in_cluster()) return set(phase - 1)[index];
    return peer(set(phase - 1), static_cast<unsigned>(item - index * size()))[index];
  }

  // Words that a member hands out by number: any of its threads may call.
  __device__ void bring(int number, WideKey word) const {
    if (layout.kind == TeamKind::kGrid) return put_word(words(phase) + number * layout.size + rank(), word);
    wrote = true;
    set(phase)[number] = word;
  }
  __device__ WideKey brought(int member, int number) const {
    if (layout.kind == TeamKind::kGrid) return load_fresh(words(phase - 1) + number * layout.size + member);
    return in_cluster() ? peer(set(phase - 1), static_cast<unsigned>(member))[number] : set(phase - 1)[number];
  }

  __device__ void sync() {
    ++phase;
    if (in_cluster()) {
      // A fence costs time. So a thread has one only if it put something, and thread 0 for what the block read: a
      // barrier of the block stands between these reads and the next sync.
      if (wrote || threadIdx.x == 0) fence_cluster();
      wrote = false;
      return sync_cluster();
    }
    __syncthreads();
    if (layout.kind == TeamKind::kBlock) return;
    if (threadIdx.x == 0) {
      add_acquire_release(counter(), 1u);
      while (load_acquire(counter()) < phase * static_cast<unsigned>(layout.size)) {
      }
    }
    __syncthreads();
  }

  __device__ void leave() const {
    if (layout.kind == TeamKind::kBlock) return;
    if (in_cluster()) {  // other members may still read this block's shared memory
      fence_cluster();
      return sync_cluster();
    }
    // The last member to leave sets the counter to zero. No member waits then, and none reads what another wrote: so
    // this needs no fence, which would wait for all writes of the block.
    const unsigned last = (phase + 1) * static_cast<unsigned>(layout.size) - 1;
    if (threadIdx.x == 0 && atomicAdd(counter(), 1u) == last) atomicAdd(counter(), 0u - (last + 1));
  }

 private:
  // Without clusters this is a constant, and their code is not compiled.
  __device__ bool in_cluster() const { return kHasClusters && layout.kind == TeamKind::kCluster; }
  __device__ unsigned* counter() const { return layout.counters + index(); }
  __device__ WideKey* words(unsigned which) const {
    return layout.words + (static_cast<int64_t>(index()) * 2 + (which & 1)) * layout.items;
  }
  __device__ Shared<WideKey> set(unsigned which) const {
    return dynamic_shared<WideKey>((which & 1) * layout.items * sizeof(WideKey), layout.items);
  }
};

// The distance between the words of an item of several words. A multiple of the team's size, so that one warp owns them
// all.
__host__ __device__ __forceinline__ int rounded_up(int items, int size) { return (items + size - 1) / size * size; }
__device__ __forceinline__ int word_stride(const Team& team, int items) { return rounded_up(items, team.size()); }

constexpr int kMemberWords = 32;  // words that a member mostly brings to a sum or a list

// The best of the members' results. Every member gets it.
__device__ __forceinline__ RowPartial best_of_team(Team& team, const RowPartial& mine) {
  if (team.size() == 1) return mine;
  if (threadIdx.x == 0) {
    team.bring(0, key_of_candidate(mine.best));
    team.bring(1, static_cast<uint32_t>(mine.status));
  }
  team.sync();
  return best_of_parts(team.size(), [&](int member, int k) { return team.brought(member, k); });
}

// Adds up `count` words of the members into `sums`, for every thread.
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

constexpr int kMostOfCluster = 8;  // blocks of a cluster on every device with clusters, at most

// Whether teams end together, after the same work, or one by one, which frees their multiprocessors soon.
enum class Ends { kTogether, kOneByOne };

// The blocks of a team, for requests that read `work` rows like `rows` at once: as many as the device holds. With few
// requests a team is a software cluster; all of its blocks run at the same time, since they wait for each other by
// spinning. With more requests it is a cluster, which starts when there is space. So where teams end one by one and the
// device would not be full, a team has one block more, and a few teams start late. With many requests a team is one
// block. Devices without clusters have software clusters only. SPECDEC_CUDA_TEAM is followed as far as the blocks can
// wait for each other.
inline TeamShape team_shape(const Device& device, int64_t requests, const Rows& rows, int work, Ends ends) {
  const int64_t resident_blocks = blocks_at_once(device), team_blocks = resident_blocks / requests;
  const int64_t useful = int64_t{work} * splits_of_row(device, 1, rows.vocab, rows.dtype);
  const int threads = threads_of_block(rows.vocab, rows.dtype);
  if (const RequestedTeam requested = requested_team(); requested.size > 0 && device.teams) {
    const bool grid = requested.grid || !device.clusters;
    const int64_t most = grid ? team_blocks : kMostOfCluster, fits = most < useful ? most : useful;
    const int size = static_cast<int>(requested.size < fits ? requested.size : fits);
    return size <= 1 ? TeamShape{threads, 1, false} : TeamShape{threads, size, grid};
  }
  const bool clusters = device.clusters && team_blocks < kMostOfCluster;
  const bool full = 11 * team_blocks * requests >= 10 * resident_blocks;
  const int64_t wanted = clusters && ends == Ends::kOneByOne && !full ? team_blocks + 1 : team_blocks;
  const int size = static_cast<int>(wanted < useful ? wanted : useful);
  if (size <= 1 || !device.teams) return {threads, 1, false};
  return {threads, size, !clusters};
}

// Words of `items` items of `words` words.
inline int words_of_items(const TeamShape& shape, int items, int words) {
  return words * rounded_up(items, shape.size);
}

// Items of a team whose members bring `words` words each.
inline int items_of_members(const TeamShape& shape, int words = kMemberWords) { return words * shape.size; }

// The memory of a launch of teams. `tickets` and `words` count the kernel's; those of the teams come after them.
struct TeamPlan {
  TeamShape shape;
  int64_t requests;
  int items;
  int64_t tickets, words;
  int64_t all_tickets() const { return tickets + (shape.grid ? requests : 0); }
  int64_t all_words() const { return words + (shape.grid ? requests * 2 * items : 0); }
  // Items of one set in a member's memory.
  int member_items() const { return shape.grid ? items : items_a_member(items, shape.size); }
  // Bytes of shared memory of a block for its team.
  size_t shared_bytes() const { return shape.grid ? 0 : 2 * sizeof(WideKey) * member_items(); }
  bool lacks(const Workspace& workspace) const { return workspace.lacks(all_tickets(), all_words()); }
  TeamLayout team(const Workspace& workspace) const {
    const TeamKind kind = shape.grid ? TeamKind::kGrid : shape.size > 1 ? TeamKind::kCluster : TeamKind::kBlock;
    return team_layout(kind, shape.size, member_items(), workspace.tickets + tickets, workspace.partials + words);
  }
};

inline TeamPlan team_plan(const TeamShape& shape, int64_t requests, int items, int64_t tickets, int64_t words) {
  const int least = items_of_members(shape, 2);  // best_of_team needs them
  TeamPlan plan = {};
  plan.shape = shape, plan.requests = requests, plan.items = items > least ? items : least;
  plan.tickets = tickets, plan.words = words;
  return plan;
}

// `shared`: bytes of dynamic shared memory: plan.shared_bytes(), then the kernel's.
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
