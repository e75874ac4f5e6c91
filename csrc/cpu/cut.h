// Finds where a row's filters cut (specdec/filter.h), from the maxima of its cells. The k-th largest of these maxima is
// at most the k-th largest value of the row, and the tokens above a level have at least the mass of the maxima above
// it. So the maxima give a level that the cut does not lie below. Mostly few tokens reach it: they are listed and
// sorted. If they are too many, counts and masses above several levels narrow the range down first.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "law_row.h"

SPECDEC_BEGIN

constexpr int kTilesShare = 18;  // 2^-18 of a row's mass: more than its tiles together lose by rounding

// One row, looked at through its cells.
class CutRow {
 public:
  // `values` has room for one number for each cell of the row, `list` for kListed places.
  CutRow(const Row& r, const Filter& filter, const float* raw_cells, float* values, uint64_t* list_memory)
      : row(r), f(filter), cells(values), list(list_memory), count(cells_of(r.vocab)) {
    F16 best(-kInfinity);
    for (int32_t i = 0; i < count; i += kLanes) {
      const F16 v = value(load(raw_cells + i));
      store(values + i, v);
      best = max(v, best);
    }
    top = largest(best);
  }

  float top;  // the largest value

  // What the filters keep. `summed` asks for count and mass; without it they may be missing. `whole` gives the mass of
  // the row, and is called only if top_p is a share of it.
  template <class Whole>
  Kept kept(bool summed, Whole&& whole) {
    const float floor = f.floor_below(top);
    const bool after_k = f.after_top_k(), after_floor = f.after_min_p();
    uint64_t limit = kNoLimit;
    if (f.has_top_p()) {
      uint64_t mass;
      if (after_k || after_floor) {
        const Kept first = before(after_k ? f.top_k : kNoToken, limit, after_floor ? floor : -kInfinity, true);
        mass = first.mass;
        limit = mass_kept(f, mass);
        if (first.list) return cut_list(first.count, f.has_top_k() ? f.top_k : kNoToken, limit, floor);
      } else {
        mass = whole();
        limit = mass_kept(f, mass);
      }
    }
    return before(f.has_top_k() ? f.top_k : kNoToken, limit, floor, summed);
  }

  // Whether top_p keeps a token, if it is a share of the row's mass. A lower bound of that mass mostly says yes. Only
  // if it does not, `whole` is called for the exact mass.
  template <class Whole>
  bool keeps_by_mass(float v, int32_t column, Whole&& whole) const {
    const Cut earlier = before_token(v, column);
    const uint64_t above = mass_in(f.order, top, earlier);
    if (above == 0) return true;  // the first of the order
    Sum16 below;
    const F16 least(v), high(top);
    for (int32_t i = 0; i < count; i += kLanes) {
      const F16 largest_in = load(cells + i);
      const Mask found = ~at_least(largest_in, least) & 0xffffu;
      if (!found) continue;
      const auto e = integer_exp(sub(largest_in, high));
      below.add(e.q, e.n, found);
    }
    const uint64_t at_least_mass = above + weight(v) + below.total();
    // The mass of a row is summed by tiles. It may be smaller than the sum of its weights, by this share at most.
    if (above < mass_kept(f, at_least_mass - (at_least_mass >> kTilesShare))) return true;
    return above < mass_kept(f, whole());
  }

  // The cut that keeps the tokens before this one in the order; with ties together, those of a larger value.
  Cut before_token(float v, int32_t column) const { return {v, f.ties_all() ? -1 : column - 1}; }

  // Calls g(v, column) for every token of at least `low`, by rising column, until it returns false.
  template <class G>
  void each_from(float low, G&& g) const {
    const F16 least(low);
    each_sixteen(low, [&](F16 raw, int32_t at) {
      const F16 v = value(raw);
      Mask found = at_least(v, least);
      if (!found) return true;
      float lane[kLanes];
      store(lane, v);
      for (; found; found &= found - 1) {
        const int i = __builtin_ctz(found);
        if (!g(lane[i], at + i)) return false;
      }
      return true;
    });
  }

  // Calls g(raw, lanes) for sixteen elements at a time if the cut keeps some of them: `lanes` says which.
  template <class G>
  SPECDEC_HD void each_kept(const Cut& cut, G&& g) const {
    each_sixteen(cut.value, [&](F16 raw, int32_t at) {
      const Mask found = lanes_kept(cut, value(raw), at);
      if (found) g(raw, found);
      return true;
    });
  }

  // How many tokens a cut keeps, and their mass.
  void sum(Kept* k) const {
    int32_t kept = 0;
    each_kept(k->cut, [&](F16, Mask found) { kept += __builtin_popcount(found); });
    k->count = kept;
    k->mass = mass_in(f.order, top, k->cut);
  }

