// What translated PTX calls (thread.h), on the machine that host_cuda plays.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "../host_cuda/machine.h"
#include "memory.h"
#include "thread.h"

namespace ptx {

namespace {

using host_cuda::Site;

Site site(At at) { return {at.file, at.line}; }
bool has(const char* form, const char* part) { return std::strstr(form, part) != nullptr; }

constexpr unsigned kWindow = 24;  // bits of an address within a block's shared memory
constexpr uint64_t kGeneric = uint64_t{1} << 62;

void check_aligned(uint64_t address, unsigned bytes, At at) {
  if (address % bytes) host_cuda::fault("a misaligned " + std::to_string(bytes) + "-byte access", site(at));
}

uint64_t window_of(unsigned rank) { return uint64_t{rank + 1} << kWindow; }
uint64_t offset_of(uint64_t shared) { return shared & ((1u << kWindow) - 1); }

// Of any block of the cluster.
void* in_shared(uint64_t address, unsigned bytes, Access access, At at) {
  const uint64_t window = address >> kWindow, offset = offset_of(address);
  if (window == 0 || window > host_cuda::cluster_size()) host_cuda::fault("no address of shared memory", site(at));
  check_aligned(offset, bytes, at);
  host_cuda::Range all = host_cuda::all_shared(static_cast<unsigned>(window - 1), "shared memory", site(at));
  all.count /= bytes;
  // Where the source reads one word or another, nvcc may read both: a word that nobody wrote gives its poison.
  const auto how = access == kRead    ? host_cuda::Access::kSpeculated
                   : access == kWrite ? host_cuda::Access::kWrite
                                      : host_cuda::Access::kAtomic;
  return host_cuda::shared_at(all, static_cast<ptrdiff_t>(offset / bytes), bytes, how, site(at));
}

bool copies_are_written = false;

bool on_stack(uint64_t address) {  // of this thread, whose frame holds its local memory
  char here;
  const int64_t above = static_cast<int64_t>(address) - static_cast<int64_t>(reinterpret_cast<uintptr_t>(&here));
  return above > 0 && above < HOST_CUDA_STACK;
}

const uint64_t* meet(const char* form, uint64_t value, uint32_t mask, At at) {
  return host_cuda::collective(form, mask, value, site(at));
}

}  // namespace

// ---- the thread and its place ---------------------------------------------------------------------------------------

unsigned place(Place which, int axis) {
  const auto of = [axis](const auto& v) { return axis == 0 ? v.x : axis == 1 ? v.y : v.z; };
  return which == kTid ? of(threadIdx) : which == kNtid ? of(blockDim) : which == kCtaid ? of(blockIdx) : of(gridDim);
}
unsigned lane() { return static_cast<unsigned>(host_cuda::lane()); }
unsigned rank_in_cluster() { return host_cuda::cluster_rank(); }
unsigned blocks_in_cluster() { return host_cuda::cluster_size(); }

// ---- memory ---------------------------------------------------------------------------------------------------------

std::vector<Piece>& memory() {
  static std::vector<Piece> pieces;
  return pieces;
}

extern "C" void ptx_copies_are_written(bool on) { copies_are_written = on; }

bool is_there(uint64_t address, const void* value, unsigned bytes) {
  const bool own = address >> kWindow == host_cuda::cluster_rank() + 1u;
  return copies_are_written && own && host_cuda::shared_holds(offset_of(address), value, bytes);
}

uint64_t shared_window() { return window_of(host_cuda::cluster_rank()); }
uint64_t to_generic(uint64_t shared) { return kGeneric | shared; }
uint64_t to_shared(uint64_t generic, At at) {
  if (!(generic & kGeneric)) host_cuda::fault("cvta.to.shared: no address of shared memory", site(at));
  return generic & ~kGeneric;
}
uint64_t of_peer(uint64_t generic, uint32_t rank, At at) {
  const uint64_t shared = to_shared(generic, at);
  const uint32_t bytes = host_cuda::all_shared(rank, "mapa", site(at)).count;
  if (shared >> kWindow != shared_window() >> kWindow || offset_of(shared) >= bytes)
    host_cuda::fault("mapa: no address of the block's shared memory", site(at));
  return to_generic(window_of(rank) | offset_of(shared));
}

void* at_global(uint64_t address, unsigned bytes, At at) {
  check_aligned(address, bytes, at);
  host_cuda::memory_touched(site(at));
  static size_t last = 0;  // threads mostly stay in one piece
  const auto holds = [&](const Piece& piece) { return address >= piece.begin && address + bytes <= piece.end; };
  const std::vector<Piece>& all = memory();
  if (last < all.size() && holds(all[last])) return reinterpret_cast<void*>(address);
  for (last = 0; last < all.size(); ++last)
    if (holds(all[last])) return reinterpret_cast<void*>(address);
  std::string what = std::to_string(bytes) + " bytes of global memory that the call does not have";
  for (const Piece& piece : all) {
    const int64_t before = static_cast<int64_t>(piece.begin - address), behind = static_cast<int64_t>(address + bytes - piece.end);
    const std::string piece_is = " of " + std::to_string(piece.end - piece.begin) + " bytes";
    if (before > 0 && before <= 4096) what += ", " + std::to_string(before) + " bytes before the start" + piece_is;
    if (behind > 0 && behind <= 4096) what += ", " + std::to_string(behind) + " bytes behind the end" + piece_is;
  }
  host_cuda::fault(what, site(at));
}
void* at_acquired(uint64_t address, unsigned bytes, At at) {
  void* const found = at_global(address, bytes, at);
  host_cuda::spin();
  return found;
}
void* at_atomic(uint64_t address, unsigned bytes, At at) {
  void* const found = at_global(address, bytes, at);
  host_cuda::yield();
  host_cuda::progress();
  return found;
}
void* at_shared(uint64_t address, unsigned bytes, Access access, At at) {
  if (address >> kWindow != shared_window() >> kWindow) host_cuda::fault("no address of the block's shared memory", site(at));
  if (access == kAtomic) {
    host_cuda::yield();
    host_cuda::progress();
  }
  return in_shared(address, bytes, access, at);
}
void* at_local(uint64_t address, unsigned bytes, const char* local, unsigned local_bytes, At at) {
  check_aligned(address, bytes, at);
  const uint64_t start = reinterpret_cast<uint64_t>(local);
  if (address < start || address + bytes > start + local_bytes) host_cuda::fault("local memory out of bounds", site(at));
  return reinterpret_cast<void*>(address);
}
void* at_param(uint64_t address, unsigned bytes, const char* param, unsigned param_bytes, At at) {
  check_aligned(address, bytes, at);
  const uint64_t start = reinterpret_cast<uint64_t>(param);
  if (address < start || address + bytes > start + param_bytes) host_cuda::fault("parameters out of bounds", site(at));
  return reinterpret_cast<void*>(address);
}
void* at_generic(uint64_t address, unsigned bytes, bool writes, At at) {
  if (address & kGeneric) return in_shared(address & ~kGeneric, bytes, writes ? kWrite : kRead, at);
  if (!on_stack(address)) return at_global(address, bytes, at);
  check_aligned(address, bytes, at);
  return reinterpret_cast<void*>(address);
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

void trap(At at, const char* what) { host_cuda::fault(what, site(at)); }

namespace {

constexpr R32 kNan = {0x7fffffff};  // what instructions give that make one

bool is_negative(float a) { return std::signbit(a); }

// Where in [-1, 1] an approximation is: one place for each value and seed, as an instruction always gives the same.
double error_of(float a, float b) {
  R32 bits, more;
  bits.f32 = a, more.f32 = b;
  uint64_t x = (uint64_t{more.b32} << 32 | bits.b32) ^ host_cuda::device().schedule * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return static_cast<double>(static_cast<int64_t>(x ^ x >> 31)) * 0x1p-63;
}

float rounded_within(double exact, double bound, float a, float b = 0.0f) {
  float value = static_cast<float>(exact + bound * error_of(a, b));
  while (std::fabs(value - exact) > bound) value = std::nextafter(value, static_cast<float>(exact));
  return value;
}

}  // namespace

uint32_t reversed(uint32_t a) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= (a >> i & 1) << (31 - i);
  return result;
}
uint32_t permuted(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> 4 * i & 15, byte = bytes >> 8 * (selector & 7) & 255;
    result |= (selector < 8 ? byte : byte >> 7 ? 255 : 0) << 8 * i;  // from 8 on its sign, eight times
  }
  return result;
}
float smaller(float a, float b) {
  if (a != a) return b != b ? kNan.f32 : b;
  return b != b ? a : a < b || (a == b && is_negative(a)) ? a : b;
}
float larger(float a, float b) {
  if (a != a) return b != b ? kNan.f32 : b;
  return b != b ? a : a > b || (a == b && !is_negative(a)) ? a : b;
}
float larger_or_nan(float a, float b) { return a != a || b != b ? kNan.f32 : larger(a, b); }
uint32_t larger_or_nan_of_halves(uint32_t a, uint32_t b, float (*to_float)(uint16_t)) {
  uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const uint16_t x = a >> shift & 0xffff, y = b >> shift & 0xffff;
    const float fx = to_float(x), fy = to_float(y);
    const bool first = fx > fy || (fx == fy && !is_negative(fx));
    result |= uint32_t{fx != fx || fy != fy ? uint16_t{0x7fff} : first ? x : y} << shift;
  }
  return result;
}
float from_half(uint16_t a) {
  _Float16 value;
  std::memcpy(&value, &a, sizeof value);
  return static_cast<float>(value);
}
float from_bfloat(uint16_t a) {
  R32 value;
  value.b32 = uint32_t{a} << 16;
  return value.f32;
}
uint16_t to_half(float a) {
  if (a != a) return 0x7fff;
  const _Float16 value = static_cast<_Float16>(a);
  uint16_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
float exp2_within(float a, bool flushes) {
  if (a != a) return kNan.f32;
  if (std::fabs(a) < 0x1p-126f) return 1.0f;
  const double exact = std::exp2(static_cast<double>(a));
  if (exact >= 0x1p128) return INFINITY;
  // Below, floats are further apart than the error.
  const float value = exact < 0x1p-126 ? static_cast<float>(exact) : rounded_within(exact, exact * 0x1p-22, a);
  return flushes && value < 0x1p-126f ? 0.0f : value;
}
float log2_within(float a) {
  if (a != a || a <= -0x1p-126f) return kNan.f32;
  if (a < 0x1p-126f) return -INFINITY;
  if (std::isinf(a)) return a;
  const double exact = std::log2(static_cast<double>(a));
  return rounded_within(exact, (a > 0.5f && a < 2.0f ? 1.0 : std::fabs(exact)) * 0x1p-22, a);
}

float quotient_within(float a, float b) {
  const float nearest = a / b;
  if (!std::isnormal(nearest) || std::isinf(b)) return nearest;
  const double ulp = std::fabs(nearest) - std::nextafter(std::fabs(nearest), 0.0f);
  return rounded_within(static_cast<double>(a) / b, 2 * ulp, a, b);
}

// ---- what others take part in ---------------------------------------------------------------------------------------

uint32_t shuffled(const char* form, uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool* in_range, At at) {
  const uint64_t* const brought = meet(form, a, mask, at);
  const int mine = host_cuda::lane(), segment = c >> 8 & 31, by = b & 31;
  const int bound = (mine & segment) | (c & 31 & ~segment);
  const int source = has(form, ".up")     ? mine - by
                     : has(form, ".down") ? mine + by
                     : has(form, ".bfly") ? mine ^ by
                                          : (mine & segment) | (by & ~segment);
  *in_range = has(form, ".up") ? source >= bound : source <= bound;
  const int from = *in_range ? source : mine;
  if (!(mask >> from & 1))
    host_cuda::fault(std::string(form) + ": reads lane " + std::to_string(from) + ", which is not in the mask", site(at));
  return static_cast<uint32_t>(brought[from]);
}
uint32_t votes(const char* form, bool a, uint32_t mask, At at) {
  const uint64_t* const brought = meet(form, a, mask, at);
  uint32_t ballot = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1 && brought[i]) ballot |= 1u << i;
  return ballot;
}
uint32_t reduced(const char* form, uint32_t a, uint32_t mask, At at) {
  const uint64_t* const brought = meet(form, a, mask, at);
  const uint32_t bias = has(form, ".s32") ? 0x80000000u : 0;  // an order without signs
  const auto join = [&](uint32_t x, uint32_t y) {
    if (has(form, ".add")) return x + y;
    if (has(form, ".min")) return std::min(x ^ bias, y ^ bias) ^ bias;
    if (has(form, ".max")) return std::max(x ^ bias, y ^ bias) ^ bias;
    return has(form, ".and") ? x & y : has(form, ".xor") ? x ^ y : x | y;
  };
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1 && i != host_cuda::lane()) a = join(a, static_cast<uint32_t>(brought[i]));
  return a;
}
float reduced_by(float (*one_of)(float, float), const char* form, float a, uint32_t mask, At at) {
  R32 value;
  value.f32 = a;
  const uint64_t* const brought = meet(form, value.b32, mask, at);
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    value.b32 = static_cast<uint32_t>(brought[i]);
    a = one_of(a, value.f32);
  }
  return a;
}
// Lane 8 i + j has the address of row j of matrix i; each lane brings two elements of each matrix.
void store_matrices(const char* form, uint64_t row, Quad parts, At at) {
  check_aligned(offset_of(row), 16, at);
  const uint64_t* const rows = meet(form, row, 0xffffffffu, at);
  const unsigned mine = lane();
  uint64_t to[4];
  for (unsigned i = 0; i < 4; ++i) to[i] = rows[8 * i + mine / 4] + 4 * (mine % 4);
  for (unsigned i = 0; i < 4; ++i) *static_cast<uint32_t*>(at_shared(to[i], 4, kWrite, at)) = parts.b32[i];
}
// Lane j < 8 has the address of row j; each lane gets two elements.
uint32_t load_matrix(const char* form, uint64_t row, At at) {
  const unsigned mine = lane();
  if (mine < 8) check_aligned(offset_of(row), 16, at);
  const uint64_t* const rows = meet(form, row, 0xffffffffu, at);
  return *static_cast<uint32_t*>(at_shared(rows[mine / 4] + 4 * (mine % 4), 4, kRead, at));
}
void sync_warp(uint32_t mask, At at) { host_cuda::sync_warp(mask, site(at)); }
uint32_t sync_block(const char* form, uint32_t barrier, bool a, At at) {
  if (barrier != 0) host_cuda::fault("a barrier that is not played: " + std::to_string(barrier), site(at));
  return host_cuda::sync_threads(form, a, site(at));
}
void arrive_at_cluster(bool* arrived, At at) {
  if (*arrived) host_cuda::fault("arrives at the cluster's barrier twice", site(at));
  *arrived = true;
}
// The arrival counts from here on only. So work between the two never helps others along.
void wait_for_cluster(bool* arrived, At at) {
  if (!*arrived) host_cuda::fault("waits at the cluster's barrier without an arrival", site(at));
  *arrived = false;
  host_cuda::sync_cluster(site(at));
}
void fence_cluster() { host_cuda::fence_cluster(); }
void wait_for_kernel_before(At at) { host_cuda::wait_for_kernel_before(site(at)); }

}  // namespace ptx
