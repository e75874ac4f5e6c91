// chain_ends: a thread for each request.
#include "launch.cuh"
#include "specdec/chain_ends.h"

namespace specdec {
namespace cuda {

namespace {

__global__ void __launch_bounds__(kThreads) chain_ends_kernel(const ChainEndsParams p) {
  const int64_t b = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (b < p.batch()) ChainEnd(p, b).finish();
}

}  // namespace

cudaError_t chain_ends(const ChainEndsParams& p, const Workspace&, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  return launch_alone<chain_ends_kernel>({(p.batch() + kThreads - 1) / kThreads, kThreads}, p, stream);
}

}  // namespace cuda
}  // namespace specdec
