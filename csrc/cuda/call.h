// Where a call of the CUDA backend goes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace specdec::cuda {

// The workspace is device memory that belongs to the stream, all zero when it is new. A kernel leaves its tickets at zero.
struct Call {
  void* workspace;
  int64_t bytes;
  cudaStream_t stream;
  int64_t* needed;  // 0
};

}  // namespace specdec::cuda
