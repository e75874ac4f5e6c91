// race_topk: the first k arrivals of a row, in order. A warp has its best 32 keys, one a lane. With a larger k the row
// is read again for the next 32. Each block writes the list of its part, and the last block of a row merges the lists.
#include "../rows/filtered_row.cuh"
#include "../team/topk.cuh"
#include "specdec/c/races.h"

namespace specdec::cuda {

namespace {

// The exact key of one column; of a mapped row 0 if it cannot beat `to_beat`.
template <class Support>
__device__ __forceinline__ WideKey key_of(const RaceRequestOf<typename Support::RowType>& r,
                                          const WeightsOf<Support>& weights, const Group& group, float raw,
                                          int32_t column, float to_beat) {
  if (r.law.greedy) {
    const float rank = r.law.rank(raw);
    return rank == -kInfinity ? 0 : key_of_candidate({rank, column});
  }
  if (r.map.tokens) return key_of_candidate(mapped_candidate(r, weights, raw, column, to_beat));
  const float log_weight = weights.log_weight(raw, column);
  if (log_weight == -kInfinity) return 0;
  const float arrives = arrival(opaque(r.noise), group, static_cast<uint32_t>(r.row.vocab_start + column));
  return key_of_candidate({race_score(log_weight, arrives), column});
}

// The key of the token of the lane's group that arrives first, in a chunk of `groups` groups.
template <class Support>
__device__ __forceinline__ WideKey key_of_first_arrival(const RaceRequestOf<typename Support::RowType>& r,
                                                        const WeightsOf<Support>& weights, int32_t first, int groups) {
  const LaneNoise words = lane_noise(r.noise, r.row, first);
  const int32_t column = first + lane_id() * kGroup + first_winner(words.b);
  if (lane_id() >= groups || column < 0 || column >= r.row.vocab) return 0;
  const float log_weight = weights.log_weight(element(r.row, column), column);
  return log_weight == -kInfinity
             ? 0
             : key_of_candidate({race_score(log_weight, first_arrival(words.a, words.b)), column});
}

// The words of the lane's group in a chunk, and the key (specdec/law.h) that its elements need to enter the list.
template <class Support>
__device__ __forceinline__ LaneGroup group_of_lane(const RaceRequestOf<typename Support::RowType>& r,
                                                   const WeightsOf<Support>& weights, int32_t first, float to_beat) {
  const float least = weights.needed_key(-kInfinity);
  if (r.law.greedy) return {{}, max(to_beat, least)};  // keys are elements
  if (r.map.tokens) return {{}, least};                // each token has a group
  const LaneNoise words = lane_noise(r.noise, r.row, first);
  return {words, key_to_win(weights, words.a, to_beat)};
}

// The arrivals of this warp's chunks of a row. Returns whether a value of this thread is impossible in a law.
template <class Support>
__device__ __forceinline__ bool fill_topk(const RaceRequestOf<typename Support::RowType>& r, Part part,
                                          const Support& support, const Shared<unsigned>& best, TopK* topk) {
  const WeightsOf<Support> weights = weights_of_row(r.row, r.law, support);
  bool bad = false;
  with_type(r.row, [&](auto type) {
    using T = decltype(type);
    over_chunks<T>(
        r.row, part,
        [&](int32_t first, int steps, bool any) {
          if (!any || r.law.greedy || r.map.tokens) return;
          // The first arrivals of the warp's groups are that many candidates, so a token must beat the worst of them.
          prefetch<T>(r.row, first, steps);
          TopK guess = {0, topk->size, topk->below};
          guess.offer(key_of_first_arrival(r, weights, first, steps * Batch<T>::kGroupsAStep));
          const unsigned score = ordered(guess.to_beat());
          if (lane_id() == 0) atomicMax(&best[0], score);
        },
        [&](const Batch<T>& batch, int32_t first, int steps) {
          const float to_beat = max(topk->to_beat(), from_ordered(read_atomic(best)));
          const LaneGroup lane = group_of_lane(r, weights, first, to_beat);
          unsigned open = vectors_to_open<T>(largest_of(r.law, batch, steps), weights, first, steps, lane.needed, &bad);
#pragma unroll 1
          while (__any_sync(kWarp, open != 0)) {
            const int step = open ? __ffs(static_cast<int>(open)) - 1 : 0;
            const LaneGroup group_key = lane.template of_vector<T>(step);
            const int32_t column = Batch<T>::token(first, step);
            uint4 values = {};
            unsigned left = 0;
            Group group = {};
            if (open) {
              values = Batch<T>::load_again(r.row, column);
              left = elements_to_open<T>(r.law, values, group_key.needed);
              group = group_of(static_cast<uint32_t>(r.row.vocab_start + column) / kGroup, group_key.words.a,
                               group_key.words.b);
            }
            open &= open - 1;
#pragma unroll 1
            while (__any_sync(kWarp, left != 0)) {
              const int i = left ? __ffs(static_cast<int>(left)) - 1 : 0;
              WideKey key = 0;
              if (left) key = key_of(r, weights, group, T::at(values, i), column + i, to_beat);
              left &= left - 1;
              topk->offer(key);
            }
          }
          const unsigned score = ordered(topk->to_beat());
          if (lane_id() == 0) atomicMax(&best[0], score);
        });
  });
  return bad;
}

struct RaceTopkArguments {
  RaceParams p;
  WideKey* lists;  // [rows, splits, k]
  WideKey* flags;  // [rows, splits]: the part has a value that is impossible in a law
  unsigned* tickets;
  int splits;
};

template <class R>
__device__ __forceinline__ void store_arrival(const RaceTopkArguments& a, const RaceRequestOf<R>& r, int64_t index,
                                              int32_t at, WideKey key) {
  arrivals_at(a.p, index).put(at, r.token_of(candidate_of_key(key)));
}

// Called by one thread. `first` is the row's first arrival.
template <class R>
__device__ __forceinline__ void store_status(const RaceTopkArguments& a, const RaceRequestOf<R>& r, int64_t index,
                                             bool bad, WideKey first) {
  const int32_t status = r.status | (bad ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK);
  if (a.p.status.data)
    a.p.status.data[index] = arrivals_at(a.p, index).status_of(candidate_of_key(first), status);
}

// Writes the result of a row that is not read.
template <class R>
__device__ __forceinline__ void store_no_arrivals(const RaceTopkArguments& a, const RaceRequestOf<R>& r, int64_t index,
                                                  int rank) {
  const int32_t k = a.p.k();
  if (rank > 0) return;
  over_block(k, [&](int32_t at) { arrivals_at(a.p, index).put_unread(at, r.entry.token()); });
  if (threadIdx.x == 0 && a.p.status.data) a.p.status.data[index] = r.status;
}

// Computes the arrivals of part `rank` of a row; the last block merges those of all parts. All threads of a block call.
template <class Support>
__device__ __forceinline__ void take_arrivals(const RaceTopkArguments& a,
                                              const RaceRequestOf<typename Support::RowType>& r, int64_t index,
                                              int rank, const Support& support) {
  SPECDEC_SHARED(unsigned, best, 1);
  const int32_t k = a.p.k();
  WideKey *const lists = a.lists + index * a.splits * k, *const flags = a.flags + index * a.splits;
  bool bad = false;
  take_best(
      k,
      [&](int32_t, TopK* topk) {
        if (threadIdx.x == 0) best[0] = ordered(-kInfinity);
        __syncthreads();
        bad |= fill_topk(r, {rank, a.splits}, support, best, topk);
      },
      [&](int32_t position, WideKey key) { put_word(lists + int64_t{rank} * k + position, key); });
  bad = __syncthreads_or(bad);
  if (threadIdx.x == 0) put_word(flags + rank, static_cast<WideKey>(bad));
  __syncthreads();  // a row with one block reads what it wrote
  if (!is_last_block(a.tickets + index, static_cast<unsigned>(a.splits))) return;
  bad = false;
  for (int i = lane_id(); i < a.splits; i += 32) bad |= load_fresh(flags + i) != 0;
  bad = __any_sync(kWarp, bad);
  take_best(
      k, [&](int32_t, TopK* topk) { topk->offer_all(lists, a.splits * k); },
      [&](int32_t position, WideKey key) {
        store_arrival(a, r, index, position, key);
        if (position == 0) store_status(a, r, index, bad, key);
      });
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) race_topk_kernel(const RaceTopkArguments a) {
  wait_for_kernel_before();
  const int64_t index = blockIdx.x / a.splits;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const RaceRequest r = race_request(a.p, index);
  if (r.entry.live()) take_arrivals(a, r, index, rank, Unfiltered{});
  else store_no_arrivals(a, r, index, rank);
}

// With filters or edits a team computes the support. Then its blocks share the row as above.
struct ShapedTopkArguments {
  RaceTopkArguments race;
  TeamLayout team;
  CutMemory cut;
};

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_topk_kernel(const ShapedTopkArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  Team team(a.team);
  const int64_t index = team.index();
  RaceRequestOf<EditedRow> r = shaped_request(a.race.p, index, {edits, a.race.p.edits.on()});
  Filtered support;
  if (r.entry.live()) {
    const Filter filter = race_filter(a.race.p, index, &r);
    if (filter.on()) support = load_filtered_row(team, whole_row(r.row), r.law, filter, a.cut).support;
  }
  team.leave();
  if (r.entry.live()) take_arrivals(a.race, r, index, team.rank(), support);
  else store_no_arrivals(a.race, r, index, team.rank());
}

cudaError_t shaped_topk(const RaceParams& p, const Device& device) {
  const int64_t rows = p.count(), most = most_lists(rows, p.k());
  TeamShape shape = shaped_team(device, rows, p.rows);
  if (shape.size > most) shape = {shape.threads, static_cast<int>(most), shape.grid && most > 1};
  const int64_t lists = rows * shape.size * p.k(), flags = rows * shape.size;
  const ShapedPlan plan = shaped_plan(device, shape, rows, p.rows.vocab, rows, lists + flags);
  const Workspace& workspace = device.workspace;
  if (plan.team.lacks(workspace)) return cudaSuccess;
  ShapedTopkArguments a = {{}, plan.team.team(workspace), plan.cut};
  a.race.p = p, a.race.splits = shape.size, a.race.tickets = workspace.tickets;
  a.race.lists = workspace.partials, a.race.flags = workspace.partials + lists;
  return launch_teams(shaped_topk_kernel, plan.team, device, a, plan.shared_bytes);
}

cudaError_t plain_topk(const RaceParams& p, const Device& device) {
  const int64_t rows = p.count();
  const int32_t k = p.k();
  const int64_t most = most_lists(rows, k);
  int64_t splits = splits_of_row(device, rows, p.rows.vocab, p.rows.dtype);
  if (splits > most) splits = most;
  const Workspace& workspace = device.workspace;
  if (workspace.lacks(rows, rows * splits * (k + 1))) return cudaSuccess;
  Shape shape = {rows * splits, threads_of_block(p.rows.vocab, p.rows.dtype)};
  shape.overlaps = true;
  RaceTopkArguments a = {};
  a.p = p, a.splits = static_cast<int>(splits), a.tickets = workspace.tickets;
  a.lists = workspace.partials, a.flags = workspace.partials + rows * splits * k;
  return launch(race_topk_kernel, shape, a, device.stream);
}

}  // namespace

cudaError_t race_topk(const RaceParams& p, const Call& call) {
  static const Kernels kernels(race_topk_kernel, shaped_topk_kernel);
  return on_device(call, p.count() * p.k(), kernels, [&](const Device& device) {
    return p.edits.on() || p.law.rules & SPECDEC_FILTERED ? shaped_topk(p, device) : plain_topk(p, device);
  });
}

}  // namespace specdec::cuda
