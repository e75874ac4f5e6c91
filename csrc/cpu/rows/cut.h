// Computes a row's cut (specdec/filter.h) from the maxima of its cells. The k-th largest of these maxima is at most the
// k-th largest value of the row, and the tokens above a level have at least the mass of the maxima above it. So the
// maxima give a lower bound of the cut. Mostly few tokens reach it: they are listed and sorted. If they are too many,
// their counts and masses in bins narrow the range down first.
#pragma once

#include <algorithm>
#include <functional>

#include "cut_cells.h"

SPECDEC_BEGIN

constexpr int32_t kFewCells = 32;

// first, first + 1 ... first + 15.
SPECDEC_HD U32x16 rising_from(int32_t first) {
  static constexpr uint32_t kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return U32x16(static_cast<uint32_t>(first)) + load(kLane);
}

// Computes the cut of one row.
class CutFinder : public CutCells {
 public:
  // Shapes: raw_cells and values [cells], list_memory [kListed].
  CutFinder(const Row& r, const Filter& filter, const float* raw_cells, float* values, uint64_t* list_memory)
      : CutCells(r, filter, raw_cells, values), list(list_memory) {}

  // The cut of all filters. Without `summed`, count and mass may be missing. whole() returns the mass of the row, and
  // is called only if top_p is a share of it.
  template <class Whole>
  RowCut find_cut(bool summed, Whole&& whole) {
    const float floor = f.floor_below(top);
    const int32_t k = f.has_top_k() ? f.top_k : kNoToken;
    uint64_t limit = kNoLimit;
    if (f.of_row()) {
      limit = top_p_limit(f, whole());
    } else if (f.has_top_p()) {
      const RowCut first =
          before(f.after_top_k() ? k : kNoToken, limit, f.after_min_p() ? floor : -kInfinity, true);
      limit = top_p_limit(f, first.mass);
      if (first.list) return cut_list(first.count, k, limit, floor);
    }
    return before(k, limit, floor, summed);
  }

  // The cut if top_p is a share of the row's mass, which lies between two numbers. The result has no list if these
  // bounds do not decide the cut, or if the cut is not among the tokens of a few cells.
  RowCut find_cut_in_few_cells(uint64_t least, uint64_t most) {
    const uint64_t limit = top_p_limit(f, most);
    const int32_t listed = list_from(level_of_cells(kFewCells));
    RowCut in_support = kUncut;
    if (listed > kListed || mass_of(list, list + listed) < limit) return in_support;
    in_support = cut_list(listed, f.has_top_k() ? f.top_k : kNoToken, limit, f.floor_below(top));
    // The tokens before the last one have less than top_p of the smallest mass, so no mass in between drops the last.
    if (f.ties_all() || in_support.mass - weight(in_support.cut.value) >= top_p_limit(f, least))
      in_support.list = nullptr;
    return in_support;
  }

 protected:
  static constexpr uint64_t kNoLimit = ~uint64_t{0};

  // The cut that keeps a token if fewer than k tokens and a mass of less than `limit` are before it, and its value is
  // at least `floor`. The first token is always kept.
  RowCut before(int32_t k, uint64_t limit, float floor, bool summed) {
    float low = max(floor, -kLargest);
    if (k != kNoToken) low = max(low, level_of_cells(k));
    if (limit != kNoLimit) {  // mostly a few cells hold all that top_p keeps
      const float level = max(low, level_of_cells(kFewCells));
      const int32_t listed = list_from(level);
      if (listed <= kListed && (level == low || mass_of(list, list + listed) >= limit))
        return cut_list(listed, k, limit, floor);
    }
    const int32_t listed = list_from(low);
    if (listed <= kListed) return cut_list(listed, k, limit, floor);
    if (k != kNoToken || limit != kNoLimit) return narrowed(k, limit, low, summed || limit != kNoLimit);
    RowCut in_support = {{low, kNoToken}, 0, 0, nullptr};
    if (summed) sum(&in_support);
    return in_support;
  }

