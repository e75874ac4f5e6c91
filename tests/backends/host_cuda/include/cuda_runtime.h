// The part of the CUDA runtime and language that csrc/cuda uses, played by host_cuda::machine. Nothing here is copied
// from NVIDIA's headers; names and meanings follow the CUDA C++ Programming Guide. Numbers and places in structs are
// CUDA's, too: objects that nvcc has compiled link with this (tests/backends/ptx).
#pragma once

#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "../machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

// ---- runtime --------------------------------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorNoDevice = 100,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorInvalidClusterSize = 912,
};

inline const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorInvalidClusterSize: return "invalid cluster size";
    default: return ::host_cuda::last_fault().c_str();
  }
}

// What a thread's last error is, until it is taken. A call that succeeds leaves it.
inline cudaError_t& host_cuda_pending() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}
inline cudaError_t host_cuda_failed(cudaError_t error) { return host_cuda_pending() = error; }
inline cudaError_t cudaPeekAtLastError() { return host_cuda_pending(); }
inline cudaError_t cudaGetLastError() { return std::exchange(host_cuda_pending(), cudaSuccess); }

using cudaStream_t = struct host_cuda_stream*;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrClusterLaunch = 120,
};

// A device of another kind is another device: what was allowed on one is not known of the other.
inline cudaError_t cudaGetDevice(int* device) { return *device = ::host_cuda::device().capability, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id) {
  *id = ::host_cuda::capture();
  return *status = *id ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}

enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
inline cudaStreamCaptureMode& host_cuda_capture_mode() {
  static thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  return mode;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return std::swap(*mode, host_cuda_capture_mode()), cudaSuccess;
}
// Another thread may be capturing, so this is not permitted in other modes.
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  const bool relaxed = host_cuda_capture_mode() == cudaStreamCaptureModeRelaxed;
  return relaxed ? cudaSuccess : host_cuda_failed(cudaErrorStreamCaptureUnsupported);
}

// The device's memory is the host's, and nothing runs once a launch has returned.
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
inline cudaError_t cudaMalloc(void** memory, size_t bytes) { return *memory = std::malloc(bytes), cudaSuccess; }
inline cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return std::memset(memory, value, bytes), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const ::host_cuda::Device& d = ::host_cuda::device();
  *value = which == cudaDevAttrMultiProcessorCount        ? d.multiprocessors
           : which == cudaDevAttrComputeCapabilityMajor ? d.capability / 10
           : which == cudaDevAttrComputeCapabilityMinor ? d.capability % 10
           : which == cudaDevAttrClusterLaunch          ? d.has_clusters()
                                                        : static_cast<int>(::host_cuda::shared_limit());
  return cudaSuccess;
}

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
};
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute which, int value) {
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize)
    ::host_cuda::allow_dynamic_shared(reinterpret_cast<const void*>(kernel), static_cast<size_t>(value));
  return cudaSuccess;
}

// What a kernel declares is known when it runs. It may be this much.
struct cudaFuncAttributes {
  size_t sharedSizeBytes = 4 << 10, constSizeBytes = 0, localSizeBytes = 0;
  int maxThreadsPerBlock = 1024, numRegs = 0, ptxVersion = ::host_cuda::device().code;
};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  if (::host_cuda::capture() && host_cuda_capture_mode() != cudaStreamCaptureModeRelaxed)
    return host_cuda_failed(cudaErrorStreamCaptureUnsupported);
  return ::host_cuda::load(kernel), cudaSuccess;
}

template <class T>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, T*, int, size_t dynamic_shared) {
  return *blocks = ::host_cuda::blocks_that_fit(dynamic_shared), cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
union cudaLaunchAttributeValue {
  char room[64];
  struct {
    unsigned x, y, z;
  } clusterDim;
  int cooperative, programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  alignas(8) cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <class T>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, T*, const cudaLaunchConfig_t* config) {
  const ::host_cuda::Device& d = ::host_cuda::device();
  unsigned size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) size = config->attrs[i].val.clusterDim.x;
  if (!d.has_clusters() || d.refuses) return host_cuda_failed(cudaErrorInvalidClusterSize);
  return *clusters = d.usable() * ::host_cuda::blocks_that_fit(config->dynamicSmemBytes) / static_cast<int>(size), cudaSuccess;
}

