// A walk by race over a chain's rows whose winners are known: for kernels in which the last block of a request to come
// decides what the others found.
#pragma once

#include "deferred_ops.cuh"
#include "specdec/chain.h"

namespace specdec {
namespace cuda {

// Rows of a request: those of the nodes first .. end - 1.
struct NodeRange {
  int32_t first, end;
};

// The row operations of walk_race when the winners of some rows are known.
struct WinnerOps {
  const VerdictWriter& verdict;
  const Shared<Draw>& winners;
  NodeRange known;

  __device__ bool race(int32_t node, const Noise&, Draw* draw) const {
    if (node >= known.end) return false;
    *draw = winners[node - known.first];
    return true;
  }
  __device__ bool argmax(int32_t node, Draw* draw) const { return race(node, {}, draw); }
  __device__ void emit(int32_t depth, int32_t node, int32_t token) const {
    if (lane_id() == 0) verdict.put(depth, node, token);
  }
  __device__ void enter(int32_t, int32_t, int32_t) const {}
};

// How many rows the walk can come to: the first one, and each behind a draft that can be accepted, but for one whose
// token is given. By the lanes of a warp together, so that drafts are loaded side by side.
__device__ __forceinline__ int32_t rows_in_reach(const ChainRequest& r) {
  if (!r.readable) return 0;
  const int32_t last = r.slots - (r.is_given(r.slots) ? 1 : 0);
#pragma unroll 1
  for (int32_t first = 0; first < last; first += 32) {
    const int32_t slot = first + lane_id();
    const unsigned ends = __ballot_sync(kWarp, slot >= last || !in_vocab(r, r.draft_token(slot + 1)));
    if (ends) return first + __ffs(static_cast<int>(ends));
  }
  return last + 1;
}

// What a block keeps of the rows it decides, in bytes of shared memory.
inline size_t bytes_of_winners(const ChainParams& p) { return (p.max_drafts() + 1) * sizeof(Draw); }

// Where a walk over the winners of some rows came to.
struct WalkedOn {
  int32_t node;  // whose row it needs next; kNoNode: the verdict is written
  int32_t status;
};

// By the last block to come. A warp gathers the winner of a row, which is in `splits` parts: all rows in the time of
// one. Then the first warp walks from the first of them, over the winners, which are in shared memory from byte `at`
// on. It alone gets what comes of that.
__device__ __forceinline__ WalkedOn walk_winners(const ChainRequest& r, int64_t request, NodeRange rows,
                                                 const WideKey* partials, int splits, size_t at, int32_t status) {
  const auto winners = dynamic_shared<Draw>(at, r.p.max_drafts() + 1);
  const int64_t first = request * (r.p.max_drafts() + 1) * splits;
#pragma unroll 1
  for (int32_t row = rows.first + warp_id(); row < rows.end; row += warps_in_block()) {
    const Draw draw = draw_of(gather_partials(partials, first + static_cast<int64_t>(row) * splits, splits));
    if (lane_id() == 0) winners[row - rows.first] = draw;
  }
  __syncthreads();
  WalkedOn on = {kNoNode, status};
  if (threadIdx.x >= 32) return on;
  const VerdictWriter verdict = verdict_at(r.p, request);
  WinnerOps ops{verdict, winners, rows};
  Walk walk = walk_from(rows.first, rows.first);
  if (r.readable && !walk_race(r, ops, &walk, &on.status)) {
    on.node = walk.node;
    return on;
  }
  if (!r.readable && !r.idle) ops.emit(0, 0, 0);
  finish(verdict, accepted_by(r, walk), on.status);
  return on;
}

}  // namespace cuda
}  // namespace specdec
