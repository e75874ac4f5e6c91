// residual on the CPU: the normalised law norm((p - h q)^+) and the probability that a token is drawn from it.
#include <algorithm>

#include "../rows/edits.h"
#include "../rows/pair_tile.h"
#include "../rows/unit_sum.h"
#include "specdec/c/pairs.h"
#include "specdec/chain.h"
#include "specdec/request.h"

SPECDEC_BEGIN

namespace {

// Stores sixteen lanes, without those from `end` on.
void store_lanes(F32x16 values, int32_t token, int32_t end, float* out) {
  if (end - token >= kLanes) return store(out + token, values);
  float lane[kLanes];
  store(lane, values);
  std::copy_n(lane, end - token, out + token);
}

// Two vectors always lie before the end.
SPECDEC_HD void store_lanes(Two<F32x16> values, int32_t token, int32_t, float* out) {
  store(out + token, values.a), store(out + token + kLanes, values.b);
}

// Writes the weights of one tile and returns their sum. They are not normalised, and not yet 0 where they are below
// kSmallest, which adds nothing to the sum.
uint64_t weigh_tile(const LawRow& target, const LawRow& draft, float h, int32_t tile, float* weights) {
  UnitSum<F32x16> weight;
  const int32_t end = tile * kTile + target.row.tile_size(tile);
  over_pair_tile(target, draft, tile, [&](int32_t token, auto p, auto q) __attribute__((always_inline)) {
    using Float = decltype(p);
    store_lanes(weight.take(max(sub(p, mul(Float(h), q)), Float(0.0f))), token, end, weights);
  });
  return total(weight);
}

// Calls f(first, end) for parts of the tokens.
template <class F>
void over_tokens(const Row& row, const ThreadTeam& team, F&& f) {
  over_parts(row.tiles(), team, [&](int, int32_t from, int32_t to) {
    f(from * kTile, to * static_cast<int64_t>(kTile) < row.vocab ? to * kTile : row.vocab);
  });
}

void residual_row(const ResidualParams& p, int64_t index, const ThreadTeam& team) {
  const int64_t i = index / p.target.rows, j = index % p.target.rows;
  float* probs = p.probs.data + index * p.target.vocab;
  const Entry source = decode_entry(p.request_index, i);
  if (!source.live()) {
    for (int32_t token = 0; token < p.target.vocab; ++token) probs[token] = 0.0f;
    p.mass.data[index] = 0.0f;
    if (p.status.data) p.status.data[index] = source.status();
    return;
  }
  const int64_t n = source.index;
  TargetRow edited_row(p.target, p.target_law, p.edits, n, i, j);
  LawRow& target = edited_row.row;
  int32_t status = edited_row.status;
  LawRow draft = law_row_of(p.draft, p.draft.offset(n, j), p.draft_law, n, j, draft_map_of(p.draft_map, p.draft),
                            &status);
  const float h = checked_draft_prob(p.draft_prob.at(n, j), &status);
  scan_if_needed(target, p.status.data != nullptr, team, 0);
  scan_if_needed(draft, p.status.data != nullptr, team, 1);
  const int32_t tiles = target.row.tiles();
  auto* sums = scratch<uint64_t>(2, tiles);
  over_parts(tiles, team, [&](int, int32_t from, int32_t to) {
    for (int32_t tile = from; tile < to; ++tile) sums[tile] = weigh_tile(target, draft, h, tile, probs);
  });
  uint64_t all = 0;
  for (int32_t tile = 0; tile < tiles; ++tile) all += sums[tile];
  const float weight = sum_of_units(all);
  const bool empty = all == 0;
  over_tokens(target.row, team, [&](int32_t first, int32_t end) {
    if (empty) {
      for (int32_t token = first; token < end; token += kLanes)
        store_lanes(target.probabilities(token, end), token, end, probs);
    } else {
      for (int32_t token = first; token < end; ++token) probs[token] = residual_weight(probs[token], 0.0f) / weight;
    }
  });
  p.mass.data[index] = weight;
  if (p.status.data)
    p.status.data[index] =
        status | target.status | draft.status | (empty ? SPECDEC_STATUS_EMPTY_RESIDUAL : SPECDEC_STATUS_OK);
}

}  // namespace

void residual(const ResidualParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.target.vocab), threads,
                [&](int64_t index, const ThreadTeam& team) { residual_row(p, index, team); });
}

SPECDEC_END
