// Rejection where all blocks of all requests fit the device at once.
#pragma once

#include "drafts.cuh"

namespace specdec::cuda {

// Accepts drafts as a block (block.cuh).
__device__ __forceinline__ StopPoint accept_block_chain(const ChainArguments& a, const ChainRequest& r, LaneDraft& lane,
                                                        const Shared<RowStats>& stats, int sides, int32_t rows,
                                                        unsigned* blocks);

// Rejection runs the loop once, over all drafts. A block runs it chunk by chunk until all rows are in shared memory.
template <bool kBlock>
__device__ __forceinline__ void verify_chain_request(const ChainArguments& a) {
  SPECDEC_SHARED(unsigned, block_bound, 1);
  const Shared<RowStats> stats = dynamic_shared<RowStats>(kStagedBytes, rows_in_shared(a));
  begin_draw(block_bound);
  ChainRequest r(a.p, BlockIndex(a).request);
  unsigned blocks = a.parts.count.by();
  const bool as_block = kBlock && r.readable && !r.target_law.greedy;  // no draft is accepted before the last chunk
#pragma unroll 1
  for (int32_t first = 0, set = 0;; first += a.chunk_size, set ^= a.sets - 1) {
    const ChunkRows sides(r, first, a.chunk_size);
    const bool all = scans_all<kBlock>(r), scans = sides.scans(r, all);
    if (scans) {
      weigh_tiles(a, r, sides, set, a.parts.tiles_of(BlockIndex(a).part), dynamic_shared<uint4>(0, kVectors * kThreads),
                  all);
      arrive(&a.tickets[r.request].arrived);
    }
    const int32_t from = as_block ? 0 : first;
    LaneDraft lane(r, from);
    if (scans) {
      wait_for(&a.tickets[r.request].arrived, blocks);
      blocks += a.parts.count.by();
    }
    load_row_stats(a, r, sides, set, (first - from) * sides.count, stats, all);
    __syncthreads();
    if (as_block && first + a.chunk_size < r.slots) continue;
    const int32_t rows = (first - from) * sides.count + sides.rows;
    lane.set_stats(r, stats, sides.count, from, rows, all);
    StopPoint e;
    if (r.target_law.greedy || !r.readable) e = accept_greedy(r, lane, a.chunk_size);
    else if constexpr (kBlock) e = accept_block_chain(a, r, lane, stats, sides.count, rows, &blocks);
    else e = accept_by_rejection(r, lane, a.chunk_size);
    r.status |= e.status;              // differs between lanes
    if (!kBlock || e.node != kNoNode)  // BlockIndex again: it would take a register until here
      return draw_and_write(a, r, stats, kBlock ? 0 : lane.first, block_bound, [&] { return lane; }, e,
                            BlockIndex(a).part, blocks);
    __syncthreads();  // stats may be overwritten
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_rejection_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  verify_chain_request<false>(a);
}

}  // namespace specdec::cuda
