// What the copies of the CPU kernels, one per instruction set, share.
#pragma once

#include <cstdint>

#include "specdec/ops.h"

namespace specdec {

constexpr int kMaxParts = 64;  // threads on one row at most

// Memory of this thread that lasts until the same slot is asked for again; throws std::bad_alloc.
float* scratch(int slot, int64_t floats);

}  // namespace specdec
