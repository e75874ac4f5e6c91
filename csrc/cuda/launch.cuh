// How kernels are launched, and the memory they share between blocks.
#pragma once

#include "collect.cuh"
#include "ops.h"

namespace specdec {
namespace cuda {

constexpr int kThreads = 256;  // at most
constexpr int kBlocksAMultiprocessor = 2;  // a grid is made for so many, which leaves 128 registers a thread

constexpr size_t kDeclaredShared = 4 << 10;  // bytes of shared memory that a kernel declares, at most

struct Device {
  int multiprocessors;
  int capability;  // major * 10 + minor
  int shared_limit;
};

inline cudaError_t this_device(Device* device) {
  int id = 0, major = 0, minor = 0;
  cudaError_t e = cudaGetDevice(&id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&device->multiprocessors, cudaDevAttrMultiProcessorCount, id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&device->shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  device->capability = major * 10 + minor;
  return e;
}

struct Shape {
  int64_t blocks;
  int threads;
  int cluster = 1;
  bool cooperative = false;
  size_t dynamic_shared = 0;
};

template <class Params>
cudaError_t launch(void (*kernel)(Params), const Shape& shape, const Params& params, cudaStream_t stream) {
  if (shape.blocks == 0) return cudaSuccess;
  if (shape.blocks > 0x7fffffff) return cudaErrorInvalidValue;
  // What a kernel declares counts, too. More than 48 KiB in all must be asked for.
  if (shape.dynamic_shared + kDeclaredShared > (48 << 10)) {
    const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(shape.dynamic_shared));
    if (e != cudaSuccess) return e;
  }
  cudaLaunchAttribute attributes[2];
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
  return cudaLaunchKernelEx(&config, kernel, params);
}

// Tokens of one 16-byte load over a warp.
inline int32_t tokens_a_step(DType dtype) { return dtype == DType::kFloat32 ? 128 : 256; }

// As many warps as have something to load, but at least two.
inline int threads_of_block(int32_t vocab, DType dtype) {
  const int32_t warps = (vocab + tokens_a_step(dtype) - 1) / tokens_a_step(dtype);
  return warps < 2 ? 64 : warps < kThreads / 32 ? warps * 32 : kThreads;
}

// Blocks that run at the same time. One more would start only when one of them ends.
inline int64_t blocks_at_once(const Device& device) { return int64_t{device.multiprocessors} * kBlocksAMultiprocessor; }

// Blocks a row is split into when `rows` rows run at once: enough to fill the device, and no more than have work.
inline int splits_of_row(const Device& device, int64_t rows, int32_t vocab, DType dtype) {
  const int64_t wanted = blocks_at_once(device) / rows;
  const int64_t block = int64_t{tokens_a_step(dtype)} * (kThreads / 32);
  const int64_t useful = (vocab + block - 1) / block;
  const int64_t splits = wanted < useful ? wanted : useful;
  return splits < 1 ? 1 : static_cast<int>(splits);
}

// The workspace: tickets, which are zero before and after every kernel, then room for partial results.
struct Room {
  unsigned* tickets;
  int64_t ticket_count;
  WideKey* words;
  int64_t word_count;
};

inline Room room_in(const Workspace& w) {
  const int64_t tickets = w.bytes / 8 / 8 * 8;  // bytes: an eighth of the whole
  char* start = static_cast<char*>(w.data);
  return {reinterpret_cast<unsigned*>(start), tickets / 4, reinterpret_cast<WideKey*>(start + tickets),
          (w.bytes - tickets) / 8};
}

// What a workspace must have for so many tickets and words.
inline int64_t room_needed(int64_t tickets, int64_t words) {
  const int64_t by_tickets = tickets * 4 * 8 + 64, by_words = words * 8 * 8 / 7 + 128;
  return by_tickets > by_words ? by_tickets : by_words;
}

}  // namespace cuda
}  // namespace specdec
