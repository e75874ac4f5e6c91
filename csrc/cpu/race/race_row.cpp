// The weights of the races, and the results that collect their arrivals.
#include "race_row.h"

#include "mapped_race.h"
#include "race_filtered.h"
#include "specdec/residual.h"

SPECDEC_BEGIN

namespace {

// Weights p, except for some excluded tokens.
template <class Space>
struct WeightsWithout : RowWeights<Space> {
  TokenList excluded;
  float log_weight(float raw, int32_t column) const {
    return excluded.has_column(column) ? -kInfinity : RowWeights<Space>::log_weight(raw, column);
  }
};

// Weights (p - h q)^+. They are at most p, so only opened groups cost exponentials and a look at the draft's row.
template <class Space>
struct ResidualWeights {
  static constexpr bool kMayBeFiltered = Space::kSigned, kMayBeMapped = false, kMayBeBounds = true;
  const LawRow& target;
  const LawRow& draft;
  Space space;  // the target's
  float draft_prob;
  const BucketScales* scales;    // factors of q; null: all are 1
  const ResidualWeights* least;  // lower bounds, if these weights are upper ones; null: these are exact
  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return space.key(raw); }
  float log_bound(float raw) const { return space.log_bound(raw, target.stats.lse); }
  SPECDEC_HD F32x16 log_bounds(F32x16 maxima) const { return space.log_bounds(maxima, target.stats.lse); }
  float needed_key(float log_weight) const { return space.needed_key(log_weight, target.stats.lse); }
  float log_weight(float raw, int32_t column) const {
    const float p = space.probability(raw, target.stats.lse);
    float q = draft.probability(column);
    if (scales) q = mul((*scales)(p, q), q);
    return specdec::log_weight(residual_weight(p, mul(draft_prob, q)));
  }
  float least_log_weight(float raw, int32_t column) const {
    return least->target.keeps(column, raw) ? least->log_weight(raw, column) : -kInfinity;
  }
};

struct Winner final : RaceResult {
  Candidate best = kNoCandidate;
  Winner() : RaceResult(1) {}
  void offer(const Candidate& c, float) override {
    best = best_of(best, c);
    to_beat = best.score;
  }
};

// The winner where weights have bounds.
struct ContestedWinner final : RaceResult {
  Candidate sure = kNoCandidate;  // the best by lower bounds of scores
  Candidate most = kNoCandidate;  // the best by upper bounds
  float second = -kInfinity;
  ContestedWinner() : RaceResult(1) {}
  void offer(const Candidate& c, float least) override {
    sure = best_of(sure, {least, c.token});
    second = max(second, min(c.score, most.score));
    most = best_of(most, c);
    to_beat = sure.score;
  }
  // Whether `sure` wins, whatever the weights are.
  bool decided() const {
    return sure.score > -kInfinity && (sure.token == most.token ? second : most.score) < lowest_noted(sure.score);
  }
};

// The race over a row without its filters.
template <class Weights>
void race_all(const Weights& weights, const LawRow& r, const Noise& noise, const ThreadTeam& team, RaceResult& result) {
  if constexpr (Weights::kMayBeMapped) {
    if (r.map.tokens) return mapped_race_tiles(weights, r, noise, 0, r.row.tiles(), result);
  }
  race_groups(weights, r, noise, team, result);
}

// The race over the tokens that the row's filters keep.
template <class Weights>
void race_filtered(const Weights& weights, const LawRow& r, const Noise& noise, const ThreadTeam& team,
               RaceResult& result) {
  if constexpr (Weights::kMayBeFiltered) {
    if (r.filter.on() && r.in_support.list) return race_list(weights, r, noise, result);
    if (r.filter.on()) return race_all(FilteredWeights<Weights>(weights, r), r, noise, team, result);
  }
  race_all(weights, r, noise, team, result);
}

// The winner over a row without its filters. Rows with a draft map are split between threads, each with its winner.
template <class Weights>
Candidate unfiltered_winner(const Weights& weights, const LawRow& r, const Noise& noise, const ThreadTeam& team) {
  Winner winner;
  if constexpr (Weights::kMayBeMapped) {
    if (r.map.tokens) {
      Candidate best[kMaxParts];
      const int parts = over_parts(r.row.tiles(), team, [&](int part, int32_t from, int32_t to) {
        Winner mine;
        mapped_race_tiles(weights, r, noise, from, to, mine);
        best[part] = mine.best;
      });
      for (int part = 0; part < parts; ++part) winner.offer(best[part], best[part].score);
      return winner.best;
    }
  }
  race_groups(weights, r, noise, team, winner);
  return winner.best;
}

// The winner over the tokens that the row's filters keep. If the row is undecided, the winner may be a token that top_p
// drops. Then top_p drops all tokens after it in the order, too, and the race runs again without them.
template <class Weights>
Candidate filtered_winner(const Weights& weights, LawRow& r, const Noise& noise, const ThreadTeam& team,
                          int scratch_id) {
  if constexpr (Weights::kMayBeFiltered) {
    if (r.filter.on()) {
      const FilteredWeights<Weights> in_support(weights, r);
      const bool undecided = r.state == RowState::kUndecided;
      for (;;) {
        Winner winner;
        if (!r.in_support.list) winner.best = unfiltered_winner(in_support, r, noise, team);
        else if (undecided) race_list(in_support, r, noise, winner);
        else race_list(weights, r, noise, winner);
        const Candidate candidate = winner.best;
        if (!undecided || candidate.token == kNoToken || confirm_winner(r, candidate.token, team, scratch_id))
          return candidate;
      }
    }
  }
  return unfiltered_winner(weights, r, noise, team);
}

}  // namespace

void race_row(const LawRow& r, const Noise& noise, const ThreadTeam& team, RaceResult& result) {
  r.stats.law.in_space([&](auto space) {
    race_filtered(WeightsWithout<decltype(space)>{{space}, {}}, r, noise, team, result);
  });
}

Candidate row_winner(LawRow& r, const TokenList& excluded, const Noise& noise, const ThreadTeam& team, int scratch_id) {
  return r.stats.law.in_space([&](auto space) {
    return filtered_winner(WeightsWithout<decltype(space)>{{space}, excluded}, r, noise, team, scratch_id);
  });
}

Candidate residual_winner(LawRow& target, const LawRow& draft, float subtracted, const BucketScales* scales,
                          const Noise& noise, const ThreadTeam& team, int scratch_id) {
  return target.stats.law.in_space([&](auto space) {
    const ResidualWeights<decltype(space)> weights = {target, draft, space, subtracted, scales, nullptr};
    return filtered_winner(weights, target, noise, team, scratch_id);
  });
}

int32_t residual_winner_by_bounds(const LawRow& target, const LawRow& draft, Range subtracted, const Noise& noise,
                                  const ThreadTeam& team) {
  const LawRow p_most = target.at_most(), p_least = target.at_least();
  const LawRow q_most = draft.at_most(), q_least = draft.at_least();
  return target.stats.law.in_space([&](auto space) {
    using Weights = ResidualWeights<decltype(space)>;
    const Weights least = {p_least, q_most, space, subtracted.high, nullptr, nullptr};
    const Weights weights = {p_most, q_least, space, subtracted.low, nullptr, &least};
    ContestedWinner winner;
    race_filtered(weights, p_most, noise, team, winner);
    return winner.decided() ? winner.sure.token : kNoToken;
  });
}

SPECDEC_END
