// Declarations that all copies of the CPU kernels share. There is a copy for each instruction set.
#pragma once

#include <atomic>
#include <cstdint>

#include "specdec/config.h"

namespace specdec {

constexpr int kMaxParts = 64;  // a row has at most so many

extern std::atomic<int64_t> weighed_rows;  // how many rows' masses were taken; tests count them

// Memory of this thread that lasts until the next call with the same id; throws std::bad_alloc.
float* scratch(int scratch_id, int64_t floats);

}  // namespace specdec
