// The CUDA runtime that nvcc's host code calls, over translated PTX: what host_cuda plays, under the names in C.
#include <cstdio>
#include <map>
#include <string>

#include "../host_cuda/include/cuda_runtime.h"
#include "memory.h"
#include "thread.h"

namespace {

struct Translated {
  ptx::Body body;
  unsigned param_bytes, shared_bytes, most_threads;
};
std::map<std::string, Translated>& translated() {
  static std::map<std::string, Translated> all;
  return all;
}
std::map<const void*, std::string>& names() {  // by the address of the host's stub
  static std::map<const void*, std::string> all;
  return all;
}

const Translated* find(const void* stub) {
  const auto name = names().find(stub);
  if (name == names().end()) return nullptr;
  const auto found = translated().find(name->second);
  return found == translated().end() ? nullptr : &found->second;
}

cudaError_t launch(host_cuda::Launch launch, const char* name, const Translated& kernel, const void* params) {
  std::vector<max_align_t> room(kernel.param_bytes / sizeof(max_align_t) + 1);
  char* const copy = reinterpret_cast<char*>(room.data());
  std::memcpy(copy, params, kernel.param_bytes);
  launch.name = name;
  launch.declared_shared = kernel.shared_bytes;
  launch.most_threads = kernel.most_threads;
  constexpr unsigned char kPoisons[] = {0xa5, 0xff, 0x7f};  // a float near 0, a NaN, a huge one
  launch.poison = static_cast<char>(kPoisons[host_cuda::device().schedule % 3]);
  launch.body = [&] { kernel.body(copy); };
  return host_cuda_launch(launch);
}

}  // namespace

ptx::Kernel::Kernel(const char* name, Body body, unsigned param_bytes, unsigned shared_bytes, unsigned most_threads) {
  if (!translated().insert({name, {body, param_bytes, shared_bytes, most_threads}}).second) {
    std::fprintf(stderr, "two kernels have the name %s\n", name);
    std::abort();
  }
}

// The header has these names in C++, so the functions here have others, and their symbols the names in C.
#define EXPORT(name, parameters, arguments)                 \
  cudaError_t c_##name parameters __asm__(#name);           \
  cudaError_t c_##name parameters { return name arguments; }

extern "C" {

EXPORT(cudaGetDevice, (int* device), (device))
EXPORT(cudaGetDeviceCount, (int* count), (count))
EXPORT(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr which, int device), (value, which, device))
EXPORT(cudaGetLastError, (), ())
EXPORT(cudaPeekAtLastError, (), ())
EXPORT(cudaStreamSynchronize, (cudaStream_t stream), (stream))
EXPORT(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode* mode), (mode))
EXPORT(cudaStreamGetCaptureInfo, (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id), (stream, status, id))
EXPORT(cudaFuncSetAttribute, (const void* stub, cudaFuncAttribute which, int value), (stub, which, value))
EXPORT(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, const void* stub, int threads, size_t dynamic), (blocks, stub, threads, dynamic))
EXPORT(cudaOccupancyMaxActiveClusters, (int* clusters, const void* stub, const cudaLaunchConfig_t* config), (clusters, stub, config))
#undef EXPORT

const char* c_cudaGetErrorString(cudaError_t e) __asm__("cudaGetErrorString");
const char* c_cudaGetErrorString(cudaError_t e) { return cudaGetErrorString(e); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int threads, size_t dynamic, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, stub, threads, dynamic);
}
cudaError_t c_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) __asm__("cudaFuncGetAttributes");
cudaError_t c_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
  const Translated* const kernel = find(stub);
  if (!kernel) return host_cuda_failed(cudaErrorInvalidValue);
  *attributes = {};
  attributes->sharedSizeBytes = kernel->shared_bytes;
  attributes->maxThreadsPerBlock = static_cast<int>(kernel->most_threads);
  return cudaFuncGetAttributes(attributes, stub);
}
// Streams of part of a device are the played machine's: no driver answers.
int cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned, unsigned long long, int*) { return *found = nullptr, 500; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  const Translated* const kernel = find(stub);
  if (!kernel) return host_cuda_failed(cudaErrorInvalidValue);
  host_cuda::Launch shape = host_cuda_launch_of(config);
  shape.kernel = stub;
  return launch(shape, names()[stub].c_str(), *kernel, arguments[0]);
}

// ---- what nvcc's stubs call before main -----------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*, void*, void*, int*) {
  names()[stub] = name;
}
cudaError_t __cudaGetKernel(const void** kernel, const void* stub) { return *kernel = stub, cudaSuccess; }
// Launches in angle brackets: there are none.
unsigned __cudaPushCallConfiguration() { return 1; }
cudaError_t __cudaPopCallConfiguration() { return cudaErrorInvalidValue; }
cudaError_t __cudaLaunchKernel() { return cudaErrorInvalidValue; }

// ---- for tests, by ctypes -------------------------------------------------------------------------------------------

void ptx_allow(const uint64_t* begins, const uint64_t* ends, size_t count) {
  ptx::memory().clear();
  for (size_t i = 0; i < count; ++i) ptx::memory().push_back({begins[i], ends[i]});
}
// Of a kernel by its name; `params` as the PTX declares them.
int ptx_launch(const char* name, const unsigned* grid, unsigned block, unsigned cluster, size_t dynamic, int overlaps,
               const void* params) {
  const auto kernel = translated().find(name);
  if (kernel == translated().end()) return cudaErrorInvalidValue;
  host_cuda::Launch shape;
  shape.grid = {grid[0], grid[1], grid[2]}, shape.block = {block}, shape.cluster = {cluster}, shape.dynamic_shared = dynamic;
  shape.overlaps = overlaps != 0;
  return launch(shape, name, kernel->second, params);
}
}
