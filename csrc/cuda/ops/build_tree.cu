// build_tree: a block for each request, a thread for each node. Barriers separate its steps. Intermediate results are
// in the outputs, so trees may be of any size.
#include "../team/launch.cuh"
#include "specdec/build.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) build_tree_kernel(const BuildParams p) {
  const int64_t b = blockIdx.x;
  const uint64_t before = warp_sum(static_cast<uint64_t>(count_mask_bytes(p, lane_id(), b, 32)));
  const Build tree(p, b, static_cast<int64_t>(before));
  const auto over_nodes = [&](auto&& f) {
    over_block(tree.nodes, f);
    __syncthreads();
  };
  store_status(p.status.data + b, build(tree, over_nodes));
}

}  // namespace

cudaError_t build_tree(const BuildParams& p, const Call& call) {
  return launch_alone<build_tree_kernel>({p.index.rows, threads_for(p.nodes())}, p, call);
}

}  // namespace specdec::cuda
