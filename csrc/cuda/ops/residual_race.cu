// residual_race: grid = requests x splits; the last block of a request compares what the others found.
#include "../rows/edited_row.cuh"
#include "../rows/race_request.cuh"
#include "../team/launch.cuh"
#include "specdec/part_rows.h"

namespace specdec::cuda {

namespace {

// What is kept of a part of a row: a cut was found elsewhere, of the whole row, and some tokens are left out.
struct KeptPart {
  using RowType = EditedRow;
  PartCut part = {kKeepsAll, {1.0f}};
  const int32_t* excluded = nullptr;  // tokens of which the part begins with `first`
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

// A side's row at a place among all rows: with all tokens, or with what a call's cuts keep.
template <class Kept>
__device__ __forceinline__ LawRowOf<Kept> known_row(const typename Kept::RowType& row, const Law& law,
                                                    const float* known, const Kept& kept) {
  return {row, {law, {known[0], known[1]}, kNoToken}, nullptr, kept};
}

// How the kernels read parts of rows: nothing is edited or kept here, and one token at most is left out.
struct PlainParts : PlainRows {
  __device__ Unfiltered kept(const ResidualRaceParams&, int64_t, int, bool) const { return {}; }
  __device__ int32_t excluded(const ResidualRaceParams& p, int64_t b) const {
    const int32_t token = p.excluded.data ? p.excluded.data[b * p.excluded.row_stride] : -1;
    return token >= p.target.vocab_start ? token - p.target.vocab_start : kNoToken;
  }
};

struct ShapedParts : ShapedRows {
  using Kept = KeptPart;
  __device__ Kept kept(const ResidualRaceParams& p, int64_t b, int side, bool over_p) const {
    Kept kept;
    kept.part = part_cut_at(p.cuts, b, side);
    if (!over_p || !p.excluded.data) return kept;
    kept.excluded = p.excluded.data + b * p.excluded.row_stride;
    kept.excluded_count = static_cast<int32_t>(p.excluded.columns);
    kept.first = p.target.vocab_start;
    return kept;
  }
  __device__ int32_t excluded(const ResidualRaceParams&, int64_t) const { return kNoToken; }
};

template <class Parts>
__device__ __forceinline__ RowPartial first_arrival(const ResidualRaceParams& p, int64_t b, Part part,
                                                    const Parts& parts) {
  using Kept = typename Parts::Kept;
  RowPartial found = kNoPart;
  const float* known = static_cast<const float*>(p.known.data) + p.known.offset(0, b);
  const int32_t place = p.row.data[b], beside = p.draft_row.data ? p.draft_row.data[b] : -1;
  const RowPlace of_row = {place / p.target.rows, place % p.target.rows};
  int32_t status = parts.decode(p.edits, p.target.vocab, of_row, of_row);
  const Law law = law_at(p.target_law, b, 0, &status);
  const LawRowOf<Kept> target =
      known_row(parts.of(part_at(p.target, p.target.offset_of(place)), true), law, known, parts.kept(p, b, 0, beside < 0));
  if (law.greedy) {
    found = argmax_part(target.row, law, part);
  } else {
    WeightsOf<Kept> weights;
    if (beside >= 0) {
      Law draft_law = law_at(p.draft_law, b, 0, &status);
      draft_law.greedy = false;
      const LawRowOf<Kept> draft =
          known_row(parts.of(part_at(p.draft, p.draft.offset_of(beside)), false), draft_law, known + 2,
                    parts.kept(p, b, 1, false));
      weights = weights_of_residual(target, draft, p.subtracted.at(b));
    } else {
      weights = weights_of_row(target.row, law, target.kept);
      weights.excluded = parts.excluded(p, b);
    }
    found = race_part(weights, noise_at(p.noise, b, 0, kStreamResidual), part);
  }
  found.status |= status;
  return found;
}

template <class Parts>
__device__ __forceinline__ void race_request(const ResidualRaceArguments& a, const Parts& parts) {
  const int64_t b = a.splits.index();
  const Entry who = entry_of(a.p, b);
  RowPartial found = kNoPart;
  if (who.live()) found = first_arrival(a.p, b, {a.splits.rank(), a.splits.count}, parts);
  if (!a.splits.gather(&found) || threadIdx.x != 0) return;
  const Arrivals out = {a.p.tokens.data + b, a.p.scores.data + b, 1};
  if (found.best.token != kNoToken) found.best.token += a.p.target.vocab_start;
  if (who.live()) out.put(0, found.best);
  else out.put_unread(0, who.token());
  a.p.status.data[b] = found.status | who.status();
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
