// Rows of a vocabulary as a warp reads them: eight 16-byte vectors a lane, side by side over the lanes.
#pragma once

#include "../arch.cuh"
#include "specdec/law.h"
#include "specdec/partial.h"

namespace specdec::cuda {

constexpr int kVectors = 8;  // 16-byte loads of a lane in flight

// ---- element types --------------------------------------------------------------------------------------------------

struct Float32 {
  using Raw = uint32_t;
  static constexpr int kPerVector = 4;
  static constexpr Raw kMinusInfinity = 0xff800000u;
  __device__ static float value(Raw raw) { return from_bits(raw); }
  __device__ static float at(const uint4& v, int i) { return value(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w); }
  __device__ static float largest(const uint4& v) {
    return max_nan(max_nan(value(v.x), value(v.y)), max_nan(value(v.z), value(v.w)));
  }
  __device__ static bool any_sign(const uint4& v) { return (v.x | v.y | v.z | v.w) >> 31; }
};

struct BFloat16 {
  using Raw = uint16_t;
  static constexpr int kPerVector = 8;
  static constexpr Raw kMinusInfinity = 0xff80u;
  __device__ static float value(Raw raw) { return from_bits(static_cast<uint32_t>(raw) << 16); }
  __device__ static float at(const uint4& v, int i) {
    const uint32_t word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
    return from_bits(i % 2 ? word & 0xffff0000u : word << 16);
  }
  __device__ static float largest(const uint4& v) {
    const uint32_t pair = max2_nan_bf16(max2_nan_bf16(v.x, v.y), max2_nan_bf16(v.z, v.w));
    return max_nan(from_bits(pair << 16), from_bits(pair & 0xffff0000u));
  }
  __device__ static bool any_sign(const uint4& v) { return (v.x | v.y | v.z | v.w) & 0x80008000u; }
};

struct Float16 {
  using Raw = uint16_t;
  static constexpr int kPerVector = 8;
  static constexpr Raw kMinusInfinity = 0xfc00u;
  __device__ static float value(Raw raw) { return __half2float(__half_raw{raw}); }
  __device__ static float at(const uint4& v, int i) {
    const uint32_t word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
    return value(static_cast<Raw>(i % 2 ? word >> 16 : word));
  }
  __device__ static float largest(const uint4& v) {
    const uint32_t pair = max2_nan_fp16(max2_nan_fp16(v.x, v.y), max2_nan_fp16(v.z, v.w));
    return max_nan(value(static_cast<Raw>(pair)), value(static_cast<Raw>(pair >> 16)));
  }
  __device__ static bool any_sign(const uint4& v) { return (v.x | v.y | v.z | v.w) & 0x80008000u; }
};

// ---- rows -----------------------------------------------------------------------------------------------------------

struct Row {
  const void* data;
  int32_t vocab;
  int32_t dtype;
  int32_t vocab_start = 0;  // column 0 is this token; all other numbers here count columns