  // The mass of the tokens that a cut keeps, at the temperature of `space`; `top_x` is the row's largest x there.
  uint64_t mass_in(const Logits& space, float top_x, const Cut& cut) const {
    Sum16 mass;
    const F16 zero(0.0f), high(top_x);
    each_kept(cut, [&](F16 raw, Mask found) {
      const auto e = integer_exp(min(zero, space.below(raw, high)));
      mass.add(e.q, e.n, found);
    });
    return mass.total();
  }

 private:
  // Calls g(raw, column of the first) for sixteen elements at a time of the cells that reach `low`, until it returns
  // false. Past the row's end there are NaNs.
  template <class G>
  SPECDEC_HD void each_sixteen(float low, G&& g) const {
    const F16 least(low);
    for (int32_t block = 0; block < count; block += kLanes) {
      for (Mask open = at_least(load(cells + block), least); open; open &= open - 1) {
        const int32_t begin = (block + __builtin_ctz(open)) * kCell;
        const Cell cell = cell_of(row, begin);
        for (int k = 0; k < kCellVectors; ++k)
          if (!g(cell.vector[k], begin + k * kLanes)) return;
      }
    }
  }

  SPECDEC_HD F16 value(F16 raw) const { return value_of(f, raw); }
  SPECDEC_HD uint64_t weight(float v) const { return row_weight(sub(v, top)); }

  static constexpr uint64_t kNoLimit = ~uint64_t{0};

  // Keeps a token if fewer than k tokens and a mass of less than `limit` are before it, and its value is at least
  // `floor`. The first token is always kept.
  Kept before(int32_t k, uint64_t limit, float floor, bool summed) {
    float low = max(floor, -kLargest);
    if (k != kNoToken) low = max(low, level_of_cells(k));
    // Mostly a few cells hold all that top_p keeps: a first try with 32 of them, then with 512.
    for (int32_t cell_count = 32; limit != kNoLimit && cell_count <= 512; cell_count *= 16) {
      const float level = max(low, level_of_cells(cell_count));
      const int32_t listed = list_from(level);
      if (listed > kListed) break;
      if (level == low || mass_listed(listed) >= limit) return cut_list(listed, k, limit, floor);
    }
    const int32_t listed = list_from(low);
    if (listed <= kListed) return cut_list(listed, k, limit, floor);
    Kept kept = {{low, kNoToken}, 0, 0, nullptr};
    if (k != kNoToken || limit != kNoLimit) kept.cut = narrowed(k, limit, low);
    if (summed) sum(&kept);
    return kept;
  }

  // Lists the tokens of at least `low`. Returns how many there are, or kListed + 1 if they do not fit.
  int32_t list_from(float low) {
    int32_t listed = 0;
    each_from(low, [&](float v, int32_t column) {
      if (listed < kListed) list[listed] = place_of(v, column);
      return ++listed <= kListed;
    });
    return listed;
  }
  uint64_t mass_listed(int32_t listed) const {
    uint64_t mass = 0;
    for (int32_t i = 0; i < listed; ++i) mass += weight(value_at(list[i]));
    return mass;
  }

  // A level that the maxima of at least `wanted` cells reach, and of few more; -inf if there are fewer cells.
  float level_of_cells(int32_t wanted) const {
    const int32_t spare = wanted / 4 + 8;
    if (cells_from(-kLargest) < wanted) return -kInfinity;
    float low = -kLargest, high = top, step = 4.0f;  // enough cells reach `low`
    if (cells_from(high) >= wanted) return high;
    for (int turn = 0; turn < 48 && ordered(high) - ordered(low) > 1; ++turn) {
      float level;
      if (low == -kLargest && turn < 8) level = max(sub(top, step), low), step = mul(step, 2.0f);
      else if (turn < 16) level = low + 0.5f * (high - low);
      else level = unordered_value(ordered(low) + (ordered(high) - ordered(low)) / 2);
      if (!(level > low) || !(level < high)) continue;
      const int32_t found = cells_from(level);
      if (found < wanted) {
        high = level;
      } else {
        low = level;
        if (found <= wanted + spare) break;
      }
    }
    return low;
  }
  int32_t cells_from(float level) const {
    const F16 least(level);
    int32_t found = 0;
    for (int32_t i = 0; i < count; i += kLanes) found += __builtin_popcount(at_least(load(cells + i), least));
    return found;
  }

