// compact_kv: all tensors in one launch. A thread owns a column of a (request, tensor, head), up to 16 bytes wide, and
// moves its slots in ascending order. So no two threads touch the same memory, and no order between them is needed.
#include "../team/launch.cuh"
#include "specdec/tree.h"

namespace specdec::cuda {

namespace {

constexpr int kMovesAhead = 8;  // slots of a thread in flight

// The tensors travel with the launch, so that a CUDA graph holds them and nothing is copied: 7 KiB of parameters, which
// CUDA takes since 12.1. A call with more tensors takes more launches.
constexpr int kMostLayers = 128;

// A tensor, and the width of its columns.
struct Columns {
  specdec_cache_layer layer;
  int32_t width;  // bytes: 1, 2, 4, 8 or 16
};

struct CompactArguments {
  int32_t path_length;   // D + 1
  int32_t layer_blocks;  // blocks of a request and tensor
  int32_t layer_count;
  CacheLimits limits;
  const int32_t* path;
  int64_t path_stride;
  const int32_t* block_table;
  int64_t table_stride;
  specdec_counter prefix_len;
  int32_t* status;
  Columns columns[kMostLayers];
};

// Moves entries [from, to) of a path. A path rises from 0, so path[d] >= d. All reads after the write of slot d are
// from slots path[d'] > path[d] >= d, so none of them sees it, and neither do reads of several slots ahead.
template <class Vector, class Offset>
__device__ __forceinline__ void move_column(char* column, const Offset& offset, const int32_t* path, int32_t from,
                                            int32_t to) {
#pragma unroll 1
  for (int32_t d = from; d < to; d += kMovesAhead) {
    int64_t at[kMovesAhead];  // addresses first: the loads are then in flight together
    Vector held[kMovesAhead];
#pragma unroll
    for (int i = 0; i < kMovesAhead; ++i) at[i] = offset(path[d + i < to ? d + i : d]);
#pragma unroll
    for (int i = 0; i < kMovesAhead; ++i)
      if (d + i < to) held[i] = *reinterpret_cast<const Vector*>(column + at[i]);
#pragma unroll
    for (int i = 0; i < kMovesAhead; ++i)
      if (d + i < to) *reinterpret_cast<Vector*>(column + offset(d + i)) = held[i];
  }
}

template <class Offset>
__device__ __forceinline__ void move_column(int32_t width, char* column, const Offset& offset, const int32_t* path,
                                            int32_t from, int32_t to) {
  switch (width) {
    case 16: return move_column<uint4>(column, offset, path, from, to);
    case 8: return move_column<uint2>(column, offset, path, from, to);
    case 4: return move_column<uint32_t>(column, offset, path, from, to);
    case 2: return move_column<uint16_t>(column, offset, path, from, to);
    default: return move_column<uint8_t>(column, offset, path, from, to);
  }
}

__global__ void __launch_bounds__(kThreads) compact_kv_kernel(const __grid_constant__ CompactArguments a) {
  SPECDEC_SHARED(int32_t, moves, 2);
  const int32_t block = static_cast<int32_t>(blockIdx.x) % a.layer_blocks;
  const int32_t task = static_cast<int32_t>(blockIdx.x) / a.layer_blocks, index = task % a.layer_count;
  const int64_t request = task / a.layer_count;
  const int32_t* path = a.path + request * a.path_stride;
  const int32_t* pages = a.block_table ? a.block_table + request * a.table_stride : nullptr;
  const NodeSlots slots = {a.limits, request, a.prefix_len.at(request), pages};
  if (threadIdx.x == 0) {
    int32_t status = SPECDEC_STATUS_OK, from = 0;
    const int32_t to = count_moves(path, a.path_length, slots, &status);
    while (from < to && path[from] == from) ++from;  // already there
    moves[0] = from, moves[1] = to;
    if (index == 0 && block == 0) a.status[request] = status;
  }
  __syncthreads();
  const int32_t from = moves[0], to = moves[1];

  const specdec_cache_layer& layer = a.columns[index].layer;
  const int32_t width = a.columns[index].width, columns = layer.entry_bytes / width;
  const int32_t column = block * kThreads + static_cast<int32_t>(threadIdx.x);
  if (from == to || column >= layer.heads * columns) return;
  char* entries = layer.data + column / columns * layer.head_stride + column % columns * width;
  move_column(width, entries, [&](int32_t node) { return slots.offset(layer, node); }, path, from, to);
}

// The widest vectors into which all entries of the tensor can be cut, in bytes.
int32_t width_of(const specdec_cache_layer& layer) {
  const int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(layer.data)) | layer.batch_stride |
                      layer.head_stride | layer.slot_stride | layer.entry_bytes | 16;
  return static_cast<int32_t>(all & -all);
}

// Launches layers first .. first + count of the call.
cudaError_t launch_layers(const CompactParams& p, int32_t first, int32_t count, const Call& call) {
  CompactArguments a = {};
  a.path_length = static_cast<int32_t>(p.path.columns), a.layer_blocks = 1, a.layer_count = count > 0 ? count : 1;
  a.limits = cache_limits(p), a.prefix_len = p.prefix_len, a.status = p.status.data;
  a.path = p.path.data, a.path_stride = p.path.row_stride;
  a.block_table = p.block_table.data, a.table_stride = p.block_table.row_stride;
  a.columns[0].width = 1;
  for (int32_t i = 0; i < count; ++i) {
    const specdec_cache_layer& layer = p.layers.data[first + i];
    a.columns[i] = {layer, width_of(layer)};
    const int64_t columns = int64_t{layer.heads} * (layer.entry_bytes / a.columns[i].width);
    if (columns > INT32_MAX - kThreads) return cudaErrorInvalidValue;
    const int32_t blocks = static_cast<int32_t>((columns + kThreads - 1) / kThreads);
    if (blocks > a.layer_blocks) a.layer_blocks = blocks;
  }
  const Shape shape = {p.path.rows * a.layer_count * a.layer_blocks, kThreads};
  return launch_alone<compact_kv_kernel>(shape, a, call);
}

}  // namespace

cudaError_t compact_kv(const CompactParams& p, const Call& call) {
  const int32_t layers = static_cast<int32_t>(p.layers.size);
  int32_t first = 0;
  cudaError_t e;
  do {  // once without layers, too: the kernel writes the status
    const int32_t left = layers - first;
    e = launch_layers(p, first, left < kMostLayers ? left : kMostLayers, call);
    first += kMostLayers;
  } while (e == cudaSuccess && first < layers);
  return e;
}

}  // namespace specdec::cuda
