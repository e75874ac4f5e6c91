// The race over one row on the CPU. A cell of the row is a group of the race, so its maximum and the group's first
// random words bound the best score that the group can reach. The groups with the highest bounds give a first bar; then
// only groups that can reach it are opened, a few dozen. Few of their tokens cost logarithms (specdec/race.h).
#pragma once

#include <algorithm>
#include <functional>

#include "race_result.h"

SPECDEC_BEGIN

// `Weights` of a race give `key`, `log_bound` and `needed_key` as in specdec/law.h, log_bounds (log_bound of sixteen
// maxima), and the log weight of a column, whose raw element the caller passes. Weights may be upper bounds: then
// `least` is not null, and there is a least_log_weight.

// Weights p.
template <class Space>
struct RowWeights {
  static constexpr bool kMayBeFiltered = Space::kSigned;  // probabilities are final
  static constexpr bool kMayBeMapped = true;              // the row may have a draft map
  static constexpr bool kMayBeBounds = false;
  Space space;
  template <class Float>
  SPECDEC_HD Float key(Float raw) const { return space.key(raw); }
  float log_bound(float raw) const { return space.log_bound(raw); }
  SPECDEC_HD F32x16 log_bounds(F32x16 maxima) const { return space.log_bounds(maxima); }
  float needed_key(float log_weight) const { return space.needed_key(log_weight); }
  float log_weight(float raw, int32_t) const { return space.log_weight(raw); }
};

// The least log weight that a column may have.
template <class Weights>
inline float least_log_weight(const Weights& weights, float raw, int32_t column) {
  if constexpr (Weights::kMayBeBounds) {
    if (weights.least) return weights.least_log_weight(raw, column);
  }
  return weights.log_weight(raw, column);
}

// The race's groups and tiles are those of the whole vocabulary. A row that is a part of a vocabulary may begin inside
// of them: `skipped` tokens of the race's first tile lie before the row.
struct RaceTiles {
  int32_t first, count, skipped, row_tiles;
  int64_t vocab_start;

  explicit RaceTiles(const Row& row)
      : first(row.vocab_start / kTile), count(tiles_of(row.vocab_start % kTile + row.vocab)),
        skipped(row.vocab_start % kTile), row_tiles(row.tiles()), vocab_start(row.vocab_start) {}

  uint32_t first_group(int32_t tile) const { return static_cast<uint32_t>(first + tile) * (kTile / kGroup); }
  SPECDEC_HD U32x16 counters(int32_t tile) const {
    return U32x16(static_cast<uint32_t>(first + tile) * kLanes) + lane_index();
  }
  // The column where a group begins; negative if the group begins before the row.
  int64_t column(uint32_t group) const { return static_cast<int64_t>(group) * kGroup - vocab_start; }
  // At least the largest elements of the even and the odd groups of a tile. A group may lie in two cells if the row
  // begins inside of a group.
  void largest(const float* cells, int32_t tile, F32x16* even, F32x16* odd) const {
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
  float cell_at(const float* cells, int32_t column) const {
    return column >= 0 && column < row_tiles * kTile ? cells[column / kCell] : -kInfinity;
  }
};

// Stores the best scores that the groups of some tiles can reach, if the token of the largest weight arrives first. The
// loop's arguments are passed by value, so that the compiler does not reload them after each store.
template <class Weights>
inline void note_groups(const Weights weights, const Row& row, const Noise noise, const float* cells,
                        const RaceMemory notes, int32_t from, int32_t to) {
  const RaceTiles tiles(row);
  const F32x16 unit(0x1p-38f);
  for (int32_t tile = from; tile < to; ++tile) {
    const Words<U32x16> random_words = noise_words(noise, tiles.counters(tile));
    F32x16 largest[2];
    tiles.largest(cells, tile, &largest[0], &largest[1]);
    for (int parity = 0; parity < 2; ++parity) {
      const F32x16 earliest = mul(unsigned_float(random_words.word[parity]), unit);
      store(notes.scores + (2 * tile + parity) * kLanes, sub(weights.log_bounds(largest[parity]), log_below(earliest)));
    }
    for (int word = 0; word < 4; ++word)
      store(notes.random_words + (4 * tile + word) * kLanes, random_words.word[word]);
  }
}

// The columns of a group with a key of at least `needed`, one bit each, and their elements.
template <class Weights>
inline uint64_t group_at_least(const Weights& weights, const Row& row, int64_t begin, float needed, float* raw) {
  const int32_t end = row.vocab - begin < kGroup ? static_cast<int32_t>(row.vocab - begin) : kGroup;
  uint64_t matches = 0;
  for (int32_t i = begin < 0 ? static_cast<int32_t>(-begin) : 0; i < end; i += kLanes) {
    const F32x16 x = elements(row, static_cast<int32_t>(begin + i), end - i, __builtin_nanf(""));
    const Mask large = at_least(weights.key(x), F32x16(needed));
    if (!large) continue;
    matches |= static_cast<uint64_t>(large) << i;
    store(raw + i, x);
  }
  return matches;
}

// Tokens that may win by the bounds of their groups, gathered until they are sixteen. Then their second words are drawn
// together, and most of them arrive too late.
template <class Weights>
class PendingCandidates {
 public:
  PendingCandidates(const Weights& of, const Noise& with, RaceResult& into) : weights(of), noise(with), result(into) {}

