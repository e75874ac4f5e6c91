// Cells: a cell is a group of 64 columns, and what is kept of it is its largest element. A row of 128,256 tokens has
// 2,004 cells, which fit the L1 cache. They answer most questions about the row's largest tokens, with a look into a
// few cells.
#pragma once

#include "row.h"
#include "specdec/filter.h"

SPECDEC_BEGIN

constexpr int32_t kCellsATile = kTile / kCell;
static_assert(kCell == kGroup, "A race dismisses groups by the maxima of cells");

// The cells of a row, those of its last tile counted in full.
SPECDEC_HD int32_t cells_of(int32_t vocab) { return tiles_of(vocab) * kCellsATile; }

// The maxima of the sixteen cells from `p` on; elements from the `count`-th on are -inf. The mask returned is not 0 if a
// NaN was met.
template <class Elements>
SPECDEC_HD Mask sixteen_cells(Elements p, int32_t count, float* maxima) {
  F16 best[kLanes];
  Mask bad = 0;
  for (int cell = 0; cell < kLanes; ++cell) {
    best[cell] = F16(-kInfinity);
    for (int i = 0; i < kCellVectors; ++i) {
      const int32_t at = cell * kCell + i * kLanes;
      if (at >= count) break;
      const F16 x = load_first(p + at, count - at, -kInfinity);
      best[cell] = max(x, best[cell]);
      bad |= unordered(x);
    }
  }
  store(maxima, largest_of_each(best));
  return bad;
}

// The same of sixteen cells that all lie inside of the row.
template <class Elements>
SPECDEC_HD Mask sixteen_cells(Elements p, float* maxima) {
  F16 best[kLanes];
  Mask bad = 0;
  for (int cell = 0; cell < kLanes; ++cell) {
    const Elements at = p + cell * kCell;
    prefetch_cell(at + kTile);
    const auto [a, b, c, d] = load_cell(at).vector;
    // max(NaN, x) is x, but max(x, NaN) is NaN. So each new element stands on the left.
    best[cell] = max(d, max(c, max(b, max(a, F16(-kInfinity)))));
    bad |= unordered(a) | unordered(b) | unordered(c) | unordered(d);
  }
  store(maxima, largest_of_each(best));
  return bad;
}

// Fills the raw maxima of all cells of a row of logits, and of its tiles. Returns the status of the row's elements.
SPECDEC_HD int32_t row_cells(const Row& row, const Crew& crew, float* cells, float* tile_maxima) {
  constexpr int32_t kBlock = kLanes * kCell;
  return over_tiles(row.tiles(), crew, [&](int32_t tile, int32_t* status) {
    float* const first = cells + tile * kCellsATile;
    const int32_t size = row.tile_size(tile);
    const Mask bad = with_elements(row, tile * kTile, [&](auto p) {
      Mask any = 0;
      float* mine = first;
      for (int32_t at = 0; at < kTile; at += kBlock, mine += kLanes)
        any |= at + kBlock <= size ? sixteen_cells(p + at, mine) : sixteen_cells(p + at, size - at, mine);
      return any;
    });
    tile_maxima[tile] = largest(max(load(first), load(first + kLanes)));
    if (bad || tile_maxima[tile] == kInfinity) *status |= kStatusNonFinite;
  });
}

SPECDEC_END
