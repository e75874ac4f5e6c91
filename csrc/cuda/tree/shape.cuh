// The filters and edits of a tree's rows, or their absence.
#pragma once

#include "../rows/request.cuh"
#include "work.cuh"

namespace specdec::cuda {

// Stands for RequestShape in kernels without filters and edits.
struct NoShape {
  static constexpr bool kShaped = false;
  using Support = Unfiltered;
  struct Memory {};
  __device__ explicit NoShape(const Memory&) {}
  __device__ int count(int32_t) const { return -1; }
  __device__ Row of(const Row& row, bool) const { return row; }
  __device__ Unfiltered support(unsigned, int32_t) const { return {}; }
};

// The filters and edits of a request. The support of a row is there once the row was looked through. Decoded filters
// are in shared memory, since they would take too many registers.
struct ShapeMemory {
  ShapedRows rows;
  Shared<Filter> filters;  // [2]: the target's, the draft's
  Shared<Cut> cuts;        // as `row_stats`
  Shared<int> listed;      // [2]: `listed` of FilteredRow for the last target row, and its node
};

struct RequestShape : ShapeMemory {
  static constexpr bool kShaped = true;
  using Support = Filtered;
  using Memory = ShapeMemory;
  __device__ explicit RequestShape(const Memory& memory) : Memory(memory) {}
  // Tokens in the list of a node's target row, -1 if they are not listed.
  __device__ int count(int32_t node) const { return listed[1] == node ? static_cast<int>(listed[0]) : -1; }
  __device__ Filter filter(unsigned side) const { return filters[opaque(side == kTarget ? 0u : 1u)]; }
  __device__ EditedRow of(const Row& row, bool of_target) const { return rows.of(row, of_target); }
  __device__ Filtered support(unsigned side, int32_t stats_index) const {
    const Filter decoded = filter(side);
    if (!decoded.on()) return {};
    return {cuts[stats_index], decoded.order};
  }
};

template <class Shaping>
__device__ __forceinline__ auto read_node_row(const TreeParams& p, const NodeRow& row, bool of_target,
                                              const Shaping& shaping) {
  return shaping.of(of_target ? row_at(p.target, row.at) : row_at(p.draft, row.at), of_target);
}
template <class Shaping>
__device__ __forceinline__ auto node_law(const TreeParams& p, const NodeRow& row, bool of_target,
                                         RowStats whole, const Shaping& shaping) {
  return LawRowOf<typename Shaping::Support>{read_node_row(p, row, of_target, shaping), with_stats(row.law, whole),
                                             of_target ? nullptr : p.draft_map.data,
                                             shaping.support(of_target ? kTarget : kDraft, row.stats_index)};
}

}  // namespace specdec::cuda
