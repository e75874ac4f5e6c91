// The global memory that kernels may touch, byte by byte.
#pragma once

#include <cstdint>
#include <vector>

namespace ptx {

struct Piece {
  uint64_t begin, end;
};
std::vector<Piece>& memory();

}  // namespace ptx
