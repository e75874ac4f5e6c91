// The memory and the stream of a call to the CUDA backend.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace specdec::cuda {

// The workspace is device memory of the stream, all zero when it is new. A kernel leaves its tickets at zero.
struct Call {
  void* workspace;
  int64_t bytes;
  cudaStream_t stream;
  int64_t* needed;  // bytes that the workspace must have; 0 on entry
};

}  // namespace specdec::cuda
