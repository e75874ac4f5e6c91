// Reads a row's elements, sixteen at a time, plain or edited. All code that scans rows reads through this file and
// row.h, so it has no branches on edits.
#pragma once

#include "../simd.h"

SPECDEC_BEGIN

constexpr int32_t kCell = 64;  // columns
constexpr int32_t kCellVectors = kCell / kLanes;

SPECDEC_HD Mask first_lanes(int32_t count) { return count >= kLanes ? 0xffffu : (1u << count) - 1u; }

// The bits of sixteen columns from `column` on, a multiple of eight.
SPECDEC_HD Mask sixteen_bits(const void* bits, uint32_t column) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Bit i of a word is bit i % 8 of byte i / 8");
  uint16_t sixteen;
  std::memcpy(&sixteen, static_cast<const char*>(bits) + column / 8, sizeof sixteen);
  return sixteen;
}

// The edits of a row. A column's element is in a list, or the column is forbidden (-inf), or the row's element is read.
struct RowEdits {
  const uint32_t* allowed;  // a bit for each column, 32 a word; null: all
  const uint64_t* listed;   // a bit for each column, 64 a word; null: none
  const int32_t* before;    // for each cell, how many of the columns before it are listed
  const float* values;      // of the listed columns, by rising column. Up to sixteen more may be read

  // Whether edits alone decide a column's element: *value is null if it is forbidden. Out of line, so that rows without
  // edits are not slowed down.
  __attribute__((noinline)) bool decide(uint32_t column, const float** value) const {
    *value = nullptr;
    if (allowed && !(allowed[column / 32] >> column % 32 & 1u)) return true;
    if (!listed) return false;
    const uint64_t word = listed[column / kCell], bit = uint64_t{1} << column % kCell;
    if (!(word & bit)) return false;
    *value = values + before[column / kCell] + __builtin_popcountll(word & (bit - 1));
    return true;
  }

  // Sixteen edited elements from `column` on. `x` are the row's; `lanes` is the mask of those inside of the row.
  SPECDEC_HD F32x16 edited(F32x16 x, uint32_t column, Mask lanes) const {
    if (listed) x = inserted(x, column, listed[column / kCell], before[column / kCell]);
    return allowed ? permitted(x, column, lanes) : x;
  }
  // With the cell's word of `listed`, and its `before`.
  SPECDEC_HD F32x16 inserted(F32x16 x, uint32_t column, uint64_t word, int32_t first) const {
    const uint64_t lower = word & ((uint64_t{1} << column % kCell) - 1);
    return expand(sixteen_bits(listed, column), values + first + __builtin_popcountll(lower), x);
  }
  SPECDEC_HD F32x16 permitted(F32x16 x, uint32_t column, Mask lanes) const {
    return where(sixteen_bits(allowed, column) | ~lanes, x, F32x16(-kInfinity));
  }
};

// Edited elements from a column on, used like a pointer to elements. Columns are multiples of sixteen.
template <class T>
struct Edited {
  const T* data;  // column 0
  const RowEdits* edits;
  int32_t column;
  SPECDEC_HD Edited operator+(int32_t columns) const { return {data, edits, column + columns}; }
};

template <class T>
SPECDEC_HD Edited<T> edited_from(const T* data, const RowEdits& edits, int32_t column) {
  return {data, &edits, column};
}

template <class T>
SPECDEC_HD F32x16 load(const Edited<T>& p) {
  return p.edits->edited(load(p.data + p.column), p.column, 0xffffu);
}

// Lanes past `count` read as `fill`.
template <class T>
SPECDEC_HD F32x16 load_first(const Edited<T>& p, int count, float fill) {
  return p.edits->edited(load_first(p.data + p.column, count, fill), p.column, first_lanes(count));
}

// The elements of a cell that lies inside of the row.
struct Cell {
  F32x16 vector[kCellVectors];
};

template <class T>
SPECDEC_HD Cell load_cell(const T* p) {
  return {{load(p), load(p + kLanes), load(p + 2 * kLanes), load(p + 3 * kLanes)}};
}

// Most cells have no listed columns. A vector's bits are read from memory, which is faster than shifting a mask.
template <class T>
SPECDEC_HD Cell load_cell(const Edited<T>& p) {
  const RowEdits& e = *p.edits;
  const uint32_t cell = static_cast<uint32_t>(p.column) / kCell, at = cell * kCell;
  auto [a, b, c, d] = load_cell(p.data + p.column).vector;
  if (const uint64_t word = e.listed ? e.listed[cell] : 0) {
    const int32_t first = e.before[cell];
    a = e.inserted(a, at, word, first), b = e.inserted(b, at + kLanes, word, first);
    c = e.inserted(c, at + 2 * kLanes, word, first), d = e.inserted(d, at + 3 * kLanes, word, first);
  }
  if (e.allowed) {
    const Mask all = 0xffffu;
    a = e.permitted(a, at, all), b = e.permitted(b, at + kLanes, all);
    c = e.permitted(c, at + 2 * kLanes, all), d = e.permitted(d, at + 3 * kLanes, all);
  }
  return {{a, b, c, d}};
}

// Fetches some columns. They may lie past the row's end.
template <int kColumns, class T>
SPECDEC_HD void prefetch(const T* p) {
  for (int line = 0; line < kColumns; line += 64 / static_cast<int>(sizeof(T))) __builtin_prefetch(p + line);
}
template <class T>
SPECDEC_HD void prefetch_cell(const T* p) { prefetch<kCell>(p); }
template <class T>
SPECDEC_HD void prefetch_cell(const Edited<T>& p) { prefetch_cell(p.data + p.column); }

SPECDEC_END
