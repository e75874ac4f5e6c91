// race_sample: grid = rows x splits; the last block of a row compares the winners of all. With few rows blocks draw
// without lists (draw.cuh). So do all rows with filters or edits, whose last block computes the support.
#include "../rows/filtered_row.cuh"
#include "specdec/c/races.h"

namespace specdec::cuda {

template <class R>
__device__ __forceinline__ void store(const RaceParams& p, int64_t index, const RaceRequestOf<R>& row,
                                      const RowPartial& partial) {
  const Arrivals out = arrivals_at(p, index);
  int32_t status = row.status;
  if (!row.entry.live()) {
    out.put_unread(0, row.entry.token());
  } else {
    const Candidate winner = row.token_of(partial.best);
    out.put(0, winner);
    if (!out.of_part()) *out.tokens = to_draw(winner, SPECDEC_STATUS_OK).token;
    status = out.status_of(winner, status | partial.status);
  }
  if (p.status.data) p.status.data[index] = status;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    race_sample_kernel(const SplitArguments<RaceParams> a) {
  wait_for_kernel_before();
  const int64_t index = a.splits.index();
  const RaceRequest row = race_request(a.p, index);
  RowPartial partial = kNoPartial;
  if (row.entry.live()) partial = find_winner(row, {a.splits.rank(), a.splits.count});
  if (a.splits.gather(&partial) && threadIdx.x == 0) store(a.p, index, row, partial);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    sample_few_rows_kernel(const RowsArguments<RaceParams> a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  begin_draw(block_bound);
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  const RaceRequest row = race_request(a.p, index);
  Ticket* const ticket = a.tickets + index;
  __syncthreads();
  if (row.entry.live()) {
    const Tiles tiles = a.parts.tiles_of(block - index * a.parts.count.by());
    draw_tiles<3>(weights_of_row(whole_row(row.row), row.law), row.noise, tiles.begin, tiles.end, block_bound, ticket);
  }
  if (!is_last_block(ticket, a.parts.count.by()) || threadIdx.x != 0) return;
  ticket->arrived = 0;
  store(a.p, index, row, partial_of(take_block_best(ticket)));
}

// Samples a row with filters or edits. `kFew`: few whole rows, without edits.
template <bool kFew>
__device__ __forceinline__ void sample_row(const RowsArguments<RaceParams>& a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(block_bound);
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  RaceRequestOf<EditedRow> row = shaped_request(a.p, index, {edits, !kFew && a.p.edits.on()});
  if (kFew) row.row = whole_row(row.row), row.map = {};  // constants for the compiler
  Filter filter;
  if (row.entry.live()) filter = race_filter(a.p, index, &row);
  __syncthreads();
  RowEnd end;
  if (cut_or_draw_row<kFew ? 3 : kVectors>(row, row.entry.live(), false, filter, a.cut, a.parts, index,
                                           block - index * a.parts.count.by(), block_bound, a.tickets + index, &end) &&
      threadIdx.x == 0)
    store(a.p, index, row, end.best);
}
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    filtered_sample_kernel(const RowsArguments<RaceParams> a) { sample_row<true>(a); }
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    shaped_sample_kernel(const RowsArguments<RaceParams> a) { sample_row<false>(a); }

namespace {

// Whether there are few rows, all of the whole vocabulary.
bool are_few(const RaceParams& p) {
  return !p.edits.on() && !p.scores.data && !p.draft_map.data && p.rows.vocab_start == 0 &&
         use_few_rows_kernel(p.count() <= kFewRows);
}

}  // namespace

cudaError_t race_sample(const RaceParams& p, const Call& call) {
  static const Kernels kernels(race_sample_kernel, sample_few_rows_kernel, filtered_sample_kernel,
                               shaped_sample_kernel);
  const bool shaped = p.edits.on() || p.law.rules & SPECDEC_FILTERED, few = are_few(p);
  return on_device(call, p.count(), kernels, [&](const Device& device) {
    Shape shape = {};
    shape.overlaps = true;
    if (!shaped && !few) return launch_splits(race_sample_kernel, p, p.count(), p.rows, device, shape);
    const auto filtered = few ? filtered_sample_kernel : shaped_sample_kernel;
    return launch_rows(shaped ? filtered : sample_few_rows_kernel, p, shaped, device);
  });
}

}  // namespace specdec::cuda
