// merge_chains: a block for each request, a thread for each chain.
#include "../team/launch.cuh"
#include "specdec/merge.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) merge_chains_kernel(const MergeParams p) {
  const MergedChains tree(p, blockIdx.x);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  over_block(p.chains(), [&](int32_t chain) { tree.count(chain); });
  __syncthreads();
  over_block(p.chains(), [&](int32_t chain) { tree.put_nodes(chain); });
  if (thread == 0) tree.clear(0);
  over_block(tree.nodes(), static_cast<int32_t>(p.draft_tokens.columns), [&](int32_t node) { tree.clear(node); });
  // A leaf overwrites a number that later chains need, so the last chains come first.
  for (int32_t last = p.chains(); last > 0; last -= threads) {
    const int32_t chain = last - 1 - thread;
    const int32_t leaf = chain >= 0 ? tree.leaf(chain) : -1;
    __syncthreads();
    if (chain >= 0) tree.leaves[chain] = leaf;
    __syncthreads();
  }
}

}  // namespace

cudaError_t merge_chains(const MergeParams& p, const Call& call) {
  return launch_alone<merge_chains_kernel>({p.draft_tokens.rows, threads_for(p.chains())}, p, call);
}

}  // namespace specdec::cuda
