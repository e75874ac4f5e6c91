// tree_positions: a block for each request, a thread for each node, which walks up to the root. A parent comes before
// its child, so the walk ends whatever the entries are, after as many steps as the node is deep.
#include "../team/launch.cuh"
#include "specdec/tree.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) tree_positions_kernel(const PositionsParams p) {
  const int64_t request = blockIdx.x, first_parent = request * p.parents.request_stride;
  int32_t status = SPECDEC_STATUS_OK;
  const int64_t prefix = prefix_of(p.prefix_len.at(request), INT64_MAX - p.positions.columns, &status);
  for (int32_t node = static_cast<int32_t>(threadIdx.x); node < p.positions.columns; node += static_cast<int32_t>(blockDim.x)) {
    int64_t position = prefix;
    for (int32_t above = node; (above = parent_of(p.parents, first_parent, above, &status)) >= 0;) ++position;
    p.positions.data[request * p.positions.columns + node] = position;
  }
  const bool bad = __syncthreads_or(status != SPECDEC_STATUS_OK);
  if (threadIdx.x == 0) p.status.data[request] = bad ? SPECDEC_STATUS_PARAMETER : SPECDEC_STATUS_OK;
}

}  // namespace

cudaError_t tree_positions(const PositionsParams& p, const Workspace&, cudaStream_t stream, int64_t* needed) {
  *needed = 0;
  const int64_t nodes = p.positions.columns;
  const int threads = nodes < kThreads ? static_cast<int>((nodes + 31) / 32 * 32) : kThreads;
  return launch_alone<tree_positions_kernel>({p.positions.rows, threads}, p, stream);
}

}  // namespace specdec::cuda
