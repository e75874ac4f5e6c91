// verify_chain in one launch. Few requests go straight (straight.cuh). Otherwise there are three shapes:
//
//   race_rows_kernel   method "race", if all rows fit the device at once. There are rows x splits blocks. The last
//                      block of a request to come (by a ticket) walks the chain over the winners.
//   race_queue_kernel  method "race", if they do not: blocks take parts of rows from a queue (race_queue.cuh).
//   chain_kernel       a team of blocks walks each request in order and stops (walker.cuh). Rows past the last one
//                      decided are not read; block reads all that may be accepted. A team is one block in large
//                      batches, a cluster or a software cluster in smaller ones. A software cluster takes the
//                      log-sum-exps of several rows between two barriers.
//
// With filters or edits there is no queue. Every row has a team of its own in the first shape, and the last takes one
// row at a time.
#include "../rows/team_rows.cuh"
#include "../walk/race_queue.cuh"
#include "../walk/straight.cuh"
#include "../walk/walker.cuh"

namespace specdec {
namespace cuda {

namespace {

constexpr int kRowsAtOnce = 8;

// ---- all rows at once -----------------------------------------------------------------------------------------------

struct RaceRowsArguments {
  ChainParams p;
  Room room;
  int splits;
};

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) race_rows_kernel(const RaceRowsArguments a) {
  wait_for_kernel_before();
  const ChainParams& p = a.p;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const int64_t row = blockIdx.x / a.splits;
  const int32_t rows = p.max_drafts() + 1, node = static_cast<int32_t>(row % rows);
  const int64_t request = row / rows;
  const ChainRequest r(p, request);
  const int32_t in_reach = rows_in_reach(r);
  if (node < in_reach) {
    const RowPartial found = find_winner<true>(row_at(p.target, r.target_row(node)), r.target_law,
                                               r.race_noise(node, node), {rank, a.splits});
    if (threadIdx.x == 0) store_partial(a.room.words, blockIdx.x, found);
  }
  if (!last_to_come(a.room.tickets + request, static_cast<unsigned>(rows * a.splits))) return;
  walk_winners(r, request, {0, in_reach}, a.room.words, a.splits, 0, r.status);
}

struct ShapedRowsArguments {
  ChainParams p;
  TeamRoom team;
  unsigned* tickets;  // one a request
  WideKey* partials;  // one a row
  CutRoom cut;
  // In bytes of shared memory:
  size_t drafted_at;  // the drafts before the row
  size_t winners_at;
};

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
  if (team.rank() > 0 || !last_to_come(a.tickets + request, static_cast<unsigned>(rows))) return;
  const ChainRequest r(p, request);  // anew, because it would take registers until here
  walk_winners(r, request, {0, rows_in_reach(r)}, a.partials, 1, a.winners_at, r.status | RequestFilters(r).status);
}

// ---- row by row -----------------------------------------------------------------------------------------------------

using ChainArguments = WalkArguments<ChainParams>;

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  walk_request<ChainRequest>(a);
}

using ShapedChainArguments = ShapedWalkArguments<ChainParams>;

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_chain_kernel(const ShapedChainArguments a) {
  wait_for_kernel_before();
  walk_request<ChainRequest, RequestShape>(a);
}

// ---- launching ------------------------------------------------------------------------------------------------------

cudaError_t launch_race_rows(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                             int64_t* needed) {
  const int64_t rows = p.batch() * (p.max_drafts() + 1);
  const int splits = splits_of_row(device, rows, p.target.vocab, p.target.dtype);
  const int64_t words = rows * splits * kWordsAPartial;
  if (p.batch() > room.ticket_count || words > room.word_count)
    return *needed = room_needed(p.batch(), words), cudaSuccess;
  Shape shape = {rows * splits, threads_of_block(p.target.vocab, p.target.dtype)};
  shape.dynamic_shared = bytes_of_winners(p);
  shape.overlaps = true;
  return launch(race_rows_kernel, shape, {p, room, splits}, stream);
}

