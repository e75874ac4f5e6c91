// overlap on the CPU: how close two laws are, in one pass over the pair of rows.
#include "ops.h"
#include "pair_rows.h"
#include "specdec/chain.h"
#include "specdec/overlap.h"
#include "threads.h"

SPECDEC_BEGIN

namespace {

OverlapSums<float> tile_overlap(const LawRow& target, const LawRow& draft, int32_t tile) {
  const F16 zero(0.0f);
  OverlapSums<F16> sums = {zero, zero, zero, zero};
  const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
  for (int32_t token = begin; token < end; token += kLanes)
    sums = add(sums, overlap_terms(target.at(token, end), draft.at(token, end)));
  return {total(sums.accept), total(sums.tv), total(sums.kl), total(sums.harmonic)};
}

}  // namespace

void overlap(const OverlapParams& p, int threads) {
  over_requests(p.outer * p.inner, tiles_of(p.target.vocab), threads, [&](int64_t index, const Crew& crew) {
    const int64_t i = index / p.inner, j = index % p.inner;
    int32_t status = kStatusOk;
    const Temperature temperature = temperature_of(p.temperature.at(i, j), &status);
    const Row row = row_at(p.target, i * p.target.request_stride + j * p.target.row_stride);
    const Row draft_row = row_at(p.draft, i * p.draft.request_stride + j * p.draft.row_stride);
    const LawRow target = law_row(row, p.space, temperature, crew, 0);
    const LawRow draft = law_row(draft_row, p.space, temperature, crew, 1);
    auto* sums = reinterpret_cast<OverlapSums<float>*>(scratch(2, 4 * static_cast<int64_t>(row.tiles())));
    over_parts(row.tiles(), crew, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) sums[tile] = tile_overlap(target, draft, tile);
    });
    OverlapSums<float> all = {};
    for (int32_t tile = 0; tile < row.tiles(); ++tile) all = add(all, sums[tile]);
    p.accept[index] = all.accept;
    p.tv[index] = 0.5f * all.tv;
    p.kl[index] = all.kl;
    p.harmonic[index] = all.harmonic;
  });
}

SPECDEC_END
