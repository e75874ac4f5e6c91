// The filters of a row, straight. Each block of a row keeps the maxima of its cells, as in cut.cuh. The last of them to come
// has all cells: it finds a level that the cut does not lie below, lists the tokens that reach it, mostly few more than are
// kept, and cuts and draws alone. A list that is not short is left to cut.cuh, with a team of one. The cells of a row that
// has one block stay in its shared memory.
#pragma once

#include "draw.cuh"
#include "filtered_row.cuh"

namespace specdec::cuda {

constexpr int kCellLanes = 4, kCellsATile = 32 / kCellLanes;
constexpr unsigned kInfiniteValue = 4;  // beside kBadValue, in what a block met

// The words of a row between its blocks: two cells each, then the units of its tiles.
constexpr int kCutWordsATile = kCellsATile / 2 + 1;

struct StraightCut {
  WideKey* words;  // kCutWordsATile * tiles a row, if a row has more than one block
  TeamRoom alone;  // the last block, as a team
  CutRoom room;
};

// Of a row with one block: in the room of a team of one, which needs it only later.
__device__ __forceinline__ Shared<WideKey> units_of_row(const TeamCutFinder& of) {
  return dynamic_shared<WideKey>(0, of.tiles);
}

// The block's tiles: cells, and units if `weigh`; to the workspace, or where a row's only block looks for them.
template <int kSteps>
__device__ __forceinline__ void put_cells(const TeamCutFinder& of, bool weigh, const Tiles& part, WideKey* words,
                                          Meeting* meeting) {
  const Row& row = as_it_came(of.row);
  const Logits order = of.f.order;
  constexpr int kPieces = kMassTile / 128;  // of a tile
  SPECDEC_SHARED(uint32_t, cells, kSteps * kCellsATile);
  SPECDEC_SHARED(WideKey, units, kSteps * kPieces);
  const Shared<WideKey> own_units = units_of_row(of);
  const int thread = static_cast<int>(threadIdx.x);
  unsigned met = 0;
#pragma unroll 1
  for (int tile = part.begin; tile < part.end; tile += kSteps) {
    // A warp has as many pieces of 128 columns as there are tiles.
    const int steps = part.end - tile < kSteps ? part.end - tile : kSteps, piece = warp_id() * steps;
    const int32_t at = tile * kMassTile + piece * 128;
    Fetched<kSteps> fetched;
    fetched.fetch(row, at, steps);
    if (thread < kSteps * kCellsATile) cells[thread] = 0;
    __syncthreads();
    Batch<Float32, kSteps> batch = fetched.floats(row, at, steps);
    if (of.row.edited) edit(of.row, edit_words(of.row, at, steps), 0, at, &batch);
#pragma unroll 1
    for (int u = 0; u < steps; ++u) {
      const uint4 values = batch.at(u);
      float top = order.key(Float32::largest(values));
      if (!(top < kInfinity)) {
        top = -kInfinity;
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
          const float raw = Float32::at(values, i);
          if (!order.is_element(raw)) met |= raw == kInfinity ? kBadValue | kInfiniteValue : kBadValue;
          top = max(order.scaled(raw), top);
        }
      }
      top = max(top, __shfl_xor_sync(kWarp, top, 1)), top = max(top, __shfl_xor_sync(kWarp, top, 2));
      if (lane_id() % kCellLanes == 0)
        atomicMax(&cells[(piece + u) / kPieces * kCellsATile + lane_id() / kCellLanes], ordered(top));
    }
    __syncthreads();
    if (weigh) {
#pragma unroll 1
      for (int u = 0; u < steps; ++u) {
        const uint32_t key = cells[(piece + u) / kPieces * kCellsATile + lane_id() % kCellsATile];
        const float tile_top = from_ordered(__reduce_max_sync(kWarp, key));
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
        if (words) put_word(words + of.count / 2 + tile + own, WideKey{sum});
        else own_units[tile + own] = sum;
      }
    }
    if (!words && thread < steps * kCellsATile) {
      of.cells[tile * kCellsATile + thread] = cells[thread];
    } else if (words && thread < steps * (kCellsATile / 2)) {
      put_word(words + tile * (kCellsATile / 2) + thread,
               static_cast<WideKey>(cells[2 * thread]) << 32 | static_cast<uint32_t>(cells[2 * thread + 1]));
    }
    if (tile + kSteps < part.end) __syncthreads();
  }
  if (__any_sync(kWarp, met != 0)) {
    met = __reduce_or_sync(kWarp, met);
    if (lane_id() == 0) atomicOr(&meeting->met, met);
  }
}

// The last block's work on a row.
struct LastCutFinder {
  TeamCutFinder& of;  // of a team of one

