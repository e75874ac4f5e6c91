// tile_laws on the CPU: log-sum-exps of rows from their tiles, and probabilities.
#include "../rows/law_row.h"
#include "specdec/part_rows.h"

SPECDEC_BEGIN

void tile_laws(const TileLawsParams& p, int threads) {
  const int32_t count = p.tiles_a_row();
  over_requests(p.batch(), 1, threads, [&](int64_t index, const ThreadTeam&) {
    const int32_t* row_tiles = p.tiles.data + index * p.tiles.columns;
    const Law law = law_at(p, index);
    float top = -kInfinity;
    for (int32_t tile = 0; tile < count; ++tile) top = max(tile_at(row_tiles, count, tile).max, top);
    uint64_t mass = 0;
    for (int32_t tile = 0; tile < count; ++tile) mass += tile_mass(tile_at(row_tiles, count, tile), top);
    const LogSumExp lse = log_sum_exp(top, mass);
    p.row_stats.data[2 * index] = lse.max, p.row_stats.data[2 * index + 1] = lse.log_sum;
    const Row raw = row_at(p.raw, p.raw.offset(0, index));
    for (int32_t i = 0; i < raw.vocab; ++i)
      p.probs.data[index * raw.vocab + i] = law.logits().probability(element(raw, i), lse);
  });
}

SPECDEC_END