  // Lists the tokens of at least `low`, or of the keys [first, end). Returns how many there are, or more than kListed
  // if they do not fit.
  int32_t list_from(float low) { return list_keys(ordered(low), ordered(top) + 1); }
  int32_t list_keys(uint32_t first, uint32_t end) {
    const F32x16 least(from_ordered(first)), stop(from_ordered(end));
    float values[kListed + 2 * kLanes], columns[kListed + 2 * kLanes];  // the columns as bits
    int32_t listed = 0;
    each_sixteen(from_ordered(first), [&](F32x16 raw, int32_t at) {
      const F32x16 v = value(raw);
      const Mask lanes = at_least(v, least) & ~at_least(v, stop);
      compress(values + listed, lanes, v);
      compress(columns + listed, lanes, from_bits(rising_from(at)));
      listed += __builtin_popcount(lanes);
      return listed <= kListed;
    });
    if (listed > kListed) return listed;
    for (int32_t i = 0; i < listed; ++i) list[i] = list_entry(values[i], static_cast<int32_t>(bits(columns[i])));
    return listed;
  }

  // The mass of some entries of a list.
  uint64_t mass_of(const uint64_t* begin, const uint64_t* end) const {
    uint64_t mass = 0;
    for (const uint64_t* at = begin; at < end; ++at) mass += weight(value_at(*at));
    return mass;
  }

