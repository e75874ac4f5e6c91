// race_sample: grid = rows x splits; the last block of a row compares what the others found. Few rows go straight: blocks
// draw without lists (draw.cuh). So do all with filters or edits: the last block of a row finds what is kept.
#include "../rows/filtered_row.cuh"
#include "specdec/c/races.h"

namespace specdec::cuda {

template <class R>
__device__ __forceinline__ void store(const RaceParams& p, int64_t index, const RaceRequestOf<R>& row,
                                      const RowPartial& found) {
  const Arrivals out = arrivals_at(p, index);
  int32_t status = row.status;
  if (!row.who.live()) {
    out.put_unread(0, row.who.token());
  } else {
    const Candidate winner = row.token_of(found.best);
    out.put(0, winner);
    if (!out.of_part()) *out.tokens = draw_of(winner, SPECDEC_STATUS_OK).token;
    status = out.status_of(winner, status | found.status);
  }
  if (p.status.data) p.status.data[index] = status;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    race_sample_kernel(const SplitArguments<RaceParams> a) {
  wait_for_kernel_before();
  const int64_t index = a.splits.index();
  const RaceRequest row = race_request(a.p, index);
  RowPartial found = kNoPart;
  if (row.who.live()) found = find_winner(row, {a.splits.rank(), a.splits.count});
  if (a.splits.gather(&found) && threadIdx.x == 0) store(a.p, index, row, found);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    straight_sample_kernel(const StraightRows<RaceParams> a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  begin_draw(sure);
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  const RaceRequest row = race_request(a.p, index);
  Meeting* const meeting = a.meetings + index;
  __syncthreads();
  if (row.who.live()) {
    const Tiles tiles = a.parts.tiles_of(block - index * a.parts.count.by());
    draw_tiles<3>(weights_of_row(whole_row(row.row), row.law), row.noise, tiles.begin, tiles.end, sure, meeting);
  }
  if (!comes_last(meeting, a.parts.count.by()) || threadIdx.x != 0) return;
  meeting->came = 0;
  store(a.p, index, row, partial_of(taken_from(meeting)));
}

// With filters or edits. `kFew`: some whole rows without edits.
template <bool kFew>
__device__ __forceinline__ void sample_row(const StraightRows<RaceParams>& a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(sure);
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  RaceRequestOf<EditedRow> row = shaped_request(a.p, index, {edits, !kFew && a.p.edits.on()});
  if (kFew) row.row = whole_row(row.row), row.map = {};  // constants
  Filter filter;
  if (row.who.live()) filter = race_filter(a.p, index, &row);
  __syncthreads();
  RowEnd end;
  if (straight_row<kFew ? 3 : kVectors>(row, row.who.live(), false, filter, a.cut, a.parts, index,
                                        block - index * a.parts.count.by(), sure, a.meetings + index, &end) &&
      threadIdx.x == 0)
    store(a.p, index, row, end.best);
}
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    filtered_sample_kernel(const StraightRows<RaceParams> a) { sample_row<true>(a); }
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    shaped_sample_kernel(const StraightRows<RaceParams> a) { sample_row<false>(a); }

namespace {

// Few rows, of the whole vocabulary alone.
bool are_few(const RaceParams& p) {
  return !p.edits.on() && !p.scores.data && !p.draft_map.data && p.rows.vocab_start == 0 &&
         straight_if(p.count() <= kStraightRows);
}

}  // namespace

cudaError_t race_sample(const RaceParams& p, const Call& call) {
  static const Kernels kernels(race_sample_kernel, straight_sample_kernel, filtered_sample_kernel,
                               shaped_sample_kernel);
  const bool shaped = p.edits.on() || p.law.rules & SPECDEC_FILTERED, few = are_few(p);
  return on_device(call, p.count(), kernels, [&](const Device& device) {
    Shape shape = {};
    shape.overlaps = true;
    if (!shaped && !few) return launch_splits(race_sample_kernel, p, p.count(), p.rows, device, shape);
    const auto filtered = few ? filtered_sample_kernel : shaped_sample_kernel;
    return launch_straight(shaped ? filtered : straight_sample_kernel, p, shaped, device);
  });
}

}  // namespace specdec::cuda
