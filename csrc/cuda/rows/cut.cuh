// The cut of a row's filters (specdec/filter.h), from the maxima of its cells. The k-th largest maximum is at most the
// k-th largest value of the row, and the tokens above a level have at least the mass of the maxima above it. So the
// maxima give a level that the cut does not lie below. Mostly few tokens reach it: they are listed and ordered, and
// counts and masses along the list give the cut. If they are too many, counts and masses above several levels narrow
// the range first. All sums are integers, so the cut does not depend on how blocks share the row.
#pragma once

#include "cut_cells.cuh"

namespace specdec::cuda {

constexpr int kLevels = 3;  // levels of one pass that narrows the range
constexpr int kCutSums = 2 * (kLevels + 1);

// A token as a word, larger if it comes first: its key, then its inverted column.
__device__ __forceinline__ int32_t column_of(WideKey word) {
  return static_cast<int32_t>(~static_cast<uint32_t>(word));
}

// The words [first, end), with count and mass of the tokens above them.
struct WordRange {
  WideKey first, end;
  uint64_t rank, mass;
};

// Computes the cut of a row that was scanned.
struct CutFinder : CutCells {
  Shared<WideKey> list;

  static constexpr int kShort = 319;  // tokens of a list that is put in order

  __device__ CutFinder(Team& with, const EditedRow& of, const Filter& filter, const CutMemory& in)
      : CutCells(with, of, filter, in), list(dynamic_shared<WideKey>(in.at, kListWords)) {}

  // Applies the filters. `whole`: the row's statistics; with its mass if top_p is a share of that.
  __device__ CutResult apply(const CutResult& whole) const {
    const uint64_t k = f.has_top_k() ? static_cast<uint64_t>(f.top_k) : kNoLimit;
    uint32_t floor = kLeastKey;
    if (f.has_min_p() && ordered(f.floor_below(top)) > floor) floor = ordered(f.floor_below(top));
    const auto all_rules = [&](uint64_t mass) {
      const uint64_t limit = top_p_limit(f, mass);
      return CutRule{k, limit > 0 ? limit : 1, floor};
    };
    const bool after_k = f.after_top_k(), after_floor = f.after_min_p();
    // If top_p is a share of the support of other filters, these come first, alone.
    bool first = f.has_top_p() && (after_k || after_floor);
    CutRule rule = all_rules(whole.mass);
    if (first) rule = {after_k ? k : kNoLimit, kNoLimit, after_floor ? floor : kLeastKey};
    SPECDEC_SHARED(unsigned, numbers, 2);
    if (threadIdx.x < 2) numbers[static_cast<int>(threadIdx.x)] = 0;
    WordRange range = {};
    range.first = word_of_key(level(rule)), range.end = word_of_key(ordered(top) + 1);
    int listed = list_from(range.first, range.end, numbers);
    CutResult result = whole;
    if (listed <= kShort) {
      const OrderedList<0, kShort> short_list = {*this};
      short_list.order(listed);
      int size = short_list.size_of(rule, {}, listed);
      if (first) size = short_list.size_of(all_rules(short_list.mass(size)), {}, listed);
      short_list.cut_at(size, {}, &result);
      result.listed = size;
      return result;
    }
#pragma unroll 1
    for (;; first = false) {
      listed = narrow(rule, range, listed, numbers, &result);
      if (!first) break;
      rule = all_rules(result.mass);
      range.first = word_of_key(ordered(result.cut.value));  // the second cut does not lie below the first
    }
    if (listed <= kListed) {
      gather(listed, 0, numbers,
             [&](WideKey word) { return result.cut.keeps(from_ordered(key_of(word)), column_of(word)); });
      result.listed = static_cast<int>(result.count);
    }
    return result;
  }

