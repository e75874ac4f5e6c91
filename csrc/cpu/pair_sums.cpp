// The sums over a pair of rows that a walk asks for among siblings, and when it goes back (specdec/traversal.h).
#include "pair_sums.h"

#include "pair_tile.h"
#include "unit_sum.h"

SPECDEC_BEGIN

namespace {

// How plain logits are weighed nearly, in half of the operations.
struct Nearly {
  F16 scale, down;
  explicit Nearly(const LawRow& side)
      : scale(mul(side.known.law.logits().inverse, 1.44269504f)),
        down(mul(add(side.known.lse.max, side.known.lse.log_sum), -1.44269504f)) {}
  SPECDEC_HD F16 operator()(F16 raw) const { return about_exp2(fma(raw, scale, down)); }
};

// What figures by `Nearly` are multiplied by to get the least and the largest that they may be. Each of them is off by
// as much as their sum may be, and so may be the sum.
Range factors(const LawRow& side) {
  const float error = log_sum_error(side.known.lse.max) + (side.rough() ? side.error : 0.0f);
  return {1.0f - error, 1.0f + error * (1.0f + error)};  // of e^-error and e^error
}
// Of a tile's sum: 64 additions a lane and at most 15 of lanes, each wrong by 2^-24 at most. What log_sum_error leaves
// for roundings covers the products and differences before them.
constexpr double kSumError = 5e-6;
// Of a weight in whole numbers, to the nearest multiple of 2^-42, and of `Nearly`, which is never below 2^-125.
constexpr double kUnitError = 0x1.001p-43;

// A pair of rows. kSiblings: whether R is summed, which a chain has no use for.
template <bool kSiblings>
struct Pair {
  const LawRow& target;
  const LawRow& draft;
  const TokenList* tried;

  // Calls f(p, q, q of the tokens not tried) for sixteen tokens of a tile at a time.
  template <class Weigh, class F>
  void over_tile(int32_t tile, F&& f) const {
    Mask gone[kTile / kLanes] = {};
    for (int32_t i = 0; kSiblings && i < tried->count; ++i) {
      const int32_t token = tried->tokens[i];
      if (token / kTile == tile) gone[token % kTile / kLanes] |= 1u << token % kLanes;
    }
    const F16 zero(0.0f);
    over_pair_tile<Weigh>(target, draft, tile, [&](int32_t token, F16 p, F16 q) __attribute__((always_inline)) {
      f(p, q, kSiblings ? where(gone[token % kTile / kLanes], zero, q) : zero);
    });
  }

  // The sums of all tiles, added up in order.
  template <class Sums, class F>
  Sums added_up(const Crew& crew, F&& sums_of_tile) const {
    const int32_t tiles = target.row.tiles();
    Sums* const sums = reinterpret_cast<Sums*>(scratch(2, static_cast<int64_t>(sizeof(Sums) / sizeof(float)) * tiles));
    over_parts(tiles, crew, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) sums[tile] = sums_of_tile(tile);
    });
    Sums all = {};
    for (int32_t tile = 0; tile < tiles; ++tile) all += sums[tile];
    return all;
  }

  struct Units {
    uint64_t left, untried;
    void operator+=(const Units& other) { left += other.left, untried += other.untried; }
  };
  Units units_of_tile(float taken, int32_t tile) const {
    UnitSum<F16> left, untried;
    over_tile<ByLaw>(tile, [&](F16 p, F16 q, F16 q_untried) __attribute__((always_inline)) {
      left.take(residual_weight(p, mul(F16(taken), q)));
      if (kSiblings) untried.take(q_untried);
    });
    return {total(left), total(untried)};
  }
  Masses sums(float taken, const Crew& crew) const {
    const Units all = added_up<Units>(crew, [&](int32_t tile) { return units_of_tile(taken, tile); });
    return {sum_of_units(all.left), sum_of_units(all.untried), target.status | draft.status};
  }

  struct Bounds {
    double least, most, untried;
    void operator+=(const Bounds& other) { least += other.least, most += other.most, untried += other.untried; }
  };
  Bounds bounds_of_tile(Range p_factors, Range taken, int32_t tile) const {
    const F16 zero(0.0f), p_low(p_factors.low), p_high(p_factors.high), low(taken.low), high(min(taken.high, kLargest));
    F16 least = zero, most = zero, untried = zero;
    over_tile<Nearly>(tile, [&](F16 p, F16 q, F16 q_untried) __attribute__((always_inline)) {
      least = add(least, max(sub(mul(p_low, p), mul(high, q)), zero));
      most = add(most, max(sub(mul(p_high, p), mul(low, q)), zero));
      if (kSiblings) untried = add(untried, q_untried);
    });
    return {total(least), total(most), total(untried)};
  }
  SumsOf<Range> sums(Range taken, const Crew& crew) const {
    const Range p = factors(target), q = factors(draft), taken_of_q = {taken.low * q.low, taken.high * q.high};
    const Bounds all = added_up<Bounds>(crew, [&](int32_t tile) { return bounds_of_tile(p, taken_of_q, tile); });
    const auto widened = [&](double low, double high) {
      const double units = target.row.vocab * kUnitError;
      return Range{max(static_cast<float>(low * (1.0 - kSumError) - units), 0.0f),
                   static_cast<float>(high * (1.0 + kSumError) + units)};
    };
    return {widened(all.least, all.most), widened(all.untried * q.low, all.untried * q.high),
            target.status | draft.status};
  }
};

template <class Taken>
SumsOf<Taken> sums_of(const LawRow& target, const LawRow& draft, Taken taken, const TokenList* tried, const Crew& crew) {
  return tried ? Pair<true>{target, draft, tried}.sums(taken, crew) : Pair<false>{target, draft, tried}.sums(taken, crew);
}

}  // namespace

Masses pair_sums(const LawRow& target, const LawRow& draft, float taken, const TokenList* tried, const Crew& crew) {
  return sums_of(target, draft, taken, tried, crew);
}

SumsOf<Range> pair_sums(const LawRow& target, const LawRow& draft, Range taken, const TokenList* tried, const Crew& crew) {
  return sums_of(target, draft, taken, tried, crew);
}

SPECDEC_END
