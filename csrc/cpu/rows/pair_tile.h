// A tile of a pair of rows, sixteen tokens at a time.
#pragma once

#include "law_row.h"

SPECDEC_BEGIN

// How plain logits are weighed, as the law has it.
struct ByLaw {
  Logits space;
  LogSumExp lse;
  explicit ByLaw(const LawRow& side) : space(side.stats.law.logits()), lse(side.stats.lse) {}
  SPECDEC_HD F32x16 operator()(F32x16 raw) const { return space.probability(raw, lse); }
};

// Whether a row holds logits that are taken as they came, one for each token.
inline bool is_plain(const LawRow& side) {
  return side.stats.law.needs_sum() && !side.filter.on() && !side.row.edits && !side.map.tokens;
}

// Calls f(token, p, q) for every sixteenth token of a tile, with the probabilities of sixteen.
template <class Weigh = ByLaw, class F>
SPECDEC_HD void over_pair_tile(const LawRow& target, const LawRow& draft, int32_t tile, F&& f) {
  const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
  int32_t token = begin;
  // Whole cells of logits of one type, as they came: nothing is asked of each of them.
  if (is_plain(target) && is_plain(draft) && target.row.dtype == draft.row.dtype) {
    const int32_t columns = end < draft.row.vocab ? end : draft.row.vocab;
    const Weigh of_target(target), of_draft(draft);
    with_data(target.row, [&](auto p) {
      const auto q = static_cast<decltype(p)>(draft.row.data);
      for (; token + kCell <= columns; token += kCell) {
        prefetch_cell(p + token + kTile), prefetch_cell(q + token + kTile);
        for (int32_t at = token; at < token + kCell; at += kLanes)
          f(at, of_target(load(p + at)), of_draft(load(q + at)));
      }
    });
  }
  for (int32_t column = draft.first_column(token); token < end; token += kLanes)
    f(token, target.probabilities(token, end), draft.probabilities(token, end, &column));
}

SPECDEC_END
