// The differences between machines: shared memory, loads, a few instructions, barriers across blocks. No file above
// this one contains PTX; tests/backends/host_cuda has the same names for the CPU. At the end: a thread's lane and warp,
// and loops that a block shares.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDACC__)
#include "arch_ptx.cuh"
#else
#include <host_arch.cuh>
#endif

namespace specdec::cuda {

constexpr unsigned kWarp = 0xffffffffu;

// Opaque: else the compiler moves arithmetic on these out of loops, where it takes registers.
__device__ __forceinline__ int lane_id() { return static_cast<int>(opaque(threadIdx.x) % 32); }
__device__ __forceinline__ int warp_id() { return static_cast<int>(opaque(threadIdx.x) / 32); }
__device__ __forceinline__ int warps_in_block() { return static_cast<int>(blockDim.x / 32); }

// Calls f(i) for each i of [first, end), each in one thread of the block.
template <class F>
__device__ __forceinline__ void over_block(int32_t first, int32_t end, F&& f) {
#pragma unroll 1
  for (int32_t i = first + static_cast<int32_t>(threadIdx.x); i < end; i += static_cast<int32_t>(blockDim.x)) f(i);
}
template <class F>
__device__ __forceinline__ void over_block(int32_t count, F&& f) { over_block(0, count, f); }

}  // namespace specdec::cuda
