// token_logits: a block has a row and a thread some of its tokens.
#include "../rows/edited_row.cuh"
#include "../team/launch.cuh"
#include "specdec/c/sharded.h"

namespace specdec::cuda {

namespace {

constexpr int kTokenThreads = 128;

// The token's column in a row; -1: the rows have no such row or column.
__device__ __forceinline__ int64_t column_of(const TokenLogitsParams& p, int64_t row_index, int64_t index, int64_t i) {
  const int64_t column = p.token(index, i) - p.rows.vocab_start;
  return p.rows.has(row_index) && column >= 0 && column < p.rows.vocab ? column : -1;
}

}  // namespace

__global__ void __launch_bounds__(kTokenThreads, 4) token_logits_kernel(const TokenLogitsParams p) {
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  const ShapedRows reader = {edits, p.edits.on()};
  const int64_t index = blockIdx.x, row_index = p.row(index);
  bool mine = false;
  for (int64_t i = threadIdx.x; i < p.logits.columns; i += blockDim.x)
    mine |= column_of(p, row_index, index, i) >= 0;
  const bool any = __syncthreads_or(mine);
  const RowIndex row_position = {row_index / p.rows.rows, row_index % p.rows.rows};
  if (any) reader.decode(p.edits, p.rows.vocab, row_position, row_position);
  const EditedRow row = reader.of(row_at(p.rows, any ? p.rows.offset_of(row_index) : 0));
  for (int64_t i = threadIdx.x; i < p.logits.columns; i += blockDim.x) {
    const int64_t column = column_of(p, row_index, index, i);
    p.logits.data[index * p.logits.columns + i] = column < 0 ? 0.0f : element(row, static_cast<int32_t>(column));
  }
}

cudaError_t token_logits(const TokenLogitsParams& p, const Call& call) {
  return launch_alone<token_logits_kernel>({p.logits.columns > 0 ? p.batch() : 0, kTokenThreads}, p, call);
}

}  // namespace specdec::cuda
