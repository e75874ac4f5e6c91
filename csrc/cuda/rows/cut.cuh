// Where a row's filters cut (specdec/filter.h), found by a team. The team reads the row once, for the maxima of its
// cells. A cell is what a few lanes hold of a tile of 1,024 columns: 64 columns, more in long rows. The k-th largest of
// these maxima is at most the k-th largest value of the row, and the tokens above a level have at least the mass of the
// maxima above it. So the maxima give a level that the cut does not lie below. Mostly few tokens reach it: each block
// lists and sorts them for itself. If they are too many, counts and masses above several levels narrow the range down
// first. All sums are of integers, so the cut does not depend on how the row was shared.
#pragma once

#include "cut_plan.cuh"
#include "edited_row.cuh"

namespace specdec::cuda {

constexpr int kLevels = 5;  // of one pass that narrows the range
constexpr int kCutSums = 2 * (kLevels + 1);

constexpr uint32_t kLeastKey = 0x00800000u;  // ordered(-kLargest): a smaller key has no weight
constexpr uint64_t kNoLimit = ~uint64_t{0};

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

// ---- the row --------------------------------------------------------------------------------------------------------

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
// `least`. The first token is always kept.
struct CutRule {
  uint64_t most, limit;
  uint32_t least;
  __device__ bool keeps(uint64_t rank, uint64_t mass, uint32_t key) const {
    return rank == 0 || (rank < most && mass < limit && key >= least);
  }
  __device__ bool reached(uint64_t rank, uint64_t mass) const { return rank >= most || mass >= limit; }
};

// The keys [first, end), and count and mass of the tokens above them.
struct KeyRange {
  uint32_t first, end;
  uint64_t rank, mass;
};

// Passes the tops of a tile's lanes on as cells.
struct CellsOfTile {
  static constexpr bool kWanted = true;
  const Team& team;
  int item, stride, lanes;
  bool weigh;  // whether the tile's units are wanted, too
  bool infinite = false;

  __device__ void put(float top) const {
    uint32_t key = ordered(min(top, kLargest));
    for (int with = 1; with < lanes; with *= 2) {
      const uint32_t other = __shfl_xor_sync(kWarp, key, with);
      key = other > key ? other : key;
    }
    const uint32_t next = __shfl_down_sync(kWarp, key, static_cast<unsigned>(lanes % 32));
    if (lane_id() % (2 * lanes) != 0) return;
    team.put(lane_id() / (2 * lanes) * stride + item, static_cast<WideKey>(key) << 32 | (lanes < 32 ? next : 0u));
  }
};

constexpr WideKey kOddTile = WideKey{1} << 63, kInfiniteTile = WideKey{1} << 62;  // flags beside a tile's units

struct TeamCutFinder {
  Team& team;
  const EditedRow& row;
  const Filter& f;
  const CutRoom& room;
  Shared<uint32_t> cells;
  Shared<WideKey> list;
  int tiles, count;  // of the row; its cells
  float top;

  __device__ TeamCutFinder(Team& with, const EditedRow& of, const Filter& filter, const CutRoom& r)
      : team(with), row(of), f(filter), room(r),
        cells(dynamic_shared<uint32_t>(r.at + sizeof(WideKey) * kListed, r.cells)),
        list(dynamic_shared<WideKey>(r.at, kListed)), tiles(sum_tiles_of(of.vocab)),
        count(tiles * cells_a_tile(r.lanes)) {}

  __device__ uint32_t key(float raw) const { return ordered(f.order.scaled(raw)); }
  __device__ uint64_t weight(uint32_t key) const { return row_weight(sub(from_ordered(key), top)); }

