// tree_parents: a block for each request, a thread for each node. Steps are kept apart by barriers; their notes are in
// the outputs, so trees may be of any size.
#include "../team/launch.cuh"
#include "specdec/links.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) tree_parents_kernel(const LinksParams p) {
  const Links links(p, blockIdx.x);
  const auto over_nodes = [&](auto&& f) {
    for (int32_t node = static_cast<int32_t>(threadIdx.x); node < links.nodes; node += static_cast<int32_t>(blockDim.x))
      f(node);
    __syncthreads();
  };
  const int32_t mine = trees_of(links, over_nodes, [](int32_t* word, int32_t value) { atomicMax(word, value); });
  const bool bad = __syncthreads_or(mine != SPECDEC_STATUS_OK);
  if (threadIdx.x == 0) p.status.data[blockIdx.x] = bad ? SPECDEC_STATUS_PARAMETER : SPECDEC_STATUS_OK;
}

}  // namespace

cudaError_t tree_parents(const LinksParams& p, const Workspace&, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  const int64_t nodes = p.parents.columns < 1 ? 1 : p.parents.columns;
  const int threads = nodes < kThreads ? static_cast<int>((nodes + 31) / 32 * 32) : kThreads;
  return launch_alone<tree_parents_kernel>({p.parents.rows, threads}, p, stream);
}

}  // namespace specdec::cuda
