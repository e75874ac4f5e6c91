// residual_sums: grid = pairs x splits; the last block of a pair adds up what the others found.
#include "launch.cuh"
#include "law_sums.cuh"
#include "scan.cuh"
#include "specdec/request.h"

namespace specdec {
namespace cuda {

namespace {

struct ResidualSumsArguments {
  ResidualSumsParams p;
  Room room;
  int splits;
};

// The blocks of a pair. None waits for another.
struct Splits {
  int own, all;
  __device__ int rank() const { return own; }
  __device__ int size() const { return all; }
};

struct PairSums {
  WideKey left, drafted;
};

constexpr int kWordsAPair = 2;

// The row at a place among all rows.
__device__ __forceinline__ LawRow known_part(const Rows& rows, int32_t place, const LawParams& law, int64_t pair,
                                             const float* known, int32_t* status) {
  const Row row = row_at(rows, rows.offset_of(place));
  const Logits space = law_at(law, pair, 0, status).logits();
  return {row, {{Space::kLogits, space.inverse, false}, {known[0], known[1]}, kNoToken}};
}

// Every lane of the first warp gets the sums of the block.
__device__ __forceinline__ PairSums sums_of_block(const TwoUnitSums& mine) {
  SPECDEC_SHARED(WideKey, words, kWordsAPair * kMaxWarps);
  const uint64_t left = warp_sum(mine.units_a), drafted = warp_sum(mine.units_b);
  if (lane_id() == 0) words[kWordsAPair * warp_id()] = left, words[kWordsAPair * warp_id() + 1] = drafted;
  __syncthreads();
  PairSums all = {0, 0};
  for (int w = 0; w < warps_in_block(); ++w) all.left += words[kWordsAPair * w], all.drafted += words[kWordsAPair * w + 1];
  return all;
}

// Calls take(p, q) for this warp's chunks of two rows of one type. What lies outside of the rows is -inf.
template <class T, class Take>
__device__ __forceinline__ void over_both(const LawRow (&sides)[2], const Splits& splits, Take&& take,
                                          TwoUnitSums* sums) {
  const Logits target_space = sides[0].known.law.logits(), draft_space = sides[1].known.law.logits();
  over_chunks<T>(
      sides[0].row, {splits.own, splits.all}, [](int32_t, int, bool) {},
      [&](const Batch<T>& target, int32_t first, int steps) {
        Batch<T> draft;
        draft.load(sides[1].row, first, steps);
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
          if (u >= steps) continue;
#pragma unroll
          for (int i = 0; i < T::kPerVector; ++i)
            take(target_space.probability(T::at(target.vector[u], i), sides[0].known.lse),
                 draft_space.probability(T::at(draft.vector[u], i), sides[1].known.lse));
        }
        sums->end_tile();
      });
}

__device__ __forceinline__ PairSums sums_of_split(const ResidualSumsParams& p, int64_t pair, const Splits& splits,
                                                  int32_t* status) {
  const float* known = static_cast<const float*>(p.known.data) + p.known.offset(0, pair);
  const LawRow sides[2] = {known_part(p.target, p.row.data[pair], p.target_law, pair, known, status),
                           known_part(p.draft, p.draft_row.data[pair], p.draft_law, pair, known + 2, status)};
  const float taken = p.taken.at(pair);
  TwoUnitSums sums;
  const auto take = [&](float p_of_token, float q_of_token) {
    sums.a.take(residual_weight(p_of_token, mul(taken, q_of_token)));
    sums.b.take(q_of_token);
  };
  if (p.target.dtype == p.draft.dtype)
    with_type(sides[0].row, [&](auto type) { over_both<decltype(type)>(sides, splits, take, &sums); });
  else
    over_sum_tiles(
        splits, p.target.vocab, [&](int tile) { prefetch_tile(sides, tile); },
        [&](int32_t token) {
          const Four target = probabilities(sides[0], token, p.target.vocab);
          const Four draft = probabilities(sides[1], token, p.target.vocab);
#pragma unroll
          for (int k = 0; k < 4; ++k) take(target.value[k], draft.value[k]);
        },
        [&](int) { sums.end_tile(); });
  return sums_of_block(sums);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    residual_sums_kernel(const ResidualSumsArguments a) {
  const int64_t pair = blockIdx.x / a.splits;
  const Splits splits = {static_cast<int>(blockIdx.x % a.splits), a.splits};
  const Entry who = entry_of(a.p, pair);
  int32_t status = who.status();
  PairSums sums = {0, 0};
  if (who.live()) sums = sums_of_split(a.p, pair, splits, &status);
  if (a.splits > 1) {
    WideKey* const words = a.room.words + pair * a.splits * kWordsAPair;
    if (threadIdx.x == 0) {
      put_word(words + splits.own * kWordsAPair, sums.left);
      put_word(words + splits.own * kWordsAPair + 1, sums.drafted);
    }
    if (!last_to_come(a.room.tickets + pair, a.splits)) return;
    uint64_t left = 0, drafted = 0;
    for (int i = lane_id(); i < a.splits; i += 32) {
      left += load_fresh(words + i * kWordsAPair);
      drafted += load_fresh(words + i * kWordsAPair + 1);
    }
    sums = {warp_sum(left), warp_sum(drafted)};
  }
  if (threadIdx.x != 0) return;
  a.p.sums.data[2 * pair] = static_cast<int64_t>(sums.left);
  a.p.sums.data[2 * pair + 1] = static_cast<int64_t>(sums.drafted);
  a.p.status.data[pair] = status;
}

}  // namespace

cudaError_t residual_sums(const ResidualSumsParams& p, const Workspace& workspace, cudaStream_t stream,
                          int64_t* needed) {
  static const Kernels kernels(residual_sums_kernel);
  *needed = 0;
  if (p.pairs() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    const int splits = splits_of_row(device, p.pairs(), p.target.vocab, p.target.dtype);
    const Room room = room_in(workspace);
    const int64_t words = p.pairs() * splits * kWordsAPair;
    if (splits > 1 && (p.pairs() > room.ticket_count || words > room.word_count))
      return *needed = room_needed(p.pairs(), words), cudaSuccess;
    const Shape shape = {p.pairs() * splits, threads_of_block(p.target.vocab, p.target.dtype)};
    return launch(residual_sums_kernel, shape, {p, room, splits}, stream);
  });
}

}  // namespace cuda
}  // namespace specdec
