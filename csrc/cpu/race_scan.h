// The race over one row on the CPU. A cell of the row is a group of the race, so its maximum and the group's first
// words tell the best score that the group can reach. The groups that can reach most give a first bar; then only groups
// that can reach it are opened, a few dozen. Few of their tokens cost logarithms (specdec/race.h).
#pragma once

#include <algorithm>
#include <functional>

#include "law_row.h"
#include "specdec/residual.h"

SPECDEC_BEGIN

// What the race needs to know of a row's weights: `key`, `log_bound` and `needed_key` as in specdec/law.h, log_bounds
// (log_bound of sixteen maxima), and the log weight of a column. The caller gives the column's raw element.

// Weights p.
template <class Space>
struct RowWeights {
  static constexpr bool kMayBeFiltered = Space::kSigned;  // probabilities are final
  static constexpr bool kBounds = false;
  Space space;
  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return space.key(raw); }
  SPECDEC_HD float log_bound(float raw) const { return space.log_bound(raw); }
  SPECDEC_HD F16 log_bounds(F16 maxima) const { return space.log_bounds(maxima); }
  SPECDEC_HD float needed_key(float log_weight) const { return space.needed_key(log_weight); }
  SPECDEC_HD float log_weight(float raw, int32_t) const { return space.log_weight(raw); }
};

template <class Space>
SPECDEC_HD RowWeights<Space> row_weights(const Space& space) { return {space}; }

// Weights (p - h q)^+. They are at most p, so only opened groups cost exponentials and a look at the draft's row.
template <class Space>
struct ResidualWeights {
  static constexpr bool kMayBeFiltered = Space::kSigned, kBounds = false;
  const LawRow& target;
  const LawRow& draft;
  Space space;  // the target's
  float draft_prob;
  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return space.key(raw); }
  SPECDEC_HD float log_bound(float raw) const { return space.log_bound(raw, target.known.lse); }
  SPECDEC_HD F16 log_bounds(F16 maxima) const { return space.log_bounds(maxima, target.known.lse); }
  SPECDEC_HD float needed_key(float log_weight) const { return space.needed_key(log_weight, target.known.lse); }
  SPECDEC_HD float log_weight(float raw, int32_t column) const {
    const float p = space.probability(raw, target.known.lse);
    return specdec::log_weight(residual_weight(p, mul(draft_prob, draft.probability(column))));
  }
};

// The same where normalisers, and what filters keep, are known roughly. Its weights are upper bounds, by the rows at the
// ends of their ranges.
template <class Space>
struct ResidualBounds : ResidualWeights<Space> {
  static constexpr bool kBounds = true;
  const ResidualWeights<Space> least;  // lower bounds
  SPECDEC_HD float least_log_weight(float raw, int32_t column) const {
    return least.target.keeps(column, raw) ? least.log_weight(raw, column) : -kInfinity;
  }
};

// The winner alone.
struct Winner {
  Candidate best = kNobody;
  SPECDEC_HD int32_t places() const { return 1; }
  SPECDEC_HD float to_beat() const { return best.score; }
  SPECDEC_HD void offer(const Candidate& c) { best = best_of(best, c); }
};

// The winner where weights have bounds. Each token is offered once, by the best score it may have and by the least.
struct ContestedWinner {
  Candidate sure = kNobody;  // of the best least score
  Candidate most = kNobody;  // of the best score that may be
  float second = -kInfinity;
  SPECDEC_HD int32_t places() const { return 1; }
  SPECDEC_HD float to_beat() const { return sure.score; }
  SPECDEC_HD void offer(const Candidate& c, float least) {
    sure = best_of(sure, {least, c.token});
    second = max(second, min(c.score, most.score));
    most = best_of(most, c);
  }
  // Whether `sure` wins, whatever the weights are.
  SPECDEC_HD bool decided() const {
    return sure.score > -kInfinity && (sure.token == most.token ? second : most.score) < lowest_noted(sure.score);
  }
};

// The first k arrivals, in order.
struct Podium {
  Candidate* place;  // k of them
  int32_t k;
  SPECDEC_HD Podium(Candidate* memory, int32_t count) : place(memory), k(count) {
    for (int32_t i = 0; i < k; ++i) place[i] = kNobody;
  }
  SPECDEC_HD int32_t places() const { return k; }
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
  // At least the largest elements of the even and the odd groups of a tile. A group may lie in two cells if the row
  // begins inside of a group.
  SPECDEC_HD void largest(const float* cells, int32_t tile, F16* even, F16* odd) const {
    const float* first = cells + tile * kCellsATile;
    float mine[kCellsATile];
    if (skipped != 0) {
      for (int32_t group = 0; group < kCellsATile; ++group) {
        const int32_t column = tile * kTile + group * kGroup - skipped;
        mine[group] = max(cell_at(cells, column), cell_at(cells, column + kGroup - 1));
      }
      first = mine;
    }
    load_pairs(first, even, odd);
  }

