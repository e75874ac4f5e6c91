// The CUDA backend. A launcher enqueues one kernel on a stream and returns; it never waits for the device.
#pragma once

#include "call.h"
#include "specdec/ops.h"

namespace specdec::cuda {

// Launches if the workspace is large enough. Otherwise sets *needed to the bytes it takes.
#define SPECDEC_CUDA_DECLARE(name, Params) cudaError_t name(const Params& params, const Call& call);
SPECDEC_OPS(SPECDEC_CUDA_DECLARE)
#undef SPECDEC_CUDA_DECLARE

}  // namespace specdec::cuda