  // The cut, and what it keeps, from a list of all tokens down to some value below the cut or at it.
  Kept cut_list(int32_t listed, int32_t k, uint64_t limit, float floor) {
    uint64_t* end = list + listed;
    if (floor > -kInfinity) end = std::partition(list, end, [&](uint64_t p) { return value_at(p) >= floor; });
    if (k < end - list) {
      std::nth_element(list, list + (k - 1), end, std::greater<uint64_t>());
      const uint32_t last = key_at(list[k - 1]);
      end = f.ties_all() ? std::partition(list + k, end, [&](uint64_t p) { return key_at(p) == last; }) : list + k;
    }
    uint64_t mass = 0;
    if (limit != kNoLimit) {
      std::sort(list, end, std::greater<uint64_t>());
      uint64_t* at = list;
      while (at < end && (at == list || mass < limit)) {
        const uint32_t key = key_at(*at);
        const uint64_t w = weight(value_at(*at));
        do {
          mass += w;
          ++at;
        } while (f.ties_all() && at < end && key_at(*at) == key);
      }
      end = at;
    } else {
      for (const uint64_t* at = list; at < end; ++at) mass += weight(value_at(*at));
    }
    uint64_t last = ~uint64_t{0};
    for (const uint64_t* at = list; at < end; ++at) last = *at < last ? *at : last;
    return {{value_at(last), column_at(last)}, mass, static_cast<int32_t>(end - list), list};
  }

  // ---- long lists ---------------------------------------------------------------------------------------------------

  // The same cut if the list would be too long. A pass over the row takes count and mass of the tokens above a few
  // levels, and goes on between the two levels where the cut lies, until the tokens there fit the list or all have the
  // same value.
  Cut narrowed(int32_t k, uint64_t limit, float low) {
    const uint64_t most = k == kNoToken ? kNoLimit : static_cast<uint64_t>(k);
    uint32_t first = ordered(low), end = ordered(top) + 1;  // the cut is at one of the keys [first, end)
    uint64_t rank = 0, mass = 0;                            // how many tokens have larger keys, and their mass
    for (int turn = 0;; ++turn) {
      Levels levels = turn == 0 ? guessed(most, limit, first, end) : between(turn, first, end);
      measure(&levels, end, limit != kNoLimit);
      int j = levels.count;
      while (j > 0 && rank + levels.ranks[j - 1] < most && mass + levels.masses[j - 1] < limit) --j;
      // The cut is before level j, and from level j - 1 on.
      uint64_t inside = j > 0 ? levels.ranks[j - 1] : kNoLimit;
      if (j == 0 && levels.key[0] == first) return {low, kNoToken};  // all are kept
      if (j < levels.count) {
        inside -= levels.ranks[j];
        rank += levels.ranks[j], mass += levels.masses[j];
        end = levels.key[j];
      }
      if (j == 0) continue;
      first = levels.key[j - 1];
      if (inside <= kListed) return cut_in(first, end, rank, mass, most, limit);
      if (end - first == 1) return cut_among_equals(first, rank, mass, most, limit);
    }
  }

  static constexpr int kLevels = 9;

  // Rising keys, and count and mass of the tokens from each on.
  struct Levels {
    int count = 0;
    uint32_t key[kLevels];
    uint64_t ranks[kLevels], masses[kLevels];
    void add(uint32_t level) { key[count++] = level; }
  };

  // Levels inside of the keys [first, end), from `first` on: in two passes by equal steps of the value, then by equal
  // steps of the key, which always come to an end.
  static Levels between(int turn, uint32_t first, uint32_t end) {
    const uint64_t width = end - first;
    const float from = unordered_value(first), to = unordered_value(end - 1);
    Levels levels;
    for (int j = 0; j < kLevels; ++j) {
      uint32_t key = first + static_cast<uint32_t>(width * static_cast<uint64_t>(j) / kLevels);
      if (turn <= 2) key = ordered(from + (to - from) * (static_cast<float>(j) / kLevels));
      key = std::min(std::max(key, first), end - 1);
      levels.add(j > 0 ? std::max(key, levels.key[j - 1]) : first);
    }
    return levels;
  }

  // Two levels around the place where a sample of the row, sixteen of its cells, has the cut: three standard deviations
  // of its count and mass before and after.
  Levels guessed(uint64_t most, uint64_t limit, uint32_t first, uint32_t end) const {
    constexpr int32_t kSampled = 16;
    uint32_t keys[kSampled * kCell];
    int32_t size = 0;
    for (int32_t i = 0; i < kSampled; ++i) {
      const int32_t begin = static_cast<int32_t>(int64_t{count} * (2 * i + 1) / (2 * kSampled)) * kCell;
      const Cell cell = cell_of(row, begin);
      for (const F16& raw : cell.vector) {
        float lane[kLanes];
        store(lane, value(raw));
        for (const float v : lane)
          if (v == v && ordered(v) >= first) keys[size++] = ordered(v);
      }
    }
    std::sort(keys, keys + size, [](uint32_t a, uint32_t b) { return a > b; });
    const double share = static_cast<double>(kSampled) / count;
    const double wanted = static_cast<double>(most) * share, mass_wanted = static_cast<double>(limit) * share;
    double mass = 0.0, squares = 0.0;
    uint32_t high = end - 1, low = first;
    bool before = true;  // whether the cut is probably after the tokens looked at
    for (int32_t i = 0; i < size; ++i) {
      const double w = static_cast<double>(weight(unordered_value(keys[i])));
      const double spread = 3.0 * std::sqrt(i + 1.0), mass_spread = 3.0 * std::sqrt(squares + w * w);
      before = before && i + 1 + spread < wanted && mass + w + mass_spread < mass_wanted;
      if (before) high = keys[i];
      mass += w, squares += w * w;
      if (i + 1 - spread <= wanted && mass - mass_spread <= mass_wanted) continue;
      low = keys[i];
      break;
    }
    Levels levels;
    levels.add(low);
    if (high > low) levels.add(high);
    return levels;
  }

