// csrc/cuda/arch.cuh for the played machine: the same names, checked.
#pragma once

#include "cuda_runtime.h"

#define SPECDEC_SHARED(type, name, count) \
  const ::host_cuda::Shared<type> name(::host_cuda::static_shared([] { static const char tag = 0; return &tag; }(), sizeof(type), count, #name))

namespace specdec {
namespace cuda {

using ::host_cuda::Shared;
using Site = ::host_cuda::Site;

constexpr bool kHasClusters = true;  // the machine's capability decides at run time

template <class T>
Shared<T> dynamic_shared(size_t byte_offset, size_t count, Site site = Site::here()) {
  return ::host_cuda::dynamic_shared(byte_offset, sizeof(T), count, "dynamic shared memory", site);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

inline uint4 load_stream(const void* p, Site site = Site::here()) {
  ::host_cuda::memory_touched(site);
  if (reinterpret_cast<uintptr_t>(p) % 16) ::host_cuda::fault("a misaligned 16-byte load", site);
  uint4 v;
  ::host_cuda::counters().bytes_read += sizeof v;
  return std::memcpy(&v, p, sizeof v), v;
}
inline uint2 load_stream_half(const void* p, Site site = Site::here()) {
  ::host_cuda::memory_touched(site);
  if (reinterpret_cast<uintptr_t>(p) % 8) ::host_cuda::fault("a misaligned 8-byte load", site);
  uint2 v;
  ::host_cuda::counters().bytes_read += sizeof v;
  return std::memcpy(&v, p, sizeof v), v;
}
inline void prefetch_line(const void* p) { static_cast<void>(*static_cast<const volatile char*>(p)); }
template <class T>
T load_acquire(const T* p) {
  ::host_cuda::memory_touched(Site::here());
  ::host_cuda::spin();
  const T value = *p;
  ::host_cuda::acquire(p);
  ::host_cuda::yield();  // what was read may be old by the time it is used
  return value;
}
template <class T>
void put_word(T* p, T v, Site site = Site::here()) {
  ::host_cuda::word_written(p, site);
  *p = v;
}
template <class T>
T load_fresh(const T* p, Site site = Site::here()) {
  ::host_cuda::word_read(p, site);
  return *p;
}
inline unsigned add_acquire_release(unsigned* p, unsigned v) {
  return ::host_cuda::atomic(p, [p, v](unsigned old) {
    ::host_cuda::acquire(p);
    ::host_cuda::release(p);
    return old + v;
  });
}

// ---- instructions ---------------------------------------------------------------------------------------------------

inline float max_nan(float a, float b) { return a != a || b != b ? __builtin_nanf("") : (a > b ? a : b); }
template <class ToFloat>
uint32_t max2_nan(uint32_t a, uint32_t b, ToFloat to_float, uint32_t nan) {
  uint32_t r = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const uint32_t x = a >> shift & 0xffff, y = b >> shift & 0xffff;
    const float fx = to_float(x), fy = to_float(y);
    r |= (fx != fx || fy != fy ? nan : fx > fy ? x : y) << shift;
  }
  return r;
}
inline uint32_t max2_nan_bf16(uint32_t a, uint32_t b) {
  return max2_nan(a, b, [](uint32_t x) { return __uint_as_float(x << 16); }, 0x7fff);
}
inline uint32_t max2_nan_fp16(uint32_t a, uint32_t b) {
  return max2_nan(a, b, [](uint32_t x) { return __half2float(__half_raw{static_cast<unsigned short>(x)}); }, 0x7fff);
}
inline uint32_t opaque(uint32_t x) { return x; }
// The device's instruction is good to 2^-22 between 0.5 and 2, elsewhere to 2^-22 of its own size, and takes subnormal
// numbers for 0. So that nothing comes to lean on more, this is that bad, in one direction or the other.
inline float log2_approx(float x) {
  if (!(x >= 0x1p-126f)) return std::log2(x < 0.0f ? x : 0.0f);
  const double exact = std::log2(static_cast<double>(x)), size = x > 0.5f && x < 2.0f ? 1.0 : std::fabs(exact);
  const bool below = __popc(__float_as_uint(x)) & 1;
  return static_cast<float>(exact + (below ? -size : size) * 0x1p-22);
}

// As bad as the device's: within 2^-22 of its size, in one direction or the other.
inline float exp2_approx(float x) {
  const double exact = std::exp2(static_cast<double>(x));
  if (exact < 0x1p-126) return 0.0f;
  const bool below = __popc(__float_as_uint(x)) & 1;
  return static_cast<float>(exact * (below ? 1.0 - 0x1p-22 : 1.0 + 0x1p-22));
}

// ---- kernels one after the other ------------------------------------------------------------------------------------

inline void wait_for_kernel_before(Site site = Site::here()) { ::host_cuda::wait_for_kernel_before(site); }

// ---- clusters -------------------------------------------------------------------------------------------------------

inline unsigned block_rank() { return ::host_cuda::cluster_rank(); }
inline void fence_cluster() { ::host_cuda::fence_cluster(); }
inline void sync_cluster(Site site = Site::here()) { ::host_cuda::sync_cluster(site); }
template <class T>
Shared<T> peer(const Shared<T>& mine, unsigned rank, Site site = Site::here()) {
  return {::host_cuda::peer_shared(mine.range(), rank, site), mine.start()};
}

// ---- the host -------------------------------------------------------------------------------------------------------

inline bool overlap_wanted() { return ::host_cuda::device().overlaps; }
struct RequestedTeam {
  int size;
  bool grid;
};
inline RequestedTeam requested_team() { return {::host_cuda::device().team, ::host_cuda::device().team_is_grid}; }
inline int multiprocessors_of(cudaStream_t, int) { return ::host_cuda::device().usable(); }

}  // namespace cuda
}  // namespace specdec
