// overlap on the CPU: how close two laws are, in one pass over the pair of rows.
#include "row.h"
#include "specdec/overlap.h"

SPECDEC_BEGIN

namespace {

OverlapSums<float> tile_overlap(const LawRow& target, const LawRow& draft, int32_t tile) {
  const F16 zero(0.0f);
  OverlapSums<F16> sums = {zero, zero, zero, zero};
  const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
  for (int32_t token = begin; token < end; token += kLanes)
    sums = add(sums, overlap_terms(target.probabilities(token, end), draft.probabilities(token, end)));
  return {total(sums.accept), total(sums.tv), total(sums.kl), total(sums.harmonic)};
}

}  // namespace

void overlap(const OverlapParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.target.vocab), threads, [&](int64_t index, const Crew& crew) {
    const int64_t i = index / p.target.rows, j = index % p.target.rows;
    int32_t status = kStatusOk;
    LawRow target = law_row(row_at(p.target, p.target.offset(i, j)), law_at(p.target_law, i, j, &status));
    LawRow draft = law_row(row_at(p.draft, p.draft.offset(i, j)), law_at(p.draft_law, i, j, &status));
    look_if_needed(target, p.status.data != nullptr, crew, 0);
    look_if_needed(draft, p.status.data != nullptr, crew, 1);
    const int32_t tiles = target.row.tiles();
    auto* sums = reinterpret_cast<OverlapSums<float>*>(scratch(2, 4 * static_cast<int64_t>(tiles)));
    over_parts(tiles, crew, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) sums[tile] = tile_overlap(target, draft, tile);
    });
    OverlapSums<float> all = {};
    for (int32_t tile = 0; tile < tiles; ++tile) all = add(all, sums[tile]);
    p.accept.data[index] = all.accept;
    p.tv.data[index] = 0.5f * all.tv;
    p.kl.data[index] = all.kl;
    p.harmonic.data[index] = all.harmonic;
    if (p.status.data) p.status.data[index] = status | target.status | draft.status;
  });
}

SPECDEC_END
