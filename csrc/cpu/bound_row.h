// Bounds of the normaliser of a row of logits (specdec/bounds.h).
#pragma once

#include "cells.h"
#include "specdec/bounds.h"

SPECDEC_BEGIN

// The sum of about 2^(raw scale - whole) over `count` columns.
template <class Elements>
SPECDEC_HD float about_sum(Elements p, int32_t count, float scale, float whole) {
  const F16 s(scale), down(-whole), zero(0.0f);
  F16 sums[kCellVectors] = {zero, zero, zero, zero};
  const auto take = [&](F16 raw, int k) { sums[k] = add(sums[k], about_exp2(fma(raw, s, down))); };
  int32_t i = 0;
  for (; i + kCell <= count; i += kCell) {
    prefetch_cell(p + i + 2 * kTile);  // tile_cells has fetched the next tile
    const Cell cell = load_cell(p + i);
    for (int k = 0; k < kCellVectors; ++k) take(cell.vector[k], k);
  }
  for (; i < count; i += kLanes) take(load_first(p + i, count - i, -kInfinity), 0);
  return total(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// A tile whose largest raw element is known, and not NaN.
SPECDEC_HD BoundTile bound_tile(const Row& row, const Logits& space, int32_t tile, float raw_max) {
  if (space.scaled(raw_max) == -kInfinity) return {0.0f, -kInfinity};
  const float scale = mul(space.inverse, 1.44269504f), whole = sub(add(mul(raw_max, scale), 12582912.0f), 12582912.0f);
  return {with_elements(row, tile * kTile, [&](auto p) { return about_sum(p, row.tile_size(tile), scale, whole); }),
          whole};
}

// Fills the raw maxima of a row's cells, and its tiles. Every tile is read twice, the second time from the L1 cache.
// Returns the status of the row's elements.
SPECDEC_HD int32_t row_bounds(const Row& row, const Law& law, const Crew& crew, float* cells, BoundTile* tiles) {
  const Logits space = law.logits();
  return over_tiles(row.tiles(), crew, [&](int32_t tile, int32_t* status) {
    tile_cells(row, space, tile, cells, status);
    tiles[tile] = bound_tile(row, space, tile, tile_max(cells, tile));
  });
}

SPECDEC_END