  float bar = -kInfinity;  // a token of a lower score cannot be in the result
  float to_beat() const { return max(result.to_beat, bar); }

  // `a` and `b` are the random words of the token's group.
  void add(int32_t column, uint32_t token, float raw, uint32_t a, uint32_t b) {
    columns[count] = column, tokens[count] = token, raws[count] = raw, as[count] = a, bs[count] = b;
    if (++count == kLanes) decide();
  }

  // Offers those that may win. It must be called after the last token.
  __attribute__((noinline)) void decide() {
    if (count == 0) return;
    const Words<U32x16> later = noise_words(noise, shift_right(load(tokens), U32x16(2)), 1);
    uint32_t random_words[4][kLanes];
    for (int word = 0; word < 4; ++word) store(random_words[word], later.word[word]);
    uint32_t mine[kLanes], waits[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      mine[i] = random_words[tokens[i] % 4][i];
      waits[i] = is_first(i) ? 0u : mine[i];
    }
    const F32x16 sooner = specdec::add(mul(unsigned_float(load(as)), F32x16(0x1p-38f)),
                                       mul(unsigned_float(load(waits)), F32x16(0x1p-32f)));
    Mask left = at_least(weights.log_bounds(load(raws)), needed_at_least(to_beat(), sooner)) & first_lanes(count);
    for (; left; left &= left - 1) {
      const int i = __builtin_ctz(left);
      const float log_weight = weights.log_weight(raws[i], columns[i]);
      if (log_weight == -kInfinity) continue;
      const float first = first_arrival(as[i], bs[i]);
      const float time = is_first(i) ? first : specdec::add(first, later_by(mine[i]));
      const float score = race_score(log_weight, time);
      float least = score;
      if constexpr (Weights::kMayBeBounds) {
        if (weights.least) least = race_score(weights.least_log_weight(raws[i], columns[i]), time);
      }
      result.offer({score, columns[i]}, least);
    }
    count = 0;
  }

 private:
  bool is_first(int i) const { return static_cast<int>(tokens[i] % kGroup) == first_winner(bs[i]); }

  const Weights& weights;
  const Noise& noise;
  RaceResult& result;
  int32_t count = 0, columns[kLanes];
  float raws[kLanes] = {};
  uint32_t tokens[kLanes] = {}, as[kLanes] = {}, bs[kLanes] = {};
};

// Offers the arrivals of a row whose groups were noted.
template <class Weights>
class GroupRace {
 public:
  GroupRace(const Weights& of, const Row& of_row, const Noise& with, const RaceMemory& noted, RaceResult& into)
      : weights(of), row(of_row), notes(noted), result(into), tiles(of_row), late(of, with, into) {}