  // The cut from a list of all tokens down to some value at or below the cut.
  RowCut cut_list(int32_t listed, int32_t k, uint64_t limit, float floor) {
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
      mass = mass_of(list, end);
    }
    uint64_t last = ~uint64_t{0};
    for (const uint64_t* at = list; at < end; ++at) last = std::min(last, *at);
    return {{value_at(last), column_at(last)}, mass, static_cast<int32_t>(end - list), list};
  }

  // ---- long lists ---------------------------------------------------------------------------------------------------

  // The values of the list, as a source (CutCells).
  auto of_list(int32_t listed) const {
    return [this, listed](auto&& add) {
      for (int32_t i = 0; i < listed; i += kLanes) {
        float lane[kLanes];
        for (int32_t j = 0; j < kLanes; ++j) lane[j] = i + j < listed ? value_at(list[i + j]) : NAN;
        add(load(lane));
      }
    };
  }

  // The cut where the list would be too long. A pass over the row puts tokens into bins by their value, and adds up
  // their counts and masses. The next pass takes the bin in which the cut lies, until the tokens there fit the list or
  // all have the same value. If the guessed range fits the list, the row is not read again.
  RowCut narrowed(int32_t k, uint64_t limit, float low, bool weighed) {
    const uint64_t most = k == kNoToken ? kNoLimit : static_cast<uint64_t>(k);
    const Between all = {ordered(low), ordered(top) + 1, 0, 0};
    double expected;
    Between range = without_tail(all, most, limit, &expected);
    bool guessed = true, by_value = true;
    for (;;) {
      const Bins bins(range, by_value);
      Sums sums;
      const int32_t listed = guessed && expected < 0.9 * kListed ? list_keys(range.first, range.end) : kListed + 1;
      if (listed <= kListed) fill(bins, range, weighed, of_list(listed), &sums);
      else fill(bins, range, weighed, of_row(from_ordered(range.first)), &sums);
      const bool from_top = range.rank == 0;
      int bin = 0;
      for (; bin < kBins; ++bin) {
        const uint64_t rank = range.rank + sums.ranks[bin], mass = range.mass + sums.masses[bin];
        if (rank >= most || mass >= limit) break;
        range.rank = rank, range.mass = mass;
      }
      if (bin == kBins) {
        if (!guessed) return {{low, kNoToken}, range.mass, static_cast<int32_t>(range.rank), nullptr};  // keeps all
        guessed = false, range = all;
        continue;
      }
      bins.narrow(&range, bin);
      if (listed <= kListed) return cut_in(range, most, limit, listed, from_top);
      if (sums.ranks[bin] <= kListed) {
        const int32_t left = list_keys(range.first, range.end);
        return cut_in(range, most, limit, left, range.rank == 0);
      }
      if (range.end - range.first == 1) return cut_among_equals(range, most, limit);
      guessed = by_value = false;
    }
  }

  // Adds up the values that are in a range, by their bins.
  template <class Each>
  void fill(const Bins& bins, const Between& range, bool weighed, Each&& each, Sums* sums) const {
    const F32x16 least(from_ordered(range.first)), stop(from_ordered(range.end)), high(top);
    Packed packed([&](F32x16 v, Mask lanes) {
      uint32_t bin[kLanes], q[kLanes] = {}, n[kLanes] = {};
      bins.of(v, bin);
      if (weighed) {
        const auto e = integer_exp(sub(v, high));
        store(q, e.q), store(n, e.n);
      }
      for (int lane = 0; lanes >> lane; ++lane) {
        ++sums->ranks[bin[lane]];
        sums->masses[bin[lane]] += row_weight({q[lane], n[lane]});
      }
    });
    each([&](F32x16 v) { packed.add(v, at_least(v, least) & ~at_least(v, stop)); });
    packed.flush();
  }

  // A range without the smallest tokens, which the filters probably drop, estimated from a sample of some cells. For
  // top_k there is a margin of three standard deviations, and top_p drops a seventh more than this range does. `left`
  // is how many tokens the range is expected to have.
  Between without_tail(const Between& range, uint64_t most, uint64_t limit, double* left) const {
    const Bins bins(range, true);
    Sums sums;
    fill(bins, range, limit != kNoLimit, of_sample(true), &sums);
    const double sampled = static_cast<double>(kSampledCells) / count;
    int bin = kBins - 1;
    if (limit != kNoLimit) {
      const double dropped = static_cast<double>(limit) * (static_cast<double>(Filter::kWhole) / f.top_p_fixed - 1.0);
      double tail = 0.0;
      for (; bin > 0; --bin) {
        tail += static_cast<double>(sums.masses[bin]);
        if (tail > 0.875 * sampled * dropped) break;
      }
    }
    const double expected = static_cast<double>(most) * sampled, enough = expected + 3.0 * std::sqrt(expected) + 3.0;
    double ranks = 0.0;
    int last = 0;
    for (; last < bin; ++last) {
      ranks += sums.ranks[last];
      if (ranks >= enough) break;
    }
    *left = (ranks + sums.ranks[last]) / sampled;
    Between rest = range;
    bins.narrow(&rest, last);
    return {rest.first, range.end, 0, 0};
  }

  // The cut among the tokens of a range, which are listed; with `from_top` the list has all tokens before them, too.
  RowCut cut_in(const Between& range, uint64_t most, uint64_t limit, int32_t listed, bool from_top) {
    uint64_t* const begin =
        std::partition(list, list + listed, [&](uint64_t entry) { return key_at(entry) >= range.end; });
    uint64_t* end = std::partition(begin, list + listed, [&](uint64_t entry) { return key_at(entry) >= range.first; });
    uint64_t cut_at_last_token = reaching(begin, end, range, most, limit);
    const Cut cut = {value_at(cut_at_last_token), f.ties_all() ? kNoToken : column_at(cut_at_last_token)};
    if (f.ties_all()) cut_at_last_token &= ~uint64_t{0xffffffffu};
    end = std::partition(begin, end, [&](uint64_t entry) { return entry >= cut_at_last_token; });
    return {cut, range.mass + mass_of(begin, end), static_cast<int32_t>(range.rank + (end - begin)),
            from_top ? list : nullptr};
  }

  // The entry at which a list reaches `most` tokens or a mass of `limit`; its last entry if it does not. Each turn
  // keeps the half in which that happens.
  uint64_t reaching(uint64_t* begin, uint64_t* end, Between at_begin, uint64_t most, uint64_t limit) const {
    while (end - begin > 1) {
      uint64_t* const middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, std::greater<uint64_t>());
      const uint64_t tokens = static_cast<uint64_t>(middle - begin);
      const uint64_t weights = limit != kNoLimit ? mass_of(begin, middle) : 0;
      if (at_begin.rank + tokens >= most || at_begin.mass + weights >= limit) end = middle;
      else at_begin.rank += tokens, at_begin.mass += weights, begin = middle;
    }
    return *begin;
  }

  // The cut among many tokens of one value.
  RowCut cut_among_equals(const Between& range, uint64_t most, uint64_t limit) const {
    const float v = from_ordered(range.first);
    const uint64_t w = weight(v);
    uint64_t left = f.ties_all() ? kNoLimit : most - range.rank;  // how many of the equal tokens the cut keeps
    if (!f.ties_all() && w > 0 && limit != kNoLimit) left = std::min(left, (limit - range.mass + w - 1) / w);
    if (left == 0 && range.rank == 0) left = 1;
    int32_t last = kNoToken, in_support = 0;
    each_from(v, [&](float other, int32_t column) {
      if (ordered(other) != range.first) return true;
      last = column;
      ++in_support;
      return --left > 0;
    });
    return {{v, f.ties_all() ? kNoToken : last}, range.mass + w * static_cast<uint64_t>(in_support),
            static_cast<int32_t>(range.rank) + in_support, nullptr};
  }

  uint64_t* list;
};

SPECDEC_END
