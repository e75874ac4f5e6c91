// cutoff: the last block to come to a row finds where its filters cut (cut.cuh).
#include "../rows/filtered_row.cuh"
#include "specdec/c/rows.h"
#include "specdec/request.h"

namespace specdec::cuda {

namespace {

__device__ __forceinline__ void store(const CutoffParams& p, int64_t index, const KeptRow& kept) {
  p.value.data[index] = kept.cut.value;
  p.last.data[index] = kept.cut.last;
  p.kept.data[index] = static_cast<int32_t>(kept.count);
  p.mass.data[index] = static_cast<int64_t>(kept.mass);
  p.max.data[index] = kept.top;
  if (p.status.data) p.status.data[index] = kept.status;
}

// Counts what a cut keeps, and puts it at the last token of that: its value may lie between two tokens'.
__device__ __forceinline__ void look_again(const CutFinder& finder, KeptRow* kept) {
  const Cut cut = kept->cut;
  const int32_t end = finder.row.vocab;
  uint64_t count[1] = {0};
  Candidate mine = kNobody;  // the last of the order is the best of the order turned round
  finder.over_row([&](float raw, int32_t column) {
    const float v = finder.f.order.scaled(raw);
    if (column < end && cut.keeps(v, column)) ++count[0], mine = best_of(Candidate{-v, end - 1 - column}, mine);
  });
  block_sums(count);
  const Candidate last = best_of_block(mine, false).best;
  kept->count = count[0];
  if (finder.f.on()) kept->cut = {-last.score, end - 1 - last.token};
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) cutoff_kernel(const StraightRows<CutoffParams> a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(sure);
  const CutoffParams& p = a.p;
  const ShapedRows reader = {edits, p.edits.on()};
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  const Entry who = entry_of(p.request_index, i);
  int32_t status = who.status();
  RaceRequestOf<EditedRow> row = {};
  Filter filter;
  if (who.live()) {
    status |= reader.decode(p.edits, p.rows.vocab, {who.index, j}, {i, j});
    row.row = reader.of(row_at(p.rows, p.rows.offset(i, j)));
    row.law = law_at(p.law, who.index, j, &status);
    filter = filter_at(p.law, row.law, p.rows.vocab, who.index, j, &status);
    if (p.law.rules & SPECDEC_FILTERED) row.law.inverse = filter.order.inverse;  // masses are as filters see them
    else filter.order = row.law.logits();
  }
  __syncthreads();
  RowEnd end;
  if (!straight_row<kVectors>(row, who.live(), !row.law.greedy, filter, a.cut, a.parts, index,
                              block - index * a.parts.count.by(), sure, a.meetings + index, &end))
    return;
  KeptRow kept = {kKeepsAll, -1, 0, 0, -kInfinity, false, SPECDEC_STATUS_OK};
  if (row.law.greedy) {  // the first thread knows the token
    const Draw draw = draw_of(end.best);
    const float v = Logits{1.0f}.scaled(element(row.row, draw.token));
    if (v > -kInfinity) kept = {{v, draw.token}, -1, 1, kOneToken, v, false, SPECDEC_STATUS_OK};
    kept.status = draw.status;
  } else if (who.live()) {
    kept = end.kept;
    Team alone(TeamRoom{TeamKind::kBlock, 1});
    CutFinder finder(alone, row.row, filter, a.cut.room);
    if (!filter.on() || kept.cut.last == kNoToken) look_again(finder, &kept);
  }
  kept.status |= status;
  if (threadIdx.x == 0) store(p, index, kept);
}

}  // namespace

cudaError_t cutoff(const CutoffParams& p, const Call& call) {
  static const Kernels kernels(cutoff_kernel);
  return on_device(call, p.count(), kernels,
                   [&](const Device& device) { return launch_straight(cutoff_kernel, p, true, device); });
}

}  // namespace specdec::cuda