  // Reads the row. Fills the cells, `top` and what is known of the whole row; its mass if `weigh`.
  __device__ KeptRow scan(bool weigh) {
    const int lanes = room.lanes, words = words_a_tile(lanes), each = cells_a_tile(lanes);
    const int stride = word_stride(team, tiles);
    for (int i = team.first_item(); i < tiles; i += team.size() * warps_in_block()) {
      CellsOfTile out = {team, i, stride, lanes, weigh};
      const TileMass mass = weigh_tile<Float32>(row, i, f.order, out);
      const bool infinite = __any_sync(kWarp, out.infinite);
      const WideKey flags = (mass.status ? kOddTile : 0) | (infinite ? kInfiniteTile : 0);
      if (lane_id() == 0) team.put((words - 1) * stride + i, mass.tile.units | flags);
    }
    team.sync();
    const auto word = [&](int tile, int w) { return team.get(w * stride + tile); };
    uint32_t largest = 0;
    for (int i = static_cast<int>(threadIdx.x); i < tiles * (words - 1); i += static_cast<int>(blockDim.x)) {
      const int tile = i / (words - 1), w = i % (words - 1);
      const WideKey two = word(tile, w);
      const uint32_t a = static_cast<uint32_t>(two >> 32), b = static_cast<uint32_t>(two);
      cells[tile * each + 2 * w] = a;
      if (2 * w + 1 < each) cells[tile * each + 2 * w + 1] = b;
      largest = max(largest, max(a, b));
    }
    largest = block_max(largest);  // its barrier makes the cells visible, too
    top = from_ordered(largest);
    uint64_t sums[1] = {0};
    WideKey flags = 0;
    for (int tile = static_cast<int>(threadIdx.x); tile < tiles; tile += static_cast<int>(blockDim.x)) {
      const WideKey units = word(tile, words - 1);
      flags |= units & (kOddTile | kInfiniteTile);
      uint32_t best = 0;
      for (int c = 0; weigh && c < each; ++c) best = max(best, static_cast<uint32_t>(cells[tile * each + c]));
      if (weigh) sums[0] += tile_mass({units & ~(kOddTile | kInfiniteTile), from_ordered(best)}, top);
    }
    const bool odd = __syncthreads_or((flags & kOddTile) != 0);
    const bool infinite = __syncthreads_or((flags & kInfiniteTile) != 0);
    if (weigh) block_sums(sums);
    const bool empty = largest < kLeastKey;
    if (empty) top = -kInfinity;
    return {kKeepsAll, -1, 0, sums[0], top, infinite, odd || empty ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK};
  }

  // What the filters keep. `whole`: what is known of the row; its mass must be known if top_p is a share of it.
  __device__ KeptRow kept(const KeptRow& whole) {
    const uint64_t k = f.has_top_k() ? static_cast<uint64_t>(f.top_k) : kNoLimit;
    const uint32_t floor = f.has_min_p() ? max(ordered(f.floor_below(top)), kLeastKey) : kLeastKey;
    const bool after_k = f.after_top_k(), after_floor = f.after_min_p();
    // If top_p is a share of what other cuts keep, these come first, alone.
    bool first = f.has_top_p() && (after_k || after_floor);
    CutRule rule = {k, f.has_top_p() ? mass_kept(f, whole.mass) : kNoLimit, floor};
    if (first) rule = {after_k ? k : kNoLimit, kNoLimit, after_floor ? floor : kLeastKey};
    KeptRow found = whole;
    KeyRange range = {};
    int listed = -1;
#pragma unroll 1
    for (;;) {
      if (listed < 0) {
        range = {bracket(rule), ordered(top) + 1, 0, 0};
#pragma unroll 1
        while ((listed = list_from(range)) > kListed)
          if (!narrowed(rule, &range, &found)) {
            listed = -1;
            break;
          }
        if (listed >= 0) sort(listed);
      }
      if (listed >= 0) cut_list(rule, range, listed, &found);
      if (range.rank > 0) listed = -1;  // the list does not begin with the first of the order
      if (!first) {
        found.listed = listed < 0 ? -1 : static_cast<int>(found.count);
        return found;
      }
      first = false;
      rule = {k, mass_kept(f, found.mass), floor};
    }
  }

  // The mass of the tokens that a cut keeps, at the temperature of `space`; `top_x` is the row's largest x there.
  __device__ uint64_t mass_in(const Logits& space, float top_x, const Cut& cut) const {
    uint64_t mass[1] = {0};
    over_sum_tiles(
        part_of(team), row.vocab, [](int) {},
        [&](int32_t token) {
          const Four four = four_elements(row, token);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (cut.keeps(f.order.scaled(four.value[i]), token + i))
              mass[0] += row_weight(min(0.0f, space.below(four.value[i], top_x)));
        },
        [](int) {});
    team_sums(team, mass);
    return mass[0];
  }

 private:
  static __device__ uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
  static __device__ float max(float a, float b) { return specdec::max(a, b); }

