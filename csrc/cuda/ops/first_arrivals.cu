// first_arrivals: a thread for each row.
#include "../team/launch.cuh"
#include "specdec/first_arrivals.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) first_arrivals_kernel(const FirstArrivalsParams p) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < p.tokens.rows) first_arrival(p, row);
}

}  // namespace

cudaError_t first_arrivals(const FirstArrivalsParams& p, const Call& call) {
  return launch_alone<first_arrivals_kernel>({(p.tokens.rows + kThreads - 1) / kThreads, kThreads}, p, call);
}

}  // namespace specdec::cuda
