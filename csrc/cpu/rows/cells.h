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
inline int32_t cells_of(int32_t vocab) { return tiles_of(vocab) * kCellsATile; }

inline float tile_max(const float* cells, int32_t tile) {
  const float* first = cells + tile * kCellsATile;
  return largest(max(load(first), load(first + kLanes)));
}

SPECDEC_END
