// A tile of a pair of rows, sixteen tokens at a time.
#pragma once

#include "law_row.h"

SPECDEC_BEGIN

// Reads rows that are not plain.
struct Probabilities {
  static SPECDEC_HD F32x16 of_row(const LawRow& side, int32_t token, int32_t end, int32_t* column) {
    return side.probabilities(token, end, column);
  }
};

// Exact probabilities of plain logits of both sides, two vectors of each.
class ByLaw : public Probabilities {
 public:
  ByLaw(const LawRow& p, const LawRow& q)
      : target_(p.stats), draft_(q.stats), divided_(p.stats.law.inverse == 1.0f && q.stats.law.inverse == 1.0f) {}
  SPECDEC_HD Four operator()(Two<F32x16> p, Two<F32x16> q) const {
    const Four log = log_probabilities(p, q);
    return __builtin_expect(all_count(log), true) ? exp_in_range(log) : exp_up_to_88(log);
  }
  SPECDEC_HD Four log_probabilities(Two<F32x16> p, Two<F32x16> q) const {
    if (!divided_) p = target_.law.logits().key(p), q = draft_.law.logits().key(q);
    return {log_probability(p, target_.lse), log_probability(q, draft_.lse)};
  }
  // Few tokens are small enough to count as zero, so one comparison tests all vectors.
  static SPECDEC_HD bool all_count(Four log) {
    const F32x16 least = min(min(log.a.a, log.a.b), min(log.b.a, log.b.b));
    return at_least(least, F32x16(kExpUnderflow)) == first_lanes(kLanes);
  }

 protected:
  LawWithStats target_, draft_;
  bool divided_;
};

// Whether a row holds plain logits: one for each token, without filters or edits, and no NaN or +inf.
inline bool is_plain(const LawRow& side) {
  return side.stats.law.needs_sum() && !side.filter.on() && !side.row.edits && !side.map.tokens &&
         side.status == SPECDEC_STATUS_OK && side.stats.lse.max < kLargest;
}

// Calls f(token, p, q) for the tokens of a tile, sixteen at a time, with the values of Weigh::of_row. For plain logits
// it is called with two vectors of each side, the a and b of a Weigh's result.
template <class Weigh = ByLaw, class F>
SPECDEC_HD void over_pair_tile(const LawRow& target, const LawRow& draft, int32_t tile, F&& f) {
  const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
  int32_t token = begin;
  // Plain logits of one type need no test for each element.
  if (is_plain(target) && is_plain(draft) && target.row.dtype == draft.row.dtype) {
    constexpr int32_t kStep = 2 * kLanes;
    const int32_t columns = end < draft.row.vocab ? end : draft.row.vocab;
    const Weigh weigh(target, draft);
    with_data(target.row, [&](auto p) {
      const auto q = static_cast<decltype(p)>(draft.row.data);
      for (; token + kStep <= columns; token += kStep) {
        prefetch<kStep>(p + token + kTile), prefetch<kStep>(q + token + kTile);
        const auto weighed = weigh(load_two(p + token), load_two(q + token));
        f(token, weighed.a, weighed.b);
      }
    });
  }
  int32_t target_column = 0, column = draft.first_column(token);
  for (; token < end; token += kLanes)
    f(token, Weigh::of_row(target, token, end, &target_column), Weigh::of_row(draft, token, end, &column));
}

SPECDEC_END
