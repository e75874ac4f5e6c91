// Rows that are copied, changed or not: a block has a slice of a row, a thread some vectors of it at a time.
#pragma once

#include "rows.cuh"

namespace specdec::cuda {

constexpr int kSliceThreads = 256, kVectorsInFlight = 4;

__host__ __device__ __forceinline__ int splits_of(int32_t vocab) {
  constexpr int32_t kSlice = 16384;  // elements of a block
  return vocab / kSlice + (vocab % kSlice > 0);
}

// The block's row, of rows of `vocab` elements, and its elements [first, end).
struct RowSlice {
  int64_t index;
  int32_t first, end;
  // Slices begin with multiples of 8 elements, so that vectors stay aligned.
  __device__ explicit RowSlice(int32_t vocab) {
    const int splits = splits_of(vocab), slice = static_cast<int>(blockIdx.x % splits);
    const int64_t eights = (int64_t{vocab} + 7) / 8, next = 8 * (eights * (slice + 1) / splits);
    index = blockIdx.x / splits;
    first = static_cast<int32_t>(8 * (eights * slice / splits));
    end = next < vocab ? static_cast<int32_t>(next) : vocab;
  }
};

// Writes change(raw, token) of each element.
template <class T, class Change>
__device__ __forceinline__ void copy_slice(const void* from, void* to, const RowSlice& slice, const Change& change) {
  using Raw = typename T::Raw;
  const Raw* const in = static_cast<const Raw*>(from);
  Raw* const out = static_cast<Raw*>(to);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const bool aligned = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const int32_t whole =
      aligned ? slice.first + (slice.end - slice.first) / T::kPerVector * T::kPerVector : slice.first;
  const int32_t step = threads * T::kPerVector;
  for (int32_t token = slice.first + thread * T::kPerVector; token < whole; token += kVectorsInFlight * step) {
    union Vector {
      uint4 words;
      Raw raw[T::kPerVector];
    } vector[kVectorsInFlight];
#pragma unroll
    for (int k = 0; k < kVectorsInFlight; ++k)
      if (token + k * step < whole) vector[k].words = *reinterpret_cast<const uint4*>(in + token + k * step);
#pragma unroll
    for (int k = 0; k < kVectorsInFlight; ++k) {
      const int32_t at = token + k * step;
      if (at >= whole) break;
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) vector[k].raw[i] = change(vector[k].raw[i], at + i);
      *reinterpret_cast<uint4*>(out + at) = vector[k].words;
    }
  }
  for (int32_t token = whole + thread; token < slice.end; token += threads) out[token] = change(in[token], token);
}

}  // namespace specdec::cuda
