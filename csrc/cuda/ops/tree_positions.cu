// tree_positions: a block for each request, a thread for each node, which walks up to the root. A parent comes before
// its child, so the walk ends whatever the entries are, after as many steps as the node is deep.
#include "../team/launch.cuh"
#include "specdec/c/trees.h"
#include "specdec/tree.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) tree_positions_kernel(const PositionsParams p) {
  const int64_t request = blockIdx.x, first_parent = request * p.parents.request_stride;
  int32_t status = SPECDEC_STATUS_OK;
  const int64_t prefix = clamp_prefix(p.prefix_len.at(request), INT64_MAX - p.positions.columns, &status);
  over_block(static_cast<int32_t>(p.positions.columns), [&](int32_t node) {
    int64_t position = prefix;
    for (int32_t above = node; (above = parent_of(p.parents, first_parent, above, &status)) >= 0;) ++position;
    p.positions.data[request * p.positions.columns + node] = position;
  });
  store_status(p.status.data + request, status);
}

}  // namespace

cudaError_t tree_positions(const PositionsParams& p, const Call& call) {
  return launch_alone<tree_positions_kernel>({p.positions.rows, threads_for(p.positions.columns)}, p, call);
}

}  // namespace specdec::cuda
