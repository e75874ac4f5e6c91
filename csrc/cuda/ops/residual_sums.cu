// residual_sums: grid = pairs x splits; the last block of a pair adds up the sums of all.
#include "../rows/edited_row.cuh"
#include "../rows/pair_sums.cuh"
#include "../rows/race.cuh"
#include "../team/launch.cuh"
#include "specdec/part_rows.h"

namespace specdec::cuda {

namespace {

// The support of a row by the call's cuts.
template <class Support>
__device__ __forceinline__ Support support_of(const ResidualSumsParams& p, int64_t pair, int side) {
  if constexpr (Support::kFiltered) {
    const PartCut part = part_cut_at(p.cuts, pair, side);
    if (part.on()) return {part.cut, part.order};
  }
  return {};
}

// The row of a pair's side, with its law.
template <class Reader>
__device__ __forceinline__ LawRowOf<typename Reader::Support> part_law_row(const ResidualSumsParams& p, int64_t pair,
                                                                           int side, const Reader& reader,
                                                                           int32_t* status) {
  const Rows& rows = side == 0 ? p.target : p.draft;
  const int32_t row_index = side == 0 ? p.row.data[pair] : p.draft_row.data[pair];
  const float* lse = static_cast<const float*>(p.row_stats.data) + p.row_stats.offset(0, pair) + 2 * side;
  const Logits space = law_at(side == 0 ? p.target_law : p.draft_law, pair, 0, status).logits();
  LawRowOf<typename Reader::Support> law_row = {reader.of(row_at(rows, rows.offset_of(row_index)), side == 0),
                                                {{SPECDEC_LOGITS, space.inverse, false}, {lse[0], lse[1]}, kNoToken}};
  law_row.support = support_of<typename Reader::Support>(p, pair, side);
  return law_row;
}

// This thread's sums of (p - subtracted q)^+, and of q. Columns outside of the rows are -inf.
template <class Support>
__device__ __forceinline__ TwoUnitSums sums_of_both(const LawRowOf<Support> (&sides)[2], Part part, float subtracted) {
  TwoUnitSums sums;
  const Logits target_space = sides[0].stats.law.logits(), draft_space = sides[1].stats.law.logits();
  over_chunks<Float32>(
      with_edits(sides[0].row), part, [](int32_t, int, bool) {},
      [&](const Batch<Float32>& target, int32_t first, int steps) {
        Batch<Float32> draft;
        draft.load(with_edits(sides[1].row), first, steps);
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
          if (u >= steps) continue;
#pragma unroll
          for (int i = 0; i < Float32::kPerVector; ++i) {
            const float x = Float32::at(target.vector[u], i), y = Float32::at(draft.vector[u], i);
            const int32_t column = Batch<Float32>::token(first, u) + i;
            const float p = target_space.probability(x, sides[0].stats.lse);
            float q = draft_space.probability(y, sides[1].stats.lse);
            if (!sides[1].support.keeps(y, column)) q = 0.0f;
            sums.a.take(residual_weight(sides[0].support.keeps(x, column) ? p : 0.0f, mul(subtracted, q)));
            sums.b.take(q);
          }
        }
        sums.end_tile();
      });
  return sums;
}

// The sums over a part of a pair.
template <class Reader>
__device__ __forceinline__ TwoUnitSums sums_of_part(const ResidualSumsParams& p, int64_t pair, Part part,
                                                    const Reader& reader, int32_t* status) {
  const int32_t row_index = p.row.data[pair];
  const RowIndex of_row = {row_index / p.target.rows, row_index % p.target.rows};
  *status |= reader.decode(p.edits, p.target.vocab, of_row, of_row);
  const LawRowOf<typename Reader::Support> sides[2] = {part_law_row(p, pair, 0, reader, status),
                                                       part_law_row(p, pair, 1, reader, status)};
  return sums_of_both(sides, part, p.subtracted.at(pair));
}

template <class Reader>
__device__ __forceinline__ void sum_pair(const SplitArguments<ResidualSumsParams>& a, const Reader& reader) {
  const int64_t pair = a.splits.index();
  const int rank = a.splits.rank(), count = a.splits.count;
  const Entry entry = decode_entry(a.p, pair);
  int32_t status = entry.status();
  TwoUnitSums mine;
  if (entry.live()) mine = sums_of_part(a.p, pair, {rank, count}, reader, &status);
  uint64_t sums[2] = {mine.units_a, mine.units_b};  // of the residual, and of q
  block_sums(sums);
  if (count > 1) {
    WideKey* const words = a.splits.partials + pair * count * 2;
    if (threadIdx.x < 2) put_word(words + rank * 2 + threadIdx.x, WideKey{threadIdx.x == 0 ? sums[0] : sums[1]});
    if (!is_last_block(a.splits.tickets + pair, static_cast<unsigned>(count))) return;
    sums[0] = sums[1] = 0;
    for (int i = lane_id(); i < count; i += 32)
      sums[0] += load_fresh(words + i * 2), sums[1] += load_fresh(words + i * 2 + 1);
    sums[0] = warp_sum(sums[0]), sums[1] = warp_sum(sums[1]);
  }
  if (threadIdx.x != 0) return;
  a.p.sums.data[2 * pair] = static_cast<int64_t>(sums[0]);
  a.p.sums.data[2 * pair + 1] = static_cast<int64_t>(sums[1]);
  a.p.status.data[pair] = status;
}

// One kernel reads both kinds of rows: it takes no more registers than for shaped rows alone.
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    residual_sums_kernel(const SplitArguments<ResidualSumsParams> a) {
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  if (a.p.edits.on() || a.p.cuts.data) return sum_pair(a, ShapedRows{edits, a.p.edits.on()});
  sum_pair(a, PlainRows{});
}

}  // namespace

cudaError_t residual_sums(const ResidualSumsParams& p, const Call& call) {
  static const Kernels kernels(residual_sums_kernel);
  return on_device(call, p.pairs(), kernels, [&](const Device& device) {
    return launch_splits(residual_sums_kernel, p, p.pairs(), p.target, device);
  });
}

}  // namespace specdec::cuda