  // A key that the cut does not lie below.
  __device__ uint32_t bracket(const CutRule& rule) const {
    if (rule.most == kNoLimit && rule.limit == kNoLimit) return rule.least;
    const uint64_t few = rule.most == kNoLimit ? 32 : rule.most + rule.most / 4 + 8;
    uint32_t low = rule.least, high = ordered(top) + 1;
    float step = 4.0f;
#pragma unroll 1
    for (int turn = 0; high - low > 1; ++turn) {
      uint32_t level = low + (high - low) / 2;
      if (low == rule.least && turn < 8) level = ordered(sub(top, step)), step = mul(step, 2.0f);
      else if (turn < 16) level = ordered(from_ordered(low) + 0.5f * (from_ordered(high - 1) - from_ordered(low)));
      if (level <= low || level >= high) {
        if (turn < 16) continue;
      }
      uint64_t sums[2] = {0, 0};  // of the cells that reach the level: how many, and the mass of their maxima
      for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
        const uint32_t cell = cells[i];
        if (cell < level) continue;
        ++sums[0];
        if (rule.limit != kNoLimit) sums[1] += weight(cell);
      }
      block_sums(sums);
      if (rule.reached(sums[0], sums[1])) {
        low = level;
        if (sums[0] <= few) break;
      } else {
        high = level;
      }
    }
    return low;
  }

  // Lists the tokens of a range. Returns how many there are; if they do not fit, a number above kListed.
  __device__ int list_from(const KeyRange& range) const {
    SPECDEC_SHARED(unsigned, listed, 1);
    if (threadIdx.x == 0) listed[0] = 0;
    __syncthreads();
#pragma unroll 1
    for (int base = warp_id() * 32; base < count; base += static_cast<int>(blockDim.x)) {
      const uint32_t cell = base + lane_id() < count ? static_cast<uint32_t>(cells[base + lane_id()]) : 0u;
      unsigned open = __ballot_sync(kWarp, cell >= range.first);
#pragma unroll 1
      for (; open; open &= open - 1) {
        if (read_atomic(listed) > kListed) break;
        list_cell(base + __ffs(static_cast<int>(open)) - 1, range, listed);
      }
    }
    __syncthreads();
    const int found = static_cast<int>(listed[0]);
    __syncthreads();
    return found;
  }

  // By a warp.
  __device__ void list_cell(int cell, const KeyRange& range, const Shared<unsigned>& listed) const {
    const int each = cells_a_tile(room.lanes), vector = Float32::kPerVector, run = room.lanes * vector;
    const int32_t first = cell / each * kMassTile + cell % each * run;
#pragma unroll 1
    for (int i = lane_id(); i < 32 * room.lanes; i += 32) {
      const int32_t column = first + i / run * (32 * vector) + i % run;
      const uint32_t at = column < row.vocab ? key(element(row, column)) : 0u;
      const bool found = at >= range.first && at < range.end;
      const unsigned all = __ballot_sync(kWarp, found);
      if (!all) continue;
      unsigned place = 0;
      if (lane_id() == 0) place = atomicAdd(&listed[0], static_cast<unsigned>(__popc(all)));
      place = __shfl_sync(kWarp, place, 0) + static_cast<unsigned>(__popc(all & ((1u << lane_id()) - 1u)));
      if (found && place < kListed) list[place] = static_cast<WideKey>(at) << 32 | static_cast<uint32_t>(~column);
    }
  }

