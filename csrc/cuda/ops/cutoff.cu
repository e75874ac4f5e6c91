// cutoff: the last block of a row computes the cut of its filters (cut.cuh).
#include "../rows/filtered_row.cuh"
#include "specdec/c/rows.h"
#include "specdec/request.h"

namespace specdec::cuda {

namespace {

__device__ __forceinline__ void store(const CutoffParams& p, int64_t index, const CutResult& result) {
  p.value.data[index] = result.cut.value;
  p.last.data[index] = result.cut.last;
  p.support_size.data[index] = static_cast<int32_t>(result.count);
  p.mass.data[index] = static_cast<int64_t>(result.mass);
  p.max.data[index] = result.top;
  if (p.status.data) p.status.data[index] = result.status;
}

// Counts the support of a cut, and moves the cut to its last token: its value may lie between two tokens'.
__device__ __forceinline__ void look_again(const CutFinder& finder, CutResult* result) {
  const Cut cut = result->cut;
  const int32_t end = finder.row.vocab;
  uint64_t count[1] = {0};
  Candidate mine = kNoCandidate;  // the last token is the first of the inverted order
  finder.over_row([&](float raw, int32_t column) {
    const float v = finder.f.order.scaled(raw);
    if (column < end && cut.keeps(v, column)) ++count[0], mine = best_of(Candidate{-v, end - 1 - column}, mine);
  });
  block_sums(count);
  const Candidate last = best_of_block(mine, false).best;
  result->count = count[0];
  if (finder.f.on()) result->cut = {-last.score, end - 1 - last.token};
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) cutoff_kernel(const RowsArguments<CutoffParams> a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(block_bound);
  const CutoffParams& p = a.p;
  const ShapedRows reader = {edits, p.edits.on()};
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  const Entry entry = decode_entry(p.request_index, i);
  int32_t status = entry.status();
  RaceRequestOf<EditedRow> row = {};
  Filter filter;
  if (entry.live()) {
    status |= reader.decode(p.edits, p.rows.vocab, {entry.index, j}, {i, j});
    row.row = reader.of(row_at(p.rows, p.rows.offset(i, j)));
    row.law = law_at(p.law, entry.index, j, &status);
    filter = filter_at(p.law, row.law, p.rows.vocab, entry.index, j, &status);
    if (p.law.rules & SPECDEC_FILTERED) row.law.inverse = filter.order.inverse;  // masses are as filters see them
    else filter.order = row.law.logits();
  }
  __syncthreads();
  RowEnd end;
  if (!cut_or_draw_row<kVectors>(row, entry.live(), !row.law.greedy, filter, a.cut, a.parts, index,
                                 block - index * a.parts.count.by(), block_bound, a.tickets + index, &end))
    return;
  CutResult result = {};
  result.cut = kKeepsAll, result.listed = -1, result.top = -kInfinity;
  if (row.law.greedy) {  // the first thread has the token
    const Draw draw = to_draw(end.best);
    const float v = Logits{1.0f}.scaled(element(row.row, draw.token));
    if (v > -kInfinity) result.cut = {v, draw.token}, result.count = 1, result.mass = kOneToken, result.top = v;
    result.status = draw.status;
  } else if (entry.live()) {
    result = end.cut;
    Team alone(TeamLayout{TeamKind::kBlock, 1});
    CutFinder finder(alone, row.row, filter, a.cut.memory);
    if (!filter.on() || result.cut.last == kNoToken) look_again(finder, &result);
  }
  result.status |= status;
  if (threadIdx.x == 0) store(p, index, result);
}

}  // namespace

cudaError_t cutoff(const CutoffParams& p, const Call& call) {
  static const Kernels kernels(cutoff_kernel);
  return on_device(call, p.count(), kernels,
                   [&](const Device& device) { return launch_rows(cutoff_kernel, p, true, device); });
}

}  // namespace specdec::cuda
