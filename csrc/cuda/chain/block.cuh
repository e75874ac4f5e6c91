// Block verification: all rows are read before any draft is accepted.
#pragma once

#include "rejection.cuh"

namespace specdec::cuda {

// walk_traversal (specdec/walk.h) on a chain, with a node for each lane.
struct Leaf {
  float weight, uniform;     // weight: the acceptance weight on the way down
  int32_t status;            // of the node's draft
  bool tried;                // the draft after the node was rejected or removed
  bool accepted, needs_sum;  // needs_sum: the uniform lies between bounds, and the residual's sum decides
  __device__ float subtracted() const { return subtracted_after(0.0f, 1.0f, weight); }
};

// `weight` is that of lane 0's node; on return that of the node after the last lane. `lanes`: nodes that were visited.
template <class Lane>
__device__ __forceinline__ Leaf leaf_of_lane(const ChainRequest& r, const Lane& lane, float* weight, int* lanes) {
  const int32_t self = lane_id();
  const float p = lane.p(r), q = lane.in_range ? lane.q(r) : 0.0f;
  Leaf leaf = {};
  leaf.weight = *weight, leaf.status = lane.status(r);
#pragma unroll 1
  for (*lanes = 1;; ++*lanes) {
    const int index = *lanes - 1;
    if (index == 32 || lane.first + index >= r.drafts() || !__shfl_sync(kWarp, lane.tried, index)) break;
    *weight = child_weight(*weight, __shfl_sync(kWarp, p, index), __shfl_sync(kWarp, q, index), 0.0f, 1.0f);
    if (self == index) leaf.tried = true;
    if (!(*weight >= kSmallest)) break;
    if (self == index + 1) leaf.weight = *weight;
  }
  if (lane.node() == 0) leaf.accepted = true;
  if (lane.node() == 0 || self >= *lanes) return leaf;
  leaf.uniform = leaf_uniform(r.noise_at_depth(lane.node() - 1, 0), lane.node());
  float sum = leaf.weight;
  if (leaf.tried && !r.has_draft()) sum = weight_after(leaf.weight, 1.0f, untried_after(1.0f, p));
  leaf.accepted = leaf.uniform < sum;
  leaf.needs_sum = leaf.accepted && leaf.tried && r.has_draft() && sum < 1.0f;
  leaf.accepted &= !leaf.needs_sum;
  return leaf;
}

// The sum of (p - subtracted q)^+ of a node's pair over the block's tiles, into `sums`.
__device__ __forceinline__ void sum_tiles(const ChainArguments& a, const ChainRequest& r, const Shared<RowStats>& stats,
                                          int32_t node, float subtracted) {
  SPECDEC_SHARED(WideKey, of_warps, kMaxWarps);
  LawRow target = side_of(r, node, false), draft = side_of(r, node, true);
  target.stats = with_stats(r.target_law, stats[2 * node]), draft.stats = with_stats(r.draft_law, stats[2 * node + 1]);
  const BlockIndex block(a);
  const Tiles tiles = a.parts.tiles_of(block.part);
  uint64_t units = 0;
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int32_t column = tile * kMassTile + static_cast<int32_t>(threadIdx.x) * 4, vocab = target.row.vocab;
    if (column >= vocab) break;
    const Four p = probabilities(target, column, vocab), q = probabilities(draft, column, vocab);
    UnitSum<float> sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.take(residual_weight(p.value[i], mul(subtracted, q.value[i])));
    units += units_of(sum.high, sum.low);
  }
  units = warp_sum(units);
  if (lane_id() == 0) of_warps[warp_id()] = units;
  __syncthreads();
  if (threadIdx.x == 0) {
    units = 0;
    for (int warp = 0; warp < warps_in_block(); ++warp) units += static_cast<WideKey>(of_warps[warp]);
    put_word(sums_of_node(a, r, node) + block.part, WideKey{units});
  }
  __syncthreads();
}

