// The race over one row on the CPU. Tiles are dismissed by their maximum, groups by one integer compare, tokens by
// their weight. Only the tokens that are left cost logarithms (specdec/race.h).
#pragma once

#include "law_row.h"
#include "specdec/residual.h"

SPECDEC_BEGIN

// What the race needs to know of a row's weights: `key`, `log_bound` and `needed_key` as in specdec/law.h, and the log
// weight of a column. The caller gives the column's raw element.

// Weights p.
template <class Space>
struct RowWeights {
  static constexpr bool kMayBeFiltered = Space::kSigned;  // probabilities are final
  static constexpr bool kByCells = Space::kSigned;        // whether keys are log weights
  Space space;
  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return space.key(raw); }
  SPECDEC_HD float log_bound(float raw) const { return space.log_bound(raw); }
  SPECDEC_HD float needed_key(float log_weight) const { return space.needed_key(log_weight); }
  SPECDEC_HD float log_weight(float raw, int32_t) const { return space.log_weight(raw); }
};

template <class Space>
SPECDEC_HD RowWeights<Space> row_weights(const Space& space) { return {space}; }

// Weights (p - h q)^+. They are at most p, so only opened groups cost exponentials and a look at the draft's row.
template <class Space>
struct ResidualWeights {
  static constexpr bool kMayBeFiltered = Space::kSigned;
  static constexpr bool kByCells = false;
  const LawRow& target;
  const LawRow& draft;
  Space space;  // the target's
  float draft_prob;
  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return space.key(raw); }
  SPECDEC_HD float log_bound(float raw) const { return space.log_bound(raw, target.known.lse); }
  SPECDEC_HD float needed_key(float log_weight) const { return space.needed_key(log_weight, target.known.lse); }
  SPECDEC_HD float log_weight(float raw, int32_t column) const {
    const float p = space.probability(raw, target.known.lse);
    return specdec::log_weight(residual_weight(p, mul(draft_prob, draft.probability(column))));
  }
};

// The winner alone.
struct Winner {
  Candidate best = kNobody;
  SPECDEC_HD float to_beat() const { return best.score; }
  SPECDEC_HD void offer(const Candidate& c) { best = best_of(best, c); }
};

// The first k arrivals, in order.
struct Podium {
  Candidate* place;  // k of them
  int32_t k;
  SPECDEC_HD Podium(Candidate* memory, int32_t count) : place(memory), k(count) {
    for (int32_t i = 0; i < k; ++i) place[i] = kNobody;
  }
  SPECDEC_HD float to_beat() const { return place[k - 1].score; }
  SPECDEC_HD void offer(const Candidate& c) {
    if (!better(c, place[k - 1])) return;
    int32_t i = k - 1;
    for (; i > 0 && better(c, place[i - 1]); --i) place[i] = place[i - 1];
    place[i] = c;
  }
};

// The race's groups and tiles are those of the whole vocabulary. A row that is a part of a vocabulary may begin inside
// of them: `skipped` tokens of the race's first tile lie before the row.
struct RaceTiles {
  int32_t first, count, skipped, row_tiles;
  int64_t first_token;

  SPECDEC_HD explicit RaceTiles(const Row& row)
      : first(row.first_token / kTile), count(tiles_of(row.first_token % kTile + row.vocab)),
        skipped(row.first_token % kTile), row_tiles(row.tiles()), first_token(row.first_token) {}

  SPECDEC_HD uint32_t first_group(int32_t tile) const { return static_cast<uint32_t>(first + tile) * (kTile / kGroup); }
  SPECDEC_HD U16 counters(int32_t tile) const {
    return U16(static_cast<uint32_t>(first + tile) * kLanes) + lane_index();
  }
  // The column where a group begins. It is negative if the group begins before the row.
  SPECDEC_HD int64_t column(uint32_t group) const { return static_cast<int64_t>(group) * kGroup - first_token; }
  // At least the largest element of a tile of the race, which may lie in two of the row's own tiles.
  SPECDEC_HD float largest(const float* tile_maxima, int32_t tile) const {
    if (skipped == 0) return tile_maxima[tile];
    const float before = tile > 0 ? tile_maxima[tile - 1] : -kInfinity;
    return tile < row_tiles ? max(before, tile_maxima[tile]) : before;
  }
};

