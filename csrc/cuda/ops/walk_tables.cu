// walk_tables: a thread for each request.
#include "../team/launch.cuh"
#include "specdec/walk_tables.h"

namespace specdec::cuda {

namespace {

constexpr int kRequests = 64;  // of a block: walks take up to 96 registers each

__global__ void __launch_bounds__(kRequests, 8) walk_tables_kernel(const WalkTablesParams p) {
  const int64_t b = int64_t{blockIdx.x} * kRequests + threadIdx.x;
  if (b < p.batch()) walk_tables_at(p, b);
}

}  // namespace

cudaError_t walk_tables(const WalkTablesParams& p, const Call& call) {
  return launch_alone<walk_tables_kernel>({(p.batch() + kRequests - 1) / kRequests, kRequests}, p, call);
}

}  // namespace specdec::cuda
