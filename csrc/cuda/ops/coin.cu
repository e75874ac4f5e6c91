// coin: a thread for each coin.
#include "../team/launch.cuh"
#include "specdec/c/noise.h"
#include "specdec/noise.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) coin_kernel(const CoinParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.coins.rows * p.coins.columns) return;
  const int64_t outer = i / p.coins.columns, inner = i % p.coins.columns;
  p.coins.data[i] = specdec::coin(noise_at(p.noise, outer, inner, static_cast<uint32_t>(p.stream)),
                                  static_cast<uint32_t>(p.index.at(outer, inner)));
}

}  // namespace

cudaError_t coin(const CoinParams& p, const Call& call) {
  return launch_alone<coin_kernel>({(p.coins.rows * p.coins.columns + kThreads - 1) / kThreads, kThreads}, p, call);
}

}  // namespace specdec::cuda