  // The log-sum-exp of the support, at the temperature of `space`.
  __device__ LogSumExp lse(const Logits& space, const CutResult& row_cut) const {
    if (f.order.inverse == space.inverse) return log_sum_exp(row_cut.top, row_cut.mass);
    const float top_x = space.scaled(row_cut.infinite ? kInfinity : row_cut.top);
    uint64_t mass[1] = {0};
    const auto add = [&](float raw) { mass[0] += row_weight(min(0.0f, space.below(raw, top_x))); };
    if (row_cut.listed >= 0) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < row_cut.listed; i += kThreads)
        add(element(row, column_of(list[i])));
      block_sums(mass);
    } else {
      over_row([&](float raw, int32_t column) {
        if (row_cut.cut.keeps(f.order.scaled(raw), column)) add(raw);
      });
      team_sums(team, mass);
    }
    return log_sum_exp(top_x, mass[0]);
  }

 private:
  static __device__ WideKey word_of_key(uint32_t key) { return static_cast<WideKey>(key) << 32; }
  static __device__ uint32_t key_of(WideKey word) { return static_cast<uint32_t>(word >> 32); }

  __device__ uint64_t weight(uint32_t key) const { return row_weight(sub(from_ordered(key), top)); }

  // ---- a list -------------------------------------------------------------------------------------------------------

  // The layout of the list. A short one takes four words a token (OrderedList). A long one begins at kLongAt, and a
  // short ordered list comes behind it, over the opened cells.
  static constexpr int kLongAt = kShort + 1, kFew = 63, kFewAt = kListWords - 4 * (kFew + 1);
  static constexpr int kListed = kFewAt - kLongAt, kOpen = 16 * (kFew + 1);  // the most tokens, the most cells together
  static_assert(4 * kLongAt <= kFewAt, "a short list comes before");

  // Lists the tokens whose words are in [first, end). Returns their number: all are listed if that is kListed at most.
  // The cells that may hold such a token are opened first, and a warp reads two of them together. `numbers` are zeros.
  __device__ int list_from(WideKey first, WideKey end, const Shared<unsigned>& numbers) const {
    const Shared<uint16_t> opened = dynamic_shared<uint16_t>(memory.at + sizeof(WideKey) * kFewAt, kOpen);
    const int thread = static_cast<int>(threadIdx.x), warps = kThreads / 32, cells = tiles * kCellsATile;
    const uint32_t least = key_of(first);
    const float value = from_ordered(least);
    int before = 0;
#pragma unroll 1
    for (int from = 0; from < cells; from += kOpen) {
      for (int i = thread; i < kOpen && from + i < cells; i += kThreads) {
        if (maxima[(from + i) >> memory.wide] < least) continue;
        opened[static_cast<int>(atomicAdd(&numbers[0], 1u)) - before] = static_cast<uint16_t>(i);
      }
      __syncthreads();
      const int open = static_cast<int>(numbers[0]) - before;
      // The lane's four columns of an open cell.
      const auto column_in = [&](int i) {
        const int cell = from + opened[i], lane = lane_id();
        return cell / kCellsATile * kMassTile + lane / kCellLanes * 128 +
               (cell % kCellsATile * kCellLanes + lane % kCellLanes) * 4;
      };
#pragma unroll 1
      for (int i = warp_id(); i < open; i += 2 * warps) {
        const int32_t a = column_in(i), b = i + warps < open ? column_in(i + warps) : row.vocab;
        constexpr Four kNothing = {{-kInfinity, -kInfinity, -kInfinity, -kInfinity}};  // masks end where the row does
        const Four fours[2] = {a < row.vocab ? four_elements(row, a) : kNothing,
                               b < row.vocab ? four_elements(row, b) : kNothing};
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          unsigned reach = 0;
#pragma unroll
          for (int k = 0; k < 4; ++k)
            reach |= static_cast<unsigned>(f.order.scaled(fours[which].value[k]) >= value) << k;
          if (!reach) continue;
          const uint4 raw = {bits(fours[which].value[0]), bits(fours[which].value[1]), bits(fours[which].value[2]),
                             bits(fours[which].value[3])};
#pragma unroll 1
          for (; reach; reach &= reach - 1) {
            const int k = __ffs(static_cast<int>(reach)) - 1;
            const WideKey word = word_of(Float32::at(raw, k), (which == 0 ? a : b) + k);
            if (word < first || word >= end) continue;
            const unsigned index = atomicAdd(&numbers[1], 1u);
            if (index < kListed) list[kLongAt + static_cast<int>(index)] = word;
          }
        }
      }
      __syncthreads();
      before += open;
    }
    return static_cast<int>(numbers[1]);
  }

  __device__ WideKey word_of(float raw, int32_t column) const {
    return word_of_key(ordered(f.order.scaled(raw))) | static_cast<uint32_t>(~column);
  }

  // A list of up to kMost tokens at kAt, as four arrays: the words in order, the words without order, their weights,
  // and the mass before each in order and before the end.
  template <int kAt, int kMost>
  struct OrderedList {
    static constexpr int kEntries = kMost + 1;
    static constexpr int kUnordered = kAt + kEntries, kWeights = kUnordered + kEntries, kMasses = kWeights + kEntries;
    const CutFinder& of;

    __device__ uint64_t mass(int size) const { return of.list[kMasses + size]; }

    // Four lanes count the tokens before a token.
    __device__ void order(int listed) const {
      const int thread = static_cast<int>(threadIdx.x), part = thread % 4;
      for (int i = thread; i < listed; i += kThreads)
        of.list[kWeights + i] = of.weight(key_of(of.list[kUnordered + i]));
      __syncthreads();
#pragma unroll 1
      for (int first = 0; first <= listed; first += kThreads / 4) {
        const int i = first + thread / 4;
        const WideKey word = i < listed ? static_cast<WideKey>(of.list[kUnordered + i]) : 0;
        int rank = 0;
        uint64_t before = 0;
#pragma unroll 2
        for (int j = part; j < listed; j += 4)
          if (of.list[kUnordered + j] > word) ++rank, before += static_cast<WideKey>(of.list[kWeights + j]);
#pragma unroll
        for (int with = 1; with < 4; with *= 2)
          rank += __shfl_xor_sync(kWarp, rank, with), before += __shfl_xor_sync(kWarp, before, with);
        if (i <= listed && part == 0) of.list[kAt + rank] = word, of.list[kMasses + rank] = before;
      }
      __syncthreads();
    }

    // The number of tokens at the front that a rule selects, of those of a range. Where ties stay together, a token has
    // the rank of the first of its ties.
    __device__ int size_of(const CutRule& rule, const WordRange& range, int listed) const {
      int inside = 0, outside = listed;
#pragma unroll 1
      while (inside < outside) {
        const int i = (inside + outside) / 2;
        const uint32_t key = key_of(of.list[kAt + i]);
        int rank = i;
#pragma unroll 1
        while (of.f.ties_all() && rank > 0 && key_of(of.list[kAt + rank - 1]) == key) --rank;
        if (rule.keeps(range.rank + static_cast<uint64_t>(rank), range.mass + mass(rank), key)) inside = i + 1;
        else outside = i;
      }
      return inside;
    }

    __device__ void cut_at(int size, const WordRange& range, CutResult* result) const {
      const WideKey last = of.list[kAt + size - 1];
      result->cut = {from_ordered(key_of(last)), column_of(last)};
      result->count = range.rank + static_cast<uint64_t>(size), result->mass = range.mass + mass(size);
    }
  };

  // ---- long lists ---------------------------------------------------------------------------------------------------

  // Applies a rule to more tokens than a short list holds. Each pass sums count and mass of the words above some
  // levels, and goes on between the two levels around the cut: over the list, once that holds them, before that over
  // the row. Returns how many tokens are listed: kListed at most, if the list holds the support.
  __device__ int narrow(const CutRule& rule, WordRange range, int listed, const Shared<unsigned>& numbers,
                        CutResult* result) const {
    bool from_top = true;
    if (range.first < word_of_key(rule.least)) range.first = word_of_key(rule.least);
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      WideKey level[kLevels + 1];
      level[0] = range.first;
#pragma unroll
      for (int j = 1; j <= kLevels; ++j) {
        level[j] = level_at(j, turn, range);
        if (level[j] < level[j - 1]) level[j] = level[j - 1];
      }
      uint64_t sums[kCutSums];  // of the words [level, end): counts by level, then masses
      measure(level, range.end, listed, sums);
      uint64_t count = sums[0], mass = sums[kLevels + 1], above = 0, mass_above = 0;
      bool within = false;  // a level is reached
      WordRange next = range;
#pragma unroll
      for (int j = kLevels; j >= 0; --j) {
        if (within) continue;
        within = rule.reached(range.rank + sums[j], range.mass + sums[kLevels + 1 + j]);
        if (within) next.first = level[j], count = sums[j] - above, mass = sums[kLevels + 1 + j] - mass_above;
        else next.end = level[j], above = sums[j], mass_above = sums[kLevels + 1 + j];
      }
      if (within) next.rank += above, next.mass += mass_above, range = next;
      const bool equal = key_of(range.first) == key_of(range.end - 1);
      if (!within || (f.ties_all() && equal)) {  // the whole range is in the support
        result->cut = {from_ordered(key_of(range.first)), kNoToken};
        result->count = range.rank + count, result->mass = range.mass + mass;
        break;
      }
      if (listed > kListed && count <= kListed) {
        from_top = range.rank + count <= kListed;
        if (threadIdx.x < 2) numbers[static_cast<int>(threadIdx.x)] = 0;
        __syncthreads();
        listed = list_from(range.first, from_top ? ~WideKey{0} : range.end, numbers);
      }
      if (listed <= kListed && count <= kFew) {
        const OrderedList<kFewAt, kFew> few = {*this};
        gather(listed, few.kUnordered, numbers, [&](WideKey word) { return word >= range.first && word < range.end; });
        few.order(static_cast<int>(count));
        few.cut_at(few.size_of(rule, range, static_cast<int>(count)), range, result);
        break;
      }
      const WideKey last_column = word_of_key(key_of(range.first)) | static_cast<uint32_t>(-row.vocab);
      if (equal && range.first < last_column) range.first = last_column;
    }
    return from_top ? listed : kListed + 1;
  }

  // The j-th level inside of a range. The first pass takes steps of the distance from the largest value, the next two
  // equal steps of the value, all others equal steps of the word, which always come to an end.
  __device__ WideKey level_at(int j, int turn, const WordRange& range) const {
    const WideKey last = range.end - 1, step = (range.end - range.first) / (kLevels + 1);
    WideKey level = range.first + (step > 0 ? step : 1) * static_cast<WideKey>(j);
    if (turn == 0) {  // up to 18 below the largest value
      const int n = kLevels + 1 - j;
      level = word_of_key(ordered(sub(top, 2.0f * static_cast<float>(n * n))));
    } else if (turn < 3) {
      const float from = from_ordered(key_of(range.first)), to = from_ordered(key_of(last));
      level = word_of_key(ordered(from + (to - from) * (static_cast<float>(j) / (kLevels + 1))));
    }
    level = level < range.first ? range.first : level > last ? last : level;
    return f.ties_all() ? word_of_key(key_of(level)) : level;
  }

  __device__ void measure(const WideKey (&level)[kLevels + 1], WideKey end, int listed,
                          uint64_t (&sums)[kCutSums]) const {
    uint32_t counts[kLevels + 1] = {};
    uint64_t masses[kLevels + 1] = {};
    const auto take = [&](WideKey word) {
      if (word < level[0] || word >= end) return;
      const uint64_t w = weight(key_of(word));
#pragma unroll
      for (int j = 0; j <= kLevels; ++j)
        if (word >= level[j]) ++counts[j], masses[j] += w;
    };
    const bool in_list = listed <= kListed;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); in_list && i < listed; i += kThreads) take(list[kLongAt + i]);
    if (!in_list) over_row([&](float raw, int32_t column) { take(word_of(raw, column)); });
#pragma unroll
    for (int j = 0; j <= kLevels; ++j) sums[j] = counts[j], sums[kLevels + 1 + j] = masses[j];
    if (in_list) block_sums(sums);
    else team_sums(team, sums);
  }

  // Copies the wanted words of a long list to `to` and behind it.
  template <class Wanted>
  __device__ void gather(int listed, int to, const Shared<unsigned>& numbers, Wanted&& wanted) const {
    __syncthreads();
    if (threadIdx.x == 0) numbers[0] = 0;
#pragma unroll 1
    for (int first = 0; first < listed; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const WideKey word = i < listed ? static_cast<WideKey>(list[kLongAt + i]) : 0;
      __syncthreads();  // all threads have read their words
      if (i < listed && wanted(word)) list[to + static_cast<int>(atomicAdd(&numbers[0], 1u))] = word;
    }
    __syncthreads();
  }
};

}  // namespace specdec::cuda
