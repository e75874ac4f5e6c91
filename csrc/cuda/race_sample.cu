// race_sample: grid = rows x splits; the last block of a row compares what the others found.
//
// With filters or edits a team has a row: it finds what is kept, then who of these arrives first.
#include "filtered_row.cuh"
#include "race_request.cuh"

namespace specdec {
namespace cuda {

struct RaceSampleArguments {
  RaceParams p;
  Room room;
  int splits;
};

struct FilteredRaceArguments {
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
    if (!out.of_part()) *out.tokens = draw_of(winner, kStatusOk).token;
    status = out.status_of(winner, status | found.status);
  }
  if (p.status.data) p.status.data[index] = status;
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) race_sample_kernel(const RaceSampleArguments a) {
  wait_for_kernel_before();
  const int64_t index = blockIdx.x / a.splits;
  const int rank = static_cast<int>(blockIdx.x % a.splits);
  const RaceRequest row = race_request(a.p, index);
  RowPartial found = kNoPart;
  if (row.who.live()) found = find_winner(row, {rank, a.splits});
  if (a.splits > 1) {
    if (threadIdx.x == 0) store_partial(a.room.words, index * a.splits + rank, found);
    if (!last_to_come(a.room.tickets + index, a.splits)) return;
    found = gather_partials(a.room.words, index * a.splits, a.splits);
  }
  if (threadIdx.x == 0) store(a.p, index, row, found);
}

template <class Team, class R>
__device__ __forceinline__ void race_filtered(const FilteredRaceArguments& a, Team& team, RaceRequestOf<R> row) {
  RowPartial found = kNoPart;
  if (row.who.live()) {
    const Filter filter = race_filter(a.p, team.index(), &row);
    found = filtered_winner(team, row, filter, a.cut);
  }
  if (team.rank() == 0 && threadIdx.x == 0) store(a.p, team.index(), row, found);
  team.leave();
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    filtered_race_kernel(const FilteredRaceArguments a) {
  wait_for_kernel_before();
  Team team(a.team);
  race_filtered(a, team, race_request(a.p, team.index()));
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) edited_race_kernel(const FilteredRaceArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(RowEdits, edits, 1);
  Team team(a.team);
  race_filtered(a, team, edited_request(a.p, team.index(), {edits}));
}

namespace {

cudaError_t filtered_race(const RaceParams& p, const Workspace& workspace, const Device& device, cudaStream_t stream,
                          int64_t* needed) {
  const bool edited = p.edits.on();
  const FilteredPlan plan = filtered_plan(device, p.count(), p.rows, edited);
  const Room room = room_in(workspace);
  if (!plan.team.fits(room)) return *needed = plan.team.bytes(), cudaSuccess;
  const FilteredRaceArguments a = {p, plan.team.team(room), plan.cut};
  if (edited)
    return launch_teams(edited_race_kernel<LocalTeam>, edited_race_kernel<GridTeam>, plan.team, device, a,
                        plan.shared_bytes, stream);
  return launch_teams(filtered_race_kernel<LocalTeam>, filtered_race_kernel<ClusterTeam>,
                      filtered_race_kernel<GridTeam>, plan.team, device, a, plan.shared_bytes, stream);
}

cudaError_t plain_race(const RaceParams& p, const Workspace& workspace, const Device& device, cudaStream_t stream,
                       int64_t* needed) {
  const int64_t rows = p.count();
  const int splits = splits_of_row(device, rows, p.rows.vocab, p.rows.dtype);
  const Room room = room_in(workspace);
  if (splits > 1 && (rows > room.ticket_count || rows * splits * kWordsAPartial > room.word_count))
    return *needed = room_needed(rows, rows * splits * kWordsAPartial), cudaSuccess;
  Shape shape = {rows * splits, threads_of_block(p.rows.vocab, p.rows.dtype)};
  shape.overlaps = true;
  return launch(race_sample_kernel, shape, {p, room, splits}, stream);
}

}  // namespace

cudaError_t race_sample(const RaceParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(race_sample_kernel, filtered_race_kernel<LocalTeam>, filtered_race_kernel<ClusterTeam>,
                               filtered_race_kernel<GridTeam>, edited_race_kernel<LocalTeam>,
                               edited_race_kernel<GridTeam>);
  *needed = 0;
  if (p.count() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    return p.edits.on() || p.law.rules & kFiltered ? filtered_race(p, workspace, device, stream, needed)
                                                   : plain_race(p, workspace, device, stream, needed);
  });
}

}  // namespace cuda
}  // namespace specdec
