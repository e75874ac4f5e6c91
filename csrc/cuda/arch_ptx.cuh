// arch.cuh for nvcc. Inline PTX stands only where CUDA C++ has no intrinsic.
#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

// Members of shared structs are not initialised; the played machine checks that no read comes before a write.
#pragma nv_diag_suppress 20054
#define SPECDEC_SHARED(type, name, count) __shared__ type name[count]

namespace specdec::cuda {

template <class T>
using Shared = T*;

template <class T>
__device__ __forceinline__ T* dynamic_shared(size_t byte_offset, size_t) {
  extern __shared__ __align__(16) unsigned char arena[];
  return reinterpret_cast<T*>(arena + byte_offset);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// 16 bytes that no thread writes during the kernel and that this block reads once. They bypass the L1 cache.
__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

// Eight such bytes.
__device__ __forceinline__ uint2 load_stream_half(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

__device__ __forceinline__ void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

__device__ __forceinline__ unsigned load_acquire(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Writes what other blocks read after a barrier or ticket.
template <class T>
__device__ __forceinline__ void put_word(T* p, T v) { *p = v; }

// Reads from the L2 cache what another block wrote before a barrier or ticket.
__device__ __forceinline__ unsigned long long load_fresh(const unsigned long long* p) { return __ldcg(p); }

__device__ __forceinline__ unsigned add_acquire_release(unsigned* p, unsigned v) {
  unsigned old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}

// ---- instructions ---------------------------------------------------------------------------------------------------

// Maxima that a NaN wins: one test at the end is enough.
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ uint32_t max2_nan_bf16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t max2_nan_fp16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// Hides a value from the compiler, which then leaves work on it in its loop: the twenty round keys of a key would take
// registers outside.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Within 2^-22 between 0.5 and 2, elsewhere within 2^-22 of its value. Callers say why that is enough.
__device__ __forceinline__ float log2_approx(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 2^x within 2^-22 of itself; 0 below 2^-126.
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// ---- kernels one after the other ------------------------------------------------------------------------------------

// The first statement of a kernel that may be launched while the kernel before it runs (may_overlap in launch.cuh). Its
// blocks become resident, then wait until that kernel has ended and its writes are visible. Before that they may touch
// no input, output or workspace. From here on the next kernel's blocks may become resident, too. In a launch that may
// not overlap, and before sm_90, this does nothing.
__device__ __forceinline__ void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

// ---- clusters: sm_90 and newer --------------------------------------------------------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kHasClusters = true;
// Behind its next barrier the cluster sees what this thread wrote, and what a barrier of its block put before that.
__device__ __forceinline__ void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
// A barrier for all threads of the cluster. It orders no memory: threads that share memory have a fence before it.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address of a shared variable in another block of the cluster.
template <class T>
__device__ __forceinline__ T* peer(T* mine, unsigned rank) {
  uint64_t address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(reinterpret_cast<uint64_t>(mine)), "r"(rank));
  return reinterpret_cast<T*>(address);
}
#else
constexpr bool kHasClusters = false;
__device__ __forceinline__ void fence_cluster() { __trap(); }
__device__ __forceinline__ void sync_cluster() { __trap(); }
template <class T>
__device__ __forceinline__ T* peer(T* mine, unsigned) { return mine; }
#endif

// ---- the host -------------------------------------------------------------------------------------------------------

// Whether launches may overlap: SPECDEC_CUDA_OVERLAP=1, read once for the process.
inline bool overlap_wanted() {
  static const bool wanted = [] {
    const char* value = std::getenv("SPECDEC_CUDA_OVERLAP");
    return value && !std::strcmp(value, "1");
  }();
  return wanted;
}

// A kind and size of teams to measure: SPECDEC_CUDA_TEAM is local, clusterN or gridN, read once for the process. Other
// values are ignored.
struct RequestedTeam {
  int size;  // 0: none
  bool grid;
};
inline RequestedTeam requested_team() {
  static const RequestedTeam requested = [] {
    const char* value = std::getenv("SPECDEC_CUDA_TEAM");
    int size = 0;
    if (!value) return RequestedTeam{0, false};
    if (!std::strcmp(value, "local")) return RequestedTeam{1, false};
    if (std::sscanf(value, "cluster%d", &size) == 1) return RequestedTeam{size, false};
    return RequestedTeam{std::sscanf(value, "grid%d", &size) == 1 ? size : 0, true};
  }();
  return requested;
}

// The multiprocessors that the work of a stream may use, of `all` on the device. Green contexts and MPS give less.
// Toolkits and drivers before CUDA 12.5 cannot tell; there a launch that needs too many fails instead.
inline int multiprocessors_of(cudaStream_t stream, int all) {
#if CUDART_VERSION >= 12050
  static const auto driver = [](const char* name) {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &symbol, 12050, cudaEnableDefault, &result);
    return e == cudaSuccess ? symbol : nullptr;
  };
  static const auto green_of = reinterpret_cast<CUresult (*)(CUstream, CUgreenCtx*)>(driver("cuStreamGetGreenCtx"));
  static const auto green_has =
      reinterpret_cast<CUresult (*)(CUgreenCtx, CUdevResource*, CUdevResourceType)>(driver("cuGreenCtxGetDevResource"));
  static const auto current = reinterpret_cast<CUresult (*)(CUcontext*)>(driver("cuCtxGetCurrent"));
  static const auto context_has =
      reinterpret_cast<CUresult (*)(CUcontext, CUdevResource*, CUdevResourceType)>(driver("cuCtxGetDevResource"));
  CUdevResource resource = {};
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  bool queried = green_of && green_has && green_of(stream, &green) == CUDA_SUCCESS && green &&
               green_has(green, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS;
  if (!queried)
    queried = current && context_has && current(&context) == CUDA_SUCCESS && context &&
            context_has(context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS;
  const int count = queried ? static_cast<int>(resource.sm.smCount) : all;
  return count > 0 && count < all ? count : all;
#else
  return all;
#endif
}

}  // namespace specdec::cuda
