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

// The maxima of the sixteen cells from `p` on; elements from the `count`-th on are -inf. The mask returned is not 0 if
// an element was met that is impossible in the space.
template <class Space, class Elements>
SPECDEC_HD Mask sixteen_cells(const Space& space, Elements p, int32_t count, float* maxima) {
  F16 best[kLanes];
  Mask bad = 0;
  for (int cell = 0; cell < kLanes; ++cell) {
    best[cell] = F16(-kInfinity);
    for (int i = 0; i < kCellVectors; ++i) {
      const int32_t at = cell * kCell + i * kLanes;
      if (at >= count) break;
      const F16 x = load_first(p + at, count - at, -kInfinity);
      best[cell] = max(x, best[cell]);
      bad |= space.foreign(x, x, first_lanes(count - at));
    }
  }
  store(maxima, largest_of_each(best));
  return bad;
}

// The same of sixteen cells that all lie inside of the row.
template <class Space, class Elements>
SPECDEC_HD Mask sixteen_cells(const Space& space, Elements p, float* maxima) {
  F16 best[kLanes];
  Mask bad = 0;
  for (int cell = 0; cell < kLanes; ++cell) {
    const Elements at = p + cell * kCell;
    prefetch_cell(at + kTile);
    const auto [a, b, c, d] = load_cell(at).vector;
    // max(NaN, x) is x, but max(x, NaN) is NaN. So each new element stands on the left.
    best[cell] = max(d, max(c, max(b, max(a, F16(-kInfinity)))));
    const Mask all = 0xffffu;
    bad |= space.foreign(a, b, all) | space.foreign(c, d, all);
  }
  store(maxima, largest_of_each(best));
  return bad;
}

// Fills the raw maxima of a tile's cells.
template <class Space>
SPECDEC_HD void tile_cells(const Row& row, const Space& space, int32_t tile, float* cells, int32_t* status) {
  constexpr int32_t kBlock = kLanes * kCell;
  float* const first = cells + tile * kCellsATile;
  const int32_t size = row.tile_size(tile);
  Mask bad = with_elements(row, tile * kTile, [&](auto p) {
    Mask any = 0;
    float* mine = first;
    for (int32_t at = 0; at < kTile; at += kBlock, mine += kLanes)
      any |= at + kBlock <= size ? sixteen_cells(space, p + at, mine) : sixteen_cells(space, p + at, size - at, mine);
    return any;
  });
  bad |= at_least(max(load(first), load(first + kLanes)), F16(kInfinity));
  if (bad) *status |= kStatusNonFinite;
}

// Fills the raw maxima of all cells of a row. Returns the status of the row's elements.
SPECDEC_HD int32_t row_cells(const Row& row, const Law& law, const Crew& crew, float* cells) {
  return law.in_space([&](auto space) {
    return over_tiles(row.tiles(), crew,
                      [&](int32_t tile, int32_t* status) { tile_cells(row, space, tile, cells, status); });
  });
}

SPECDEC_HD float tile_max(const float* cells, int32_t tile) {
  const float* first = cells + tile * kCellsATile;
  return largest(max(load(first), load(first + kLanes)));
}

// The first column of a cell whose element is at least `value`, or kNoToken.
SPECDEC_HD int32_t first_at_least(const Row& row, int32_t cell, float value) {
  const Cell elements = cell_of(row, cell * kCell);
  for (int k = 0; k < kCellVectors; ++k) {
    const Mask found = at_least(elements.vector[k], F16(value));
    if (found) return cell * kCell + k * kLanes + __builtin_ctz(found);
  }
  return kNoToken;
}

// The most probable token, the lowest on ties.
SPECDEC_HD Candidate row_argmax(const Row& row, const Law& law, const float* cells) {
  F16 most(-kInfinity);
  for (int32_t i = 0; i < cells_of(row.vocab); i += kLanes) most = max(load(cells + i), most);
  const float raw = largest(most), top = law.rank(raw);
  if (top == -kInfinity) return kNobody;
  const F16 least(top);
  int32_t i = 0;
  while (!at_least(load(cells + i), least)) i += kLanes;
  return {top, first_at_least(row, i + __builtin_ctz(at_least(load(cells + i), least)), top)};
}

SPECDEC_END
