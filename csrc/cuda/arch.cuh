// What differs between machines, in one place: shared memory, loads, a few instructions, barriers across blocks, bulk
// copies. Nothing above this file contains PTX. tests/backends/host_cuda gives the same names for the CPU.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDACC__)
#include "arch_ptx.cuh"
#else
#include <host_arch.cuh>
#endif
