// What the filters of a row keep, and how to ask whether a token is kept.
#pragma once

#include "cells.h"

SPECDEC_BEGIN

constexpr int32_t kListed = 4096;  // the most tokens that are listed and sorted

// A token's place in the order of filters, as an integer: its value's key (`ordered`), then its column's complement.
// A larger place comes earlier.
inline uint64_t place_of(float v, int32_t column) {
  return static_cast<uint64_t>(ordered(v)) << 32 | ~static_cast<uint32_t>(column);
}
inline int32_t column_at(uint64_t place) { return static_cast<int32_t>(~static_cast<uint32_t>(place)); }
inline uint32_t key_at(uint64_t place) { return static_cast<uint32_t>(place >> 32); }
inline float value_at(uint64_t place) { return from_ordered(key_at(place)); }

// What a filter compares. A NaN stays one, +inf is the largest finite number.
SPECDEC_HD F32x16 value_of(const Filter& f, F32x16 raw) { return min(F32x16(kLargest), f.order.key(raw)); }

// The lanes of sixteen values from column `at` on that a cut keeps.
SPECDEC_HD Mask lanes_kept(const Cut& cut, F32x16 v, int32_t at) {
  const F32x16 least(cut.value);
  const Mask above = greater(v, least);
  if (cut.last < at) return above;
  const Mask equal = at_least(v, least) & ~above;
  return cut.last - at >= kLanes - 1 ? above | equal : above | (equal & ((2u << (cut.last - at)) - 1u));
}

// What filters keep of a row.
struct Kept {
  Cut cut;
  uint64_t mass;         // the sum of the kept tokens' weights; valid with a list, or if it was asked for
  int32_t count;         // how many tokens are kept; valid where mass is
  const uint64_t* list;  // the places of the kept tokens, in no order; null if they are too many to list
};
constexpr Kept kUncut = {kKeepsAll, 0, 0, nullptr};  // and nothing counted

SPECDEC_END
