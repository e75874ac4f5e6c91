// How a row's elements are read: sixteen at a time, from the row itself or with edits on the way. All texts of rows read
// through this file and row.h, so none of them knows of edits.
#pragma once

#include "simd.h"

SPECDEC_BEGIN

constexpr int32_t kCell = 64;  // columns
constexpr int32_t kCellVectors = kCell / kLanes;

SPECDEC_HD Mask first_lanes(int32_t count) { return count >= kLanes ? 0xffffu : (1u << count) - 1u; }

// What edits change in a row. A column's new value is in a list, or the column is forbidden (-inf), or it is as it was.
struct RowEdits {
  const uint32_t* allowed;  // a bit for each column, 32 a word; null: all
  const uint64_t* listed;   // likewise, 64 a word: is the column listed? null: none
  const int32_t* before;    // for each cell: how many of the columns before it are listed
  const float* values;      // of the listed columns, by rising column; sixteen more may be read

  // The bits of sixteen columns from `column` on, a multiple of sixteen.
  SPECDEC_HD Mask allowed_from(int32_t column) const {
    return allowed ? allowed[column / 32] >> column % 32 & 0xffffu : 0xffffu;
  }
  // Those of a cell that lies inside of the row.
  SPECDEC_HD uint64_t cell_allowed(int32_t column) const {
    if (!allowed) return ~uint64_t{0};
    uint64_t word;
    std::memcpy(&word, allowed + column / 32, sizeof word);
    return word;
  }
  // Whether edits alone decide a column's element: *value is null where it is forbidden. Out of line: rows without edits are not slowed down.
  __attribute__((noinline)) bool decides(int32_t column, const float** value) const {
    *value = nullptr;
    if (allowed && !(allowed[column / 32] >> column % 32 & 1u)) return true;
    if (!listed) return false;
    const uint64_t word = listed[column / kCell], bit = uint64_t{1} << column % kCell;
    if (!(word & bit)) return false;
    *value = values + before[column / kCell] + __builtin_popcountll(word & (bit - 1));
    return true;
  }
  SPECDEC_HD F16 inserted(F16 x, uint64_t word, int shift, int32_t first) const {
    const uint64_t lower = word & ((uint64_t{1} << shift) - 1);
    return expand(static_cast<Mask>(word >> shift & 0xffffu), values + first + __builtin_popcountll(lower), x);
  }
  // `x` are the elements from `column` on, `lanes` says which of them are inside of the row.
  SPECDEC_HD F16 edited(F16 x, int32_t column, Mask lanes) const {
    if (listed) x = inserted(x, listed[column / kCell], column % kCell, before[column / kCell]);
    return where(allowed_from(column) | ~lanes, x, F16(-kInfinity));
  }
};

// Edited elements from a column on: used like a pointer to elements. Columns are multiples of sixteen.
template <class T>
struct Edited {
  const T* data;  // of column 0
  const RowEdits* edits;
  int32_t column;
  SPECDEC_HD Edited operator+(int32_t columns) const { return {data, edits, column + columns}; }
};

template <class T>
SPECDEC_HD Edited<T> edited_from(const T* data, const RowEdits& edits, int32_t column) { return {data, &edits, column}; }

template <class T>
SPECDEC_HD F16 load(const Edited<T>& p) {
  return p.edits->edited(load(p.data + p.column), p.column, 0xffffu);
}

// Lanes past `count` read as `fill`.
template <class T>
SPECDEC_HD F16 load_first(const Edited<T>& p, int count, float fill) {
  return p.edits->edited(load_first(p.data + p.column, count, fill), p.column, first_lanes(count));
}

// The elements of a cell that lies inside of the row.
struct Cell {
  F16 vector[kCellVectors];
};

template <class T>
SPECDEC_HD Cell load_cell(const T* p) {
  return {{load(p), load(p + kLanes), load(p + 2 * kLanes), load(p + 3 * kLanes)}};
}

template <class T>
SPECDEC_HD Cell load_cell(const Edited<T>& p) {
  const RowEdits& e = *p.edits;
  const F16 forbidden(-kInfinity);
  const uint64_t allowed = e.cell_allowed(p.column);
  if (allowed == 0) return {{forbidden, forbidden, forbidden, forbidden}};
  Cell cell = load_cell(p.data + p.column);
  if (e.listed) {
    const uint64_t word = e.listed[p.column / kCell];
    const int32_t first = e.before[p.column / kCell];
    for (int k = 0; k < kCellVectors; ++k) cell.vector[k] = e.inserted(cell.vector[k], word, k * kLanes, first);
  }
  if (e.allowed) {
    for (int k = 0; k < kCellVectors; ++k)
      cell.vector[k] = where(static_cast<Mask>(allowed >> k * kLanes) & 0xffffu, cell.vector[k], forbidden);
  }
  return cell;
}

// Fetches a cell. It may lie past the row's end.
template <class T>
SPECDEC_HD void prefetch_cell(const T* p) {
  for (int line = 0; line < kCell; line += 64 / static_cast<int>(sizeof(T))) __builtin_prefetch(p + line);
}
template <class T>
SPECDEC_HD void prefetch_cell(const Edited<T>& p) { prefetch_cell(p.data + p.column); }

SPECDEC_END
