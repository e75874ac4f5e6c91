// race_sample: grid = rows x splits; the last block of a row compares what the others found. Few rows go straight: their
// blocks draw without lists (draw.cuh), or cut by the last block of a row (straight_cut.cuh).
//
// With filters or edits a team has a row: it finds what is kept, then who of these arrives first.
#include "../rows/straight_cut.cuh"
#include "specdec/c/races.h"

namespace specdec::cuda {

struct StraightSampleArguments {
  RaceParams p;
  Meeting* meetings;  // one a row
  Parts parts;
};

struct FilteredSampleArguments {
  RaceParams p;
  Meeting* meetings;
  Parts parts;
  StraightCut cut;
};

struct ShapedRaceArguments {
  RaceParams p;
  TeamRoom team;
  CutRoom cut;
};

template <class R>
__device__ __forceinline__ void store(const RaceParams& p, int64_t index, const RaceRequestOf<R>& row,
                                      const RowPartial& found) {
  const Arrivals out = arrivals_at(p, index);
  int32_t status = row.status;
  if (!row.who.live()) {
    out.put_unread(0, row.who.token());
  } else {
    const Candidate winner = row.token_of(found.best);
    out.put(0, winner);
    if (!out.of_part()) *out.tokens = draw_of(winner, SPECDEC_STATUS_OK).token;
    status = out.status_of(winner, status | found.status);
  }
  if (p.status.data) p.status.data[index] = status;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    race_sample_kernel(const SplitArguments<RaceParams> a) {
  wait_for_kernel_before();
  const int64_t index = a.splits.index();
  const RaceRequest row = race_request(a.p, index);
  RowPartial found = kNoPart;
  if (row.who.live()) found = find_winner(row, {a.splits.rank(), a.splits.count});
  if (a.splits.gather(&found) && threadIdx.x == 0) store(a.p, index, row, found);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    straight_sample_kernel(const StraightSampleArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  begin_draw(sure);
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  const RaceRequest row = race_request(a.p, index);
  Meeting* const meeting = a.meetings + index;
  __syncthreads();
  if (row.who.live()) {
    const Tiles tiles = a.parts.tiles_of(block - index * a.parts.count.by());
    draw_tiles<3>(weights_of_row(whole_row(row.row), row.law), row.noise, tiles.begin, tiles.end, sure, meeting);
  }
  if (!comes_last(meeting, a.parts.count.by()) || threadIdx.x != 0) return;
  meeting->came = 0;
  store(a.p, index, row, partial_of(taken_from(meeting)));
}

// With filters.
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    filtered_sample_kernel(const FilteredSampleArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(sure);
  const int block = static_cast<int>(blockIdx.x), index = a.parts.count.of(block);
  RaceRequestOf<EditedRow> row = shaped_request(a.p, index, {edits, false});
  row.map = {};  // a constant: there is none
  Filter filter;
  if (row.who.live()) filter = race_filter(a.p, index, &row);
  __syncthreads();
  RowEnd end;
  if (straight_row(row, row.who.live(), false, filter, a.cut, a.parts, index, block - index * a.parts.count.by(), sure,
                   a.meetings + index, &end) &&
      threadIdx.x == 0)
    store(a.p, index, row, end.best);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_race_kernel(const ShapedRaceArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  Team team(a.team);
  RaceRequestOf<EditedRow> row = shaped_request(a.p, team.index(), {edits, a.p.edits.on()});
  RowPartial found = kNoPart;
  if (row.who.live()) {
    const Filter filter = race_filter(a.p, team.index(), &row);
    found = filtered_winner(team, row, filter, a.cut);
  }
  if (team.rank() == 0 && threadIdx.x == 0) store(a.p, team.index(), row, found);
  team.leave();
}

namespace {

cudaError_t shaped_race(const RaceParams& p, const Device& device) {
  const ShapedPlan plan = shaped_plan(device, shaped_team(device, p.count(), p.rows), p.count(), p.rows.vocab);
  if (plan.team.lacks(device.room)) return cudaSuccess;
  return launch_teams(shaped_race_kernel, plan.team, device, {p, plan.team.team(device.room), plan.cut},
                      plan.shared_bytes);
}

// Of rows of the whole vocabulary alone.
bool goes_straight(const RaceParams& p, const Device& device) {
  if (p.law.rules & SPECDEC_FILTERED && bytes_of_straight(straight_plan(p.rows.vocab)) > device.dynamic_shared)
    return false;
  return !p.edits.on() && !p.scores.data && !p.draft_map.data && p.rows.vocab_start == 0 &&
         straight_if(p.count() <= kStraightRows);
}

cudaError_t straight_sample(const RaceParams& p, const Device& device) {
  const int64_t rows = p.count();
  const Room& room = device.room;
  const bool filtered = (p.law.rules & SPECDEC_FILTERED) != 0;
  const Parts parts = parts_of_rows(p.rows.vocab, blocks_at_once(device) / rows);
  const int64_t words = filtered ? rows * kCutWordsATile * parts.tiles : 0;
  if (room.lacks(kTicketsAMeeting * rows, words)) return cudaSuccess;
  Shape shape = {rows * parts.count.by(), kThreads};
  shape.overlaps = true;
  Meeting* const meetings = reinterpret_cast<Meeting*>(room.tickets);
  if (!filtered) return launch(straight_sample_kernel, shape, {p, meetings, parts}, device.stream);
  const CutPlan plan = straight_plan(p.rows.vocab);
  const StraightCut cut = straight_cut(plan, room.words);
  shape.dynamic_shared = bytes_of_straight(plan);
  return launch(filtered_sample_kernel, shape, {p, meetings, parts, cut}, device.stream);
}

}  // namespace

cudaError_t race_sample(const RaceParams& p, const Call& call) {
  static const Kernels kernels(race_sample_kernel, straight_sample_kernel, filtered_sample_kernel, shaped_race_kernel);
  return on_device(call, p.count(), kernels, [&](const Device& device) {
    if (goes_straight(p, device)) return straight_sample(p, device);
    if (p.edits.on() || p.law.rules & SPECDEC_FILTERED) return shaped_race(p, device);
    Shape shape = {};
    shape.overlaps = true;
    return launch_splits(race_sample_kernel, p, p.count(), p.rows, device, shape);
  });
}

}  // namespace specdec::cuda
