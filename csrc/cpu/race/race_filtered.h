// The race over the tokens that a row's filters keep. If these are listed, only they race. If they are too many, the
// whole row races, and the filtered tokens have no weight.
#pragma once

#include "race_scan.h"

SPECDEC_BEGIN

// `Weights`, but a token that the row's filters drop has none.
template <class Weights>
struct FilteredWeights : Weights {
  const LawRow& r;
  FilteredWeights(const Weights& weights, const LawRow& of) : Weights(weights), r(of) {}
  float log_bound(float raw) const {
    return r.filter.order.scaled(raw) >= r.in_support.cut.value ? Weights::log_bound(raw) : -kInfinity;
  }
  SPECDEC_HD F32x16 log_bounds(F32x16 maxima) const {
    const Mask reach = at_least(value_of(r.filter, maxima), F32x16(r.in_support.cut.value));
    return where(reach, Weights::log_bounds(maxima), F32x16(-kInfinity));
  }
  float needed_key(float log_weight) const {
    const float needed = Weights::needed_key(log_weight);
    return r.filter.order.inverse == r.stats.law.inverse ? max(needed, r.in_support.cut.value) : needed;
  }
  float log_weight(float raw, int32_t column) const {
    return r.keeps(column, raw) ? Weights::log_weight(raw, column) : -kInfinity;
  }
};

// Offers the arrivals of the listed tokens, sixteen at a time.
template <class Weights>
inline void race_list(const Weights& weights, const LawRow& r, const Noise& noise, RaceResult& result) {
  PendingCandidates<Weights> late(weights, noise, result);
  for (int32_t from = 0; from < r.in_support.count; from += kLanes) {
    const int32_t lanes = r.in_support.count - from < kLanes ? r.in_support.count - from : kLanes;
    uint32_t tokens[kLanes] = {}, group[4][kLanes];
    for (int32_t i = 0; i < lanes; ++i) {
      const int32_t column = column_at(r.in_support.list[from + i]);
      tokens[i] = static_cast<uint32_t>(r.map.tokens ? r.map.tokens[column] : r.row.vocab_start + column);
    }
    const Words<U32x16> random_words = noise_words(noise, shift_right(load(tokens), U32x16(7)));
    for (int word = 0; word < 4; ++word) store(group[word], random_words.word[word]);
    for (int32_t i = 0; i < lanes; ++i) {
      if (static_cast<int32_t>(tokens[i]) < 0) continue;  // a bad entry of the map
      const int32_t column = column_at(r.in_support.list[from + i]);
      const uint32_t parity = tokens[i] / kGroup & 1;
      late.add(column, tokens[i], element(r.row, column), group[parity][i], group[2 + parity][i]);
    }
  }
  late.decide();
}

SPECDEC_END
