// count_tokens: a block for each request, a thread for each token. A token may occur more than once. So all threads
// first normalise the counts in memory, then count, then clamp the counts that wrapped.
#include "../team/launch.cuh"
#include "specdec/c/caches.h"
#include "specdec/count.h"

namespace specdec::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) count_tokens_kernel(const CountParams p) {
  const int64_t b = blockIdx.x, vocab = p.vocab();
  int32_t status = SPECDEC_STATUS_OK;
  const int32_t num = tokens_to_count(p.num.at(b), p.tokens.slots, &status);
  int32_t* const mask = p.mask.data + b * p.mask.row_stride;
  int32_t* const counts = p.counts.data ? p.counts.data + b * p.counts.row_stride : nullptr;
  const auto over_tokens = [&](auto&& f) {
    over_block(num, [&](int32_t i) {
      const int64_t token = p.tokens.at(b * p.tokens.request_stride + i * p.tokens.slot_stride);
      if (token >= 0 && token < vocab) f(token);
    });
  };
  if (counts) {
    over_tokens([&](int64_t token) {
      if (!has_bit(mask, token))
        counts[token] = 0;
      else
        atomicMax(counts + token, 1);
    });
    __syncthreads();
  }
  over_tokens([&](int64_t token) {
    atomicOr(reinterpret_cast<unsigned*>(mask) + token / 32, 1u << token % 32);
    if (counts) atomicAdd(reinterpret_cast<unsigned*>(counts) + token, 1u);
  });
  if (counts) {
    __syncthreads();
    over_tokens([&](int64_t token) {
      if (counts[token] < 0) counts[token] = INT32_MAX;  // fewer than 2^31 were added, so it wrapped once
    });
  }
  if (threadIdx.x == 0) p.status.data[b] = status;
}

}  // namespace

cudaError_t count_tokens(const CountParams& p, const Call& call) {
  return launch_alone<count_tokens_kernel>({p.mask.rows, threads_for(p.tokens.slots)}, p, call);
}

}  // namespace specdec::cuda
