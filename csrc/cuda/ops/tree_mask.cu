// tree_mask: a warp takes 1,024 columns of a node's row. It walks up from the node. Each lane notes the nodes within
// its 32 columns, then writes 16 bytes at a time. A row may start anywhere, so columns are counted from a 16-byte
// boundary.
#include "../team/launch.cuh"
#include "specdec/c/trees.h"
#include "specdec/tree.h"

namespace specdec::cuda {

namespace {

constexpr int kWarps = kThreads / 32;
constexpr int64_t kColumns = 32 * 32;  // of a warp

struct MaskArguments {
  MaskParams p;
  int64_t chunks;          // warps of a row
  int64_t request_blocks;  // blocks of a request
};

// Bit j: whether `node` attends to column `first` + 32 * lane + j. Columns before 0 do not matter.
__device__ __forceinline__ uint32_t attended(const MaskParams& p, int64_t first_parent, int32_t node, int64_t prefix,
                                             int64_t first) {
  const int64_t column = first + 32 * lane_id(), committed = prefix - column;
  uint32_t word = committed >= 32 ? 0xffffffffu : committed > 0 ? (1u << committed) - 1u : 0u;
  if (first + kColumns <= prefix) return word;
  int32_t status = SPECDEC_STATUS_OK;
  for (int32_t at = node; at >= 0 && prefix + at >= first; at = parent_of(p.parents, first_parent, at, &status)) {
    const int64_t bit = prefix + at - column;
    if (bit >= 0 && bit < 32) word |= 1u << bit;
  }
  return word;
}

// One 32-bit word of the mask, from the bits of its columns.
__device__ __forceinline__ uint32_t mask_word(uint8_t, uint32_t attends, uint32_t) {
  return (attends & 15u) * 0x00204081u & 0x01010101u;  // four bits to four bytes
}
__device__ __forceinline__ uint32_t mask_word(uint16_t, uint32_t attends, uint32_t minus_infinity) {
  return (attends & 1u ? 0u : minus_infinity) | (attends & 2u ? 0u : minus_infinity << 16);
}
__device__ __forceinline__ uint32_t mask_word(uint32_t, uint32_t attends, uint32_t minus_infinity) {
  return attends & 1u ? 0u : minus_infinity;
}

// Writes a warp's columns of row `row` from the bits of its lanes.
template <class Element>
__device__ __forceinline__ void store_columns(const MaskParams& p, Element* row, int64_t first, uint32_t attends) {
  constexpr int kVector = 16 / sizeof(Element), kWord = 4 / sizeof(Element);  // columns in each
#pragma unroll 1
  for (int at = lane_id() * kVector; at < kColumns; at += 32 * kVector) {
    const uint32_t bits = __shfl_sync(kWarp, attends, at / 32) >> at % 32;
    uint32_t word[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) word[w] = mask_word(Element{}, bits >> w * kWord, p.mask.minus_infinity);
    const int64_t column = first + at;
    if (column >= 0 && column + kVector <= p.columns) {
      *reinterpret_cast<uint4*>(row + column) = {word[0], word[1], word[2], word[3]};
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (column + i >= 0 && column + i < p.columns)
          row[column + i] = static_cast<Element>(word[i / kWord] >> i % kWord * 8 * sizeof(Element));
    }
  }
}

// Chunk `chunk` of a row of the mask.
template <class Element>
__device__ __forceinline__ void write_chunk(const MaskParams& p, int64_t request, int32_t node, int64_t prefix,
                                            int64_t chunk) {
  Element* row = static_cast<Element*>(p.mask.data) + (request * p.mask.nodes + node) * p.columns;
  const int64_t past_boundary = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Element));
  const int64_t first = chunk * kColumns - past_boundary;
  store_columns(p, row, first, attended(p, request * p.parents.request_stride, node, prefix, first));
}

__device__ __forceinline__ void write_bits(const MaskParams& p, int64_t request, int32_t node, int64_t prefix,
                                           int64_t chunk) {
  const int64_t words = (p.columns + 31) / 32, at = chunk * 32 + lane_id();
  const uint32_t word = attended(p, request * p.parents.request_stride, node, prefix, chunk * kColumns);
  if (at < words) static_cast<uint32_t*>(p.mask.data)[(request * p.mask.nodes + node) * words + at] = word;
}

__global__ void __launch_bounds__(kThreads) tree_mask_kernel(const MaskArguments a) {
  const MaskParams& p = a.p;
  const int64_t request = blockIdx.x / a.request_blocks, block = blockIdx.x % a.request_blocks;
  int32_t status = SPECDEC_STATUS_OK;
  const int64_t prefix = clamp_prefix(p.prefix_len.at(request), p.columns - p.mask.nodes, &status);
  if (block == 0) {
    over_block(p.mask.nodes, [&](int32_t node) {
      parent_of(p.parents, request * p.parents.request_stride, node, &status);
    });
    store_status(p.status.data + request, status);
  }
  const int64_t task = block * kWarps + warp_id(), chunk = task % a.chunks;
  if (task / a.chunks >= p.mask.nodes) return;
  const int32_t node = static_cast<int32_t>(task / a.chunks);
  switch (p.mask.layout) {
    case SPECDEC_MASK_BOOL: return write_chunk<uint8_t>(p, request, node, prefix, chunk);
    case SPECDEC_MASK_ADDITIVE32: return write_chunk<uint32_t>(p, request, node, prefix, chunk);
    case SPECDEC_MASK_ADDITIVE16: return write_chunk<uint16_t>(p, request, node, prefix, chunk);
    case SPECDEC_MASK_BITS: return write_bits(p, request, node, prefix, chunk);
  }
}

}  // namespace

cudaError_t tree_mask(const MaskParams& p, const Call& call) {
  MaskArguments a = {p, 0, 0};
  a.chunks = (p.columns + 15 + kColumns - 1) / kColumns;  // 15: a boundary lies at most that far before the row
  a.request_blocks = (p.mask.nodes * a.chunks + kWarps - 1) / kWarps;
  return launch_alone<tree_mask_kernel>({p.mask.batch * a.request_blocks, kThreads}, a, call);
}

}  // namespace specdec::cuda