  // Counts, and masses if they are asked for, of the tokens from each level on whose keys are below `end`.
  void measure(Levels* levels, uint32_t end, bool weighed) const {
    Sum16 sums[kLevels];
    F16 least[kLevels];
    for (int j = 0; j < levels->count; ++j) {
      least[j] = F16(unordered_value(levels->key[j]));
      levels->ranks[j] = 0;
    }
    const F16 stop(unordered_value(end)), high(top);
    each_kept({unordered_value(levels->key[0]), kNoToken}, [&](F16 raw, Mask found) {
      const F16 v = value(raw);
      auto e = integer_exp(F16(0.0f));
      if (weighed) e = integer_exp(sub(v, high));
      found &= ~at_least(v, stop);
      for (int j = 0; j < levels->count; ++j) {
        found &= at_least(v, least[j]);
        if (!found) break;
        levels->ranks[j] += static_cast<uint64_t>(__builtin_popcount(found));
        if (weighed) sums[j].add(e.q, e.n, found);
      }
    });
    for (int j = 0; j < levels->count; ++j) levels->masses[j] = sums[j].total();
  }

  // The cut among the tokens of the keys [first, end), which fit the list. Above them are `rank` tokens of mass `mass`.
  Cut cut_in(uint32_t first, uint32_t end, uint64_t rank, uint64_t mass, uint64_t most, uint64_t limit) {
    const F16 least(unordered_value(first)), stop(unordered_value(end));
    int32_t listed = 0;
    each_sixteen(unordered_value(first), [&](F16 raw, int32_t at) {
      const F16 v = value(raw);
      float lane[kLanes];
      store(lane, v);
      for (Mask found = at_least(v, least) & ~at_least(v, stop); found; found &= found - 1) {
        const int i = __builtin_ctz(found);
        list[listed++] = place_of(lane[i], at + i);
      }
      return true;
    });
    const uint64_t last_kept = reaching(list, list + listed, rank, mass, most, limit);
    return {value_at(last_kept), f.ties_all() ? kNoToken : column_at(last_kept)};
  }

  // The place at which a list reaches `most` tokens or a mass of `limit`; its last place if it does not. Only the half
  // where that happens is looked at again.
  uint64_t reaching(uint64_t* begin, uint64_t* end, uint64_t rank, uint64_t mass, uint64_t most, uint64_t limit) const {
    while (end - begin > 1) {
      uint64_t* const middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, std::greater<uint64_t>());
      const uint64_t tokens = static_cast<uint64_t>(middle - begin);
      uint64_t weights = 0;
      if (limit != kNoLimit)
        for (const uint64_t* at = begin; at < middle; ++at) weights += weight(value_at(*at));
      if (rank + tokens >= most || mass + weights >= limit) end = middle;
      else rank += tokens, mass += weights, begin = middle;
    }
    return *begin;
  }

  // The cut among many tokens of one value.
  Cut cut_among_equals(uint32_t key, uint64_t rank, uint64_t mass, uint64_t most, uint64_t limit) const {
    const float v = unordered_value(key);
    if (f.ties_all()) return {v, kNoToken};
    const uint64_t w = weight(v);
    uint64_t left = most - rank;  // of the equal tokens, how many are kept
    if (w > 0 && limit != kNoLimit) left = std::min(left, (limit - mass + w - 1) / w);
    if (rank == 0 && left == 0) left = 1;
    int32_t last = kNoToken;
    each_from(v, [&](float other, int32_t column) {
      if (ordered(other) != key) return true;
      last = column;
      return --left > 0;
    });
    return {v, last};
  }

  const Row& row;
  const Filter& f;
  float* cells;    // the maxima of the cells, as values
  uint64_t* list;
  int32_t count;
};

// The mass of a row whose cells are known; `top` is its largest x.
inline uint64_t row_mass(const Row& row, const Logits& space, const Crew& crew, const float* cells, MassTile* tiles,
                         float top) {
  row_masses(row, space, crew, cells, tiles);
  return mass_of(tiles, mass_tiles_of(row.vocab), top);
}

SPECDEC_END