// Accepts drafts as a block: the deepest node whose uniform allows it is the stop. take_sums(from, end) is called once
// if a uniform there needs a sum, and units(node) then returns the sum of a node. lane_at(node) loads the drafts
// from a node on, rows_status(node) returns the status of a node's rows.
template <class Lane, class LaneAt, class TakeSums, class Units, class RowsStatus>
__device__ __forceinline__ StopPoint accept_as_block(const ChainRequest& r, const Shared<Leaf>& leaves, Lane& lane,
                                                     LaneAt&& lane_at, TakeSums&& take_sums, Units&& units,
                                                     RowsStatus&& rows_status) {
  int32_t visited = 0, settled = 0;
  float weight = 1.0f;
#pragma unroll 1
  for (;;) {
    int lanes;
    const Leaf leaf = leaf_of_lane(r, lane, &weight, &lanes);
    if (warp_id() == 0 && lane_id() < lanes && lane_id() < 32) leaves[lane.node()] = leaf;
    const unsigned accepted = __ballot_sync(kWarp, leaf.accepted);
    if (accepted) settled = lane.first + 31 - __clz(static_cast<int>(accepted));
    visited += lanes < 32 ? lanes : 32;
    if (lanes <= 32) break;
    lane = lane_at(lane.first + 32);
  }
  __syncthreads();
  bool unsure = false;
  for (int32_t node = settled + 1 + lane_id(); node < visited; node += 32)
    unsure |= static_cast<Leaf>(leaves[node]).needs_sum;
  int32_t node = settled;
  if (__any_sync(kWarp, unsure)) {
    take_sums(settled + 1, visited);
#pragma unroll 1
    for (int32_t deeper = settled + 1; deeper < visited; ++deeper) {
      const Leaf leaf = leaves[deeper];
      if (leaf.needs_sum && leaf.uniform < weight_after(leaf.weight, 1.0f, sum_of_units(units(deeper)))) node = deeper;
    }
  }
  int32_t status = SPECDEC_STATUS_OK;
#pragma unroll 1
  for (int32_t leaf_node = lane_id(); leaf_node < visited; leaf_node += 32) {
    const Leaf leaf = leaves[leaf_node];
    status |= leaf.status;
    if (leaf.needs_sum && leaf_node > settled && leaf_node >= node) status |= rows_status(leaf_node);
  }
  if (node < lane.first) lane = lane_at(node / 32 * 32);
  Leaf leaf = {};
  if (lane.node() < visited) leaf = leaves[lane.node()];
  return stop_at(r, lane, node, leaf.tried, r.has_draft() ? leaf.subtracted() : 1.0f, status);
}

// All rows are in shared memory. For sums the blocks of the request wait at one more barrier.
__device__ __forceinline__ StopPoint accept_block_chain(const ChainArguments& a, const ChainRequest& r, LaneDraft& lane,
                                                        const Shared<RowStats>& stats, int sides, int32_t rows,
                                                        unsigned* blocks) {
  const Shared<Leaf> leaves =
      dynamic_shared<Leaf>(kStagedBytes + rows_in_shared(a) * sizeof(RowStats), a.p.width());
  const auto lane_at = [&](int32_t node) {
    LaneDraft next(r, node);
    next.set_stats(r, stats, sides, 0, rows, true);
    return next;
  };
  const auto take_sums = [&](int32_t from, int32_t end) {
#pragma unroll 1
    for (int32_t node = from; node < end; ++node)
      if (const Leaf leaf = leaves[node]; leaf.needs_sum) sum_tiles(a, r, stats, node, leaf.subtracted());
    arrive(&a.tickets[r.request].arrived);
    wait_for(&a.tickets[r.request].arrived, *blocks);
    *blocks += a.parts.count.by();
  };
  const auto units = [&](int32_t node) {
    uint64_t sum = 0;
    for (int part = lane_id(); part < a.parts.count.by(); part += 32) sum += load_fresh(sums_of_node(a, r, node) + part);
    return warp_sum(sum);
  };
  const auto rows_status = [&](int32_t node) {
    return static_cast<RowStats>(stats[2 * node]).status | static_cast<RowStats>(stats[2 * node + 1]).status;
  };
  return accept_as_block(r, leaves, lane, lane_at, take_sums, units, rows_status);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_block_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  verify_chain_request<true>(a);
}

}  // namespace specdec::cuda