  // Sorts the list, the first of the order first: a bitonic network over the next power of two.
  __device__ void sort(int listed) const {
    int size = 2;
    while (size < listed) size *= 2;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = listed + thread; i < size; i += threads) list[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int run = 2; run <= size; run *= 2) {
#pragma unroll 1
      for (int step = run / 2; step; step /= 2) {
        for (int i = thread; i < size / 2; i += threads) {
          const int at = 2 * i - (i & (step - 1));
          const WideKey a = list[at], b = list[at + step];
          if ((a < b) == ((at & run) == 0)) list[at] = b, list[at + step] = a;
        }
        __syncthreads();
      }
    }
  }

  // Cuts the sorted list of a range.
  __device__ void cut_list(const CutRule& rule, const KeyRange& range, int listed, KeptRow* found) const {
    SPECDEC_SHARED(uint64_t, figures, 3);  // place of the last token kept, count, mass
    if (warp_id() == 0) {
      uint64_t before = range.mass, mass = range.mass;      // of all tokens so far, of those kept
      uint64_t run_rank = range.rank, run_mass = range.mass;  // before the tokens that tie with the last one
      int size = 0;
#pragma unroll 1
      for (int base = 0; base < listed; base += 32) {
        const int i = base + lane_id();
        const bool inside = i < listed;
        const WideKey place = inside ? static_cast<WideKey>(list[i]) : 0;
        const uint32_t here = static_cast<uint32_t>(place >> 32);
        const uint64_t w = inside ? weight(here) : 0;
        uint64_t sum = w;
#pragma unroll
        for (unsigned by = 1; by < 32; by *= 2) {
          const uint64_t other = __shfl_up_sync(kWarp, sum, by);
          if (lane_id() >= static_cast<int>(by)) sum += other;
        }
        // Where ties stay together, a token has the rank of the first that it ties with.
        const bool starts = !f.ties_all() || i == 0 || (inside && here != static_cast<uint32_t>(list[i - 1] >> 32));
        const unsigned up_to = __ballot_sync(kWarp, starts) & (0xffffffffu >> (31 - lane_id()));
        const int from = up_to ? 31 - __clz(static_cast<int>(up_to)) : 0;
        const uint64_t start_mass = __shfl_sync(kWarp, before + sum - w, from);
        if (up_to) run_rank = range.rank + static_cast<uint64_t>(base + from), run_mass = start_mass;
        const bool stays = inside && rule.keeps(run_rank, run_mass, here);
        const int kept = __popc(__ballot_sync(kWarp, stays));
        mass += warp_sum(stays ? w : 0);
        size += kept;
        before += __shfl_sync(kWarp, sum, 31);
        run_rank = __shfl_sync(kWarp, run_rank, 31), run_mass = __shfl_sync(kWarp, run_mass, 31);
        if (kept < 32) break;
      }
      if (lane_id() == 0) {
        figures[0] = list[size - 1];
        figures[1] = range.rank + static_cast<uint64_t>(size);
        figures[2] = mass;
      }
    }
    __syncthreads();
    const WideKey last = figures[0];
    found->cut = {from_ordered(static_cast<uint32_t>(last >> 32)), static_cast<int32_t>(~static_cast<uint32_t>(last))};
    found->count = figures[1];
    found->mass = figures[2];
    __syncthreads();
  }

  // ---- long lists ---------------------------------------------------------------------------------------------------

  // Narrows the range to where the cut is, until a list has room for its tokens. Each pass over the row takes count and
  // mass of the tokens above some levels, and goes on between the two where the cut lies. Returns false if the cut was
  // found without a list.
  __device__ bool narrowed(const CutRule& rule, KeyRange* range, KeptRow* found) const {
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      uint32_t level[kLevels + 1];
      level[0] = range->first;
#pragma unroll
      for (int j = 1; j <= kLevels; ++j) level[j] = max(level[j - 1], level_at(j, turn, *range));
      uint64_t sums[kCutSums];  // for each level the count, then the mass of the keys [level, end)
      measure(level, range->end, sums);
      uint64_t above = 0, here = sums[0], mass_above = 0, mass_here = sums[kLevels + 1];
      bool within = false;  // a level is reached
      KeyRange next = *range;
#pragma unroll
      for (int j = kLevels; j >= 0; --j) {
        const uint64_t n = sums[j], m = sums[kLevels + 1 + j];
        if (within) continue;
        if (rule.reached(range->rank + n, range->mass + m)) {
          within = true;
          next.first = level[j];
          here = n, mass_here = m;
        } else {
          next.end = level[j];
          above = n, mass_above = m;
        }
      }
      if (!within) {  // all are kept
        found->cut = {from_ordered(range->first), kNoToken};
        found->count = range->rank + here;
        found->mass = range->mass + mass_here;
        return false;
      }
      next.rank = range->rank + above, next.mass = range->mass + mass_above;
      *range = next;
      if (here - above <= kListed) return true;
      if (next.end - next.first == 1) {
        cut_among_equals(rule, next, here - above, found);
        return false;
      }
    }
  }

  // The j-th level inside of a range. In the first pass by distance from the largest value, in the next two by equal
  // steps of the value, then by equal steps of the key, which always come to an end.
  __device__ uint32_t level_at(int j, int turn, const KeyRange& range) const {
    const uint64_t width = range.end - range.first;
    uint32_t level = range.first + static_cast<uint32_t>(width * static_cast<uint64_t>(j) / (kLevels + 1));
    if (turn == 0) {  // up to 25 below it
      const int n = kLevels + 1 - j;
      level = ordered(sub(top, 0.7f * static_cast<float>(n * n)));
    } else if (turn < 3) {
      const float from = from_ordered(range.first), to = from_ordered(range.end - 1);
      level = ordered(from + (to - from) * (static_cast<float>(j) / (kLevels + 1)));
    }
    const uint32_t last = range.end - 1;
    return level < range.first ? range.first : level > last ? last : level;
  }

  __device__ void measure(const uint32_t (&level)[kLevels + 1], uint32_t end, uint64_t (&sums)[kCutSums]) const {
    uint32_t counts[kLevels + 1] = {};
    uint64_t masses[kLevels + 1] = {};
    over_sum_tiles(
        part_of(team), row.vocab, [](int) {},
        [&](int32_t token) {
          const Four four = four_elements(row, token);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t here = key(four.value[i]);
            if (here < level[0] || here >= end) continue;
            const uint64_t w = weight(here);
#pragma unroll
            for (int j = 0; j <= kLevels; ++j)
              if (here >= level[j]) ++counts[j], masses[j] += w;
          }
        },
        [](int) {});
