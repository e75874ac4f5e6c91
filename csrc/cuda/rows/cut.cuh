// Where a row's filters cut (specdec/filter.h). The blocks that share a row read it once, for the maxima of its cells. The
// k-th largest of these is at most the k-th largest value of the row, and the tokens above a level have at least the mass
// of the maxima above it. So the maxima give a level that the cut does not lie below. Mostly few tokens reach it: they
// are listed, and who comes before each, with the mass, says where the row is cut. If they are too many, counts and masses
// above several levels narrow the range down first. All sums are of integers, so the cut does not depend on how the row
// was shared.
//
// The blocks of a team hand each other the maxima, and then all of them cut alike. Where no block waits for another, the
// last one to come to a row has the maxima of all, and cuts alone.
#pragma once

#include "cut_plan.cuh"
#include "draw.cuh"

namespace specdec::cuda {

constexpr int kLevels = 3;  // of one pass that narrows the range
constexpr int kCutSums = 2 * (kLevels + 1);

constexpr uint32_t kLeastKey = 0x00800000u;  // ordered(-kLargest): a smaller key has no weight
constexpr uint64_t kNoLimit = ~uint64_t{0};
constexpr unsigned kInfiniteValue = 4;  // beside kBadValue, in what a block met

// The largest key of the block, for every thread.
__device__ __forceinline__ uint32_t block_max(uint32_t key) {
  SPECDEC_SHARED(uint32_t, room, kMaxWarps);
  key = __reduce_max_sync(kWarp, key);
  if (lane_id() == 0) room[warp_id()] = key;
  __syncthreads();
  for (int w = 0; w < warps_in_block(); ++w) {
    const uint32_t other = room[w];
    key = other > key ? other : key;
  }
  __syncthreads();
  return key;
}

// What filters keep of a row, and what is known of the row besides. Every thread of the team has it.
struct KeptRow {
  Cut cut;         // `last` is kNoToken if every token of that value is kept
  int listed;      // so many tokens at the front of the list are those kept; -1: they are not listed
  uint64_t count;  // tokens kept
  uint64_t mass;   // the sum of their weights, as filters see them
  float top;       // the largest value; -inf if nothing has weight
  bool infinite;   // +inf was met
  int32_t status;
};

// A token is kept if fewer than `most` tokens and a mass of less than `limit` are before it, and its key is at least
// `least`. Neither number is 0, so the first token is.
struct CutRule {
  uint64_t most, limit;
  uint32_t least;
  __device__ bool keeps(uint64_t rank, uint64_t mass, uint32_t key) const {
    return rank < most && mass < limit && key >= least;
  }
  __device__ bool reached(uint64_t rank, uint64_t mass) const { return rank >= most || mass >= limit; }
};

// A token as a word, larger if it comes before: its key, then its column turned round.
__device__ __forceinline__ int32_t column_of(WideKey word) {
  return static_cast<int32_t>(~static_cast<uint32_t>(word));
}

// The words [first, end), and count and mass of the tokens above them.
struct WordRange {
  WideKey first, end;
  uint64_t rank, mass;
};

struct CutFinder {
  Team& team;
  const EditedRow& row;
  const Filter& f;
  CutRoom room;
  int tiles;
  Shared<WideKey> list;
  Shared<WideKey> pairs;  // of maxima, the first one low; then, of a row with one block, units of tiles
  Shared<uint32_t> maxima;
  float top = -kInfinity;

  static constexpr int kShort = 319;  // tokens of a list that is put in order

  __device__ CutFinder(Team& with, const EditedRow& of, const Filter& filter, const CutRoom& in)
      : team(with), row(of), f(filter), room(in), tiles(sum_tiles_of(of.vocab)),
        list(dynamic_shared<WideKey>(in.at, kListWords)),
        pairs(dynamic_shared<WideKey>(in.at + sizeof(WideKey) * kListWords, words() + tiles)),
        maxima(dynamic_shared<uint32_t>(in.at + sizeof(WideKey) * kListWords, maxima_of(tiles, in.wide))) {}

  __device__ uint32_t key(float raw) const { return ordered(f.order.scaled(raw)); }
  __device__ uint64_t weight(uint32_t key) const { return row_weight(sub(from_ordered(key), top)); }