cudaError_t launch_chain(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                         int64_t* needed) {
  // How many log-sum-exps a node has. If it has none, rows are read one after the other.
  const int target_sums = p.method != SPECDEC_RACE && may_need_sum(p.target_law) ? 1 : 0;
  const int draft_sums = p.draft.data && may_need_sum(p.draft_law) ? 1 : 0, sums = target_sums + draft_sums;
  ChainArguments a = walk_arguments(p);
  // With more blocks, for all rows that it takes between two barriers, a team takes longer: two blocks on a
  // multiprocessor wait for its instructions.
  const TeamShape shape = team_shape(device, p.batch(), p.target, sums > 1 ? sums : 1, Ends::kOneByOne);
  // Bounds cost another pass over the pair of the first rejection. Where many blocks share a request, a pass is mostly
  // latency; and an exact mass of a float32 row takes no longer than its bytes.
  a.by_bounds = p.method == SPECDEC_REJECTION && sums > 0 && !shape.grid && p.target.dtype != SPECDEC_FLOAT32;
  if (shape.grid && sums > 0)
    a.rows_at_once = p.max_drafts() < 1 ? 1 : p.max_drafts() < kRowsAtOnce ? p.max_drafts() : kRowsAtOnce;
  const TeamPlan plan = walk_plan(shape, p, places_of(shape, a.rows_at_once * sums * a.tiles, kWordsATile));
  if (!plan.fits(room)) return *needed = plan.bytes(), cudaSuccess;
  use_room(a, plan, room);
  const size_t shared = keep_rows(a, plan.shared_bytes());
  return launch_teams(chain_kernel, plan, device, a, shared, stream);
}

cudaError_t launch_shaped_rows(const ChainParams& p, const Device& device, const Room& room, cudaStream_t stream,
                               int64_t* needed) {
  const int64_t rows = p.batch() * (p.max_drafts() + 1);
  const size_t drafts = bytes_of_drafts(p), winners = bytes_of_winners(p);
  const ShapedPlan plan = shaped_plan(device, shaped_team(device, rows, p.target), rows, p.target.vocab, p.batch(),
                                      rows * kWordsAPartial, drafts + winners);
  if (!plan.team.fits(room)) return *needed = plan.team.bytes(), cudaSuccess;
  const size_t drafted_at = plan.shared_bytes, winners_at = drafted_at + drafts;
  return launch_teams(shaped_rows_kernel, plan.team, device,
                      {p, plan.team.team(room), room.tickets, room.words, plan.cut, drafted_at, winners_at},
                      winners_at + winners, stream);
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
  static const Kernels kernels(race_rows_kernel, race_queue_kernel, shaped_rows_kernel, chain_kernel,
                               shaped_chain_kernel, straight_race_kernel, straight_rejection_kernel, straight_block_kernel);
  *needed = 0;
  if (p.batch() == 0) return cudaSuccess;
  const Room room = room_in(workspace);
  return on_device(stream, kernels, [&](const Device& device) {
    if (goes_straight(p)) return launch_straight(p, device, room, stream, needed);
    // Rows that fit the device at once take the time of one row. More rows would need a second wave, and half of them
    // are not needed.
    const bool few = p.batch() * (p.max_drafts() + 1) <= blocks_at_once(device);
    if (is_shaped(p))
      return p.method == SPECDEC_RACE && few ? launch_shaped_rows(p, device, room, stream, needed)
                                              : launch_shaped_chain(p, device, room, stream, needed);
    if (p.method != SPECDEC_RACE) return launch_chain(p, device, room, stream, needed);
    if (few) return launch_race_rows(p, device, room, stream, needed);
    const QueuePlan plan = queue_plan(device, p);
    return plan.blocks > 0 ? launch_race_queue(p, plan, room, stream, needed)
                           : launch_chain(p, device, room, stream, needed);
  });
}

}  // namespace cuda
}  // namespace specdec
