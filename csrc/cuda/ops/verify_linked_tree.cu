// verify_linked_tree: grid = requests x splits. One thread of each block walks its request's tree, which is short, so
// no block needs another to reach the last row. The blocks share the race over that row, and the last of them compares
// the winners. The first block writes the path.
#include "../rows/race_request.cuh"
#include "../team/launch.cuh"
#include "specdec/link_walk.h"

namespace specdec::cuda {

namespace {

__host__ __device__ __forceinline__ int32_t words_of_marks(int32_t vocab) { return (vocab + 127) / 128 * 4; }

// Walks, and marks the tokens that were rejected. All threads of the block call.
__device__ __forceinline__ LinkWalk walk_of_block(const LinkedRequest& t, const VerdictWriter& verdict, bool writes,
                                                  const Shared<unsigned>& tried, int32_t words) {
  SPECDEC_SHARED(LinkWalk, ended, 1);
  over_block(words, [&](int32_t word) { tried[word] = 0; });
  over_block(writes ? verdict.columns : 0, [&](int32_t depth) { verdict.clear(depth); });
  over_block(writes ? verdict.zeroed_nodes() : 0, [&](int32_t node) { verdict.zero(node); });
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto probability = [&](int32_t node, int32_t token, int32_t* status) {
      return checked_probability(element(row_at(t.p.target, t.row(node)), token), status);
    };
    const LinkWalk at = walk_links(t, probability, [&](int32_t depth, int32_t node, int64_t token) {
      if (writes) verdict.put(depth, node, token);
    });
    int32_t status = SPECDEC_STATUS_OK;
    if (at.tried && words > 0)
      t.over_children(at.node, &status, [&](int32_t, int64_t token) {
        if (in_vocab(t, token)) tried[token / 32] = tried[token / 32] | 1u << token % 32;
        return false;
      });
    ended[0] = at;
  }
  __syncthreads();
  return ended[0];
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    verify_linked_tree_kernel(const SplitArguments<LinkedParams> a) {
  const int64_t b = a.splits.index();
  Part part = {a.splits.rank(), a.splits.count};
  const LinkedRequest t(a.p, b);
  const VerdictWriter verdict = verdict_at(a.p, b);
  const int32_t words = words_of_marks(t.vocab());
  const Shared<unsigned> tried = dynamic_shared<unsigned>(0, words);
  const LinkWalk at = walk_of_block(t, verdict, part.rank == 0, tried, words);
  int64_t last;
  int32_t status = at.status;
  if (t.has_tokens()) {
    last = t.target_token(at.node);
  } else {
    Weights weights = weights_of_row(row_at(a.p.target, t.row(at.node)), {SPECDEC_PROBS, 1.0f, false});
    weights.tried = tried;
    weights.leaves_out = at.tried;
    RowPartial partial;
    for (;;) {
      partial = race_part(weights, t.noise_at_depth(at.depth), part);
      if (part.size > 1 && !a.splits.gather(&partial)) return;
      status |= partial.status;
      if (partial.best.token != kNoToken || !weights.leaves_out) break;
      // No token is left: the last block alone draws from p.
      status |= SPECDEC_STATUS_EMPTY_RESIDUAL;
      weights.leaves_out = false;
      part = {0, 1};
    }
    const Draw draw = to_draw(partial.best, status);
    last = draw.token;
    status = draw.empty ? draw.status & ~SPECDEC_STATUS_EMPTY_RESIDUAL : draw.status;
  }
  if (threadIdx.x != 0) return;
  verdict.put(at.depth, at.node, last);
  verdict.count(at.depth, status);
}

}  // namespace

cudaError_t verify_linked_tree(const LinkedParams& p, const Call& call) {
  static const Kernels kernels(verify_linked_tree_kernel);
  return on_device(call, p.batch(), kernels, [&](const Device& device) {
    Shape shape = {};
    shape.dynamic_shared = sizeof(unsigned) * words_of_marks(p.target.vocab);
    return launch_splits(verify_linked_tree_kernel, p, p.batch(), p.target, device, shape);
  });
}

}  // namespace specdec::cuda