  // A row's words between its blocks: so many of two maxima each, then one for the units of each tile.
  __device__ int words() const { return maxima_of(tiles, room.wide) / 2; }

  // By each block of a row, of its tiles: calls put(i, word), for units if `weigh`. Returns what this thread met. A lane
  // loads `kSteps` fours together.
  template <int kSteps, class Put>
  __device__ unsigned put_tiles(bool weigh, const Tiles& part, Put&& put) const {
    const Logits order = f.order;
    constexpr int kPieces = kMassTile / 128;  // of a tile
    const Shared<uint32_t> cells = dynamic_shared<uint32_t>(room.at, kSteps * kCellsATile);  // where the list will be
    const Shared<WideKey> units =
        dynamic_shared<WideKey>(room.at + sizeof(uint32_t) * kSteps * kCellsATile, kSteps * kPieces);
    const int thread = static_cast<int>(threadIdx.x), own_words = words_a_tile(room.wide) - 1;
    unsigned met = 0;
#pragma unroll 1
    for (int tile = part.begin; tile < part.end; tile += kSteps) {
      // A warp has as many pieces of 128 columns as there are tiles.
      const int steps = part.end - tile < kSteps ? part.end - tile : kSteps, piece = warp_id() * steps;
      const int32_t at = tile * kMassTile + piece * 128;
      Fetched<kSteps> fetched;
      fetched.fetch(as_it_came(row), at, steps);
      if (thread < kSteps * kCellsATile) cells[thread] = 0;
      __syncthreads();
      Batch<Float32, kSteps> batch = fetched.floats(as_it_came(row), at, steps);
      if (row.edited) edit(row, edit_words(row, at, steps), 0, at, &batch);
      const auto cell = [&](int u, int of_tile) {
        return ((piece + u) / kPieces * kCellsATile + of_tile) >> room.wide;
      };
      float most = -kInfinity;
#pragma unroll 1
      for (int u = 0; u < steps; ++u) {
        const uint4 values = batch.at(u);
        float largest = order.key(Float32::largest(values));
        if (!(largest < kInfinity)) {
          largest = -kInfinity;
#pragma unroll 1
          for (int i = 0; i < 4; ++i) {
            const float raw = Float32::at(values, i);
            if (!order.is_element(raw)) met |= raw == kInfinity ? kBadValue | kInfiniteValue : kBadValue;
            largest = max(order.scaled(raw), largest);
          }
        }
        most = max(largest, most);
        if (kSteps >= kPieces && u + 1 < steps && (piece + u + 1) % kPieces != 0) continue;  // its cell goes on
        most = max(most, __shfl_xor_sync(kWarp, most, 1)), most = max(most, __shfl_xor_sync(kWarp, most, 2));
        if (lane_id() % kCellLanes == 0) atomicMax(&cells[cell(u, lane_id() / kCellLanes)], ordered(most));
        most = -kInfinity;
      }
      __syncthreads();
      if (weigh) {
#pragma unroll 1
        for (int u = 0; u < steps; ++u) {
          const uint32_t largest = cells[cell(u, lane_id() % kCellsATile)];
          const float tile_top = from_ordered(__reduce_max_sync(kWarp, largest));
          const uint4 values = batch.at(u);
          uint64_t sum = 0;
#pragma unroll
          for (int i = 0; i < 4; ++i) sum += unit_weight(min(0.0f, order.below(Float32::at(values, i), tile_top)));
          sum = warp_sum(sum);
          if (lane_id() == 0) units[piece + u] = sum;
        }
        __syncthreads();
        if (thread >= kThreads - steps) {
          const int own = kThreads - 1 - thread;
          uint64_t sum = 0;
          for (int i = 0; i < kPieces; ++i) sum += static_cast<WideKey>(units[own * kPieces + i]);
          put(words() + tile + own, WideKey{sum});
        }
      }
      if (thread < steps * own_words)
        put(tile * own_words + thread,
            static_cast<WideKey>(cells[2 * thread + 1]) << 32 | static_cast<uint32_t>(cells[2 * thread]));
      if (tile + kSteps < part.end) __syncthreads();
    }
    return met;
  }

