// Declarations that all copies of the CPU kernels share. There is a copy for each instruction set.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "specdec/config.h"

namespace specdec {

constexpr int kMaxParts = 64;  // a row has at most so many

extern std::atomic<int64_t> weighed_rows;  // how many rows' masses were taken; tests count them

// Memory of this thread that lasts until the next call with the same id; throws std::bad_alloc.
std::byte* scratch_bytes(int scratch_id, int64_t bytes);

template <class T>
T* scratch(int scratch_id, int64_t count) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));
  return reinterpret_cast<T*>(scratch_bytes(scratch_id, count * static_cast<int64_t>(sizeof(T))));
}

// Lays arrays one behind the other into memory, the widest type first.
class Arrays {
 public:
  explicit Arrays(std::byte* memory) : next_(memory) {}
  template <class T>
  T* take(int64_t count) {
    T* const array = reinterpret_cast<T*>(next_);
    next_ += count * static_cast<int64_t>(sizeof(T));
    return array;
  }

 private:
  std::byte* next_;
};

}  // namespace specdec
