// race_topk: the first k arrivals of a row, in order. A warp keeps its best 32 keys, one a lane. If k is more, the row
// is read again for the next 32. Each block writes the list of its part, and the last block of a row merges the lists.
#include "launch.cuh"
#include "race_request.cuh"

namespace specdec {
namespace cuda {

namespace {

constexpr WideKey kCeiling = ~WideKey{0};

// The best keys of a warp in falling order. Lane i holds the i-th; 0 is nobody.
struct Podium {
  WideKey place = 0;
  int size;            // places that count, at most 32
  WideKey below;       // this key and larger ones were taken by an earlier podium

  __device__ WideKey last() const { return __shfl_sync(kWarp, place, size - 1); }
  __device__ float to_beat() const { return candidate_of_key(last()).score; }

  // Every lane offers a key, or 0.
  __device__ void offer(WideKey key) {
    if (key >= below) key = 0;
    for (;;) {
      const unsigned better = __ballot_sync(kWarp, key > last());
      if (!better) return;
      const int from = __ffs(static_cast<int>(better)) - 1;
      const WideKey enters = __shfl_sync(kWarp, key, from);
      if (lane_id() == from) key = 0;
      const int at = __popc(__ballot_sync(kWarp, place > enters));
      const WideKey above = __shfl_up_sync(kWarp, place, 1u);
      if (lane_id() == at) place = enters;
      else if (lane_id() > at) place = above;
    }
  }
};

// The key of one column, exactly; 0 if it cannot beat `to_beat`.
__device__ __forceinline__ WideKey key_of(const RaceRequest& r, const Weights& weights, const Group& group, float raw,
                                          int32_t column, float to_beat) {
  if (r.law.greedy) {
    const float rank = r.law.rank(raw);
    return rank == -kInfinity ? 0 : key_of_candidate({rank, column});
  }
  if (r.map.tokens) return key_of_candidate(mapped_candidate(r, weights, column, to_beat));
  const float log_weight = weights.log_weight(raw, column, needed_log_weight(to_beat, group.first));
  if (log_weight == -kInfinity) return 0;
  const float arrives = arrival(opaque(r.noise), group, static_cast<uint32_t>(r.row.first_token + column));
  return key_of_candidate({race_score(log_weight, arrives), column});
}

// The lane's vectors that hold an element no smaller than `to_beat`, as bits: temperature 0.
template <class T>
__device__ __forceinline__ unsigned vectors_as_large(const Batch<T>& batch, const RaceRequest& r, int32_t first,
                                                     int steps, float to_beat, bool* bad) {
  unsigned open = 0;
  float top = -kInfinity;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const float largest = T::largest(batch.vector[u]);
    top = max_nan(top, largest);
    if (u < steps && !(largest < to_beat)) open |= 1u << u;
  }
  *bad |= bad_elements(r.row, r.law, batch, top, first, steps);
  return open;
}

// The arrivals of this warp's chunks of a row. Returns whether this thread met a value that is impossible in a law.
__device__ __forceinline__ bool fill_podium(const RaceRequest& r, Part part, const Shared<unsigned>& best,
                                            Podium* podium) {
  const Weights weights = weights_of_row(r.row, r.law);
  bool bad = false;
  with_type(r.row.dtype, [&](auto type) {
    using T = decltype(type);
    over_chunks<T>(
        r.row, part,
        [&](int32_t first, int steps, bool any) {
          if (!any || r.law.greedy || r.map.tokens) return;
          // The first arrivals of the warp's groups are that many candidates, so a token must beat the worst of them.
          Candidate mine = kNobody;
          prefetch<T>(r.row, first, steps);
          offer_first_arrival(weights, first, steps * Batch<T>::kGroupsAStep, lane_noise(r.noise, r.row, first), &mine);
          Podium guess = {0, podium->size, podium->below};
          guess.offer(key_of_candidate(mine));
          const unsigned score = ordered(guess.to_beat());
          if (lane_id() == 0) atomicMax(&best[0], score);
        },
        [&](const Batch<T>& batch, int32_t first, int steps) {
          const float to_beat = max(podium->to_beat(), from_ordered(load_relaxed(best)));
          unsigned open = r.law.greedy   ? vectors_as_large(batch, r, first, steps, to_beat, &bad)
                          : r.map.tokens ? vectors_with_weight(batch, weights, first, steps, &bad)
                                         : vectors_to_open(batch, weights, first, steps,
                                                           lane_noise(r.noise, r.row, first), to_beat, &bad);
#pragma unroll 1
          while (__any_sync(kWarp, open != 0)) {
            const bool mine = open != 0;
            const int32_t column = Batch<T>::token(first, mine ? __ffs(static_cast<int>(open)) - 1 : 0);
            open &= open - 1;
            Group group = {};
            if (mine && !r.law.greedy && !r.map.tokens)
              group = group_at(opaque(r.noise), static_cast<uint32_t>(r.row.first_token + column) / kGroup);
#pragma unroll 1
            for (int i = 0; i < T::kPerVector; ++i) {
              WideKey key = 0;
              const bool inside = column + i >= 0 && column + i < r.row.vocab;
              // Read again from the cache: the batch would take 27 more registers in this loop.
              if (mine && inside)
                key = key_of(r, weights, group, element(r.row, column + i), column + i, to_beat);
              podium->offer(key);
            }
          }
          const unsigned score = ordered(podium->to_beat());
          if (lane_id() == 0) atomicMax(&best[0], score);
        });
  });
  return bad;
}

// The best of the block's warps, for warp 0. Returns to every thread whether any thread's `bad` is set.
__device__ __forceinline__ bool merge_podiums(Podium* podium, bool bad) {
  SPECDEC_SHARED(WideKey, places, kThreads);
  places[threadIdx.x] = podium->place;
  bad = __syncthreads_or(bad);
  if (warp_id() == 0)
    for (int w = 1; w < warps_in_block(); ++w) podium->offer(places[w * 32 + lane_id()]);
  __syncthreads();
  return bad;
}

struct RaceTopkArguments {
  RaceParams p;
  WideKey* lists;  // [rows, splits, k]
  WideKey* flags;  // [rows, splits]: whether the part has a value that is impossible in a law
  unsigned* tickets;
  int splits;
};

__device__ __forceinline__ void store_arrival(const RaceTopkArguments& a, const RaceRequest& r, int64_t index,
                                              int32_t at, WideKey key) {
  const int32_t token = r.token_of(candidate_of_key(key)).token;
  a.p.tokens.data[index * a.p.k() + at] = token == kNoToken ? -1 : token;
}

// Called by one thread. `first` is the row's first arrival.
__device__ __forceinline__ void store_status(const RaceTopkArguments& a, const RaceRequest& r, int64_t index, bool bad,
                                             WideKey first) {
  RowPartial found = kNoPart;
  found.best = candidate_of_key(first);
  if (bad) found.status |= kStatusNonFinite;
  if (a.p.status.data) a.p.status.data[index] = draw_of(r, found).status;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) race_topk_kernel(const RaceTopkArguments a) {
  SPECDEC_SHARED(unsigned, best, 1);
  SPECDEC_SHARED(WideKey, lowest, 1);
  const int64_t index = blockIdx.x / a.splits;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const int32_t k = a.p.k();
  const RaceRequest r = race_request(a.p, index);
  if (!r.who.live()) {
    if (rank > 0) return;
    for (int32_t at = static_cast<int32_t>(threadIdx.x); at < k; at += static_cast<int32_t>(blockDim.x))
      a.p.tokens.data[index * k + at] = at == 0 ? r.who.token() : -1;
    if (threadIdx.x == 0 && a.p.status.data) a.p.status.data[index] = r.status;
    return;
  }
  WideKey* lists = a.lists + index * a.splits * k;
  WideKey* flags = a.flags + index * a.splits;

  WideKey below = kCeiling;
#pragma unroll 1
  for (int32_t from = 0; from < k; from += 32) {
    Podium podium = {0, k - from < 32 ? k - from : 32, below};
    if (threadIdx.x == 0) best[0] = ordered(-kInfinity);
    __syncthreads();
    const bool bad = below ? fill_podium(r, {rank, a.splits}, best, &podium) : false;
    const bool any_bad = merge_podiums(&podium, bad);
    if (threadIdx.x < podium.size) {
      if (a.splits == 1) store_arrival(a, r, index, from + lane_id(), podium.place);
      else lists[static_cast<int64_t>(rank) * k + from + lane_id()] = podium.place;
    }
    if (from == 0 && threadIdx.x == 0) {
      if (a.splits == 1) store_status(a, r, index, any_bad, podium.place);
      else flags[rank] = any_bad;
    }
    if (threadIdx.x == podium.size - 1) lowest[0] = podium.place;
    __syncthreads();
    below = lowest[0];
  }
  if (a.splits == 1 || !last_to_come(a.tickets + index, static_cast<unsigned>(a.splits)) || warp_id() != 0) return;

  below = kCeiling;
  bool bad = false;
  for (int i = lane_id(); i < a.splits; i += 32) bad |= load_fresh(flags + i) != 0;
  bad = __any_sync(kWarp, bad);
#pragma unroll 1
  for (int32_t from = 0; from < k; from += 32) {
    Podium podium = {0, k - from < 32 ? k - from : 32, below};
    const int count = a.splits * k;
    for (int i = 0; i < count; i += 32) podium.offer(i + lane_id() < count ? load_fresh(lists + i + lane_id()) : 0);
    if (lane_id() < podium.size) store_arrival(a, r, index, from + lane_id(), podium.place);
    if (from == 0 && lane_id() == 0) store_status(a, r, index, bad, podium.place);
    below = podium.last();
  }
}

}  // namespace

cudaError_t race_topk(const RaceParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  const int64_t rows = p.count();
  const int32_t k = p.k();
  if (rows == 0 || k == 0) return cudaSuccess;
  Device device;
  const cudaError_t e = this_device(&device);
  if (e != cudaSuccess) return e;
  // Each split has a list of k, so the number of splits is limited to keep the lists short.
  constexpr int64_t kLists = 16 << 10;
  int64_t splits = splits_of_row(device, rows, p.rows.vocab, p.rows.dtype);
  if (splits > kLists / (rows * k)) splits = kLists / (rows * k) > 1 ? kLists / (rows * k) : 1;
  const Room room = room_in(workspace);
  const int64_t words = rows * splits * (k + 1);
  if (splits > 1 && (rows > room.ticket_count || words > room.word_count))
    return *needed = room_needed(rows, words), cudaSuccess;
  const Shape shape = {rows * splits, threads_of_block(p.rows.vocab, p.rows.dtype)};
  const RaceTopkArguments a = {p, room.words, room.words + rows * splits * k, room.tickets, static_cast<int>(splits)};
  return launch(race_topk_kernel, shape, a, stream);
}

}  // namespace cuda
}  // namespace specdec