// The columns of a group with a key of at least `needed`, one bit each, and their elements.
template <class Weights>
SPECDEC_HD uint64_t group_at_least(const Weights& weights, const Row& row, int64_t begin, float needed, float* raw) {
  const int32_t end = row.vocab - begin < kGroup ? static_cast<int32_t>(row.vocab - begin) : kGroup;
  uint64_t found = 0;
  for (int32_t i = begin < 0 ? static_cast<int32_t>(-begin) : 0; i < end; i += kLanes) {
    const F16 x = elements(row, static_cast<int32_t>(begin + i), end - i, __builtin_nanf(""));
    const Mask large = at_least(weights.key(x), F16(needed));
    if (!large) continue;
    found |= static_cast<uint64_t>(large) << i;
    store(raw + i, x);
  }
  return found;
}

// Evaluates the columns of one group that could still win. Most groups that come here have none. Where a group has
// some, most of them arrive so late that their second word alone rules them out.
template <class Weights, class Result>
SPECDEC_HD void open_group(const Weights& weights, const Row& row, const Noise& noise, uint32_t index, uint32_t a,
                           uint32_t b, Result& result) {
  const int64_t begin = static_cast<int64_t>(index) * kGroup - row.first_token;
  const float earliest = static_cast<float>(a) * 0x1p-38f;
  float raw[kGroup + kLanes];
  uint64_t left =
      group_at_least(weights, row, begin, weights.needed_key(needed_at_least(result.to_beat(), earliest)), raw);
  if (!left) return;
  const Group group = group_of(index, a, b);
  for (; left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    const int32_t column = static_cast<int32_t>(begin + i);
    const float log_weight = weights.log_weight(raw[i], column);
    if (log_weight == -kInfinity) continue;
    float time = group.first;
    if (i != group.winner) {
      const uint32_t word = second_word(noise, index * kGroup + static_cast<uint32_t>(i));
      const float sooner = group.first + static_cast<float>(word) * 0x1p-32f;
      if (log_weight < needed_at_least(result.to_beat(), sooner)) continue;
      time = add(group.first, later_by(word));
    }
    result.offer({race_score(log_weight, time), column});
  }
}

// The even and the odd groups of a tile, one bit each, of which some column could still win: by the first arrivals of
// the groups, words `a`, and the largest elements of the cells, which are the same columns.
template <class Weights>
SPECDEC_HD void groups_in_race(const Weights& weights, const float* cells, const U16& a_even, const U16& a_odd,
                               float to_beat, Mask* even, Mask* odd) {
  F16 largest_even, largest_odd;
  load_pairs(cells, &largest_even, &largest_odd);
  const F16 unit(0x1p-38f);
  *even &= at_least(weights.key(largest_even), needed_at_least(to_beat, mul(unsigned_float(a_even), unit)));
  *odd &= at_least(weights.key(largest_odd), needed_at_least(to_beat, mul(unsigned_float(a_odd), unit)));
}

template <class Weights, class Result>
SPECDEC_HD void race_tiles(const Weights& weights, const Row& row, const Noise& noise, const float* tile_maxima,
                           const float* cells, int32_t from, int32_t to, Result& result) {
  const RaceTiles tiles(row);
  for (int32_t tile = from; tile < to; ++tile) {
    const float bound = weights.log_bound(tiles.largest(tile_maxima, tile));
    if (!(bound > -kInfinity)) continue;
    float beaten = result.to_beat();
    uint32_t limit = largest_winning_word(bound, beaten);
    const U16 largest_word(limit);
    const Words<U16> words = noise_words(noise, tiles.counters(tile));
    Mask even = at_most(words.word[0], largest_word), odd = at_most(words.word[1], largest_word);
    if constexpr (Weights::kByCells) {
      if (cells && (even | odd) && beaten > -kInfinity)
        groups_in_race(weights, cells + tile * (kTile / kGroup), words.word[0], words.word[1], beaten, &even, &odd);
    }
    if (!(even | odd)) continue;
    uint32_t a[2][kLanes], b[2][kLanes];
    store(a[0], words.word[0]), store(a[1], words.word[1]);
    store(b[0], words.word[2]), store(b[1], words.word[3]);
    for (Mask left = even | odd << kLanes; left; left &= left - 1) {
      const int bit = __builtin_ctz(left), parity = bit / kLanes, i = bit % kLanes;
      const uint32_t index = tiles.first_group(tile) + static_cast<uint32_t>(2 * i + parity);
      if (tiles.column(index) >= row.vocab || tiles.column(index) <= -kGroup) continue;
      if (result.to_beat() != beaten) beaten = result.to_beat(), limit = largest_winning_word(bound, beaten);
      if (a[parity][i] > limit) continue;
      open_group(weights, row, noise, index, a[parity][i], b[parity][i], result);
    }
  }
}

