// mask_logits: grid = rows x splits; a block has a share of a row, a thread some vectors at a time.
#include "launch.cuh"
#include "rows.cuh"
#include "specdec/filter.h"

namespace specdec {
namespace cuda {

namespace {

constexpr int kMaskThreads = 256, kAtOnce = 4;  // vectors that a thread has in flight

struct MaskArguments {
  MaskLogitsParams p;
  int splits;
};

template <class T>
__device__ __forceinline__ bool drops(const PartCut& what, typename T::Raw raw, int32_t token) {
  const float v = min(kLargest, what.order.key(T::value(raw)));  // in this order a NaN stays
  return v < what.cut.value || (v == what.cut.value && token > what.cut.last);
}

// The elements [first, end) of a row.
template <class T>
__device__ __forceinline__ void mask(const void* from, void* to, int32_t first, int32_t end, const PartCut& what) {
  using Raw = typename T::Raw;
  const Raw* const in = static_cast<const Raw*>(from);
  Raw* const out = static_cast<Raw*>(to);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const bool aligned = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const int32_t whole = aligned ? first + (end - first) / T::kPerVector * T::kPerVector : first;
  const int32_t step = threads * T::kPerVector;
  for (int32_t token = first + thread * T::kPerVector; token < whole; token += kAtOnce * step) {
    union Vector {
      uint4 words;
      Raw raw[T::kPerVector];
    } vector[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (token + k * step < whole) vector[k].words = *reinterpret_cast<const uint4*>(in + token + k * step);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int32_t at = token + k * step;
      if (at >= whole) break;
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i)
        if (drops<T>(what, vector[k].raw[i], at + i)) vector[k].raw[i] = T::kMinusInfinity;
      *reinterpret_cast<uint4*>(out + at) = vector[k].words;
    }
  }
  for (int32_t token = whole + thread; token < end; token += threads)
    out[token] = drops<T>(what, in[token], token) ? T::kMinusInfinity : in[token];
}

__global__ void __launch_bounds__(kMaskThreads) mask_logits_kernel(const MaskArguments a) {
  const MaskLogitsParams& p = a.p;
  const int64_t index = blockIdx.x / a.splits, i = index / p.rows.rows, j = index % p.rows.rows;
  const int32_t share = static_cast<int32_t>(blockIdx.x % a.splits);
  int32_t told = kStatusOk;
  const Law law = law_of(Space::kLogits, p.temperature.at(i, j), &told);
  const PartCut what = {{p.value.data[index], static_cast<int32_t>(p.last.at(index * p.last.slot_stride))},
                        law.logits()};
  const Row row = row_at(p.rows, p.rows.offset(i, j)), out = row_at(p.out, p.out.offset(i, j));
  // Shares begin with multiples of 8 elements, so that vectors stay aligned.
  const int64_t eights = (int64_t{row.vocab} + 7) / 8;
  const int32_t first = static_cast<int32_t>(8 * (eights * share / a.splits));
  const int64_t next = 8 * (eights * (share + 1) / a.splits);
  const int32_t end = next < row.vocab ? static_cast<int32_t>(next) : row.vocab;
  with_type(row, [&](auto type) { mask<decltype(type)>(row.data, const_cast<void*>(out.data), first, end, what); });
}

}  // namespace

cudaError_t mask_logits(const MaskLogitsParams& p, const Workspace&, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  constexpr int64_t kShare = 16384;  // elements of a block
  const int splits = static_cast<int>((int64_t{p.rows.vocab} + kShare - 1) / kShare);
  return launch_alone<mask_logits_kernel>({p.count() * splits, kMaskThreads}, MaskArguments{p, splits}, stream);
}

}  // namespace cuda
}  // namespace specdec
