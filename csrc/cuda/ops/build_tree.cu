// build_tree: a block for each request, a thread for each node. Steps are kept apart by barriers; their notes are in the
// outputs, so trees may be of any size.
#include "../team/launch.cuh"
#include "specdec/build.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) build_tree_kernel(const BuildParams p) {
  const int64_t b = blockIdx.x;
  const uint64_t before = warp_sum(static_cast<uint64_t>(bytes_of_masks(p, lane_id(), b, 32)));
  const Build tree(p, b, static_cast<int64_t>(before));
  const int32_t mine = build(tree, [&](auto&& f) {
    for (int32_t node = static_cast<int32_t>(threadIdx.x); node < tree.nodes; node += static_cast<int32_t>(blockDim.x))
      f(node);
    __syncthreads();
  });
  const bool bad = __syncthreads_or(mine != SPECDEC_STATUS_OK);
  if (threadIdx.x == 0) p.status.data[b] = bad ? SPECDEC_STATUS_PARAMETER : SPECDEC_STATUS_OK;
}

}  // namespace

cudaError_t build_tree(const BuildParams& p, const Workspace&, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  const int threads = p.nodes() < kThreads ? (p.nodes() + 31) / 32 * 32 : kThreads;
  return launch_alone<build_tree_kernel>({p.index.rows, threads}, p, stream);
}

}  // namespace specdec::cuda