constexpr int32_t kTilesSeen = 16;  // by the search for an early arrival

// Offers the best of some early arrivals. Each lane looks at its groups in a few tiles and keeps the earliest.
template <class Weights>
SPECDEC_HD void offer_early(const Weights& weights, const Row& row, const Noise& noise, Winner& winner) {
  const RaceTiles tiles(row);
  const U16 lane = lane_index();
  U16 earliest[2] = {U16(~0u), U16(~0u)}, second[2] = {lane, lane}, seen[2] = {lane, lane};
  for (int32_t tile = 0; tile < tiles.count; tile += tiles.count / kTilesSeen) {
    const Words<U16> words = noise_words(noise, tiles.counters(tile));
    for (int parity = 0; parity < 2; ++parity) {
      const Mask earlier = at_most(words.word[parity], earliest[parity]);
      earliest[parity] = where(earlier, words.word[parity], earliest[parity]);
      second[parity] = where(earlier, words.word[2 + parity], second[parity]);
      seen[parity] = where(earlier, U16(static_cast<uint32_t>(tile)), seen[parity]);
    }
  }
  uint32_t a[2 * kLanes], b[2 * kLanes], tile[2 * kLanes];
  for (int parity = 0; parity < 2; ++parity) {
    store(a + parity * kLanes, earliest[parity]);
    store(b + parity * kLanes, second[parity]);
    store(tile + parity * kLanes, seen[parity]);
  }
  float best_guess = -kInfinity, best_weight = 0.0f;
  int32_t best = -1, best_column = 0;
  for (int i = 0; i < 2 * kLanes; ++i) {
    const uint32_t group = tiles.first_group(static_cast<int32_t>(tile[i])) + 2 * (i % kLanes) + i / kLanes;
    const int64_t at = tiles.column(group) + first_winner(b[i]);
    if (at < 0 || at >= row.vocab) continue;
    const int32_t column = static_cast<int32_t>(at);
    const float log_weight = weights.log_weight(element(row, column), column);
    const float guess = log_weight - log_below(static_cast<float>(a[i]));
    if (guess > best_guess) best_guess = guess, best_weight = log_weight, best = i, best_column = column;
  }
  if (best >= 0) winner.offer({race_score(best_weight, first_arrival(a[best], b[best])), best_column});
}

// A first guess at the winner: the token of the largest weight, or an early one. It lets the race dismiss most groups.
template <class Weights>
SPECDEC_HD Winner race_start(const Weights& weights, const Row& row, const Noise& noise, const float* tile_maxima) {
  Winner winner;
  int32_t tile = 0;
  for (int32_t t = 1; t < row.tiles(); ++t)
    if (tile_maxima[t] > tile_maxima[tile]) tile = t;
  const int32_t column = first_at_least(row, tile, tile_maxima[tile]);
  if (column == kNoToken) return winner;
  const float log_weight = weights.log_weight(element(row, column), column);
  const uint32_t token = static_cast<uint32_t>(row.first_token) + static_cast<uint32_t>(column);
  if (log_weight > -kInfinity) winner.offer({race_score(log_weight, arrival(noise, token)), column});
  if (RaceTiles(row).count >= kTilesSeen) offer_early(weights, row, noise, winner);
  return winner;
}

// The winner of the whole row, as a column. `tile_maxima` comes from row_maxima, `cells` from row_cells; the latter may be
// null.
template <class Weights>
SPECDEC_HD Candidate race_winner(const Weights& weights, const Row& row, const Noise& noise, const float* tile_maxima,
                              const float* cells, const Crew& crew) {
  const Winner start = race_start(weights, row, noise, tile_maxima);
  const bool whole_tiles = RaceTiles(row).skipped == 0;
  Candidate best[kMaxParts];
  const int parts = over_parts(RaceTiles(row).count, crew, [&](int part, int32_t from, int32_t to) {
    Winner mine = start;
    race_tiles(weights, row, noise, tile_maxima, whole_tiles ? cells : nullptr, from, to, mine);
    best[part] = mine.best;
  });
  Winner winner = start;
  for (int part = 0; part < parts; ++part) winner.offer(best[part]);
  return winner.best;
}

SPECDEC_END