  // By a block that has all words of a row: what is known of the whole row; its mass if `weigh`. `met` is the first
  // thread's.
  template <class Word>
  __device__ KeptRow take_tiles(bool weigh, unsigned met, Word&& word) {
    SPECDEC_SHARED(unsigned, met_by_row, 1);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) met_by_row[0] = met;
    uint32_t largest = 0;
#pragma unroll 2
    for (int i = thread; i < words(); i += kThreads) {
      const WideKey two = word(i);
      const uint32_t a = static_cast<uint32_t>(two >> 32), b = static_cast<uint32_t>(two);
      pairs[i] = two;
      largest = a > largest ? a : largest, largest = b > largest ? b : largest;
    }
    largest = block_max(largest);  // its barrier makes the maxima visible, too
    met = met_by_row[0];
    top = from_ordered(largest);
    uint64_t mass[1] = {0};
    if (weigh) {
      const int each = maxima_of(1, room.wide);
      for (int tile = thread; tile < tiles; tile += kThreads) {
        uint32_t best = 0;
        for (int i = 0; i < each; ++i) {
          const uint32_t cell = maxima[tile * each + i];
          best = cell > best ? cell : best;
        }
        mass[0] += tile_mass({word(words() + tile), from_ordered(best)}, top);
      }
      block_sums(mass);
    }
    const bool empty = largest < kLeastKey, bad = empty || met & kBadValue;
    if (empty) top = -kInfinity;
    return {kKeepsAll, empty ? 0 : -1, 0, mass[0], top, (met & kInfiniteValue) != 0,
            bad ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
  }

  // By a team: both.
  __device__ KeptRow scan(bool weigh) {
    const int share = tiles_of_member(tiles, team.size()), of_maxima = words_a_tile(room.wide) - 1;
    const int begin = share * team.rank(), end = begin + share < tiles ? begin + share : tiles;
    const int own_words = words_of_member(tiles, team.size(), room.wide);
    const auto number = [&](int i, int member) {
      return i < words() ? i - member * share * of_maxima : share * of_maxima + i - words() - member * share;
    };
    __syncthreads();  // the list of the row before is read
    unsigned met = put_tiles<kVectors>(weigh, {begin, end},
                                       [&](int i, WideKey word) { team.bring(number(i, team.rank()), word); });
    const bool bad = __syncthreads_or((met & kBadValue) != 0), infinite = __syncthreads_or((met & kInfiniteValue) != 0);
    if (threadIdx.x == 0) team.bring(own_words - 1, (bad ? kBadValue : 0u) | (infinite ? kInfiniteValue : 0u));
    team.sync();
    met = 0;
    for (int member = lane_id(); member < team.size(); member += 32)
      met |= static_cast<unsigned>(team.brought(member, own_words - 1));
    return take_tiles(weigh, __reduce_or_sync(kWarp, met), [&](int i) {
      const int member = (i < words() ? i / of_maxima : i - words()) / share;
      return team.brought(member, number(i, member));
    });
  }

  // What the filters keep. `whole`: what is known of the row; its mass must be known if top_p is a share of it.
  __device__ KeptRow kept(const KeptRow& whole) const {
    const uint64_t k = f.has_top_k() ? static_cast<uint64_t>(f.top_k) : kNoLimit;
    uint32_t floor = kLeastKey;
    if (f.has_min_p() && ordered(f.floor_below(top)) > floor) floor = ordered(f.floor_below(top));
    const auto all_rules = [&](uint64_t mass) {
      const uint64_t limit = mass_kept(f, mass);
      return CutRule{k, limit > 0 ? limit : 1, floor};
    };
    const bool after_k = f.after_top_k(), after_floor = f.after_min_p();
    // If top_p is a share of what other cuts keep, these come first, alone.
    bool first = f.has_top_p() && (after_k || after_floor);
    CutRule rule = all_rules(whole.mass);
    if (first) rule = {after_k ? k : kNoLimit, kNoLimit, after_floor ? floor : kLeastKey};
    SPECDEC_SHARED(unsigned, numbers, 2);
    if (threadIdx.x < 2) numbers[static_cast<int>(threadIdx.x)] = 0;
    WordRange range = {word_of_key(level(rule)), word_of_key(ordered(top) + 1), 0, 0};
    int listed = list_from(range.first, range.end, numbers);
    KeptRow found = whole;
    if (listed <= kShort) {
      const OrderedList<0, kShort> short_list = {*this};
      short_list.order(listed);
      int size = short_list.size_of(rule, {}, listed);
      if (first) size = short_list.size_of(all_rules(short_list.mass(size)), {}, listed);
      short_list.cut_at(size, {}, &found);
      found.listed = size;
      return found;
    }
#pragma unroll 1
    for (;; first = false) {
      listed = narrow(rule, range, listed, numbers, &found);
      if (!first) break;
      rule = all_rules(found.mass);
      range.first = word_of_key(ordered(found.cut.value));  // the second cut does not lie below the first
    }
    if (listed <= kListed) {
      gather(listed, 0, numbers,
             [&](WideKey word) { return found.cut.keeps(from_ordered(key_of(word)), column_of(word)); });
      found.listed = static_cast<int>(found.count);
    }
    return found;
  }

