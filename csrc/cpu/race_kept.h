// The race over the tokens that a row's filters keep. If these are listed, only they race. If they are too many, the
// whole row races, and tokens that are not kept have no weight.
#pragma once

#include "law_row.h"
#include "mapped_race.h"

SPECDEC_BEGIN

// `Weights`, but a token that the row's filters drop has none.
template <class Weights>
struct KeptWeights : Weights {
  const LawRow& r;
  SPECDEC_HD KeptWeights(const Weights& weights, const LawRow& of) : Weights(weights), r(of) {}
  SPECDEC_HD float log_bound(float raw) const {
    return r.filter.order.scaled(raw) >= r.kept.cut.value ? Weights::log_bound(raw) : -kInfinity;
  }
  SPECDEC_HD F16 log_bounds(F16 maxima) const {
    const Mask reach = at_least(value_of(r.filter, maxima), F16(r.kept.cut.value));
    return where(reach, Weights::log_bounds(maxima), F16(-kInfinity));
  }
  SPECDEC_HD float needed_key(float log_weight) const {
    const float needed = Weights::needed_key(log_weight);
    return r.filter.order.inverse == r.known.law.inverse ? max(needed, r.kept.cut.value) : needed;
  }
  SPECDEC_HD float log_weight(float raw, int32_t column) const {
    return r.keeps(column, raw) ? Weights::log_weight(raw, column) : -kInfinity;
  }
};

// The arrivals of the kept tokens of a list, sixteen at a time.
template <class Weights, class Result>
SPECDEC_HD void race_list(const Weights& weights, const LawRow& r, const Noise& noise, Result& result) {
  Sixteen<Weights, Result> late(weights, noise, result);
  for (int32_t from = 0; from < r.kept.count; from += kLanes) {
    const int32_t lanes = r.kept.count - from < kLanes ? r.kept.count - from : kLanes;
    uint32_t tokens[kLanes] = {}, group[4][kLanes];
    for (int32_t i = 0; i < lanes; ++i) {
      const int32_t column = column_at(r.kept.list[from + i]);
      tokens[i] = static_cast<uint32_t>(r.map.tokens ? r.map.tokens[column] : r.row.first_token + column);
    }
    const Words<U16> words = noise_words(noise, shift_right(load(tokens), U16(7)));
    for (int word = 0; word < 4; ++word) store(group[word], words.word[word]);
    for (int32_t i = 0; i < lanes; ++i) {
      if (static_cast<int32_t>(tokens[i]) < 0) continue;  // a bad entry of the map
      const int32_t column = column_at(r.kept.list[from + i]);
      const uint32_t parity = tokens[i] / kGroup & 1;
      late.add(column, tokens[i], element(r.row, column), group[parity][i], group[2 + parity][i]);
    }
  }
  late.decide();
}

// Offers a row's arrivals to a result that may hold several, by columns.
template <class Weights, class Result>
SPECDEC_HD void race_row(const Weights& weights, const LawRow& r, const Noise& noise, const Crew& crew,
                         Result& result) {
  const auto race = [&](const auto& of) {
    if constexpr (!Weights::kBounds) {  // these are of a target's row, which has all tokens
      if (r.map.tokens) return mapped_race_tiles(of, r.row, r.map, noise, r.cells, 0, r.row.tiles(), result);
    }
    race_groups(of, r.row, noise, r.cells, r.race, crew, result);
  };
  if constexpr (Weights::kMayBeFiltered) {
    if (r.filter.on() && r.kept.list) return race_list(weights, r, noise, result);
    if (r.filter.on()) return race(KeptWeights<Weights>(weights, r));
  }
  race(weights);
}

// The winner of race(weights) over the row, or of the race over its list. If the row is undecided, the winner may be a
// token that top_p drops. Then top_p drops all tokens after it in the order, too, and the race is held again without
// them.
template <class Weights, class Race>
SPECDEC_HD Candidate winner_of_kept(const Weights& weights, LawRow& r, const Noise& noise, const Crew& crew, int slot,
                                    Race&& race) {
  if constexpr (Weights::kMayBeFiltered) {
    if (r.filter.on()) {
      const KeptWeights<Weights> kept(weights, r);
      for (;;) {
        Winner winner;
        if (!r.kept.list) winner.offer(race(kept));
        else if (r.undecided) race_list(kept, r, noise, winner);
        else race_list(weights, r, noise, winner);
        const Candidate found = winner.best;
        if (!r.undecided || found.token == kNoToken || still_kept(r, found.token, crew, slot)) return found;
      }
    }
  }
  return race(weights);
}

// The winner of a row after look_for_race, as a column. `slot` is the scratch memory that was used for the row.
template <class Weights>
SPECDEC_HD Candidate row_winner(const Weights& weights, LawRow& r, const Noise& noise, const Crew& crew, int slot) {
  return winner_of_kept(weights, r, noise, crew, slot, [&](const auto& of) {
    Winner winner;
    race_groups(of, r.row, noise, r.cells, r.race, crew, winner);
    return winner.best;
  });
}

// The same for a row with a vocabulary of its own.
template <class Weights>
SPECDEC_HD Candidate mapped_row_winner(const Weights& weights, LawRow& r, const Noise& noise, const Crew& crew,
                                       int slot) {
  return winner_of_kept(weights, r, noise, crew, slot, [&](const auto& of) {
    return mapped_race_winner(of, r.row, r.map, noise, r.cells, crew);
  });
}

SPECDEC_END
