// Shared by the copies of the CPU kernels. There is a copy for each instruction set.
#pragma once

#include <atomic>
#include <cstdint>

#include "specdec/config.h"

namespace specdec {

constexpr int kMaxParts = 64;  // a row has at most so many

extern std::atomic<int64_t> weighed_rows;  // how many rows' masses were taken; for tests of what should not take them

// Memory of this thread that lasts until the same slot is asked for again; throws std::bad_alloc.
float* scratch(int slot, int64_t floats);

}  // namespace specdec
