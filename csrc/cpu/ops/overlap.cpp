// overlap on the CPU: how close two laws are, in one pass over the pair of rows.
#include "specdec/c/pairs.h"
#include "specdec/overlap.h"
#include "../rows/edits.h"
#include "../rows/pair_tile.h"
#include "specdec/request.h"

SPECDEC_BEGIN

namespace {

// Probabilities, and log(p / q), which for plain logits is the difference of the logarithms.
struct WithRatio : ByLaw {
  using ByLaw::ByLaw;
  struct Draft {
    Two<F32x16> q, log_ratio;
  };
  struct RowPair {
    Two<F32x16> a;
    Draft b;
  };
  SPECDEC_HD RowPair operator()(Two<F32x16> p, Two<F32x16> q) const {
    const Four log = log_probabilities(p, q);
    Four weight = exp_in_range(log);
    Two<F32x16> ratio = sub(log.a, log.b);
    if (__builtin_expect(!all_count(log), false)) {
      weight = exp_up_to_88(log);
      ratio = log_ratio(weight.a, log.a, draft_.law.logits().log_p(q, draft_.lse));
    }
    return {weight.a, {weight.b, ratio}};
  }
  static SPECDEC_HD Weighed<F32x16> of_row(const LawRow& side, int32_t token, int32_t end, int32_t* column) {
    return side.weighed(token, end, column);
  }
};

struct TileSums {
  OverlapSums<F32x16> sums;
  SPECDEC_HD void operator()(int32_t, const Weighed<F32x16>& p, const Weighed<F32x16>& q) {
    sums = add(sums, overlap_terms(p, q));
  }
  SPECDEC_HD void operator()(int32_t, Two<F32x16> p, WithRatio::Draft edited_row) {
    sums = add(sums, overlap_terms(p.a, edited_row.q.a, edited_row.log_ratio.a));
    sums = add(sums, overlap_terms(p.b, edited_row.q.b, edited_row.log_ratio.b));
  }
};

OverlapSums<float> tile_overlap(const LawRow& target, const LawRow& draft, int32_t tile) {
  const F32x16 zero(0.0f);
  TileSums of_tile = {{zero, zero, zero, zero}};
  over_pair_tile<WithRatio>(target, draft, tile, of_tile);
  const OverlapSums<F32x16>& sums = of_tile.sums;
  return {total(sums.accept), total(sums.tv), total(sums.kl), total(sums.harmonic)};
}

void store(const OverlapParams& p, int64_t index, const OverlapSums<float>& sums, int32_t status) {
  p.accept.data[index] = sums.accept;
  p.tv.data[index] = 0.5f * sums.tv;
  p.kl.data[index] = sums.kl;
  p.harmonic.data[index] = sums.harmonic;
  if (p.status.data) p.status.data[index] = status;
}

}  // namespace

void overlap(const OverlapParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.target.vocab), threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t i = index / p.target.rows, j = index % p.target.rows;
    const Entry source = decode_entry(p.request_index, i);
    if (!source.live()) return store(p, index, {}, source.status());
    const int64_t n = source.index;
    TargetRow edited_row(p.target, p.target_law, p.edits, n, i, j);
    LawRow& target = edited_row.row;
    int32_t status = edited_row.status;
    LawRow draft = law_row_of(p.draft, p.draft.offset(n, j), p.draft_law, n, j, draft_map_of(p.draft_map, p.draft),
                              &status);
    scan_if_needed(target, p.status.data != nullptr, team, 0);
    scan_if_needed(draft, p.status.data != nullptr, team, 1);
    const int32_t tiles = target.row.tiles();
    auto* sums = scratch<OverlapSums<float>>(2, tiles);
    over_parts(tiles, team, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) sums[tile] = tile_overlap(target, draft, tile);
    });
    OverlapSums<float> all = {};
    for (int32_t tile = 0; tile < tiles; ++tile) all = add(all, sums[tile]);
    store(p, index, all, status | target.status | draft.status);
  });
}

SPECDEC_END
