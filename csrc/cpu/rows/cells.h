// Cells: a cell is a group of 64 columns, stored as its largest element. A row of 128,256 tokens has 2,004 cells, which
// fit the L1 cache. With them most searches for the row's largest tokens read only a few cells' columns.
#pragma once

#include "row.h"
#include "specdec/filter.h"

SPECDEC_BEGIN

constexpr int32_t kCellsATile = kTile / kCell;
static_assert(kCell == kGroup, "A race dismisses groups by the maxima of cells");

// The number of a row's cells; its last tile counts in full.
inline int32_t cells_of(int32_t vocab) { return tiles_of(vocab) * kCellsATile; }

inline float tile_max(const float* cells, int32_t tile) {
  const float* first = cells + tile * kCellsATile;
  return largest(max(load(first), load(first + kLanes)));
}

SPECDEC_END
