// store_rows: grid = rows x splits.
#include "../rows/row_share.cuh"
#include "../team/launch.cuh"
#include "specdec/c/rows.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kShareThreads) store_rows_kernel(const StoreRowsParams p) {
  const RowShare share(p.rows.vocab);
  const int64_t place = p.place(share.index);
  if (place < 0) return;
  const Row row = row_at(p.rows, p.rows.offset(share.index, 0)), out = row_at(p.cache, place);
  with_type(row, [&](auto type) {
    copy_share<decltype(type)>(row.data, const_cast<void*>(out.data), share, [](auto raw, int32_t) { return raw; });
  });
}

}  // namespace

cudaError_t store_rows(const StoreRowsParams& p, const Call& call) {
  return launch_alone<store_rows_kernel>({p.count() * splits_of(p.rows.vocab), kShareThreads}, p, call);
}

}  // namespace specdec::cuda
