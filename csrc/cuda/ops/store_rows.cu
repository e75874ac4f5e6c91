// store_rows: grid = rows x splits.
#include "../rows/row_slice.cuh"
#include "../team/launch.cuh"
#include "specdec/c/rows.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kSliceThreads) store_rows_kernel(const StoreRowsParams p) {
  const RowSlice slice(p.rows.vocab);
  const int64_t cache_row = p.cache_offset(slice.index);
  if (cache_row < 0) return;
  const Row row = row_at(p.rows, p.rows.offset(slice.index, 0)), out = row_at(p.cache, cache_row);
  with_type(row, [&](auto type) {
    copy_slice<decltype(type)>(row.data, const_cast<void*>(out.data), slice, [](auto raw, int32_t) { return raw; });
  });
}

}  // namespace

cudaError_t store_rows(const StoreRowsParams& p, const Call& call) {
  return launch_alone<store_rows_kernel>({p.count() * splits_of(p.rows.vocab), kSliceThreads}, p, call);
}

}  // namespace specdec::cuda