  // Tokens of the first column's group that lie before the row. Chunks begin with that group, so they hold whole
  // groups.
  __device__ __forceinline__ int32_t skipped() const { return vocab_start % kGroup; }
};

// A row of the whole vocabulary; the compiler knows that vocab_start is 0.
__device__ __forceinline__ Row row_at(const Rows& rows, int64_t offset) {
  const int64_t size = rows.dtype == SPECDEC_FLOAT32 ? 4 : 2;
  return {static_cast<const char*>(rows.data) + offset * size, rows.vocab, rows.dtype};
}

// A row that may be a part of one.
__device__ __forceinline__ Row part_at(const Rows& rows, int64_t offset) {
  Row row = row_at(rows, offset);
  row.vocab_start = rows.vocab_start;
  return row;
}

// Calls f with the type that elements are loaded as. The branch is the same for a whole block.
template <class F>
__device__ __forceinline__ auto with_type(const Row& row, F&& f) {
  switch (row.dtype) {
    case SPECDEC_BFLOAT16: return f(BFloat16{});
    case SPECDEC_FLOAT16: return f(Float16{});
    default: return f(Float32{});
  }
}

// Whether edits forbid a token of this element.
__device__ __forceinline__ bool forbids(const Row&, float) { return false; }

// The row in memory, without edits.
__device__ __forceinline__ const Row& stored_row(const Row& row) { return row; }

// The row with a vocab_start that the compiler knows to be 0.
__device__ __forceinline__ Row whole_row(const Row& row) { return {row.data, row.vocab, row.dtype}; }

// One element, for rare reads. A draft row may be shorter than the target's, so callers check `vocab` first.
__device__ __forceinline__ float element(const Row& row, int32_t token) {
  return row.dtype == SPECDEC_FLOAT32    ? static_cast<const float*>(row.data)[token]
         : row.dtype == SPECDEC_BFLOAT16 ? BFloat16::value(static_cast<const uint16_t*>(row.data)[token])
                                         : Float16::value(static_cast<const uint16_t*>(row.data)[token]);
}

struct alignas(16) Four {
  float value[4];
};

// Elements token .. token + 3 of a row; past its end, -inf.
__device__ __forceinline__ Four four_elements(const Row& row, int32_t token) {
  const int size = row.dtype == SPECDEC_FLOAT32 ? 4 : 2;
  const char* at = static_cast<const char*>(row.data) + static_cast<int64_t>(token) * size;
  if (token + 4 <= row.vocab && reinterpret_cast<uintptr_t>(at) % (4 * size) == 0) {
    if (size == 4) {
      const uint4 v = load_stream(at);
      return {{Float32::at(v, 0), Float32::at(v, 1), Float32::at(v, 2), Float32::at(v, 3)}};
    }
    const uint2 half = *reinterpret_cast<const uint2*>(at);
    const uint4 v = {half.x, half.y, 0, 0};
    if (row.dtype == SPECDEC_BFLOAT16)
      return {{BFloat16::at(v, 0), BFloat16::at(v, 1), BFloat16::at(v, 2), BFloat16::at(v, 3)}};
    return {{Float16::at(v, 0), Float16::at(v, 1), Float16::at(v, 2), Float16::at(v, 3)}};
  }
  Four four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.value[i] = token + i < row.vocab ? element(row, token + i) : -kInfinity;
  return four;
}

// A lane's vectors of `kWords` words, `kStep` elements apart, which may begin anywhere. They are read by aligned words,
// with all loads in flight together. `mine` is the first vector's column; from column `stop` on there are none. A
// vector that begins in the middle of a word takes half of the next one, so it needs a neighbour on both sides.
// Elements outside of the row, and vectors at its edges, are `nothing`.
template <int kWords, int kStep, int kCount, class Raw>
__device__ __forceinline__ void load_words(const Raw* data, int32_t vocab, int32_t mine, int32_t stop,
                                           uint32_t nothing, uint32_t (&vectors)[kCount][kWords]) {
  constexpr int kSize = sizeof(Raw);
  const int32_t odd = reinterpret_cast<uintptr_t>(data + mine) % 4 / kSize;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(data + mine - odd);
  const int32_t end = stop + odd < vocab ? stop + odd : vocab;
  const int32_t starts = end - kWords * 4 / kSize - 2 * odd + 1;  // a vector's first word is at a column below this
  uint32_t word[kCount][kWords + 1];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const bool inside = static_cast<uint32_t>(mine - odd + u * kStep) < static_cast<uint32_t>(starts > 0 ? starts : 0);
    const uint32_t* vector_words = words + u * (kStep * kSize / 4);
#pragma unroll
    for (int w = 0; w <= kWords; ++w) word[u][w] = inside ? vector_words[w < kWords ? w : kWords - 1 + odd] : nothing;
  }
#pragma unroll
  for (int u = 0; u < kCount; ++u)
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      vectors[u][w] = static_cast<uint32_t>((uint64_t{word[u][w + 1]} << 32 | word[u][w]) >> 16 * odd);
}

struct EditedRow;  // edited_row.cuh

// The part of a row that a warp holds at once: `kCount` vectors a lane, from token `first` on.
template <class T, int kCount = kVectors>
struct Batch {
  static constexpr int kPerStep = 32 * T::kPerVector;  // tokens of one vector over the warp
  static constexpr int kTokens = kCount * kPerStep;    // with eight: 2,048 for 16-bit types, 1,024 for float32
  static constexpr int kGroupsAStep = kPerStep / kGroup;
  using Raw = typename T::Raw;
  static constexpr uint32_t kNothing = sizeof(Raw) == 4 ? T::kMinusInfinity : T::kMinusInfinity * 0x10001u;
  uint4 vector[kCount];

  __device__ static int32_t token(int32_t first, int step) {
    return first + step * kPerStep + lane_id() * T::kPerVector;
  }

