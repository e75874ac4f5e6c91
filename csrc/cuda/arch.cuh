// What differs between machines, in one place: shared memory, loads, a few instructions, barriers across blocks, bulk
// copies. Nothing above this file contains PTX. tests/backends/host_cuda gives the same names for the CPU. At the
// end, which lane and warp a thread is in.
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

// Opaque, so that the compiler does not move what a loop computes from these out of the loop: it would take registers.
__device__ __forceinline__ int lane_id() { return static_cast<int>(opaque(threadIdx.x) % 32); }
__device__ __forceinline__ int warp_id() { return static_cast<int>(opaque(threadIdx.x) / 32); }
__device__ __forceinline__ int warps_in_block() { return static_cast<int>(blockDim.x / 32); }

}  // namespace specdec::cuda
