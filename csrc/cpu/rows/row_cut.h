// The cut of a row's filters, and the order of tokens that filters cut.
#pragma once

#include "cells.h"

SPECDEC_BEGIN

constexpr int32_t kListed = 4096;  // the most tokens that are listed and sorted

// A token as an integer: its value's key (`ordered`), then its column's complement. In the order of filters larger
// entries come first.
inline uint64_t list_entry(float v, int32_t column) {
  return static_cast<uint64_t>(ordered(v)) << 32 | ~static_cast<uint32_t>(column);
}
inline int32_t column_at(uint64_t entry) { return static_cast<int32_t>(~static_cast<uint32_t>(entry)); }
inline uint32_t key_at(uint64_t entry) { return static_cast<uint32_t>(entry >> 32); }
inline float value_at(uint64_t entry) { return from_ordered(key_at(entry)); }

// The values that a filter compares. A NaN stays one, +inf is the largest finite number.
SPECDEC_HD F32x16 value_of(const Filter& f, F32x16 raw) { return min(F32x16(kLargest), f.order.key(raw)); }

// The lanes of sixteen values from column `at` on that a cut keeps.
SPECDEC_HD Mask lanes_in_cut(const Cut& cut, F32x16 v, int32_t at) {
  const F32x16 least(cut.value);
  const Mask above = greater(v, least);
  if (cut.last < at) return above;
  const Mask equal = at_least(v, least) & ~above;
  return cut.last - at >= kLanes - 1 ? above | equal : above | (equal & ((2u << (cut.last - at)) - 1u));
}

// The result of a row's filters.
struct RowCut {
  Cut cut;
  uint64_t mass;         // the sum of the weights in the cut; valid with a list, or if the caller requested it
  int32_t count;         // how many tokens are in the cut; valid where mass is
  const uint64_t* list;  // the entries of these tokens, in no order; null if they are too many to list
};
constexpr RowCut kUncut = {kKeepsAll, 0, 0, nullptr};  // without count and mass

SPECDEC_END
