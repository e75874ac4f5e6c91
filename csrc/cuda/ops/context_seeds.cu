// context_seeds: a block for each row. Its threads share the text that they search for the row's context.
#include "../team/launch.cuh"
#include "specdec/context.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) context_seeds_kernel(const ContextParams p) {
  const ContextRow row(p, blockIdx.x / p.seeds.columns, static_cast<int32_t>(blockIdx.x % p.seeds.columns));
  const bool seen = __syncthreads_or(row.seen(static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)));
  if (threadIdx.x == 0) p.seeds.data[blockIdx.x] = row.seed(row.is_marked() && !seen);
}

}  // namespace

cudaError_t context_seeds(const ContextParams& p, const Call& call) {
  return launch_alone<context_seeds_kernel>({p.seeds.rows * p.seeds.columns, kThreads}, p, call);
}

}  // namespace specdec::cuda
