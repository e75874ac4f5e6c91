// tile_laws: a warp has a row, a lane some of its tiles and raw values.
#include "../rows/mass_row.cuh"
#include "../team/launch.cuh"
#include "specdec/part_rows.h"

namespace specdec::cuda {

__global__ void __launch_bounds__(32) tile_laws_kernel(const TileLawsParams p) {
  const int64_t index = blockIdx.x;
  const int32_t count = p.tiles_a_row();
  const int32_t* words = p.tiles.data + index * p.tiles.columns;
  const Law law = law_at(p, index);
  float top = -kInfinity;
  for (int32_t tile = lane_id(); tile < count; tile += 32) top = max(tile_at(words, count, tile).max, top);
  top = warp_max(top);
  uint64_t mass = 0;
  for (int32_t tile = lane_id(); tile < count; tile += 32) mass += tile_mass(tile_at(words, count, tile), top);
  const LogSumExp lse = log_sum_exp(top, warp_sum(mass));
  if (lane_id() == 0) p.row_stats.data[2 * index] = lse.max, p.row_stats.data[2 * index + 1] = lse.log_sum;
  const Row raw = row_at(p.raw, p.raw.offset(0, index));
  for (int32_t i = lane_id(); i < raw.vocab; i += 32)
    p.probs.data[index * raw.vocab + i] = law.logits().probability(element(raw, i), lse);
}

cudaError_t tile_laws(const TileLawsParams& p, const Call& call) {
  return launch_alone<tile_laws_kernel>({p.batch(), 32}, p, call);
}

}  // namespace specdec::cuda
