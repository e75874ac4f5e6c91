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
  SPECDEC_HD float needed_key(float log_weight) const {
    const float needed = Weights::needed_key(log_weight);
    return r.filter.order.inverse == r.known.law.inverse ? max(needed, r.kept.cut.value) : needed;
  }
  SPECDEC_HD float log_weight(float raw, int32_t column) const {
    return r.keeps(column, raw) ? Weights::log_weight(raw, column) : -kInfinity;
  }
};

// The arrivals of the kept tokens of a list, sixteen at a time. As in open_group, most tokens arrive too late to win,
// and their random words alone show it.
template <class Weights, class Result>
SPECDEC_HD void race_list(const Weights& weights, const LawRow& r, const Noise& noise, Result& result) {
  for (int32_t from = 0; from < r.kept.count; from += kLanes) {
    const int32_t lanes = r.kept.count - from < kLanes ? r.kept.count - from : kLanes;
    uint32_t tokens[kLanes] = {};
    for (int32_t i = 0; i < lanes; ++i) {
      const int32_t column = column_at(r.kept.list[from + i]);
      tokens[i] = static_cast<uint32_t>(r.map.tokens ? r.map.tokens[column] : r.row.first_token + column);
    }
    const U16 token = load(tokens);
    const Words<U16> groups = noise_words(noise, shift_right(token, U16(7))),
                     later = noise_words(noise, shift_right(token, U16(2)), 1);
    uint32_t group[4][kLanes], second[4][kLanes];
    for (int word = 0; word < 4; ++word) store(group[word], groups.word[word]), store(second[word], later.word[word]);
    for (int32_t i = 0; i < lanes; ++i) {
      if (static_cast<int32_t>(tokens[i]) < 0) continue;  // a bad entry of the map
      const int32_t column = column_at(r.kept.list[from + i]);
      const float log_weight = weights.log_weight(element(r.row, column), column);
      if (log_weight == -kInfinity) continue;
      const uint32_t index = tokens[i] / kGroup, a = group[index & 1][i], b = group[2 + (index & 1)][i];
      const bool first = static_cast<int>(tokens[i] % kGroup) == first_winner(b);
      const uint32_t word = second[tokens[i] & 3][i];
      float sooner = static_cast<float>(a) * 0x1p-38f;
      if (!first) sooner += static_cast<float>(word) * 0x1p-32f;
      if (log_weight < needed_at_least(result.to_beat(), sooner)) continue;
      const float first_time = first_arrival(a, b);
      result.offer({race_score(log_weight, first ? first_time : add(first_time, later_by(word))), column});
    }
  }
}

// Offers a row's arrivals to a result that may hold several, by columns.
template <class Weights, class Result>
SPECDEC_HD void race_row(const Weights& weights, const LawRow& r, const Noise& noise, Result& result) {
  const auto race = [&](const auto& of) {
    if (r.map.tokens) mapped_race_tiles(of, r.row, r.map, noise, r.tile_max, 0, r.row.tiles(), result);
    else race_tiles(of, r.row, noise, r.tile_max, RaceTiles(r.row).skipped ? nullptr : r.cells, 0, RaceTiles(r.row).count,
                    result);
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
  return winner_of_kept(weights, r, noise, crew, slot,
                        [&](const auto& of) { return race_winner(of, r.row, noise, r.tile_max, r.cells, crew); });
}

// The same for a row with a vocabulary of its own.
template <class Weights>
SPECDEC_HD Candidate mapped_row_winner(const Weights& weights, LawRow& r, const Noise& noise, const Crew& crew,
                                       int slot) {
  return winner_of_kept(weights, r, noise, crew, slot, [&](const auto& of) {
    return mapped_race_winner(of, r.row, r.map, noise, r.tile_max, crew);
  });
}

SPECDEC_END
