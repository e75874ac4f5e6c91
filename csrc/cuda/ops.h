// The CUDA backend. A launcher enqueues one kernel on a stream and returns; it never waits for the device.
#pragma once

#include <cuda_runtime.h>

#include "specdec/ops.h"

namespace specdec::cuda {

// Where a call goes. The workspace is device memory that belongs to the stream, all zero when it is new. A kernel
// leaves its tickets at zero.
struct Call {
  void* workspace;
  int64_t bytes;
  cudaStream_t stream;
  int64_t* needed;  // 0
};

// Launches if the workspace is large enough. Otherwise sets *needed to the bytes it takes.
#define SPECDEC_CUDA_DECLARE(name, Params, ...) cudaError_t name(const Params& params, const Call& call);
SPECDEC_OPS(SPECDEC_CUDA_DECLARE)
#undef SPECDEC_CUDA_DECLARE

}  // namespace specdec::cuda