  // What stands behind a short list: its tokens as they were found, their weights; and for each token in order, and for
  // the end, the mass before it. There open cells are listed first.
  static constexpr int kShort = 319, kFound = kShort + 1, kWeights = 2 * kFound, kMasses = 3 * kFound;
  static_assert(4 * kFound <= kListed, "in the room of a long list");

  // Reads the cells. `top` of the finder is known then, and the row's mass if `weigh`. `met` is the first thread's.
  __device__ KeptRow scan(const WideKey* words, bool weigh, unsigned met) const {
    SPECDEC_SHARED(unsigned, met_by_row, 1);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (thread == 0) met_by_row[0] = met;
    uint32_t largest = 0;
#pragma unroll 2
    for (int i = thread; words && i < of.count / 2; i += threads) {
      const WideKey two = load_fresh(words + i);
      const uint32_t a = static_cast<uint32_t>(two >> 32), b = static_cast<uint32_t>(two);
      of.cells[2 * i] = a, of.cells[2 * i + 1] = b;
      largest = a > largest ? a : largest, largest = b > largest ? b : largest;
    }
#pragma unroll 1
    for (int i = thread; !words && i < of.count; i += threads)
      if (const uint32_t cell = of.cells[i]; cell > largest) largest = cell;
    largest = block_max(largest);
    met = met_by_row[0];
    of.top = from_ordered(largest);
    uint64_t mass[1] = {0};
    if (weigh) {
      for (int tile = thread; tile < of.tiles; tile += threads) {
        uint32_t best = 0;
        for (int i = 0; i < kCellsATile; ++i) {
          const uint32_t cell = of.cells[tile * kCellsATile + i];
          best = cell > best ? cell : best;
        }
        const WideKey units = words ? load_fresh(words + of.count / 2 + tile) : static_cast<WideKey>(units_of_row(of)[tile]);
        mass[0] += tile_mass({units, from_ordered(best)}, of.top);
      }
      block_sums(mass);
    }
    const bool empty = largest < kLeastKey;
    const bool bad = empty || met & kBadValue;
    return {kKeepsAll, empty ? 0 : -1, 0, mass[0], empty ? -kInfinity : of.top, (met & kInfiniteValue) != 0,
            bad ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
  }

  // What the filters keep. If all that may be kept makes a short list, those kept are the first of it.
  __device__ KeptRow kept(const KeptRow& whole) const {
    const Filter& f = of.f;
    const uint64_t k = f.has_top_k() ? static_cast<uint64_t>(f.top_k) : kNoLimit;
    uint32_t floor = kLeastKey;
    if (f.has_min_p() && ordered(f.floor_below(of.top)) > floor) floor = ordered(f.floor_below(of.top));
    const bool after_k = f.after_top_k(), after_floor = f.after_min_p();
    // If top_p is a share of what other cuts keep, these come first, alone.
    const bool first = f.has_top_p() && (after_k || after_floor);
    CutRule rule = {k, f.has_top_p() ? mass_kept(f, whole.mass) : kNoLimit, floor};
    if (first) rule = {after_k ? k : kNoLimit, kNoLimit, after_floor ? floor : kLeastKey};
    SPECDEC_SHARED(unsigned, numbers, 2);
    if (threadIdx.x < 2) numbers[static_cast<int>(threadIdx.x)] = 0;
    const int listed = list_from(level(rule), numbers);
    if (listed > kShort) return of.kept(whole);
    order(listed);
    int size = size_of(rule, listed);
    if (first) size = size_of({k, mass_kept(f, of.list[kMasses + size]), floor}, listed);
    KeptRow found = whole;
    const WideKey last = of.list[size - 1];
    found.cut = {from_ordered(static_cast<uint32_t>(last >> 32)), static_cast<int32_t>(~static_cast<uint32_t>(last))};
    found.listed = size, found.count = static_cast<uint64_t>(size), found.mass = of.list[kMasses + size];
    return found;
  }

  // The log-sum-exp of what is kept, at the temperature of `space`.
  __device__ LogSumExp lse(const Logits& space, const KeptRow& kept) const {
    if (of.f.order.inverse == space.inverse) return log_sum_exp(kept.top, kept.mass);
    const float top_x = space.scaled(kept.infinite ? kInfinity : kept.top);
    if (kept.listed < 0) return log_sum_exp(top_x, of.mass_in(space, top_x, kept.cut));
    uint64_t mass[1] = {0};
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kept.listed; i += kThreads) {
      const int32_t column = static_cast<int32_t>(~static_cast<uint32_t>(of.list[i]));
      mass[0] += row_weight(min(0.0f, space.below(element(of.row, column), top_x)));
    }
    block_sums(mass);
    return log_sum_exp(top_x, mass[0]);
  }

