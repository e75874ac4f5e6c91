// What translated PTX calls. One C++ function is a kernel, as one thread runs it; a register is a union, so that each
// instruction reads and writes the type it names. It includes little: every translated file is compiled with it.
#pragma once

#include <cstdint>

namespace ptx {

union R16 {
  uint16_t b16, u16;
  int16_t s16;
  uint8_t b8, u8;
  int8_t s8;
};
union R32 {
  uint32_t b32, u32;
  int32_t s32;
  float f32;
  uint16_t b16, u16;
  int16_t s16;
  uint8_t b8, u8;
  int8_t s8;
};
union R64 {
  uint64_t b64, u64;
  int64_t s64;
  double f64;
  uint32_t b32, u32;
  int32_t s32;
  float f32;
  uint16_t b16, u16;
  int16_t s16;
  uint8_t b8, u8;
  int8_t s8;
};

struct Quad {
  uint32_t b32[4];
};

struct At {  // a line of the PTX
  const char* file;
  int line;
};

using Body = void (*)(const char* param);
struct Kernel {
  Kernel(const char* name, Body body, unsigned param_bytes, unsigned shared_bytes, unsigned most_threads);
};

// ---- the thread and its place ---------------------------------------------------------------------------------------

enum Place { kTid, kNtid, kCtaid, kNctaid };
unsigned place(Place which, int axis);
unsigned lane();
unsigned rank_in_cluster();
unsigned blocks_in_cluster();

// ---- memory: each access is checked ---------------------------------------------------------------------------------

// Shared memory has addresses of its own: a window for each block of a cluster, and one behind them for what is generic.
uint64_t shared_window();
uint64_t to_generic(uint64_t shared);
uint64_t to_shared(uint64_t generic, At at);
uint64_t of_peer(uint64_t generic, uint32_t rank, At at);

enum Access { kRead, kWrite, kAtomic };
void* at_generic(uint64_t address, unsigned bytes, bool writes, At at);
void* at_global(uint64_t address, unsigned bytes, At at);
void* at_acquired(uint64_t address, unsigned bytes, At at);  // others may run before
void* at_atomic(uint64_t address, unsigned bytes, At at);    // also here
void* at_shared(uint64_t address, unsigned bytes, Access access, At at);
// Does a store to shared memory change nothing, where machine code may do that? Triton's may: threads that hold copies of
// one value all write it.
bool is_there(uint64_t address, const void* value, unsigned bytes);
void* at_local(uint64_t address, unsigned bytes, const char* local, unsigned local_bytes, At at);
void* at_param(uint64_t address, unsigned bytes, const char* param, unsigned param_bytes, At at);

// ---- arithmetic -----------------------------------------------------------------------------------------------------

[[noreturn]] void trap(At at, const char* what = "trap");
template <class T>
T quotient(T a, T b, At at) {
  if (b == 0) trap(at, "a division by zero");
  return T(-1) < 0 && b == T(-1) ? T(-a) : T(a / b);  // the most negative number, divided by -1, is itself
}
template <class T>
T remainder_of(T a, T b, At at) {
  if (b == 0) trap(at, "a division by zero");
  return T(-1) < 0 && b == T(-1) ? T(0) : T(a % b);
}
template <class T>
T inserted(T a, T b, uint32_t at, uint32_t count) {
  constexpr uint32_t bits = 8 * sizeof(T);
  at &= 255, count &= 255;
  if (at >= bits || count == 0) return b;
  const T mask = (count >= bits ? T(-1) : T((T(1) << count) - 1)) << at;
  return (b & ~mask) | ((a << at) & mask);
}
template <class T>
T extracted(T a, uint32_t at, uint32_t count) {
  constexpr uint32_t bits = 8 * sizeof(T);
  at &= 255, count &= 255;
  if (count == 0) return 0;
  const uint32_t last = at + count - 1 < bits - 1 ? at + count - 1 : bits - 1;
  const T filler = T(-1) < 0 && (a >> last & 1) ? T(-1) : T(0);
  const T moved = at < bits ? T(a >> at) : filler;
  return count >= bits ? moved : T((moved & ((T(1) << count) - 1)) | (filler << count));
}
template <class T>
T toward_zero(float a) {  // saturates
  constexpr int bits = 8 * sizeof(T);
  constexpr bool is_signed = T(-1) < 0;
  constexpr T most = is_signed ? T((uint64_t(1) << (bits - 1)) - 1) : T(-1), least = is_signed ? T(-most - 1) : T(0);
  if (a != a) return bits == 64 ? T(uint64_t(1) << 63) : T(0);
  if (a >= static_cast<float>(most)) return most;  // its float is `most` + 1, or is not below it
  return a <= static_cast<float>(least) ? least : static_cast<T>(a);
}
uint32_t reversed(uint32_t a);
uint32_t permuted(uint32_t a, uint32_t b, uint32_t selectors);
// Two floats in each word.
inline float plus(float x, float y) { return x + y; }
inline float minus(float x, float y) { return x - y; }
inline float times(float x, float y) { return x * y; }
inline float times_plus(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
template <class F, class... Words>
uint64_t by_pairs(F&& f, Words... words) {
  const auto half = [](uint64_t word, int shift) {
    R32 part;
    part.b32 = static_cast<uint32_t>(word >> shift);
    return part.f32;
  };
  R32 low, high;
  low.f32 = f(half(words, 0)...), high.f32 = f(half(words, 32)...);
  return uint64_t{high.b32} << 32 | low.b32;
}
float smaller(float a, float b);
float larger(float a, float b);
float larger_or_nan(float a, float b);
uint32_t larger_or_nan_of_halves(uint32_t a, uint32_t b, float (*to_float)(uint16_t));
float from_half(uint16_t a);
float from_bfloat(uint16_t a);
inline bool is_nan_bfloat(uint16_t a) { return (a & 0x7fff) > 0x7f80; }
uint16_t to_half(float a);
// Anywhere within what the PTX ISA documents: the value and the seed say where.
float exp2_within(float a, bool flushes);  // what is subnormal to 0
float log2_within(float a);
float quotient_within(float a, float b);

// ---- what others take part in: `form` is the instruction's name -----------------------------------------------------

uint32_t shuffled(const char* form, uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool* in_range, At at);
uint32_t votes(const char* form, bool a, uint32_t mask, At at);
uint32_t reduced(const char* form, uint32_t a, uint32_t mask, At at);
float reduced_by(float (*one_of)(float, float), const char* form, float a, uint32_t mask, At at);
void store_matrices(const char* form, uint64_t row, Quad parts, At at);
uint32_t load_matrix(const char* form, uint64_t row, At at);
void sync_warp(uint32_t mask, At at);
uint32_t sync_block(const char* form, uint32_t barrier, bool a, At at);  // how many threads brought true
void arrive_at_cluster(bool* arrived, At at);
void wait_for_cluster(bool* arrived, At at);
void fence_cluster();
void wait_for_kernel_before(At at);

}  // namespace ptx
