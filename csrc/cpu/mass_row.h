// The mass of a row of logits, in tiles of 1,024 columns (specdec/mass.h). The sums are exact, so threads may take the
// tiles in any order.
#pragma once

#include "cells.h"
#include "specdec/mass.h"

SPECDEC_BEGIN

constexpr int32_t kMassTilesATile = kTile / kMassTile;

// The sum of the unit_weights of `count` columns whose largest x is `top_x`. Prefetches `ahead` columns further on.
template <class Elements>
SPECDEC_HD uint64_t units_of(const Logits& space, Elements p, int32_t count, float top_x, int32_t ahead) {
  const F16 top(top_x), zero(0.0f);
  Sum16 sum;
  // min(zero, NaN) is NaN, which has no weight. For +inf, the maximum is the largest finite number, and min gives 0.
  const auto weight = [&](F16 raw) { return unit_weight(min(zero, space.below(raw, top))); };
  int32_t i = 0;
  for (; i + kCell <= count; i += kCell) {
    prefetch_cell(p + i + ahead);  // memory is idle while exponentials are computed
    const Cell cell = load_cell(p + i);
    sum.add(weight(cell.vector[0]) + weight(cell.vector[1]));
    sum.add(weight(cell.vector[2]) + weight(cell.vector[3]));
  }
  for (; i < count; i += kLanes) sum.add(weight(load_first(p + i, count - i, -kInfinity)));
  return sum.total();
}

// A mass tile whose largest raw element is known.
SPECDEC_HD MassTile mass_tile(const Row& row, const Logits& space, int32_t tile, float raw_max) {
  const float top = space.scaled(raw_max);
  if (top == -kInfinity) return kNoTile;
  const int32_t begin = tile * kMassTile, count = row.vocab - begin < kMassTile ? row.vocab - begin : kMassTile;
  return {with_elements(row, begin, [&](auto p) { return units_of(space, p, count, top, kTile); }), top};
}

SPECDEC_HD int32_t mass_tiles_of(int32_t vocab) { return tiles_of(vocab) * kMassTilesATile; }

static_assert(kMassTile == kLanes * kCell, "Sixteen cells are a mass tile");

// Fills the mass tiles that are in a tile of the row; its cells are known.
SPECDEC_HD void tile_masses(const Row& row, const Logits& space, int32_t tile, const float* cells, MassTile* tiles) {
  for (int32_t t = tile * kMassTilesATile; t < (tile + 1) * kMassTilesATile; ++t)
    tiles[t] = mass_tile(row, space, t, largest(load(cells + t * kLanes)));
}

// Fills the mass tiles of a row whose cells are known.
SPECDEC_HD void row_masses(const Row& row, const Logits& space, const Crew& crew, const float* cells, MassTile* tiles) {
  over_tiles(row.tiles(), crew, [&](int32_t tile, int32_t*) { tile_masses(row, space, tile, cells, tiles); });
}

// Fills the raw maxima of a row's cells, and its mass tiles. Every tile is read twice, the second time from the L1
// cache. Returns the status of the row's elements.
SPECDEC_HD int32_t row_cells_and_masses(const Row& row, const Logits& space, const Crew& crew, float* cells,
                                        MassTile* tiles) {
  return over_tiles(row.tiles(), crew, [&](int32_t tile, int32_t* status) {
    tile_cells(row, space, tile, cells, status);
    tile_masses(row, space, tile, cells, tiles);
  });
}

SPECDEC_END