inline ::host_cuda::Launch host_cuda_launch_of(const cudaLaunchConfig_t* config) {
  ::host_cuda::Launch launch;
  launch.grid = config->gridDim;
  launch.block = config->blockDim;
  launch.dynamic_shared = config->dynamicSmemBytes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension) launch.cluster = {a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z};
    if (a.id == cudaLaunchAttributeCooperative) launch.cooperative = a.val.cooperative;
    if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      launch.overlaps = a.val.programmaticStreamSerializationAllowed;
  }
  return launch;
}
inline cudaError_t host_cuda_launch(const ::host_cuda::Launch& launch) {
  if (launch.cooperative && ::host_cuda::device().refuses) return host_cuda_failed(cudaErrorCooperativeLaunchTooLarge);
  return ::host_cuda::launch(launch) ? cudaSuccess : host_cuda_failed(cudaErrorLaunchFailure);
}

template <class... Expected, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...), Given&&... given) {
  ::host_cuda::Launch launch = host_cuda_launch_of(config);
  launch.kernel = reinterpret_cast<const void*>(kernel);
  Dl_info info{};
  launch.name = dladdr(reinterpret_cast<void*>(kernel), &info) && info.dli_sname ? info.dli_sname : "?";
  const std::tuple<Expected...> arguments(static_cast<Expected>(given)...);  // every thread gets its own copy
  launch.body = [&] { std::apply(kernel, arguments); };
  return host_cuda_launch(launch);
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

inline float __uint_as_float(unsigned a) { float r; return std::memcpy(&r, &a, 4), r; }
inline unsigned __float_as_uint(float a) { unsigned r; return std::memcpy(&r, &a, 4), r; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __clz(int a) { return a ? __builtin_clz(static_cast<unsigned>(a)) : 32; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }

// ---- warps ----------------------------------------------------------------------------------------------------------

namespace host_cuda {

template <class T>
uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8, "");
  uint64_t word = 0;
  return std::memcpy(&word, &value, sizeof value), word;
}
template <class T>
T from_word(uint64_t word) {
  T value;
  return std::memcpy(&value, &word, sizeof value), value;
}

template <class T>
T shuffle(const char* kind, uint32_t mask, T value, int source, Site site) {
  const uint64_t* brought = collective(kind, mask, to_word(value), site);
  if (!(mask >> source & 1)) fault(std::string(kind) + ": reads lane " + std::to_string(source) + ", which is not in the mask", site);
  return from_word<T>(brought[source]);
}

template <class T, class Op>
T reduce(const char* kind, uint32_t mask, T value, Op op, Site site) {
  const uint64_t* brought = collective(kind, mask, to_word(value), site);
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1 && i != lane()) value = op(value, from_word<T>(brought[i]));
  return value;
}

}  // namespace host_cuda

