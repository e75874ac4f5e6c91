// tree_parents: a block for each request, a thread for each node. Barriers separate its steps. Intermediate results are
// in the outputs, so trees may be of any size.
#include "../team/launch.cuh"
#include "specdec/links.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) tree_parents_kernel(const LinksParams p) {
  const Links links(p, blockIdx.x);
  const auto over_nodes = [&](auto&& f) {
    over_block(links.nodes, f);
    __syncthreads();
  };
  const auto raise = [](int32_t* word, int32_t value) { atomicMax(word, value); };
  store_status(p.status.data + blockIdx.x, read_links(links, over_nodes, raise));
}

}  // namespace

cudaError_t tree_parents(const LinksParams& p, const Call& call) {
  return launch_alone<tree_parents_kernel>({p.parents.rows, threads_for(p.parents.columns)}, p, call);
}

}  // namespace specdec::cuda
