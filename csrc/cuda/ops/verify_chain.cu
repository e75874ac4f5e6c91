// verify_chain in one launch. Without filters and edits it goes straight (straight.cuh). With them there are two shapes:
//
//   shaped_rows_kernel   method "race", if all rows fit the device at once. Each has a team of its own. The last block of
//                        a request to come (by a ticket) walks the chain over the winners.
//   shaped_chain_kernel  a team of blocks walks each request in order and stops (walker.cuh). Rows past the last one
//                        decided are not read; block reads all that may be accepted. A team is one block in large
//                        batches, a cluster or a software cluster in smaller ones.
#include "../rows/team_rows.cuh"
#include "../walk/straight.cuh"
#include "../walk/walker.cuh"

namespace specdec {
namespace cuda {

namespace {

// ---- all rows at once -----------------------------------------------------------------------------------------------

struct ShapedRowsArguments {
  ChainParams p;
  TeamRoom team;
  unsigned* tickets;  // one a request
  WideKey* partials;  // one a row
  CutRoom cut;
  size_t drafted_at;  // the drafts before the row, in bytes of shared memory
};

// How many rows the chain can come to: the first one, and each behind a draft that can be accepted, but for one whose
// token is given. By the lanes of a warp together, so that drafts are loaded side by side.
__device__ __forceinline__ int32_t rows_in_reach(const ChainRequest& r) {
  if (!r.readable) return 0;
  const int32_t last = r.slots - (r.is_given(r.slots) ? 1 : 0);
#pragma unroll 1
  for (int32_t first = 0; first < last; first += 32) {
    const int32_t slot = first + lane_id();
    const unsigned ends = __ballot_sync(kWarp, slot >= last || !in_vocab(r, r.draft_token(slot + 1)));
    if (ends) return first + __ffs(static_cast<int>(ends));
  }
  return last + 1;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_rows_kernel(const ShapedRowsArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  const ChainParams& p = a.p;
  Team team(a.team);
  const ShapedRows reader = {edits, p.edits.on(), a.drafted_at};
  const int64_t row = team.index();
  const int32_t rows = p.max_drafts() + 1, node = static_cast<int32_t>(row % rows);
  const int64_t request = row / rows;
  {
    const ChainRequest r(p, request);
    if (node < rows_in_reach(r)) {
      const Shared<int32_t> drafted = dynamic_shared<int32_t>(a.drafted_at, drafts_kept(p));
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < node; i += static_cast<int32_t>(blockDim.x))
        drafted[i] = static_cast<int32_t>(r.draft_token(i + 1));
      const int32_t status =
          reader.decode(p.edits, p.target.vocab, {r.entry, 0}, r.target_place(request, node), node);
      const auto race = race_of(reader.of(row_at(p.target, r.target_row(node))), r.target_law,
                                r.race_noise(node, node));
      RowPartial found = filtered_winner(team, race, RequestFilters(r).target, a.cut);
      found.status |= status;
      if (team.rank() == 0 && threadIdx.x == 0) store_partial(a.partials, row, found);
    }
  }
  team.leave();
  if (team.rank() > 0 || !last_to_come(a.tickets + request, static_cast<unsigned>(rows)) || warp_id() != 0) return;
  const ChainRequest r(p, request);  // anew, because it would take registers until here
  const int32_t in_reach = rows_in_reach(r);
  write_race(r, draft_of_lane(r), r.status | RequestFilters(r).status, [&](int32_t own) {
    if (own >= in_reach) return Draw{0, SPECDEC_STATUS_OK};
    const WideKey* const words = a.partials + (row - node + own) * kWordsAPartial;
    return draw_of(candidate_of_key(load_fresh(words)), static_cast<int32_t>(load_fresh(words + 1)));
  });
}

// ---- row by row -----------------------------------------------------------------------------------------------------

using ShapedChainArguments = ShapedWalkArguments<ChainParams>;

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_chain_kernel(const ShapedChainArguments a) {
  wait_for_kernel_before();
  walk_request<ChainRequest, RequestShape>(a);
}

// ---- launching ------------------------------------------------------------------------------------------------------

cudaError_t launch_shaped_rows(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                               int64_t* needed) {
  const int64_t rows = p.batch() * (p.max_drafts() + 1);
  const size_t drafts = bytes_of_drafts(p);
  const ShapedPlan plan = shaped_plan(device, shaped_team(device, rows, p.target), rows, p.target.vocab, p.batch(),
                                      rows * kWordsAPartial, drafts);
  if (!plan.team.fits(room)) return *needed = plan.team.bytes(), cudaSuccess;
  return launch_teams(shaped_rows_kernel, plan.team, device,
                      {p, plan.team.team(room), room.tickets, room.words, plan.cut, plan.shared_bytes},
                      plan.shared_bytes + drafts, stream);
}

cudaError_t launch_shaped_chain(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                                int64_t* needed) {
  const TeamShape shape = team_shape(device, p.batch(), widened(p.target), 1, Ends::kOneByOne);
  ShapedChainArguments a = {walk_arguments(p), {}, p.edits.on(), 0};
  const size_t drafts = bytes_of_drafts(p);
  const CutPlan cut = cut_plan(shape, p.batch(), longest(p), keep_rows(a, 16) + drafts, device.dynamic_shared);
  const TeamPlan plan = walk_plan(shape, p, cut.items);
  if (!plan.fits(room)) return *needed = plan.bytes(), cudaSuccess;
  use_room(a, plan, room);
  a.cut = cut.room;
  a.cut.at = plan.shared_bytes();
  a.drafted_at = keep_rows(a, a.cut.at + cut.shared_bytes());
  return launch_teams(shaped_chain_kernel, plan, device, a, a.drafted_at + drafts, stream);
}

}  // namespace

cudaError_t verify_chain(const ChainParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(shaped_rows_kernel, shaped_chain_kernel, straight_race_kernel, straight_rejection_kernel,
                               straight_turn_kernel, straight_block_kernel);
  *needed = 0;
  if (p.batch() == 0) return cudaSuccess;
  const Room room = room_in(workspace);
  return on_device(stream, kernels, [&](const Device& device) {
    if (!is_shaped(p)) return launch_straight(p, device, room, stream, needed);
    // Rows that fit the device at once take the time of one row. More rows would need a second wave, and half of them
    // are not needed.
    const bool few = p.batch() * p.places() <= blocks_at_once(device);
    return p.method == SPECDEC_RACE && few ? launch_shaped_rows(p, device, room, stream, needed)
                                           : launch_shaped_chain(p, device, room, stream, needed);
  });
}

}  // namespace cuda
}  // namespace specdec
