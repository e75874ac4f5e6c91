// store_rows: grid = rows x splits; a block has a share of a row, a thread some vectors at a time.
#include "launch.cuh"
#include "rows.cuh"

namespace specdec {
namespace cuda {

namespace {

constexpr int kStoreThreads = 256, kAtOnce = 4;  // vectors that a thread has in flight

struct StoreArguments {
  StoreRowsParams p;
  int splits;
};

// The elements [first, end) of a row.
template <class T>
__device__ __forceinline__ void store(const void* from, void* to, int32_t first, int32_t end) {
  using Raw = typename T::Raw;
  const Raw* const in = static_cast<const Raw*>(from);
  Raw* const out = static_cast<Raw*>(to);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const bool aligned = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const int32_t whole = aligned ? first + (end - first) / T::kPerVector * T::kPerVector : first;
  const int32_t step = threads * T::kPerVector;
  for (int32_t token = first + thread * T::kPerVector; token < whole; token += kAtOnce * step) {
    uint4 vector[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (token + k * step < whole) vector[k] = *reinterpret_cast<const uint4*>(in + token + k * step);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (token + k * step < whole) *reinterpret_cast<uint4*>(out + token + k * step) = vector[k];
  }
  for (int32_t token = whole + thread; token < end; token += threads) out[token] = in[token];
}

__global__ void __launch_bounds__(kStoreThreads) store_rows_kernel(const StoreArguments a) {
  const StoreRowsParams& p = a.p;
  const int64_t index = blockIdx.x / a.splits, place = p.place(index);
  if (place < 0) return;
  const int32_t share = static_cast<int32_t>(blockIdx.x % a.splits);
  const Row row = row_at(p.rows, p.rows.offset(index, 0)), out = row_at(p.cache, place);
  // Shares begin with multiples of 8 elements, so that vectors stay aligned.
  const int64_t eights = (int64_t{row.vocab} + 7) / 8;
  const int32_t first = static_cast<int32_t>(8 * (eights * share / a.splits));
  const int64_t next = 8 * (eights * (share + 1) / a.splits);
  const int32_t end = next < row.vocab ? static_cast<int32_t>(next) : row.vocab;
  with_type(row, [&](auto type) { store<decltype(type)>(row.data, const_cast<void*>(out.data), first, end); });
}

}  // namespace

cudaError_t store_rows(const StoreRowsParams& p, const Workspace&, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  constexpr int64_t kShare = 16384;  // elements of a block
  const int splits = static_cast<int>((int64_t{p.rows.vocab} + kShare - 1) / kShare);
  return launch_alone<store_rows_kernel>({p.count() * splits, kStoreThreads}, StoreArguments{p, splits}, stream);
}

}  // namespace cuda
}  // namespace specdec
