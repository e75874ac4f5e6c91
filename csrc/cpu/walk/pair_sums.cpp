// The sums over a pair of rows that a walk needs among siblings, and when it goes back (specdec/traversal.h).
#include "pair_sums.h"

#include "../rows/pair_tile.h"
#include "../rows/unit_sum.h"

SPECDEC_BEGIN

namespace {

// Lane i of four numbers each, as four words at out[4 * (i % 4) + i / 4].
SPECDEC_HD void store_fours(Uints* out, const U32x16& a, const U32x16& b, const U32x16& c, const U32x16& d) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const __m512i ab = _mm512_unpacklo_epi32(a.v, b.v), cd = _mm512_unpacklo_epi32(c.v, d.v);
  const __m512i ab_high = _mm512_unpackhi_epi32(a.v, b.v), cd_high = _mm512_unpackhi_epi32(c.v, d.v);
  _mm512_storeu_si512(out, _mm512_unpacklo_epi64(ab, cd));
  _mm512_storeu_si512(out + 4, _mm512_unpackhi_epi64(ab, cd));
  _mm512_storeu_si512(out + 8, _mm512_unpacklo_epi64(ab_high, cd_high));
  _mm512_storeu_si512(out + 12, _mm512_unpackhi_epi64(ab_high, cd_high));
#else
  uint32_t lanes[4][kLanes];
  store(lanes[0], a), store(lanes[1], b), store(lanes[2], c), store(lanes[3], d);
  for (int i = 0; i < kLanes; ++i)
    out[4 * (i % 4) + i / 4] = Uints{lanes[0][i], lanes[1][i], lanes[2][i], lanes[3][i]};
#endif
}

// Approximate weights of plain logits, in half of the operations of exact ones.
class Nearly : public Probabilities {
 public:
  Nearly(const LawRow& p, const LawRow& q) : target_(of(p)), draft_(of(q)) {}
  SPECDEC_HD Four operator()(Two<F32x16> p, Two<F32x16> q) const {
    return {{target_(p.a), target_(p.b)}, {draft_(q.a), draft_(q.b)}};
  }

 private:
  static AboutExp2 of(const LawRow& side) {
    return {side.stats.law.inverse * 1.44269504f, (side.stats.lse.max + side.stats.lse.log_sum) * -1.44269504f};
  }
  AboutExp2 target_, draft_;
};

// Factors from sums by `Nearly` to their lower and upper bounds. A sum's relative error is at most its terms'.
// Roundings are far below the part of log_sum_error that is meant for them.
Range factors(const LawRow& side) {
  const float error = log_sum_error(side.stats.lse.max) + (side.rough() ? side.error : 0.0f);
  return {1.0f - error, 1.0f + error * (1.0f + error)};  // of e^-error and e^error
}

