// What the kernels of chains and of trees do with a request: its filters, its decoding by another thread, and the end
// of its verdict.
#pragma once

#include "rows.cuh"
#include "specdec/filter.h"
#include "specdec/walk.h"

namespace specdec::cuda {

// The decoded filters of a request.
struct RequestFilters {
  Filter target, draft;
  int32_t status = SPECDEC_STATUS_OK;

  template <class Topology>
  __device__ explicit RequestFilters(const Topology& t) {
    if (!t.readable) return;
    target = filter_at(t.p.target_law, t.target_law, t.p.target.vocab, t.entry, 0, &status);
    if (t.has_draft()) draft = filter_at(t.p.draft_law, t.draft_law, t.p.draft.vocab, t.entry, 0, &status);
  }
};

// Ends a verdict: clears the columns after the last token, and those of nodes off the path. All lanes of a warp call.
__device__ __forceinline__ void finish(const VerdictWriter& verdict, int32_t accepted, int32_t status) {
  for (int32_t depth = accepted + 1 + lane_id(); depth < verdict.columns; depth += 32) verdict.clear(depth);
  if (const int32_t nodes = verdict.zeroed_nodes()) {
    __syncwarp();  // lane 0 has written the path
#pragma unroll 1
    for (int32_t node = lane_id(); node < nodes; node += 32) verdict.zero_off_path(node, accepted);
  }
  if (lane_id() == 0) verdict.count(accepted, status);
}

// The request that another thread decoded.
template <class Topology>
__device__ __forceinline__ Topology decoded_request(const typename Topology::Params& p,
                                                    const Shared<typename Topology::State>& decoded) {
  const typename Topology::State state = decoded[0];
  return Topology(p, state);
}

}  // namespace specdec::cuda
