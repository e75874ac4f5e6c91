// The C functions of the CUDA ops. In a build without CUDA each returns SPECDEC_NO_CUDA.
#include "call.h"

using namespace specdec;

#if defined(SPECDEC_WITH_CUDA)

#include "../cuda/ops.h"

namespace {

template <class Params>
using Launcher = cudaError_t (*)(const Params&, const cuda::Call&);

void check_workspace(const void* data, size_t bytes) {
  if (!data && bytes > 0) throw c_api::Refusal{SPECDEC_INVALID_ARGUMENT, "workspace: expected memory; got NULL"};
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
    throw c_api::Refusal{SPECDEC_INVALID_ARGUMENT, "workspace: expected memory aligned to 16 bytes"};
}

template <class Params>
int run(const char* op, void (*check)(const Params&), Launcher<Params> launch, const Params* params, void* workspace,
        size_t bytes, size_t* needed, void* stream) {
  int64_t wanted = 0;
  const int error = c_api::call(op, check, params, [&](const Params& checked) {
    check_workspace(workspace, bytes);
    const cudaError_t e =
        launch(checked, {workspace, static_cast<int64_t>(bytes), static_cast<cudaStream_t>(stream), &wanted});
    if (e == cudaErrorLaunchOutOfResources)
      throw c_api::Refusal{SPECDEC_CUDA_ERROR, "a block would need more shared memory than the device has for it"};
    if (e != cudaSuccess)
      throw c_api::Refusal{SPECDEC_CUDA_ERROR, std::string("CUDA error: ") + cudaGetErrorString(e)};
    if (wanted != 0)
      throw c_api::Refusal{SPECDEC_WORKSPACE_TOO_SMALL,
                           "workspace: expected " + std::to_string(wanted) + " bytes; got " + std::to_string(bytes)};
  });
  if (needed) *needed = static_cast<size_t>(wanted);
  return error;
}

}  // namespace

#define SPECDEC_DEFINE(op, Params)                                                                           \
  int specdec_cuda_##op(const Params* params, void* workspace, size_t bytes, size_t* needed, void* stream) { \
    return run(#op, c_api::check_##op, cuda::op, params, workspace, bytes, needed, stream);                  \
  }

int specdec_cuda_available(void) {
  int count = 0;
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaSuccess && count > 0) return SPECDEC_OK;
  return c_api::failed(SPECDEC_NO_CUDA, "", e != cudaSuccess ? cudaGetErrorString(e) : "no CUDA device");
}

int specdec_cuda_capture(void* stream, uint64_t* capture) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  const cudaError_t e = cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id);
  *capture = status == cudaStreamCaptureStatusActive ? id : 0;
  return e == cudaSuccess ? SPECDEC_OK : c_api::failed(SPECDEC_CUDA_ERROR, "", cudaGetErrorString(e));
}

int specdec_cuda_wait(void* stream) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t e = cudaThreadExchangeStreamCaptureMode(&mode);
  if (e == cudaSuccess) {
    e = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    const cudaError_t back = cudaThreadExchangeStreamCaptureMode(&mode);
    if (e == cudaSuccess) e = back;
  }
  return e == cudaSuccess ? SPECDEC_OK : c_api::failed(SPECDEC_CUDA_ERROR, "", cudaGetErrorString(e));
}

#else

namespace {

int built_without(const char* op) { return c_api::failed(SPECDEC_NO_CUDA, op, "built without CUDA"); }

}  // namespace

#define SPECDEC_DEFINE(op, Params) \
  int specdec_cuda_##op(const Params*, void*, size_t, size_t*, void*) { return built_without(#op); }

int specdec_cuda_available(void) { return built_without(""); }
int specdec_cuda_capture(void*, uint64_t* capture) { return *capture = 0, built_without(""); }
int specdec_cuda_wait(void*) { return built_without(""); }

#endif

SPECDEC_OPS(SPECDEC_DEFINE)
