// How kernels are launched, and the memory they share between blocks.
#pragma once

#include <atomic>
#include <vector>

#include "../call.h"
#include "block_reduce.cuh"

namespace specdec::cuda {

constexpr int kThreads = 256;  // at most
constexpr int kBlocksAMultiprocessor = 2;  // a grid is made for so many, which leaves 128 registers a thread

constexpr size_t kDeclaredShared = 6 << 10;  // bytes of shared memory that a kernel declares, at most

// Division by a number that the launch fixes: a multiplication gives the quotient or one less.
struct Quotient {
  uint32_t divisor, inverse;
  __device__ int of(int n) const {
    const uint32_t least = static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(n)} * inverse >> 32);
    return static_cast<int>(least + (static_cast<uint32_t>(n) - least * divisor >= divisor));
  }
  __host__ __device__ int by() const { return static_cast<int>(divisor); }
};

inline Quotient quotient(int64_t by) {
  return {static_cast<uint32_t>(by), by == 1 ? ~0u : static_cast<uint32_t>((uint64_t{1} << 32) / by)};
}

// The workspace: tickets, which are zero before and after every kernel, then words for partial results.
struct Workspace {
  unsigned* tickets;
  int64_t ticket_count;
  WideKey* partials;
  int64_t word_count;
  int64_t* needed;

  // Whether the workspace is too small. If so, *needed is set to the bytes that it must have.
  bool lacks(int64_t tickets_needed, int64_t words_needed) const {
    const bool lacking = tickets_needed > ticket_count || words_needed > word_count;
    const int64_t by_tickets = tickets_needed * 4 * 8 + 64, by_words = words_needed * 8 * 8 / 7 + 128;
    if (lacking) *needed = by_tickets > by_words ? by_tickets : by_words;
    return lacking;
  }
};

inline Workspace workspace_of(const Call& call) {
  const int64_t tickets = call.bytes / 8 / 8 * 8;  // bytes: an eighth of the whole
  char* start = static_cast<char*>(call.workspace);
  Workspace workspace = {};
  workspace.tickets = reinterpret_cast<unsigned*>(start), workspace.ticket_count = tickets / 4;
  workspace.partials = reinterpret_cast<WideKey*>(start + tickets), workspace.word_count = (call.bytes - tickets) / 8;
  workspace.needed = call.needed;
  return workspace;
}

struct Device {
  int multiprocessors;    // that the stream may use
  bool clusters;          // the device has thread-block clusters
  size_t dynamic_shared;  // bytes that a block may have beside what its kernel declares
  bool teams;             // blocks may wait for each other
  cudaStream_t stream;
  Workspace workspace;
};

// Devices for which the driver compiled this library from PTX of an architecture before sm_90: that code has neither
// clusters nor a wait for the kernel before it.
inline std::atomic<uint64_t> older_code{0};
inline uint64_t bit_of_device(int id) { return uint64_t{1} << (id % 64); }

inline cudaError_t this_device(cudaStream_t stream, Device* device) {
  int id = 0, all = 0, clusters = 0, shared = 0;
  cudaError_t e = cudaGetDevice(&id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  *device = {};
  device->multiprocessors = multiprocessors_of(stream, all), device->stream = stream;
  device->clusters = clusters != 0 && !(older_code & bit_of_device(id)), device->teams = true;
  device->dynamic_shared = static_cast<size_t>(shared) - kDeclaredShared;
  return e;
}

// All kernels of an op. The driver loads a kernel at its first use, which a capture need not allow. So the first call
// of an op on a device loads all of them, in a mode that captures allow. It also raises their limit of shared memory to
// that of a block: another thread could undo a limit that a launch sets for itself.
class Kernels {
 public:
  template <class... Kernel>
  explicit Kernels(Kernel... kernel) : all_{reinterpret_cast<const void*>(kernel)...} {}

  cudaError_t load() const {
    int device = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e != cudaSuccess) return e;
    const uint64_t mine = bit_of_device(device);
    if (loaded_.load(std::memory_order_acquire) & mine) return cudaSuccess;
    int shared = 0;
    e = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e != cudaSuccess) return e;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    e = cudaThreadExchangeStreamCaptureMode(&mode);
    if (e != cudaSuccess) return e;
    for (const void* kernel : all_) {
      cudaFuncAttributes attributes;
      if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, kernel);
      if (e == cudaSuccess && attributes.ptxVersion < 90) older_code.fetch_or(mine);
      if (e == cudaSuccess)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared - static_cast<int>(attributes.sharedSizeBytes));
    }
    const cudaError_t back = cudaThreadExchangeStreamCaptureMode(&mode);
    if (e == cudaSuccess) e = back;
    if (e == cudaSuccess) loaded_.fetch_or(mine, std::memory_order_release);
    return e;
  }

 private:
  std::vector<const void*> all_;
  mutable std::atomic<uint64_t> loaded_{0};
};

struct Shape {
  int64_t blocks;
  int threads;
  int cluster = 1;
  bool cooperative = false;
  bool overlaps = false;  // its kernel begins with wait_for_kernel_before
  size_t dynamic_shared = 0;
  int multiprocessors = 0;  // that a cooperative launch may use
};

