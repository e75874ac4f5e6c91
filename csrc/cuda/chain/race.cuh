// The race: all rows at once, or in order where they do not fit the device.
#pragma once

#include "drafts.cuh"

namespace specdec::cuda {

// Called by warp 0 of a request's last block: compares winners and drafts, a lane a node. `draft` is of nodes 0 to 31.
template <class WinnerAt>
__device__ __forceinline__ void write_race(const ChainRequest& r, int64_t draft, int32_t status, WinnerAt&& winner_at) {
  const VerdictWriter verdict = verdict_at(r.p, r.request);
  int32_t accepted = 0, bits = status;
  bool ended = false;
#pragma unroll 1
  for (int32_t first = 0;;) {
    const int32_t node = first + lane_id();
    Draw draw = {0, SPECDEC_STATUS_OK, false};
    if (r.readable && node <= r.slots) draw = r.has_bonus(node) ? bonus_token(r) : winner_at(node);
    if (!ended) {
      if (draw.empty) draft = -1;  // a row without weight ends the chain
      const unsigned refused = __ballot_sync(kWarp, !r.readable || draft != draw.token);
      ended = refused != 0;
      accepted = first + (ended ? __ffs(static_cast<int>(refused)) - 1 : 31);
      if (node <= accepted) bits |= draw.status | status_of_draft(r, draft);
      if (node <= accepted && !r.idle) verdict.put(node, node, draw.token);
    }
    first += 32;
    if (first > r.slots) break;  // winners behind the end count, too: winner_at resets their tickets
    draft = draft_of_lane(r, first);
  }
  end_verdict(r, verdict, accepted, bits);
}

__global__ void __launch_bounds__(kThreads, kBlocksOfMany) chain_race_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(unsigned, ends, 1);  // nodes - the node where the chain is seen to end, or 0
  begin_draw(block_bound);
  const BlockIndex block(a);
  const int32_t node = block.node;
  const ChainRequest r(a.p, block.request);
  const int64_t draft = draft_of_lane(r);
  const unsigned nodes = static_cast<unsigned>(a.p.width()), before = nodes - static_cast<unsigned>(node);
  Ticket *const ticket = a.tickets + r.request, *const rows = a.tickets + a.requests.by() + r.request * nodes;
  if (threadIdx.x == 0) ends[0] = a.in_order ? atomicOr(&ticket->flags, 0u) : 0u;
  __syncthreads();
  if (ends[0] <= before && r.readable && node <= r.slots && !r.has_bonus(node)) {
    const Tiles tiles = a.parts.tiles_of(block.part);
    draw_tiles<3>(weights_of_row(row_at(a.p.target, r.target_row(node)), r.target_law),
                  r.race_noise(node, node), tiles.begin, tiles.end, block_bound, rows + node);
    if (a.in_order && node < r.slots && is_last_block(rows + node, a.parts.count.by()) && threadIdx.x == 0) {
      const Draw draw = to_draw(candidate_of_key(atomicMax(&rows[node].best, WideKey{0})), SPECDEC_STATUS_OK);
      // A row without weight draws token 0. If that is the draft, the rows behind it are read in vain, no more.
      if (draw.token != r.draft_token(node + 1)) atomicMax(&ticket->flags, before);
    }
  }
  if (!is_last_block(ticket, a.parts.count.by() * nodes) || warp_id() != 0) return;
  write_race(r, draft, r.status, [&](int32_t other) {
    rows[other].arrived = 0;
    return to_draw(take_block_best(rows + other), false);
  });
  if (lane_id() == 0) ticket->arrived = ticket->flags = 0;
}

inline cudaError_t launch_chain_race(const ChainParams& p, const Device& device) {
  const int64_t requests = p.batch(), rows = requests * p.width(), resident_blocks = blocks_at_once(device);
  if (device.workspace.lacks(kTicketSize * (requests + rows), 0)) return cudaSuccess;
  ChainArguments a = {};
  a.p = p;
  a.tickets = reinterpret_cast<Ticket*>(device.workspace.tickets);
  a.requests = quotient(requests);
  // Rows that do not fit the device at once come in order. A node has two blocks for each resident one, so most winners
  // are there when the blocks of the next node start.
  a.in_order = rows > resident_blocks;
  const int64_t least = p.target.vocab / (kTilesInOrder * kMassTile) + 1;
  const int64_t wanted = a.in_order ? (2 * resident_blocks + requests - 1) / requests : resident_blocks / rows;
  a.parts = parts_of_rows(p.target.vocab, a.in_order && wanted < least ? least : wanted);
  Shape shape = {rows * a.parts.count.by(), kThreads};
  shape.overlaps = true;
  return launch(chain_race_kernel, shape, a, device.stream);
}

}  // namespace specdec::cuda
