// residual_race: grid = requests x splits; the last block of a request compares the winners of all.
#include "../rows/edited_row.cuh"
#include "../rows/race_request.cuh"
#include "../team/launch.cuh"
#include "specdec/part_rows.h"

namespace specdec::cuda {

namespace {

// The support of a part of a row: the call brings the cut of the whole row, and tokens to leave out.
struct PartSupport {
  using RowType = EditedRow;
  PartCut part = {kKeepsAll, {1.0f}};
  const int32_t* excluded = nullptr;  // [excluded_count]
  int32_t excluded_count = 0, first = 0;
  __device__ bool keeps(float raw, int32_t column) const {
    if (part.on() && !part.cut.keeps(part.order.scaled(raw), column)) return false;
#pragma unroll 1
    for (int32_t i = 0; i < excluded_count; ++i)
      if (excluded[i] == first + column) return false;
    return true;
  }
  __device__ bool reaches(float largest) const { return !part.on() || part.order.scaled(largest) >= part.cut.value; }
};

using ResidualRaceArguments = SplitArguments<ResidualRaceParams>;

// A row with the log-sum-exp {lse[0], lse[1]} that the call brings.
template <class Support>
__device__ __forceinline__ LawRowOf<Support> law_row_with_lse(const typename Support::RowType& row, const Law& law,
                                                              const float* lse, const Support& support) {
  LawRowOf<Support> side = {row, {law, {lse[0], lse[1]}, kNoToken}};
  side.support = support;
  return side;
}

// How the kernels read parts of rows: here without edits and filters, and with one token at most left out.
struct PlainParts : PlainRows {
  __device__ Unfiltered support(const ResidualRaceParams&, int64_t, int, bool) const { return {}; }
  __device__ int32_t excluded(const ResidualRaceParams& p, int64_t b) const {
    const int32_t token = p.excluded.data ? p.excluded.data[b * p.excluded.row_stride] : -1;
    return token >= p.target.vocab_start ? token - p.target.vocab_start : kNoToken;
  }
};

struct ShapedParts : ShapedRows {
  using Support = PartSupport;
  __device__ Support support(const ResidualRaceParams& p, int64_t b, int side, bool over_p) const {
    Support support;
    support.part = part_cut_at(p.cuts, b, side);
    if (!over_p || !p.excluded.data) return support;
    support.excluded = p.excluded.data + b * p.excluded.row_stride;
    support.excluded_count = static_cast<int32_t>(p.excluded.columns);
    support.first = p.target.vocab_start;
    return support;
  }
  __device__ int32_t excluded(const ResidualRaceParams&, int64_t) const { return kNoToken; }
};

template <class Parts>
__device__ __forceinline__ RowPartial first_arrival(const ResidualRaceParams& p, int64_t b, Part part,
                                                    const Parts& parts) {
  using Support = typename Parts::Support;
  RowPartial partial = kNoPartial;
  const float* lse = static_cast<const float*>(p.row_stats.data) + p.row_stats.offset(0, b);
  const int32_t row_index = p.row.data[b], draft_index = p.draft_row.data ? p.draft_row.data[b] : -1;
  const RowIndex of_row = {row_index / p.target.rows, row_index % p.target.rows};
  int32_t status = parts.decode(p.edits, p.target.vocab, of_row, of_row);
  const Law law = law_at(p.target_law, b, 0, &status);
  const LawRowOf<Support> target = law_row_with_lse(parts.of(part_at(p.target, p.target.offset_of(row_index)), true),
                                                    law, lse, parts.support(p, b, 0, draft_index < 0));
  if (law.greedy) {
    partial = argmax_part(target.row, law, part);
  } else {
    WeightsOf<Support> weights;
    if (draft_index >= 0) {
      Law draft_law = law_at(p.draft_law, b, 0, &status);
      draft_law.greedy = false;
      const LawRowOf<Support> draft =
          law_row_with_lse(parts.of(part_at(p.draft, p.draft.offset_of(draft_index)), false), draft_law, lse + 2,
                           parts.support(p, b, 1, false));
      weights = weights_of_residual(target, draft, p.subtracted.at(b));
    } else {
      weights = weights_of_row(target.row, law, target.support);
      weights.excluded = parts.excluded(p, b);
    }
    partial = race_part(weights, noise_at(p.noise, b, 0, kStreamResidual), part);
  }
  partial.status |= status;
  return partial;
}

template <class Parts>
__device__ __forceinline__ void race_request(const ResidualRaceArguments& a, const Parts& parts) {
  const int64_t b = a.splits.index();
  const Entry entry = decode_entry(a.p, b);
  RowPartial partial = kNoPartial;
  if (entry.live()) partial = first_arrival(a.p, b, {a.splits.rank(), a.splits.count}, parts);
  if (!a.splits.gather(&partial) || threadIdx.x != 0) return;
  const Arrivals out = {a.p.tokens.data + b, a.p.scores.data + b, 1};
  if (partial.best.token != kNoToken) partial.best.token += a.p.target.vocab_start;
  if (entry.live()) out.put(0, partial.best);
  else out.put_unread(0, entry.token());
  a.p.status.data[b] = partial.status | entry.status();
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    residual_race_kernel(const ResidualRaceArguments a) {
  race_request(a, PlainParts{});
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    shaped_residual_race_kernel(const ResidualRaceArguments a) {
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  race_request(a, ShapedParts{{edits, a.p.edits.on()}});
}

}  // namespace

cudaError_t residual_race(const ResidualRaceParams& p, const Call& call) {
  static const Kernels kernels(residual_race_kernel, shaped_residual_race_kernel);
  return on_device(call, p.batch(), kernels, [&](const Device& device) {
    const bool shaped = p.edits.on() || p.cuts.data || (p.excluded.data && p.excluded.columns > 1);
    return launch_splits(shaped ? shaped_residual_race_kernel : residual_race_kernel, p, p.batch(), p.target, device);
  });
}

}  // namespace specdec::cuda