 private:
  // A key that the cut does not lie below. Cells are counted by bins of their distance from the largest value, sixteen an
  // octave, and every warp adds the bins up. Of the mass of a cell it counts what the bin's far end weighs. Contains a
  // barrier.
  __device__ uint32_t level(const CutRule& rule) const {
    const Shared<unsigned> bins = dynamic_shared<unsigned>(of.room.at, kBins);  // where the ordered list will be
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    const bool weighs = rule.limit != kNoLimit;
    if (rule.most == kNoLimit && !weighs) return rule.least;
    for (int i = thread; i < of.count; i += kThreads)
      if (const uint32_t cell = of.cells[i]; cell >= rule.least) atomicAdd(&bins[bin_of(cell)], 1u);
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
    const uint32_t key = bin < kBins - 1 ? ordered(sub(of.top, end_of_bin(bin))) : 0u;
    return key > rule.least ? key : rule.least;
  }

  static constexpr int kBins = 256, kFirstBin = (127 - 4) << 4;  // from 1/16 to 4,096
  __device__ int bin_of(uint32_t cell) const {
    const int bin = static_cast<int>(bits(sub(of.top, from_ordered(cell))) >> 19) - kFirstBin;
    return bin < 0 ? 0 : bin < kBins ? bin : kBins - 1;
  }
  // All cells of a bin lie less below the largest value.
  __device__ static float end_of_bin(int bin) { return from_bits(static_cast<uint32_t>(kFirstBin + bin + 1) << 19); }
  __device__ static uint64_t mass_of_bin(int bin, const Shared<unsigned>& bins) {
    const unsigned n = bins[bin];
    return n > 0 && bin < kBins - 1 ? n * row_weight(-end_of_bin(bin)) : 0;
  }

  // Lists the tokens from a key on. Returns how many there are; if the list is not short, a number above kShort. First come
  // the cells that hold one: a warp reads two of them together.
  __device__ int list_from(uint32_t least, const Shared<unsigned>& numbers) const {
    const int thread = static_cast<int>(threadIdx.x), warps = warps_in_block();
    for (int i = thread; i < of.count; i += kThreads) {
      if (of.cells[i] < least) continue;
      const unsigned place = atomicAdd(&numbers[0], 1u);
      if (place < kShort) of.list[kMasses + static_cast<int>(place)] = static_cast<WideKey>(i);
    }
    __syncthreads();
    const int open = static_cast<int>(numbers[0]);
    if (open > kShort) return open;
    const float value = from_ordered(least);
#pragma unroll 1
    for (int i = warp_id(); i < open; i += 2 * warps) {
      const int32_t a = column_of(i), b = i + warps < open ? column_of(i + warps) : of.row.vocab;
      constexpr Four kNothing = {{-kInfinity, -kInfinity, -kInfinity, -kInfinity}};  // masks end where the row does
      const Four fours[2] = {a < of.row.vocab ? four_elements(of.row, a) : kNothing,
                             b < of.row.vocab ? four_elements(of.row, b) : kNothing};
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        unsigned found = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          found |= static_cast<unsigned>(of.f.order.scaled(fours[which].value[k]) >= value) << k;
        if (!found) continue;
        const uint4 raw = {bits(fours[which].value[0]), bits(fours[which].value[1]), bits(fours[which].value[2]),
                           bits(fours[which].value[3])};
        unsigned place = atomicAdd(&numbers[1], static_cast<unsigned>(__popc(found)));
#pragma unroll 1
        for (; found && place < kShort; found &= found - 1, ++place) {
          const int k = __ffs(static_cast<int>(found)) - 1;
          of.list[kFound + static_cast<int>(place)] = static_cast<WideKey>(of.key(Float32::at(raw, k))) << 32 |
                                                      static_cast<uint32_t>(~((which == 0 ? a : b) + k));
        }
      }
    }
    __syncthreads();
    return static_cast<int>(numbers[1]);
  }
  // The lane's four columns of an open cell.
  __device__ int32_t column_of(int open) const {
    const int cell = static_cast<int>(of.list[kMasses + open]), lane = lane_id();
    return cell / kCellsATile * kMassTile + lane / kCellLanes * 128 + (cell % kCellsATile * kCellLanes + lane % kCellLanes) * 4;
  }

  // Puts a short list in order: four lanes a token count who is before it.
  __device__ void order(int listed) const {
    const int thread = static_cast<int>(threadIdx.x), part = thread % 4;
    for (int i = thread; i < listed; i += kThreads)
      of.list[kWeights + i] = of.weight(static_cast<uint32_t>(of.list[kFound + i] >> 32));
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first <= listed; first += kThreads / 4) {
      const int i = first + thread / 4;
      const WideKey own = i < listed ? static_cast<WideKey>(of.list[kFound + i]) : 0;
      int place = 0;
      uint64_t mass = 0;
#pragma unroll 2
      for (int j = part; j < listed; j += 4)
        if (of.list[kFound + j] > own) ++place, mass += static_cast<WideKey>(of.list[kWeights + j]);
#pragma unroll
      for (int with = 1; with < 4; with *= 2)
        place += __shfl_xor_sync(kWarp, place, with), mass += __shfl_xor_sync(kWarp, mass, with);
      if (i <= listed && part == 0) of.list[place] = own, of.list[kMasses + place] = mass;
    }
    __syncthreads();
  }

  // How many tokens at the front of an ordered list a rule keeps. Where ties stay together, a token has the rank of the
  // first that it ties with.
  __device__ int size_of(const CutRule& rule, int listed) const {
    int kept = 0, not_kept = listed;
#pragma unroll 1
    while (kept < not_kept) {
      const int i = (kept + not_kept) / 2;
      const uint32_t key = static_cast<uint32_t>(of.list[i] >> 32);
      int rank = i;
#pragma unroll 1
      while (of.f.ties_all() && rank > 0 && static_cast<uint32_t>(of.list[rank - 1] >> 32) == key) --rank;
      if (rule.keeps(static_cast<uint64_t>(rank), of.list[kMasses + rank], key)) kept = i + 1;
      else not_kept = i;
    }
    return kept;
  }
};