// A pair of rows. kSiblings: whether R is summed, which chains do not need.
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
    const F32x16 zero(0.0f);
    const auto untried = [&](int32_t token, F32x16 q) __attribute__((always_inline)) {
      return kSiblings ? where(gone[token % kTile / kLanes], zero, q) : zero;
    };
    struct Each {
      decltype(untried)& of;
      F& f;
      SPECDEC_HD void operator()(int32_t token, F32x16 p, F32x16 q) const { f(p, q, of(token, q)); }
      SPECDEC_HD void operator()(int32_t token, Two<F32x16> p, Two<F32x16> q) const {
        (*this)(token, p.a, q.a), (*this)(token + kLanes, p.b, q.b);
      }
    };
    over_pair_tile<Weigh>(target, draft, tile, Each{untried, f});
  }

  // The sums of all tiles, added up in order.
  template <class Sums, class F>
  Sums added_up(const ThreadTeam& team, F&& sums_of_tile) const {
    const int32_t tiles = target.row.tiles();
    Sums* const sums = scratch<Sums>(2, tiles);
    over_parts(tiles, team, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) sums[tile] = sums_of_tile(tile);
    });
    Sums all = {};
    for (int32_t tile = 0; tile < tiles; ++tile) all += sums[tile];
    return all;
  }

  struct Units {
    uint64_t residual_mass, untried_mass;
    void operator+=(const Units& other) { residual_mass += other.residual_mass, untried_mass += other.untried_mass; }
  };
  Units units_of_tile(float subtracted, int32_t tile) const {
    UnitSum<F32x16> residual_mass, untried_mass;
    over_tile<ByLaw>(tile, [&](F32x16 p, F32x16 q, F32x16 q_untried) __attribute__((always_inline)) {
      residual_mass.take(residual_weight(p, mul(F32x16(subtracted), q)));
      if (kSiblings) untried_mass.take(q_untried);
    });
    return {total(residual_mass), total(untried_mass)};
  }
  Masses sums(float subtracted, const ThreadTeam& team) const {
    const Units all = added_up<Units>(team, [&](int32_t tile) { return units_of_tile(subtracted, tile); });
    return {sum_of_units(all.residual_mass), sum_of_units(all.untried_mass), target.status | draft.status};
  }

  // W alone.
  Masses sums(float subtracted, const BucketScales& scales, const ThreadTeam& team) const {
    const uint64_t all = added_up<uint64_t>(team, [&](int32_t tile) {
      UnitSum<F32x16> residual_mass;
      over_tile<ByLaw>(tile, [&](F32x16 p, F32x16 q, F32x16) __attribute__((always_inline)) {
        const F32x16 drafted = mul(gather(scales.by_bucket, find_bucket(p, q)), q);
        residual_mass.take(residual_weight(p, mul(F32x16(subtracted), drafted)));
      });
      return total(residual_mass);
    });
    return {sum_of_units(all), 0.0f, target.status | draft.status};
  }

  // A bucket's sums of a tile are UnitSums of p and q, four numbers that are added at once. There are four copies, so
  // that no addition waits for the one before. The terms go through memory, because extracting a vector's lanes one by
  // one is slow.
  BucketSums buckets(const ThreadTeam& team) const {
    return added_up<BucketSums>(team, [&](int32_t tile) {
      constexpr int kCopies = 4;
      static_assert(kTile / kCopies <= 1023, "A copy's sums hold their share of a tile");
      uint32_t bucket[kTile];
      Uints units[kTile];
      int32_t filled = 0;
      over_tile<ByLaw>(tile, [&](F32x16 p, F32x16 q, F32x16) __attribute__((always_inline)) {
        UnitSum<F32x16> of_p, of_q;
        of_p.take(p), of_q.take(q);
        store(bucket + filled, find_bucket(p, q));
        store_fours(units + filled, of_p.high, of_p.low, of_q.high, of_q.low);
        filled += kLanes;
      });
      Uints copies[kBuckets][kCopies] = {};
      for (int32_t first = 0; first < filled; first += kLanes)
        for (int i = 0; i < kLanes; ++i)
          copies[bucket[first + i]][i % kCopies] += units[first + 4 * (i % 4) + i / 4];
      BucketSums sums = {};
      for (int b = 0; b < kBuckets; ++b) {
        for (const Uints& copy : copies[b]) {
          sums.units[b] += units_of(copy[0], copy[1]);
          sums.units[kBuckets + b] += units_of(copy[2], copy[3]);
        }
      }
      return sums;
    });
  }

  struct Bounds {
    double least, most, untried_mass;
    void operator+=(const Bounds& other) {
      least += other.least, most += other.most, untried_mass += other.untried_mass;
    }
  };
  // Sums of (p - subtracted q)^+ for both ends of a range.
  Bounds bounds_of_tile(Range subtracted, int32_t tile) const {
    const F32x16 zero(0.0f), low(-subtracted.low), high(-min(subtracted.high, kLargest));
    F32x16 least = zero, most = zero, untried_mass = zero;
    over_tile<Nearly>(tile, [&](F32x16 p, F32x16 q, F32x16 q_untried) __attribute__((always_inline)) {
      least = add(least, max(fma(high, q, p), zero));
      most = add(most, max(fma(low, q, p), zero));
      if (kSiblings) untried_mass = add(untried_mass, q_untried);
    });
    return {total(least), total(most), total(untried_mass)};
  }
  SumsOf<Range> sums(Range subtracted, const ThreadTeam& team) const {
    const Range p = factors(target), q = factors(draft);
    const Range for_each_p = {subtracted.low * q.low / p.high, subtracted.high * q.high / p.low};
    Bounds all = added_up<Bounds>(team, [&](int32_t tile) { return bounds_of_tile(for_each_p, tile); });
    all.least *= p.low, all.most *= p.high;
    const auto widened = [&](double low, double high) {
      const double units = target.row.vocab * kUnitError;
      return Range{max(static_cast<float>(low - units), 0.0f), static_cast<float>(high + units)};
    };
    return {widened(all.least, all.most), widened(all.untried_mass * q.low, all.untried_mass * q.high),
            target.status | draft.status};
  }
};

template <class Subtracted>
SumsOf<Subtracted> sums_of(const LawRow& target, const LawRow& draft, Subtracted subtracted, const TokenList* tried,
                          const ThreadTeam& team) {
  if (tried) return Pair<true>{target, draft, tried}.sums(subtracted, team);
  return Pair<false>{target, draft, tried}.sums(subtracted, team);
}

}  // namespace

Masses pair_sums(const LawRow& target, const LawRow& draft, float subtracted, const TokenList* tried,
                 const ThreadTeam& team) {
  return sums_of(target, draft, subtracted, tried, team);
}

Masses pair_sums(const LawRow& target, const LawRow& draft, float subtracted, const BucketScales& scales,
                 const ThreadTeam& team) {
  const Pair<false> pair = {target, draft, nullptr};
  return scales.all_one ? pair.sums(subtracted, team) : pair.sums(subtracted, scales, team);
}

BucketSums bucket_sums(const LawRow& target, const LawRow& draft, const ThreadTeam& team) {
  return Pair<false>{target, draft, nullptr}.buckets(team);
}

SumsOf<Range> pair_sums(const LawRow& target, const LawRow& draft, Range subtracted, const TokenList* tried,
                        const ThreadTeam& team) {
  return sums_of(target, draft, subtracted, tried, team);
}

SPECDEC_END