  // The log-sum-exp of what is kept, at the temperature of `space`.
  __device__ LogSumExp lse(const Logits& space, const KeptRow& kept) const {
    if (f.order.inverse == space.inverse) return log_sum_exp(kept.top, kept.mass);
    const float top_x = space.scaled(kept.infinite ? kInfinity : kept.top);
    uint64_t mass[1] = {0};
    const auto add = [&](float raw) { mass[0] += row_weight(min(0.0f, space.below(raw, top_x))); };
    if (kept.listed >= 0) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < kept.listed; i += kThreads)
        add(element(row, column_of(list[i])));
      block_sums(mass);
    } else {
      over_row([&](float raw, int32_t column) {
        if (kept.cut.keeps(f.order.scaled(raw), column)) add(raw);
      });
      team_sums(team, mass);
    }
    return log_sum_exp(top_x, mass[0]);
  }

  // By the team: calls take(raw, column), and past the row's end, too.
  template <class Take>
  __device__ void over_row(Take&& take) const {
    over_sum_tiles(
        part_of(team), row.vocab, [](int) {},
        [&](int32_t column) {
          const Four four = four_elements(row, column);
#pragma unroll
          for (int i = 0; i < 4; ++i) take(four.value[i], column + i);
        },
        [](int) {});
  }

 private:
  static __device__ WideKey word_of_key(uint32_t key) { return static_cast<WideKey>(key) << 32; }
  static __device__ uint32_t key_of(WideKey word) { return static_cast<uint32_t>(word >> 32); }

  // ---- a level ------------------------------------------------------------------------------------------------------

  static constexpr int kBins = 256, kFirstBin = (127 - 4) << 4;  // from 1/16 to 4,096
  __device__ int bin_of(uint32_t cell) const {
    const int bin = static_cast<int>(bits(sub(top, from_ordered(cell))) >> 19) - kFirstBin;
    return bin < 0 ? 0 : bin < kBins ? bin : kBins - 1;
  }
  // All cells of a bin lie less below the largest value.
  __device__ static float end_of_bin(int bin) { return from_bits(static_cast<uint32_t>(kFirstBin + bin + 1) << 19); }
  __device__ static uint64_t mass_of_bin(int bin, const Shared<unsigned>& bins) {
    const unsigned n = bins[bin];
    return n > 0 && bin < kBins - 1 ? n * row_weight(-end_of_bin(bin)) : 0;
  }

  // A key that the cut does not lie below. Maxima are counted by bins of their distance from the largest value, sixteen
  // an octave, and every warp adds the bins up. Of the mass of a cell it counts what the bin's far end weighs. Contains
  // a barrier.
  __device__ uint32_t level(const CutRule& rule) const {
    const Shared<unsigned> bins = dynamic_shared<unsigned>(room.at, kBins);  // where the list will be
    const int thread = static_cast<int>(threadIdx.x), count = maxima_of(tiles, room.wide);
    for (int i = thread; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    const bool weighs = rule.limit != kNoLimit;
    if (rule.most == kNoLimit && !weighs) return rule.least;
    for (int i = thread; i < count; i += kThreads)
      if (const uint32_t cell = maxima[i]; cell >= rule.least) atomicAdd(&bins[bin_of(cell)], 1u);
    __syncthreads();
    constexpr int kOwn = kBins / 32;
    unsigned number = 0;  // of the lane's bins, and of all up to them
    uint64_t mass = 0;
#pragma unroll 4
    for (int i = 0; i < kOwn; ++i) number += bins[lane_id() * kOwn + i];
    unsigned all_number = number;
    uint64_t all_mass = 0;
    if (weighs) {
#pragma unroll 1
      for (int i = 0; i < kOwn; ++i) mass += mass_of_bin(lane_id() * kOwn + i, bins);
      all_mass = mass;
    }
#pragma unroll 1
    for (unsigned by = 1; by < 32; by *= 2) {
      const unsigned n = __shfl_up_sync(kWarp, all_number, by);
      const uint64_t m = weighs ? __shfl_up_sync(kWarp, all_mass, by) : 0;
      if (lane_id() >= static_cast<int>(by)) all_number += n, all_mass += m;
    }
    const unsigned reached = __ballot_sync(kWarp, rule.reached(all_number, all_mass));
    if (!reached) return rule.least;
    const int lane = __ffs(static_cast<int>(reached)) - 1;
    number = __shfl_sync(kWarp, all_number - number, lane);
    if (weighs) mass = __shfl_sync(kWarp, all_mass - mass, lane);
    int bin = lane * kOwn;
#pragma unroll 1
    for (;; ++bin) {
      number += bins[bin];
      if (weighs) mass += mass_of_bin(bin, bins);
      if (rule.reached(number, mass)) break;
    }
    const uint32_t key = bin < kBins - 1 ? ordered(sub(top, end_of_bin(bin))) : 0u;
    return key > rule.least ? key : rule.least;
  }

  // ---- a list -------------------------------------------------------------------------------------------------------

  // The words of the list: a short one takes four places a token (OrderedList). A long one has its tokens from kFound
  // on, and behind them few in order, where the cells were that were opened.
  static constexpr int kFound = kShort + 1, kFew = 63, kFewAt = kListWords - 4 * (kFew + 1);
  static constexpr int kListed = kFewAt - kFound, kOpen = 16 * (kFew + 1);  // the most tokens, the most cells together
  static_assert(4 * kFound <= kFewAt, "a short list comes before");

  // Lists the tokens whose words are in [first, end). Returns how many there are: all are listed if that is kListed at
  // most. First come the cells that may hold one: a warp reads two of them together. `numbers` are zeros.
  __device__ int list_from(WideKey first, WideKey end, const Shared<unsigned>& numbers) const {
    const Shared<uint16_t> opened = dynamic_shared<uint16_t>(room.at + sizeof(WideKey) * kFewAt, kOpen);
    const int thread = static_cast<int>(threadIdx.x), warps = kThreads / 32, cells = tiles * kCellsATile;
    const uint32_t least = key_of(first);
    const float value = from_ordered(least);
    int before = 0;
#pragma unroll 1
    for (int from = 0; from < cells; from += kOpen) {
      for (int i = thread; i < kOpen && from + i < cells; i += kThreads) {
        if (maxima[(from + i) >> room.wide] < least) continue;
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
            const unsigned place = atomicAdd(&numbers[1], 1u);
            if (place < kListed) list[kFound + static_cast<int>(place)] = word;
          }
        }
      }
      __syncthreads();
      before += open;
    }
    return static_cast<int>(numbers[1]);
  }

  __device__ WideKey word_of(float raw, int32_t column) const {
    return word_of_key(key(raw)) | static_cast<uint32_t>(~column);
  }

  // A list of up to kMost tokens, from place kAt on: in order; as they were found; their weights; and for each in order,
  // and for the end, the mass before it.
  template <int kAt, int kMost>
  struct OrderedList {
    static constexpr int kPlaces = kMost + 1;
    static constexpr int kUnordered = kAt + kPlaces, kWeights = kUnordered + kPlaces, kMasses = kWeights + kPlaces;
    const CutFinder& of;

    __device__ uint64_t mass(int size) const { return of.list[kMasses + size]; }

    // Four lanes a token count who is before it.
    __device__ void order(int listed) const {
      const int thread = static_cast<int>(threadIdx.x), part = thread % 4;
      for (int i = thread; i < listed; i += kThreads)
        of.list[kWeights + i] = of.weight(key_of(of.list[kUnordered + i]));
      __syncthreads();
#pragma unroll 1
      for (int first = 0; first <= listed; first += kThreads / 4) {
        const int i = first + thread / 4;
        const WideKey own = i < listed ? static_cast<WideKey>(of.list[kUnordered + i]) : 0;
        int place = 0;
        uint64_t before = 0;
#pragma unroll 2
        for (int j = part; j < listed; j += 4)
          if (of.list[kUnordered + j] > own) ++place, before += static_cast<WideKey>(of.list[kWeights + j]);
#pragma unroll
        for (int with = 1; with < 4; with *= 2)
          place += __shfl_xor_sync(kWarp, place, with), before += __shfl_xor_sync(kWarp, before, with);
        if (i <= listed && part == 0) of.list[kAt + place] = own, of.list[kMasses + place] = before;
      }
      __syncthreads();
    }

    // How many tokens at the front a rule keeps, of those of a range. Where ties stay together, a token has the rank of
    // the first that it ties with.
    __device__ int size_of(const CutRule& rule, const WordRange& range, int listed) const {
      int kept = 0, not_kept = listed;
#pragma unroll 1
      while (kept < not_kept) {
        const int i = (kept + not_kept) / 2;
        const uint32_t key = key_of(of.list[kAt + i]);
        int rank = i;
#pragma unroll 1
        while (of.f.ties_all() && rank > 0 && key_of(of.list[kAt + rank - 1]) == key) --rank;
        if (rule.keeps(range.rank + static_cast<uint64_t>(rank), range.mass + mass(rank), key)) kept = i + 1;
        else not_kept = i;
      }
      return kept;
    }

    __device__ void cut_at(int size, const WordRange& range, KeptRow* found) const {
      const WideKey last = of.list[kAt + size - 1];
      found->cut = {from_ordered(key_of(last)), column_of(last)};
      found->count = range.rank + static_cast<uint64_t>(size), found->mass = range.mass + mass(size);
    }
  };

  // ---- long lists ---------------------------------------------------------------------------------------------------

  // What a rule keeps, of tokens that no short list holds. Each pass takes count and mass of the words above some
  // levels, and goes on between the two where the cut lies: of the list, once that holds them, until then of the row.
  // Returns how many are listed: kListed at most, if the list holds all that are kept.
  __device__ int narrow(const CutRule& rule, WordRange range, int listed, const Shared<unsigned>& numbers,
                        KeptRow* found) const {
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
      uint64_t sums[kCutSums];  // for each level the count, then the mass of the words [level, end)
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
      if (!within || (f.ties_all() && equal)) {  // all of the range are kept
        found->cut = {from_ordered(key_of(range.first)), kNoToken};
        found->count = range.rank + count, found->mass = range.mass + mass;
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
        few.cut_at(few.size_of(rule, range, static_cast<int>(count)), range, found);
        break;
      }
      const WideKey last_column = word_of_key(key_of(range.first)) | static_cast<uint32_t>(-row.vocab);
      if (equal && range.first < last_column) range.first = last_column;
    }
    return from_top ? listed : kListed + 1;
  }

  // The j-th level inside of a range. In the first pass by distance from the largest value, in the next two by equal
  // steps of the value, then by equal steps of the word, which always come to an end.
  __device__ WideKey level_at(int j, int turn, const WordRange& range) const {
    const WideKey last = range.end - 1, step = (range.end - range.first) / (kLevels + 1);
    WideKey level = range.first + (step > 0 ? step : 1) * static_cast<WideKey>(j);
    if (turn == 0) {  // up to 18 below it
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
    for (int i = static_cast<int>(threadIdx.x); in_list && i < listed; i += kThreads) take(list[kFound + i]);
    if (!in_list) over_row([&](float raw, int32_t column) { take(word_of(raw, column)); });
#pragma unroll
    for (int j = 0; j <= kLevels; ++j) sums[j] = counts[j], sums[kLevels + 1 + j] = masses[j];
    if (in_list) block_sums(sums);
    else team_sums(team, sums);
  }

  // Brings those of a long list that are wanted to the place `to` and behind it.
  template <class Wanted>
  __device__ void gather(int listed, int to, const Shared<unsigned>& numbers, Wanted&& wanted) const {
    __syncthreads();
    if (threadIdx.x == 0) numbers[0] = 0;
#pragma unroll 1
    for (int first = 0; first < listed; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const WideKey word = i < listed ? static_cast<WideKey>(list[kFound + i]) : 0;
      __syncthreads();  // who reads from there has read
      if (i < listed && wanted(word)) list[to + static_cast<int>(atomicAdd(&numbers[0], 1u))] = word;
    }
    __syncthreads();
  }
};

}  // namespace specdec::cuda