 private:
  SPECDEC_HD float cell_at(const float* cells, int32_t column) const {
    return column >= 0 && column < row_tiles * kTile ? cells[column / kCell] : -kInfinity;
  }
};

// The best scores that the groups of some tiles can reach: the token of the largest weight arrives first.
template <class Weights>
SPECDEC_HD void note_groups(const Weights& weights, const Row& row, const Noise& noise, const float* cells,
                            const RaceMemory& notes, int32_t from, int32_t to) {
  const RaceTiles tiles(row);
  const F16 unit(0x1p-38f);
  for (int32_t tile = from; tile < to; ++tile) {
    const Words<U16> words = noise_words(noise, tiles.counters(tile));
    F16 largest[2];
    tiles.largest(cells, tile, &largest[0], &largest[1]);
    for (int parity = 0; parity < 2; ++parity) {
      const F16 earliest = mul(unsigned_float(words.word[parity]), unit);
      store(notes.scores + (2 * tile + parity) * kLanes, sub(weights.log_bounds(largest[parity]), log_below(earliest)));
    }
    for (int word = 0; word < 4; ++word) store(notes.words + (4 * tile + word) * kLanes, words.word[word]);
  }
}

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

// Tokens that may win by what is known of their groups, gathered until they are sixteen. Then their second words are
// drawn together, and most prove to arrive too late.
template <class Weights, class Result>
class Sixteen {
 public:
  SPECDEC_HD Sixteen(const Weights& of, const Noise& with, Result& into) : weights(of), noise(with), result(into) {}

  float bar = -kInfinity;  // no token of a lower score is among the result's
  SPECDEC_HD float to_beat() const { return max(result.to_beat(), bar); }

  // `a` and `b` are the words of the token's group.
  SPECDEC_HD void add(int32_t column, uint32_t token, float raw, uint32_t a, uint32_t b) {
    columns[count] = column, tokens[count] = token, raws[count] = raw, as[count] = a, bs[count] = b;
    if (++count == kLanes) decide();
  }

  // Offers those that win. It must be called after the last token.
  __attribute__((noinline)) void decide() {
    if (count == 0) return;
    const Words<U16> later = noise_words(noise, shift_right(load(tokens), U16(2)), 1);
    uint32_t words[4][kLanes];
    for (int word = 0; word < 4; ++word) store(words[word], later.word[word]);
    uint32_t mine[kLanes], waits[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      mine[i] = words[tokens[i] % 4][i];
      waits[i] = is_first(i) ? 0u : mine[i];
    }
    const F16 sooner = specdec::add(mul(unsigned_float(load(as)), F16(0x1p-38f)),
                                    mul(unsigned_float(load(waits)), F16(0x1p-32f)));
    Mask left = at_least(weights.log_bounds(load(raws)), needed_at_least(to_beat(), sooner)) & first_lanes(count);
    for (; left; left &= left - 1) {
      const int i = __builtin_ctz(left);
      const float log_weight = weights.log_weight(raws[i], columns[i]);
      if (log_weight == -kInfinity) continue;
      const float first = first_arrival(as[i], bs[i]);
      const float time = is_first(i) ? first : specdec::add(first, later_by(mine[i]));
      const Candidate found = {race_score(log_weight, time), columns[i]};
      if constexpr (Weights::kBounds) {
        result.offer(found, race_score(weights.least_log_weight(raws[i], columns[i]), time));
      } else {
        result.offer(found);
      }
    }
    count = 0;
  }

 private:
  SPECDEC_HD bool is_first(int i) const { return static_cast<int>(tokens[i] % kGroup) == first_winner(bs[i]); }

  const Weights& weights;
  const Noise& noise;
  Result& result;
  int32_t count = 0, columns[kLanes];
  float raws[kLanes] = {};
  uint32_t tokens[kLanes] = {}, as[kLanes] = {}, bs[kLanes] = {};
};

// Offers the arrivals of a row whose groups were noted.
template <class Weights, class Result>
class GroupRace {
 public:
  SPECDEC_HD GroupRace(const Weights& of, const Row& of_row, const Noise& with, const RaceMemory& noted, Result& into)
      : weights(of), row(of_row), notes(noted), result(into), tiles(of_row), late(of, with, into) {}

