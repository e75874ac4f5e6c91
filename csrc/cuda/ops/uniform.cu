// uniform: a thread for each uniform.
#include "../team/launch.cuh"
#include "specdec/c/noise.h"
#include "specdec/noise.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) uniform_kernel(const UniformParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.uniforms.rows * p.uniforms.columns) return;
  const int64_t outer = i / p.uniforms.columns, inner = i % p.uniforms.columns;
  p.uniforms.data[i] = specdec::uniform(noise_at(p.noise, outer, inner, static_cast<uint32_t>(p.stream)),
                                  static_cast<uint32_t>(p.index.at(outer, inner)));
}

}  // namespace

cudaError_t uniform(const UniformParams& p, const Call& call) {
  return launch_alone<uniform_kernel>({(p.uniforms.rows * p.uniforms.columns + kThreads - 1) / kThreads, kThreads}, p,
                                      call);
}

}  // namespace specdec::cuda
