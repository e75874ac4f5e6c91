// Sums of weights as whole numbers (specdec/residual.h), sixteen lanes at a time.
#pragma once

#include "row.h"
#include "specdec/residual.h"

SPECDEC_BEGIN

static_assert(kTile / kLanes <= 1023, "A lane's sums hold a tile");

inline uint64_t total(const UnitSum<F32x16>& sum) {
  uint32_t high[kLanes], low[kLanes];
  store(high, sum.high), store(low, sum.low);
  uint64_t units = 0;
  for (int i = 0; i < kLanes; ++i) units += units_of(high[i], low[i]);
  return units;
}

SPECDEC_END