using host_cuda_site = ::host_cuda::Site;

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int = 32, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::shuffle("__shfl_sync", mask, value, source & 31, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int = 32, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::shuffle("__shfl_xor_sync", mask, value, (::host_cuda::lane() ^ with) & 31, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int = 32, host_cuda_site site = host_cuda_site::here()) {
  const int source = ::host_cuda::lane() - static_cast<int>(by);
  return ::host_cuda::shuffle("__shfl_up_sync", mask, value, source < 0 ? ::host_cuda::lane() : source, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, host_cuda_site site = host_cuda_site::here()) {
  const uint64_t* brought = ::host_cuda::collective("__ballot_sync", mask, predicate != 0, site);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1 && brought[i]) votes |= 1u << i;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, host_cuda_site site = host_cuda_site::here()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, host_cuda_site site = host_cuda_site::here()) {
  return __ballot_sync(mask, predicate, site) == mask;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::reduce("__reduce_max_sync", mask, value, [](unsigned a, unsigned b) { return a > b ? a : b; }, site);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::reduce("__reduce_min_sync", mask, value, [](unsigned a, unsigned b) { return a < b ? a : b; }, site);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::reduce("__reduce_add_sync", mask, value, [](unsigned a, unsigned b) { return a + b; }, site);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::reduce("__reduce_or_sync", mask, value, [](unsigned a, unsigned b) { return a | b; }, site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, host_cuda_site site = host_cuda_site::here()) {
  ::host_cuda::sync_warp(mask, site);
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

inline void __syncthreads(host_cuda_site site = host_cuda_site::here()) { ::host_cuda::sync_threads("__syncthreads", 0, site); }
inline int __syncthreads_or(int predicate, host_cuda_site site = host_cuda_site::here()) {
  return ::host_cuda::sync_threads("__syncthreads_or", predicate != 0, site) != 0;
}

// ---- shared memory: a checked handle where CUDA has a pointer -----------------------------------------------------------

namespace host_cuda {

template <class T>
class Shared {
 public:
  class Element {
   public:
    Element(const Shared& array, ptrdiff_t index, Site site) : array_(array), index_(index), site_(site) {}
    operator T() const {
      T value;
      return std::memcpy(&value, array_.at(index_, Access::kRead, site_), sizeof value), value;
    }
    const Element& operator=(const T& value) const {
      std::memcpy(array_.at(index_, Access::kWrite, site_), &value, sizeof value);
      return *this;
    }
    const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
    Shared operator&() const { return array_ + index_; }

   private:
    Shared array_;
    ptrdiff_t index_;
    Site site_;
  };

  Shared() = default;
  Shared(const Range& range, ptrdiff_t start = 0) : range_(range), start_(start) {}
  // The site of the access: operators take no default arguments, but a converting index does.
  struct Index {
    ptrdiff_t value;
    Site site;
    template <class I>
    Index(I value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) : value(static_cast<ptrdiff_t>(value)), site{file, line} {}
  };
  Element operator[](Index i) const { return {*this, i.value, i.site}; }
  Element operator*() const { return {*this, 0, Site::here()}; }
  Shared operator+(ptrdiff_t by) const { return {range_, start_ + by}; }
  const Range& range() const { return range_; }
  ptrdiff_t start() const { return start_; }
  char* at(ptrdiff_t index, Access access, Site site) const { return shared_at(range_, start_ + index, sizeof(T), access, site); }

 private:
  Range range_;
  ptrdiff_t start_ = 0;
};

template <class T, class Op>
T atomic(T* at, Op op) {
  memory_touched(Site::here());
  yield();
  const T old = *at;
  *at = op(old);
  progress();
  return old;
}
template <class T, class Op>
T atomic(const Shared<T>& at, Op op, Site site) {
  yield();
  T old;
  char* bytes = at.at(0, Access::kAtomic, site);
  std::memcpy(&old, bytes, sizeof old);
  const T now = op(old);
  std::memcpy(bytes, &now, sizeof now);
  progress();
  return old;
}

}  // namespace host_cuda

#define HOST_CUDA_ATOMIC(name, expression)                                                                        \
  template <class T>                                                                                              \
  T name(T* at, T v) {                                                                                            \
    return ::host_cuda::atomic(at, [v](T old) -> T { return expression; });                                       \
  }                                                                                                               \
  template <class T>                                                                                              \
  T name(const ::host_cuda::Shared<T>& at, T v, host_cuda_site site = host_cuda_site::here()) {                   \
    return ::host_cuda::atomic(at, [v](T old) -> T { return expression; }, site);                                 \
  }
HOST_CUDA_ATOMIC(atomicAdd, old + v)
HOST_CUDA_ATOMIC(atomicMax, old > v ? old : v)
HOST_CUDA_ATOMIC(atomicMin, old < v ? old : v)
HOST_CUDA_ATOMIC(atomicOr, old | v)
HOST_CUDA_ATOMIC(atomicExch, (static_cast<void>(old), v))
#undef HOST_CUDA_ATOMIC
