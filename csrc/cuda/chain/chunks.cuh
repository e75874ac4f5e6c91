// Rejection in chunks of drafts, for many requests or drafts.
#pragma once

#include "drafts.cuh"

namespace specdec::cuda {

// A block's index is the order in which it started. So a block waits only for blocks of the chunk before, which have
// all started: no launch has to fit the device, and requests that end early make room at once.
__global__ void __launch_bounds__(kThreads, kBlocksOfChunks) chain_chunk_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(unsigned, number, 1);
  const Shared<RowStats> stats = dynamic_shared<RowStats>(kStagedBytes, rows_in_shared(a));
  begin_draw(block_bound);
  if (threadIdx.x == 0) {
    number[0] = atomicAdd(a.started, 1u);
    if (number[0] == gridDim.x - 1) atomicExch(a.started, 0u);
  }
  __syncthreads();
  const auto index_of_block = [&] { return BlockIndex(a, number[0]); };  // again where registers are few
  const BlockIndex block = index_of_block();
  const unsigned chunk = static_cast<unsigned>(block.node), parts = a.parts.count.by();
  const int32_t first = block.node * a.chunk_size;
  DraftChunks* const chunks = a.chunks + block.request;
  ChainRequest r(a.p, block.request);
  bool over = false, draws = false;
  if (chunk > 0) {
    const int32_t before = first - a.chunk_size;
    const ChunkRows sides(r, before, a.chunk_size);
    if (threadIdx.x == 0)
      for (unsigned drawn = 0; !over && load_acquire(&chunks->arrived) < chunk * parts;
           over = drawn != 0 && drawn < chunk)
        drawn = load_acquire(&chunks->drawing);
    over = __syncthreads_or(over);
    if (!over) {
      LaneDraft lane(r, before);
      load_row_stats(a, r, sides, (chunk - 1) % 2, 0, stats, scans_all<false>(r));
      __syncthreads();
      lane.set_stats(r, stats, sides.count, before, sides.rows, scans_all<false>(r));
      const StopPoint e = r.target_law.greedy || !r.readable ? accept_greedy(r, lane, a.chunk_size)
                                                             : accept_by_rejection(r, lane, a.chunk_size);
      draws = e.node != kNoNode;
      if (draws) {
        r.status |= e.status;
        if (threadIdx.x == 0) {
          atomicMax(&chunks->drawing, chunk);
          r.status |= static_cast<int32_t>(load_acquire(&chunks->status));
        }
        // The request is decoded again for its drafts: it would take registers until there.
        const auto lane_at_stop = [&] {
          const BlockIndex again = index_of_block();
          return LaneDraft(ChainRequest(a.p, again.request), (again.node - 1) * a.chunk_size);
        };
        draw_and_write(a, r, stats, before, block_bound, lane_at_stop, e, index_of_block().part, parts);
      } else if (block.part == 0 && warp_id() == 0) {
        const unsigned status = __reduce_or_sync(kWarp, static_cast<unsigned>(e.status));
        if (status != 0 && lane_id() == 0) atomicOr(&chunks->status, status);
      }
    }
  }
  if (!over && !draws) {
    weigh_tiles(a, r, ChunkRows(r, first, a.chunk_size), chunk % 2, a.parts.tiles_of(block.part),
                dynamic_shared<uint4>(0, kVectors * kThreads), scans_all<false>(r));
    arrive(&chunks->arrived);
  }
  if (threadIdx.x != 0) return;
  DraftChunks& progress = a.chunks[index_of_block().request];
  if (add_acquire_release(&progress.ended, 1u) == gridDim.x / static_cast<unsigned>(a.requests.by()) - 1) progress = {};
}

}  // namespace specdec::cuda
