// count_at_least: a block has a row, and its warps take chunks in turn.
#include "../rows/edited_row.cuh"
#include "../rows/race.cuh"
#include "../team/launch.cuh"
#include "specdec/c/sharded.h"
#include "specdec/request.h"

namespace specdec::cuda {

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) count_at_least_kernel(const CountAtLeastParams p) {
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  const int64_t index = blockIdx.x, i = index / p.rows.rows, j = index % p.rows.rows;
  const Entry entry = decode_entry(p.request_index, i);
  const float least = p.least.data[index];
  uint64_t count[1] = {0};
  if (entry.live() && least > -kInfinity) {
    int32_t reported = SPECDEC_STATUS_OK;
    const Logits space = law_at(p.law, entry.index, j, &reported).logits();
    const ShapedRows reader = {edits, p.edits.on()};
    reader.decode(p.edits, p.rows.vocab, {entry.index, j}, {i, j});
    const EditedRow row = reader.of(row_at(p.rows, p.rows.offset(i, j)));
    using T = Float32;
    over_chunks<T>(row, {0, 1}, [](int32_t, int, bool) {}, [&](const Batch<T>& batch, int32_t, int) {
      unsigned chunk_count = 0;  // columns outside of the row are -inf
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
#pragma unroll
        for (int k = 0; k < T::kPerVector; ++k) chunk_count += space.scaled(T::at(batch.vector[u], k)) >= least;
      count[0] += chunk_count;
    });
  }
  block_sums(count);
  if (threadIdx.x == 0) p.counts.data[index] = static_cast<int32_t>(count[0]);
}

cudaError_t count_at_least(const CountAtLeastParams& p, const Call& call) {
  const Shape shape = {p.count(), threads_of_block(p.rows.vocab, SPECDEC_FLOAT32)};
  return launch_alone<count_at_least_kernel>(shape, p, call);
}

}  // namespace specdec::cuda