// What the last block of a row knows of it. `kept`: if it was cut, or weighed; `lse`: if that was asked for. `best`: the
// winner of a race, or the most probable token, known to the first thread.
struct RowEnd {
  KeptRow kept;
  LogSumExp lse;
  RowPartial best;
};

// The block's part of a row: `sums` asks for its mass and what is kept of it, else a token is drawn. True for the last
// block to come. Behind begin_draw and a barrier.
__device__ __forceinline__ bool straight_row(const RaceRequestOf<EditedRow>& r, bool live, bool sums, const Filter& filter,
                                             const StraightCut& cut, const Parts& parts, int64_t row, int part,
                                             const Shared<unsigned>& sure, Meeting* meeting, RowEnd* end) {
  const bool cuts = live && (filter.on() || sums), weighs = filter.of_row() || (sums && !filter.on());
  Team alone(cut.alone);
  TeamCutFinder finder(alone, r.row, filter, cut.room);
  WideKey* const words = parts.count.by() == 1 ? nullptr : cut.words + row * kCutWordsATile * parts.tiles;
  auto weights = weights_of_row<Filtered>(whole_row(r.row), r.law);
  SPECDEC_SHARED(Noise, noise_of_row, 1);  // over a cut it would take registers
  RaceRequestOf<EditedRow> race = r;
  if (threadIdx.x == 0) noise_of_row[0] = r.noise;
  Tiles tiles = parts.tiles_of(part);
  if (tiles.end > finder.tiles) tiles.end = finder.tiles;
  if (cuts) put_cells<3>(finder, weighs, tiles, words, meeting);
  end->lse = kNoMass, end->best = kNoPart;
  bool draws = live && !cuts;
#pragma unroll 1
  for (bool last = false;; last = true) {
    if (draws) draw_tiles<3>(weights, race.noise, tiles.begin, tiles.end, sure, meeting);
    if (last) break;
    if (!comes_last(meeting, parts.count.by())) return false;
    if (!cuts) break;
    const LastCutFinder of_last = {finder};
    const unsigned met = threadIdx.x == 0 ? atomicExch(&meeting->met, 0u) : 0u;
    end->kept = of_last.scan(words, weighs, met);
    if (filter.on() && end->kept.listed < 0) end->kept = of_last.kept(end->kept);
    if (sums && end->kept.top > -kInfinity) end->lse = of_last.lse(r.law.logits(), end->kept);
    race.noise = noise_of_row[0];
    if (sums || end->kept.listed >= 0) break;
    weights.target.kept = {end->kept.cut, filter.order};
    tiles = {0, finder.tiles}, draws = true;
  }
  if (draws) {
    __syncthreads();
    if (threadIdx.x == 0) end->best = partial_of(taken_from(meeting));
  } else if (cuts && !sums) {
    weights.target.kept = {end->kept.cut, filter.order};
    end->best = race_listed(race, weights, end->kept.listed, cut.room, end->kept.status);
  }
  if (threadIdx.x == 0) meeting->came = 0;
  return true;
}

// ---- launching ------------------------------------------------------------------------------------------------------

inline CutPlan straight_plan(int32_t vocab) {
  const int tiles = sum_tiles_of(vocab);
  return {{kCellLanes, tiles * kCellsATile, 2 * sizeof(WideKey) * static_cast<size_t>(tiles)}, tiles};
}

// The dynamic shared memory of a block.
inline size_t bytes_of_straight(const CutPlan& plan) { return plan.room.at + plan.shared_bytes(); }

inline StraightCut straight_cut(const CutPlan& plan, WideKey* words) {
  return {words, team_room(TeamKind::kBlock, 1, plan.items, nullptr, nullptr), plan.room};
}

}  // namespace specdec::cuda
