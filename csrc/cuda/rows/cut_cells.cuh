// The maxima of a row's cells, for its cut (cut.cuh). The blocks of a row read it once. The blocks of a team exchange
// the maxima, and each of them computes the cut. In kernels without teams the last block of a row has the maxima of all
// blocks, and cuts alone.
#pragma once

#include "cut_plan.cuh"
#include "draw.cuh"

namespace specdec::cuda {

constexpr uint32_t kLeastKey = 0x00800000u;  // ordered(-kLargest): a smaller key has no weight
constexpr uint64_t kNoLimit = ~uint64_t{0};
constexpr unsigned kInfiniteValue = 4;  // +inf; a flag as kBadValue

// The largest key of the block, for every thread.
__device__ __forceinline__ uint32_t block_max(uint32_t key) {
  SPECDEC_SHARED(uint32_t, maxima_of_warps, kMaxWarps);
  key = __reduce_max_sync(kWarp, key);
  if (lane_id() == 0) maxima_of_warps[warp_id()] = key;
  __syncthreads();
  for (int w = 0; w < warps_in_block(); ++w) {
    const uint32_t other = maxima_of_warps[w];
    key = other > key ? other : key;
  }
  __syncthreads();
  return key;
}

// The cut of a row's filters, and statistics of the row. Every thread of the team has it.
struct CutResult {
  Cut cut;         // `last` is kNoToken if every token of that value is in the support
  int listed;      // the support are so many tokens at the front of the list; -1: not listed
  uint64_t count;  // tokens of the support
  uint64_t mass;   // their weights, as filters see them
  float top;       // the largest value; -inf if no token has weight
  bool infinite;   // the row has +inf
  int32_t status;
};

// A token is in the support if fewer than `most` tokens and a mass of less than `limit` come before it, and its key is
// at least `least`. Neither number is 0, so the first token always is.
struct CutRule {
  uint64_t most, limit;
  uint32_t least;
  __device__ bool keeps(uint64_t rank, uint64_t mass, uint32_t key) const {
    return rank < most && mass < limit && key >= least;
  }
  __device__ bool reached(uint64_t rank, uint64_t mass) const { return rank >= most || mass >= limit; }
};

// A row, its filter, and the maxima of its cells in shared memory.
struct CutCells {
  Team& team;
  const EditedRow& row;
  const Filter& f;
  CutMemory memory;
  int tiles;
  Shared<WideKey> pairs;  // of maxima, the first in the low half; then, for a row with one block, units of tiles
  Shared<uint32_t> maxima;
  float top = -kInfinity;

  __device__ CutCells(Team& with, const EditedRow& of, const Filter& filter, const CutMemory& in)
      : team(with), row(of), f(filter), memory(in), tiles(sum_tiles_of(of.vocab)),
        pairs(dynamic_shared<WideKey>(in.at + sizeof(WideKey) * kListWords, words() + tiles)),
        maxima(dynamic_shared<uint32_t>(in.at + sizeof(WideKey) * kListWords, maxima_of(tiles, in.wide))) {}

  // Words of maxima that blocks of a row exchange, two a word; a word for the units of each tile follows.
  __device__ int words() const { return maxima_of(tiles, memory.wide) / 2; }

  // Reads the block's tiles of a row and calls put(i, word) for their words; with units if `weigh`. Returns this
  // thread's flags. A lane loads `kSteps` fours together.
  template <int kSteps, class Put>
  __device__ unsigned put_tiles(bool weigh, const Tiles& part, Put&& put) const {
    const Logits order = f.order;
    constexpr int kPieces = kMassTile / 128;                                                   // of a tile
    const Shared<uint32_t> cells = dynamic_shared<uint32_t>(memory.at, kSteps * kCellsATile);  // the list's memory
    const Shared<WideKey> units =
        dynamic_shared<WideKey>(memory.at + sizeof(uint32_t) * kSteps * kCellsATile, kSteps * kPieces);
    const int thread = static_cast<int>(threadIdx.x), tile_words = words_a_tile(memory.wide) - 1;
    unsigned flags = 0;
#pragma unroll 1
    for (int tile = part.begin; tile < part.end; tile += kSteps) {
      // A warp has as many pieces of 128 columns as there are tiles.
      const int steps = part.end - tile < kSteps ? part.end - tile : kSteps, piece = warp_id() * steps;
      const int32_t at = tile * kMassTile + piece * 128;
      Fetched<kSteps> fetched;
      fetched.fetch(stored_row(row), at, steps);
      if (thread < kSteps * kCellsATile) cells[thread] = 0;
      __syncthreads();
      Batch<Float32, kSteps> batch = fetched.floats(stored_row(row), at, steps);
      if (row.edited) edit(row, edit_words(row, at, steps), 0, at, &batch);
      const auto cell = [&](int u, int of_tile) {
        return ((piece + u) / kPieces * kCellsATile + of_tile) >> memory.wide;
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
            if (!order.is_element(raw)) flags |= raw == kInfinity ? kBadValue | kInfiniteValue : kBadValue;
            largest = max(order.scaled(raw), largest);
          }
        }
        most = max(largest, most);
        if (kSteps >= kPieces && u + 1 < steps && (piece + u + 1) % kPieces != 0) continue;  // the cell goes on
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
          const int tile_index = kThreads - 1 - thread;
          uint64_t sum = 0;
          for (int i = 0; i < kPieces; ++i) sum += static_cast<WideKey>(units[tile_index * kPieces + i]);
          put(words() + tile + tile_index, WideKey{sum});
        }
      }
      if (thread < steps * tile_words)
        put(tile * tile_words + thread,
            static_cast<WideKey>(cells[2 * thread + 1]) << 32 | static_cast<uint32_t>(cells[2 * thread]));
      if (tile + kSteps < part.end) __syncthreads();
    }
    return flags;
  }

  // Statistics of the row from the words of all blocks; its mass if `weigh`. All threads of a block call; `flags` count
  // in the first.
  template <class Word>
  __device__ CutResult take_tiles(bool weigh, unsigned flags, Word&& word) {
    SPECDEC_SHARED(unsigned, shared_flags, 1);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) shared_flags[0] = flags;
    uint32_t largest = 0;