#pragma unroll
    for (int j = 0; j <= kLevels; ++j) sums[j] = counts[j], sums[kLevels + 1 + j] = masses[j];
    team_sums(team, sums);
  }

  // The cut among many tokens of one value.
  __device__ void cut_among_equals(const CutRule& rule, const KeyRange& range, uint64_t equal, KeptRow* found) const {
    const uint64_t w = weight(range.first);
    uint64_t left = rule.most - range.rank;  // of the equal tokens, how many are kept
    if (w > 0 && rule.limit != kNoLimit) {
      const uint64_t by_mass = (rule.limit - range.mass + w - 1) / w;
      left = by_mass < left ? by_mass : left;
    }
    if (range.rank == 0 && left == 0) left = 1;
    if (f.ties_all()) left = equal;
    found->cut = {from_ordered(range.first), column_of(range.first, left)};
    found->count = range.rank + left;
    found->mass = range.mass + w * left;
  }

  // The column of the n-th token with this key, from 1.
  __device__ int32_t column_of(uint32_t wanted, uint64_t n) const {
    SPECDEC_SHARED(int32_t, place, 1);
    unsigned equal = 0;
    over_sum_tiles(
        part_of(team), row.vocab, [](int) {},
        [&](int32_t token) {
          const Four four = four_elements(row, token);
#pragma unroll
          for (int i = 0; i < 4; ++i) equal += key(four.value[i]) == wanted;
        },
        [&](int tile) {
          const unsigned all = __reduce_add_sync(kWarp, equal);
          if (lane_id() == 0) team.put(tile, all);
          equal = 0;
        });
    team.sync();
    if (warp_id() == 0) {
      int tile = 0;
      for (; tile < tiles; ++tile) {  // every lane reads the same
        const uint64_t here = team.get(tile);
        if (here >= n) break;
        n -= here;
      }
      int32_t found = kNoToken;
      for (int32_t token = tile * kSumTile; found == kNoToken && token < row.vocab; token += 32) {
        const int32_t column = token + lane_id();
        const bool same = column < row.vocab && key(element(row, column)) == wanted;
        const unsigned all = __ballot_sync(kWarp, same), up_to = all & (0xffffffffu >> (31 - lane_id()));
        const unsigned hit = __ballot_sync(kWarp, same && static_cast<uint64_t>(__popc(up_to)) == n);
        if (hit) found = token + __ffs(static_cast<int>(hit)) - 1;
        else n -= static_cast<uint64_t>(__popc(all));
      }
      if (lane_id() == 0) place[0] = found;
    }
    __syncthreads();
    const int32_t found = place[0];
    __syncthreads();
    return found;
  }
};

}  // namespace specdec::cuda
