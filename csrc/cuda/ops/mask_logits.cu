// mask_logits: grid = rows x splits.
#include "../rows/row_slice.cuh"
#include "../team/launch.cuh"
#include "specdec/c/rows.h"
#include "specdec/filter.h"

namespace specdec::cuda {

namespace {

template <class T>
__device__ __forceinline__ bool drops(const PartCut& what, typename T::Raw raw, int32_t token) {
  const float v = min(kLargest, what.order.key(T::value(raw)));  // in this order a NaN stays
  return v < what.cut.value || (v == what.cut.value && token > what.cut.last);
}

__global__ void __launch_bounds__(kSliceThreads) mask_logits_kernel(const MaskLogitsParams p) {
  const RowSlice slice(p.rows.vocab);
  const int64_t index = slice.index, i = index / p.rows.rows, j = index % p.rows.rows;
  int32_t reported = SPECDEC_STATUS_OK;
  const Law law = decode_law(SPECDEC_LOGITS, p.temperature.at(i, j), &reported);
  const PartCut what = {{p.value.data[index], static_cast<int32_t>(p.last.at(index * p.last.slot_stride))},
                        law.logits()};
  const Row row = row_at(p.rows, p.rows.offset(i, j)), out = row_at(p.out, p.out.offset(i, j));
  with_type(row, [&](auto type) {
    using T = decltype(type);
    copy_slice<T>(row.data, const_cast<void*>(out.data), slice, [&](auto raw, int32_t token) {
      return drops<T>(what, raw, token) ? T::kMinusInfinity : raw;
    });
  });
}

}  // namespace

cudaError_t mask_logits(const MaskLogitsParams& p, const Call& call) {
  return launch_alone<mask_logits_kernel>({p.count() * splits_of(p.rows.vocab), kSliceThreads}, p, call);
}

}  // namespace specdec::cuda