#pragma unroll 2
    for (int i = thread; i < words(); i += kThreads) {
      const WideKey two = word(i);
      const uint32_t a = static_cast<uint32_t>(two >> 32), b = static_cast<uint32_t>(two);
      pairs[i] = two;
      largest = a > largest ? a : largest, largest = b > largest ? b : largest;
    }
    largest = block_max(largest);  // its barrier makes the maxima visible, too
    flags = shared_flags[0];
    top = from_ordered(largest);
    uint64_t mass[1] = {0};
    if (weigh) {
      const int each = maxima_of(1, memory.wide);
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
    const bool empty = largest < kLeastKey, bad = empty || flags & kBadValue;
    if (empty) top = -kInfinity;
    CutResult result = {};
    result.cut = kKeepsAll, result.listed = empty ? 0 : -1, result.mass = mass[0], result.top = top;
    result.infinite = (flags & kInfiniteValue) != 0;
    result.status = bad ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK;
    return result;
  }

  // put_tiles and take_tiles of a team, whose blocks exchange the words.
  __device__ CutResult scan(bool weigh) {
    const int each = tiles_of_member(tiles, team.size()), of_maxima = words_a_tile(memory.wide) - 1;
    const int begin = each * team.rank(), end = begin + each < tiles ? begin + each : tiles;
    const int member_words = words_of_member(tiles, team.size(), memory.wide);
    const auto number = [&](int i, int member) {
      return i < words() ? i - member * each * of_maxima : each * of_maxima + i - words() - member * each;
    };
    __syncthreads();  // the list of the last row was read
    unsigned flags = put_tiles<kVectors>(weigh, {begin, end},
                                         [&](int i, WideKey word) { team.bring(number(i, team.rank()), word); });
    const bool bad = __syncthreads_or((flags & kBadValue) != 0),
               infinite = __syncthreads_or((flags & kInfiniteValue) != 0);
    if (threadIdx.x == 0) team.bring(member_words - 1, (bad ? kBadValue : 0u) | (infinite ? kInfiniteValue : 0u));
    team.sync();
    flags = 0;
    for (int member = lane_id(); member < team.size(); member += 32)
      flags |= static_cast<unsigned>(team.brought(member, member_words - 1));
    return take_tiles(weigh, __reduce_or_sync(kWarp, flags), [&](int i) {
      const int member = (i < words() ? i / of_maxima : i - words()) / each;
      return team.brought(member, number(i, member));
    });
  }

  // Calls take(raw, column) over the row, and past its end, too. The team shares the row.
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

  // ---- a level ------------------------------------------------------------------------------------------------------

  static constexpr int kBins = 256, kFirstBin = (127 - 4) << 4;  // from 1/16 to 4,096
  __device__ int bin_of(uint32_t cell) const {
    const int bin = static_cast<int>(bits(sub(top, from_ordered(cell))) >> 19) - kFirstBin;
    return bin < 0 ? 0 : bin < kBins ? bin : kBins - 1;
  }
  // All cells of a bin lie less than this below the largest value.
  __device__ static float end_of_bin(int bin) { return from_bits(static_cast<uint32_t>(kFirstBin + bin + 1) << 19); }
  __device__ static uint64_t mass_of_bin(int bin, const Shared<unsigned>& bins) {
    const unsigned n = bins[bin];
    return n > 0 && bin < kBins - 1 ? n * row_weight(-end_of_bin(bin)) : 0;
  }

  // A key that the cut does not lie below. Maxima are counted in bins of their distance from the largest value, sixteen
  // an octave, and every warp adds the bins up. The mass of a cell counts as the weight at the bin's far end. Contains
  // a barrier.
  __device__ uint32_t level(const CutRule& rule) const {
    const Shared<unsigned> bins = dynamic_shared<unsigned>(memory.at, kBins);  // in the memory of the list
    const int thread = static_cast<int>(threadIdx.x), count = maxima_of(tiles, memory.wide);
    for (int i = thread; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    const bool weighs = rule.limit != kNoLimit;
    if (rule.most == kNoLimit && !weighs) return rule.least;
    for (int i = thread; i < count; i += kThreads)
      if (const uint32_t cell = maxima[i]; cell >= rule.least) atomicAdd(&bins[bin_of(cell)], 1u);
    __syncthreads();
    constexpr int kLaneBins = kBins / 32;
    unsigned number = 0;  // cells in the bins of this lane
    uint64_t mass = 0;
#pragma unroll 4
    for (int i = 0; i < kLaneBins; ++i) number += bins[lane_id() * kLaneBins + i];
    unsigned all_number = number;
    uint64_t all_mass = 0;
    if (weighs) {
#pragma unroll 1
      for (int i = 0; i < kLaneBins; ++i) mass += mass_of_bin(lane_id() * kLaneBins + i, bins);
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
    int bin = lane * kLaneBins;
#pragma unroll 1
    for (;; ++bin) {
      number += bins[bin];
      if (weighs) mass += mass_of_bin(bin, bins);
      if (rule.reached(number, mass)) break;
    }
    const uint32_t key = bin < kBins - 1 ? ordered(sub(top, end_of_bin(bin))) : 0u;
    return key > rule.least ? key : rule.least;
  }
};

}  // namespace specdec::cuda
