// mass_tiles: a block has a row, and its warps take tiles in turn.
#include "../rows/staged_tile.cuh"
#include "../team/launch.cuh"
#include "specdec/c/sharded.h"
#include "specdec/request.h"

namespace specdec::cuda {

namespace {

// Three blocks share a multiprocessor: plain rows need as many, and edits get by with these registers.
__global__ void __launch_bounds__(kThreads, 3) mass_tiles_kernel(const MassTilesParams p) {
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  const ShapedRows reader = {edits, p.edits.on()};
  const int64_t index = blockIdx.x, i = index / p.rows.rows, j = index % p.rows.rows;
  const int32_t count = static_cast<int32_t>(p.tiles.columns / 3);
  int32_t* words = p.tiles.data + index * p.tiles.columns;
  const Entry entry = decode_entry(p.request_index, i);
  int32_t status = entry.status();
  Law law = {};
  if (entry.live()) {
    law = law_at(p.law, entry.index, j, &status);
    status |= reader.decode(p.edits, p.rows.vocab, {entry.index, j}, {i, j});
  }
  const EditedRow row = reader.of(row_at(p.rows, p.rows.offset(i, j)));
  const Shared<uint4> fours = dynamic_shared<uint4>(0, kVectors * kThreads);
  const bool weighs = entry.live() && !law.greedy;
  bool bad = false;
#pragma unroll 1
  for (int32_t tile = warp_id(); tile < mass_tiles_of(row.vocab); tile += warps_in_block()) {
    prefetch_tile(stored_row(row), tile + warps_in_block());
    const TileMass mass = weighs ? weigh(row, tile, law.logits(), fours) : kNoTileMass;
    bad |= mass.status != SPECDEC_STATUS_OK;
    if (lane_id() == 0) put_tile(words, count, tile, mass.tile);
  }
  if (__syncthreads_or(bad)) status |= SPECDEC_STATUS_NON_FINITE;
  if (threadIdx.x == 0) p.status.data[index] = status;
}

}  // namespace

cudaError_t mass_tiles(const MassTilesParams& p, const Call& call) {
  Shape shape = {p.count(), threads_of_block(p.rows.vocab, p.rows.dtype)};
  shape.dynamic_shared = kStagedBytes;
  return launch_alone<mass_tiles_kernel>(shape, p, call);
}

}  // namespace specdec::cuda