  SPECDEC_HD void run() {
    const int32_t vectors = 2 * tiles.count;
    raise_bar();
    for (int32_t v = 0; v < vectors; ++v) {
      const F16 scores = load(notes.scores + v * kLanes);
      for (Mask left = at_least(scores, F16(needed())); left; left &= left - 1)
        open(group_noted(v, __builtin_ctz(left)));
    }
    late.decide();
  }

 private:
  // A group that was noted as a lane of a vector.
  struct Noted {
    uint32_t index, a, b;
  };
  SPECDEC_HD Noted group_noted(int32_t vector, int lane) const {
    const int32_t tile = vector / 2, parity = vector % 2;
    const uint32_t* a = notes.words + (4 * tile + parity) * kLanes + lane;
    return {tiles.first_group(tile) + static_cast<uint32_t>(2 * lane + parity), a[0], a[2 * kLanes]};
  }

  // The score that a group must be able to reach. One without weight cannot.
  SPECDEC_HD float needed() const { return max(lowest_noted(late.to_beat()), -kLargest); }

  // Sets the bar from the scores of tokens that arrive first in their groups. The groups are put into classes, at least
  // two for each of the result's places. Of each class the group that can reach most is looked at.
  SPECDEC_HD void raise_bar() {
    constexpr int32_t kMostRounds = 64;
    const int32_t places = result.places(), vectors = 2 * tiles.count, rounds = (2 * places + kLanes - 1) / kLanes;
    if (rounds > kMostRounds) return;
    float scores[kMostRounds * kLanes];
    for (int32_t round = 0; round < rounds; ++round) {
      F16 most(-kInfinity);
      U16 at(0u);
      for (int32_t v = round; v < vectors; v += rounds) {
        const F16 reach = load(notes.scores + v * kLanes);
        const Mask more = greater(reach, most);
        most = where(more, reach, most);
        at = where(more, U16(static_cast<uint32_t>(v)), at);
      }
      store(scores + round * kLanes, first_scores(greater(most, F16(-kInfinity)), at));
    }
    if (places > 1)
      std::nth_element(scores, scores + places - 1, scores + rounds * kLanes, std::greater<float>());
    late.bar = places > 1 ? scores[places - 1] : largest(load(scores));
  }

  // The scores of the tokens that arrive first in sixteen groups, noted in these vectors.
  SPECDEC_HD F16 first_scores(Mask lanes, U16 vectors) const {
    uint32_t vector[kLanes];
    float weight[kLanes], uniform[kLanes];
    store(vector, vectors);
    for (int i = 0; i < kLanes; ++i) {
      const Noted group = group_noted(static_cast<int32_t>(vector[i]), i);
      const int64_t column = tiles.column(group.index) + first_winner(group.b);
      const bool inside = lanes >> i & 1 && column >= 0 && column < row.vocab;
      const int32_t at = inside ? static_cast<int32_t>(column) : 0;
      weight[i] = inside ? least_log_weight(element(row, at), at) : -kInfinity;
      uniform[i] = group_uniform(group.a, group.b);
    }
    return race_score(load(weight), first_arrival_of(load(uniform)));
  }

  SPECDEC_HD float least_log_weight(float raw, int32_t column) const {
    if constexpr (Weights::kBounds) return weights.least_log_weight(raw, column);
    else return weights.log_weight(raw, column);
  }

  // Takes the columns of a group that could win if they arrived first.
  SPECDEC_HD void open(const Noted& group) {
    const int64_t begin = tiles.column(group.index);
    const float earliest = static_cast<float>(group.a) * 0x1p-38f;
    float raw[kGroup + kLanes];
    const float least = max(weights.needed_key(needed_at_least(late.to_beat(), earliest)), -kLargest);
    for (uint64_t left = group_at_least(weights, row, begin, least, raw); left; left &= left - 1) {
      const int i = __builtin_ctzll(left);
      const uint32_t token = group.index * kGroup + static_cast<uint32_t>(i);
      late.add(static_cast<int32_t>(begin + i), token, raw[i], group.a, group.b);
    }
  }

  const Weights& weights;
  const Row& row;
  const RaceMemory& notes;
  Result& result;
  const RaceTiles tiles;
  Sixteen<Weights, Result> late;
};

// Offers a row's arrivals to a result, by columns. The maxima of its cells are known.
template <class Weights, class Result>
SPECDEC_HD void race_groups(const Weights& weights, const Row& row, const Noise& noise, const float* cells,
                            const RaceMemory& notes, const Crew& crew, Result& result) {
  over_parts(RaceTiles(row).count, crew,
             [&](int, int32_t from, int32_t to) { note_groups(weights, row, noise, cells, notes, from, to); });
  GroupRace<Weights, Result>(weights, row, noise, notes, result).run();
}

SPECDEC_END
