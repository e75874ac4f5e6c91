// The CUDA backend. A launcher enqueues one kernel on `stream` and returns; it never waits for the device.
#pragma once

#include <cuda_runtime.h>

#include "specdec/ops.h"

namespace specdec::cuda {

// Device memory that belongs to one stream, all zero when it is new. A kernel leaves its tickets at zero.
struct Workspace {
  void* data;
  int64_t bytes;
};

// Launches if the workspace is large enough, and sets *needed to 0. Otherwise sets *needed to the bytes it takes.
#define SPECDEC_CUDA_DECLARE(name, Params, ...) \
  cudaError_t name(const Params& params, const Workspace& workspace, cudaStream_t stream, int64_t* needed);
SPECDEC_OPS(SPECDEC_CUDA_DECLARE)
#undef SPECDEC_CUDA_DECLARE

}  // namespace specdec::cuda
