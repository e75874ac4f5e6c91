// A target row and a draft row side by side, as probabilities: for residual, overlap and verification. The vocabulary
// is cut into tiles of 1,024 tokens, and a lane takes four tokens a step. Sums of weights are integers, the same in any
// order. Sums of overlap are floats: each tile is summed alone, and tiles are combined in one order, so another
// backend's may differ in the last bits.
#pragma once

#include "team_rows.cuh"

namespace specdec::cuda {

constexpr int kSumTile = 1024;

__host__ __device__ __forceinline__ int sum_tiles_of(int32_t vocab) { return (vocab + kSumTile - 1) / kSumTile; }

// Calls f(k, column, element) for the tokens token .. token + 3 that a row has, of a vocabulary of `end`. In a draft's
// own vocabulary none from `end` on counts, even if the map has such tokens. f may be called for other tokens, too,
// with elements without weight. A greedy law needs no elements, so none are read.
template <class Support, class F>
__device__ __forceinline__ void over_four(const LawRowOf<Support>& side, int32_t token, int32_t end, F&& f) {
  if (side.map) {
    int32_t column = side.columns().first_at_least(token);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool there = token + k < end && column < side.row.vocab && side.map[column] == token + k;
      if (there) f(k, column, element(side.row, column));
      column += there;
    }
    return;
  }
  Four raw = {{}};
  if (!side.stats.law.greedy) {
    if (token >= side.row.vocab) return;
    raw = four_elements(side.row, token);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) f(k, token + k, raw.value[k]);
}

// p of tokens token .. token + 3, of a vocabulary of `end`.
template <class Support>
__device__ __forceinline__ Four probabilities(const LawRowOf<Support>& side, int32_t token, int32_t end) {
  Four four = {{}};
  over_four(side, token, end, [&](int k, int32_t column, float raw) { four.value[k] = side.probability(column, raw); });
  return four;
}

// The same with their logarithms.
struct FourWeighed {
  Weighed<float> value[4];
};
template <class Support>
__device__ __forceinline__ FourWeighed weighed(const LawRowOf<Support>& side, int32_t token, int32_t end) {
  FourWeighed four;
#pragma unroll
  for (int k = 0; k < 4; ++k) four.value[k] = {0.0f, -kInfinity};
  over_four(side, token, end, [&](int k, int32_t column, float raw) { four.value[k] = side.weighed(column, raw); });
  return four;
}

template <class Support>
__device__ __forceinline__ LawRowOf<Support> law_row(const typename Support::RowType& row, const Law& law,
                                                     const int32_t* map = nullptr) {
  return {row, without_stats(law), map};
}

template <class Support>
__device__ __forceinline__ void prefetch_tile(const LawRowOf<Support> (&sides)[2], int tile) {
  constexpr int kSector = 32;  // bytes that a read from memory brings, at least
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    if (side == 0 ? sides[0].stats.law.greedy : sides[1].stats.law.greedy) continue;
    const Row row = side == 0 ? stored_row(sides[0].row) : stored_row(sides[1].row);
    const int32_t step = kSector / (row.dtype == SPECDEC_FLOAT32 ? 4 : 2), first = tile * kSumTile;
    for (int32_t token = first + lane_id() * step; token < first + kSumTile && token < row.vocab; token += 32 * step)
      prefetch_line(static_cast<const char*>(row.data) + static_cast<int64_t>(token) * (kSector / step));
  }
}

// Calls f(token) for the tiles of this warp, of blocks that share a row: four tokens of a lane at a time. Tiles are
// items of a team: each block has one before any has two. It calls ahead(the next tile) before each, because four
// tokens a lane in flight are few, and end(tile) after each.
template <class Ahead, class F, class End>
__device__ __forceinline__ void over_sum_tiles(Part part, int32_t vocab, Ahead&& ahead, F&& f, End&& end) {
  const int warps = part.size * warps_in_block();
#pragma unroll 1
  for (int tile = warp_id() * part.size + part.rank; tile < sum_tiles_of(vocab); tile += warps) {
    ahead(tile + warps);
#pragma unroll 1
    for (int32_t token = tile * kSumTile + lane_id() * 4; token < (tile + 1) * kSumTile && token < vocab; token += 128)
      f(token);
    end(tile);
  }
}

// Two floats as a word.
__device__ __forceinline__ WideKey packed(float a, float b) { return static_cast<WideKey>(bits(a)) << 32 | bits(b); }
__device__ __forceinline__ float first_of(WideKey word) { return from_bits(static_cast<uint32_t>(word >> 32)); }
__device__ __forceinline__ float second_of(WideKey word) { return from_bits(static_cast<uint32_t>(word)); }

struct TwoSums {
  float a, b;
};

// Adds up items [from, from + tiles). Every lane of every member gets the same bits.
__device__ __forceinline__ TwoSums sum_items(const Team& team, int from, int tiles) {
  TwoSums sums = {0.0f, 0.0f};
  for (int tile = lane_id(); tile < tiles; tile += 32) {
    const WideKey word = team.get(from + tile);
    sums.a = add(sums.a, first_of(word));
    sums.b = add(sums.b, second_of(word));
  }
  return {warp_sum(sums.a), warp_sum(sums.b)};
}

// Two sums of weights as integers, of one lane. The lane calls end_tile() after each tile.
struct TwoUnitSums {
  UnitSum<float> a, b;
  uint64_t units_a = 0, units_b = 0;

  __device__ void end_tile() {
    units_a += units_of(a.high, a.low), units_b += units_of(b.high, b.low);
    a = {}, b = {};
  }
};

// Adds up the sums of all lanes of the team. Every lane of every member gets them.
__device__ __forceinline__ TwoSums add_up(Team& team, const TwoUnitSums& mine) {
  uint64_t sums[2] = {mine.units_a, mine.units_b};
  team_sums(team, sums);
  return {sum_of_units(sums[0]), sum_of_units(sums[1])};
}

}  // namespace specdec::cuda