  // Loads the vector at column `at` again: it is in a cache.
  __device__ __forceinline__ static uint4 load_again(const Row& row, int32_t at) {
    const Raw* data = static_cast<const Raw*>(row.data);
    return aligned(row) && at >= 0 && row.vocab - at >= T::kPerVector ? *reinterpret_cast<const uint4*>(data + at)
                                                                      : load_elements(data, at, row.vocab);
  }

  // Vector `step`, of a step that the compiler does not know. It is selected, so that all vectors stay in registers.
  __device__ uint4 at(int step) const {
    uint4 v = vector[0];
#pragma unroll
    for (int u = 1; u < kCount; ++u)
      if (step == u) v = vector[u];
    return v;
  }

  // Steps from `count` on and columns outside of the row are -inf. `first` may lie before the row.
  __device__ void load(const Row& row, int32_t first, int count) {
    const Raw* data = static_cast<const Raw*>(row.data);
    bool begins = false;  // the row begins in this batch
    if (aligned(row) && first >= 0) {
      const Raw* mine = data + token(first, 0);  // one address register; instructions add the steps
      if (count == kCount && row.vocab - first >= kTokens) {
#pragma unroll
        for (int u = 0; u < kCount; ++u) vector[u] = load_stream(mine + u * kPerStep);
        return;
      }
      // The end of a row, or fewer steps. Whole vectors are in flight together, too. (With one condition more the
      // compiler branches around each load, and they come one after the other.)
      const int32_t left = row.vocab - token(first, 0);
#pragma unroll
      for (int u = 0; u < kCount; ++u)
        vector[u] = u < count && left - u * kPerStep >= T::kPerVector ? load_stream(mine + u * kPerStep)
                                                                      : uint4{kNothing, kNothing, kNothing, kNothing};
      if ((row.vocab - first) % T::kPerVector == 0) return;
    } else {
      uint32_t words[kCount][4];
      load_words<4, kPerStep>(data, row.vocab, token(first, 0), first + count * kPerStep, kNothing, words);
#pragma unroll
      for (int u = 0; u < kCount; ++u) vector[u] = {words[u][0], words[u][1], words[u][2], words[u][3]};
      begins = first <= 0;
    }
    // Loads the vectors in which the row begins and ends element by element.
    const int32_t last = first + (row.vocab - 1 - first) / T::kPerVector * T::kPerVector;
    int32_t edge = begins ? first % T::kPerVector : last;
#pragma unroll 1
    for (; static_cast<uint32_t>(edge - first) < static_cast<uint32_t>(count * kPerStep); edge = last) {
      put(load_elements(data, edge, row.vocab), edge - first);
      if (edge == last) break;
    }
  }

  // Loads of rows with edits.
  __device__ void load(const EditedRow& row, int32_t first, int count);
  __device__ static uint4 load_again(const EditedRow& row, int32_t at);

  // Stores the vector that begins `from` tokens after the batch's first. It is selected, as in at().
  __device__ __forceinline__ void put(const uint4& v, int32_t from) {
    const int step = from % kPerStep / T::kPerVector == lane_id() ? from / kPerStep : -1;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      uint4& held = vector[u];
      held = {step == u ? v.x : held.x, step == u ? v.y : held.y, step == u ? v.z : held.z, step == u ? v.w : held.w};
    }
  }

 private:
  // Whether vectors begin on 16 bytes.
  __device__ __forceinline__ static bool aligned(const Row& row) {
    return reinterpret_cast<uintptr_t>(static_cast<const Raw*>(row.data) - row.skipped()) % 16 == 0;
  }

  __device__ __forceinline__ static uint4 load_elements(const Raw* data, int32_t token, int32_t end) {
    constexpr int kPerWord = T::kPerVector / 4;
    uint32_t word[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      word[w] = 0;
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const int32_t at = token + w * kPerWord + i;
        const uint32_t raw = at >= 0 && at < end ? data[at] : T::kMinusInfinity;
        word[w] |= raw << (i * 16);
      }
    }
    return {word[0], word[1], word[2], word[3]};
  }
};

template <class T>
__device__ __forceinline__ void prefetch(const Row& row, int32_t first, int count) {
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const int32_t token = Batch<T>::token(first, u);
    if (token >= 0 && token < row.vocab) prefetch_line(static_cast<const typename T::Raw*>(row.data) + token);
  }
}

}  // namespace specdec::cuda