// Whether the blocks that wait for each other can run at the same time: those of a cluster, and all of a cooperative
// launch.
template <class Params>
bool fits_device(void (*kernel)(Params), const Shape& shape, const cudaLaunchConfig_t& config) {
  int fit = 0;
  if (shape.cooperative)
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, shape.threads, shape.dynamic_shared) ==
               cudaSuccess &&
           int64_t{fit} * shape.multiprocessors >= shape.blocks;
  return shape.cluster <= 1 || (cudaOccupancyMaxActiveClusters(&fit, kernel, &config) == cudaSuccess && fit > 0);
}

// Whether a kernel that waits by itself may be launched while the kernel before it in the stream runs. That hides the
// cost of the launch.
inline bool may_overlap() {
  int id = 0, major = 0;
  return overlap_wanted() && cudaGetDevice(&id) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) == cudaSuccess && major >= 9 &&
         !(older_code & bit_of_device(id));
}

// A launch in which blocks wait for each other fails with cudaErrorCooperativeLaunchTooLarge, whatever the reason is.
template <class Params>
cudaError_t launch(void (*kernel)(Params), const Shape& shape, const Params& params, cudaStream_t stream) {
  if (shape.blocks == 0) return cudaSuccess;
  if (shape.blocks > 0x7fffffff) return cudaErrorInvalidValue;
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.dynamic_shared;
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    ++config.numAttrs;
  }
  if (shape.cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs].val.cooperative = 1;
    ++config.numAttrs;
  }
  if (!fits_device(kernel, shape, config)) return cudaErrorCooperativeLaunchTooLarge;
  if (shape.overlaps && may_overlap()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  const cudaError_t e = cudaLaunchKernelEx(&config, kernel, params);
  const bool waits = shape.cooperative || shape.cluster > 1;
  return e != cudaSuccess && waits ? cudaErrorCooperativeLaunchTooLarge : e;
}

// Launches an op that has no other kernel, and whose blocks never wait for each other.
template <auto kernel, class Params>
cudaError_t launch_alone(const Shape& shape, const Params& params, const Call& call) {
  static const Kernels kernels(kernel);
  const cudaError_t e = kernels.load();
  return e == cudaSuccess ? launch(kernel, shape, params, call.stream) : e;
}

// Calls launch(device) once its kernels are loaded, for `count` rows or requests. If its blocks cannot wait for each
// other, calls it again for one block a request; an error with another reason shows again there.
template <class Launch>
cudaError_t on_device(const Call& call, int64_t count, const Kernels& kernels, Launch&& launch) {
  if (count == 0) return cudaSuccess;
  const bool clean = cudaPeekAtLastError() == cudaSuccess;
  Device device = {};
  cudaError_t e = kernels.load();
  if (e == cudaSuccess) e = this_device(call.stream, &device);
  device.workspace = workspace_of(call);
  if (e == cudaSuccess) e = launch(device);
  if (e != cudaErrorCooperativeLaunchTooLarge) return e;
  if (clean) cudaGetLastError();  // handled here; an error from before this call is its caller's
  device.teams = false;
  return launch(device);
}

// Tokens of one 16-byte load over a warp.
inline int32_t tokens_a_step(int32_t dtype) { return dtype == SPECDEC_FLOAT32 ? 128 : 256; }

// As many warps as have something to load, but at least two.
inline int threads_of_block(int32_t vocab, int32_t dtype) {
  const int32_t warps = (vocab + tokens_a_step(dtype) - 1) / tokens_a_step(dtype);
  return warps < 2 ? 64 : warps < kThreads / 32 ? warps * 32 : kThreads;
}

// Threads of a block with one for each of `count`, up to kThreads.
inline int threads_for(int64_t count) {
  return count < 1 ? 32 : count < kThreads ? static_cast<int>((count + 31) / 32 * 32) : kThreads;
}

inline int64_t blocks_at_once(const Device& device) { return int64_t{device.multiprocessors} * kBlocksAMultiprocessor; }

// Blocks of a row when `rows` rows run at once: enough to fill the device, and no more than have work.
inline int splits_of_row(const Device& device, int64_t rows, int32_t vocab, int32_t dtype) {
  const int64_t wanted = blocks_at_once(device) / rows;
  const int64_t block = int64_t{tokens_a_step(dtype)} * (kThreads / 32);
  const int64_t useful = (vocab + block - 1) / block;
  const int64_t splits = wanted < useful ? wanted : useful;
  return splits < 1 ? 1 : static_cast<int>(splits);
}

// The arguments of a kernel whose rows or requests are split over some blocks.
template <class Params>
struct SplitArguments {
  Params p;
  Splits splits;
};

// Launches `count` rows or requests. `shape` has neither blocks nor threads yet.
template <class Params>
cudaError_t launch_splits(void (*kernel)(SplitArguments<Params>), const Params& p, int64_t count, const Rows& rows,
                          const Device& device, Shape shape = {}) {
  const int splits = rows.data ? splits_of_row(device, count, rows.vocab, rows.dtype) : 1;
  if (splits > 1 && device.workspace.lacks(count, count * splits * kWordsAPartial)) return cudaSuccess;
  shape.blocks = count * splits, shape.threads = rows.data ? threads_of_block(rows.vocab, rows.dtype) : 32;
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(kernel, shape, {p, {device.workspace.tickets, device.workspace.partials, splits}}, device.stream);
}

}  // namespace specdec::cuda
