// store_rows: grid = rows x splits.
#include "../rows/row_share.cuh"
#include "../team/launch.cuh"

namespace specdec::cuda {

namespace {

struct StoreArguments {
  StoreRowsParams p;
  int splits;
};

__global__ void __launch_bounds__(kShareThreads) store_rows_kernel(const StoreArguments a) {
  const StoreRowsParams& p = a.p;
  const int64_t index = blockIdx.x / a.splits, place = p.place(index);
  if (place < 0) return;
  const RowShare share = share_of(p.rows.vocab, static_cast<int32_t>(blockIdx.x % a.splits), a.splits);
  const Row row = row_at(p.rows, p.rows.offset(index, 0)), out = row_at(p.cache, place);
  with_type(row, [&](auto type) {
    copy_share<decltype(type)>(row.data, const_cast<void*>(out.data), share, [](auto raw, int32_t) { return raw; });
  });
}

}  // namespace

cudaError_t store_rows(const StoreRowsParams& p, const Call& call) {
  const int splits = splits_of(p.rows.vocab);
  return launch_alone<store_rows_kernel>({p.count() * splits, kShareThreads}, StoreArguments{p, splits}, call);
}

}  // namespace specdec::cuda