  void run() {
    const int32_t vectors = 2 * tiles.count;
    raise_bar();
    for (int32_t v = 0; v < vectors; ++v) {
      const F32x16 scores = load(notes.scores + v * kLanes);
      for (Mask left = at_least(scores, F32x16(needed())); left; left &= left - 1)
        open(group_noted(v, __builtin_ctz(left)));
    }
    late.decide();
  }

 private:
  // The group at a lane of a vector of notes.
  struct Noted {
    uint32_t index, a, b;
  };
  Noted group_noted(int32_t vector, int lane) const {
    const int32_t tile = vector / 2, parity = vector % 2;
    const uint32_t* a = notes.random_words + (4 * tile + parity) * kLanes + lane;
    return {tiles.first_group(tile) + static_cast<uint32_t>(2 * lane + parity), a[0], a[2 * kLanes]};
  }

  // The score that a group must be able to reach. Groups without weight never do.
  float needed() const { return max(lowest_noted(late.to_beat()), -kLargest); }

  // Sets the bar from the scores of tokens that arrive first in their groups. The groups form classes, at least two for
  // each candidate of the result, and each class contributes the group with the highest bound.
  void raise_bar() {
    constexpr int32_t kMostRounds = 64;
    const int32_t capacity = result.capacity, vectors = 2 * tiles.count, rounds = (2 * capacity + kLanes - 1) / kLanes;
    if (rounds > kMostRounds) return;
    float scores[kMostRounds * kLanes];
    for (int32_t round = 0; round < rounds; ++round) {
      F32x16 most(-kInfinity);
      U32x16 at(0u);
      for (int32_t v = round; v < vectors; v += rounds) {
        const F32x16 reach = load(notes.scores + v * kLanes);
        const Mask more = greater(reach, most);
        most = where(more, reach, most);
        at = where(more, U32x16(static_cast<uint32_t>(v)), at);
      }
      store(scores + round * kLanes, first_scores(greater(most, F32x16(-kInfinity)), at));
    }
    if (capacity > 1)
      std::nth_element(scores, scores + capacity - 1, scores + rounds * kLanes, std::greater<float>());
    late.bar = capacity > 1 ? scores[capacity - 1] : largest(load(scores));
  }

  // The scores of the tokens that arrive first in sixteen groups, noted in these vectors.
  F32x16 first_scores(Mask lanes, U32x16 vectors) const {
    uint32_t vector[kLanes];
    float weight[kLanes], uniform[kLanes];
    store(vector, vectors);
    for (int i = 0; i < kLanes; ++i) {
      const Noted group = group_noted(static_cast<int32_t>(vector[i]), i);
      const int64_t column = tiles.column(group.index) + first_winner(group.b);
      const bool inside = lanes >> i & 1 && column >= 0 && column < row.vocab;
      weight[i] = -kInfinity;
      uniform[i] = group_uniform(group.a, group.b);
      if (!inside) continue;
      const int32_t at = static_cast<int32_t>(column);
      weight[i] = least_log_weight(weights, element(row, at), at);
    }
    return race_score(load(weight), to_first_arrival(load(uniform)));
  }

  // Gathers the columns of a group that would win if they arrived first.
  void open(const Noted& group) {
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
  RaceResult& result;
  const RaceTiles tiles;
  PendingCandidates<Weights> late;
};

// Offers a row's arrivals, from the maxima of its cells.
template <class Weights>
inline void race_groups(const Weights& weights, const LawRow& r, const Noise& noise, const ThreadTeam& team,
                        RaceResult& result) {
  over_parts(RaceTiles(r.row).count, team, [&](int, int32_t from, int32_t to) {
    note_groups(weights, r.row, noise, r.cells, r.race, from, to);
  });
  GroupRace<Weights>(weights, r.row, noise, r.race, result).run();
}

SPECDEC_END
