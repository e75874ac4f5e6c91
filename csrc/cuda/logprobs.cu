// logprobs: a team finds the law of a row (filtered_row.cuh), counts the tokens that are at least as probable as the one asked
// for, and takes the most probable ones, 32 at a time.
#include "filtered_row.cuh"
#include "podium.cuh"

namespace specdec {
namespace cuda {

namespace {

struct LogprobsArguments {
  LogprobsParams p;
  TeamRoom team;
  CutRoom cut;
};

// x of an element, -inf if the row's law does not keep it.
template <class R>
__device__ __forceinline__ float kept_x(const LawRowOf<FilteredOf<R>>& side, float raw, int32_t column) {
  return side.kept.keeps(raw, column) ? side.known.law.logits().scaled(raw) : -kInfinity;
}

// How many kept tokens have at least this x.
template <class Team, class R>
__device__ __forceinline__ int32_t rank_of(Team& team, const LawRowOf<FilteredOf<R>>& side, float x) {
  uint64_t rank[1] = {0};
  over_sum_tiles(
      team, side.row.vocab, [](int) {},
      [&](int32_t token) {
        const Four four = four_elements(side.row, token);
#pragma unroll
        for (int i = 0; i < 4; ++i) rank[0] += kept_x(side, four.value[i], token + i) >= x;
      },
      [](int) {});
  team_sums(team, rank);
  return static_cast<int32_t>(rank[0]);
}

// Offers this warp's kept tokens.
template <class Team, class R>
__device__ __forceinline__ void fill_podium(const Team& team, const LawRowOf<FilteredOf<R>>& side, Podium* podium) {
  const int warps = team.size() * warps_in_block();
#pragma unroll 1
  for (int tile = team.rank() * warps_in_block() + warp_id(); tile < sum_tiles_of(side.row.vocab); tile += warps) {
#pragma unroll 1
    for (int32_t first = tile * kSumTile; first < (tile + 1) * kSumTile; first += 32) {
      const int32_t column = first + lane_id();
      const float x = column < side.row.vocab ? kept_x(side, element(side.row, column), column) : -kInfinity;
      podium->offer(x > -kInfinity ? key_of_candidate({x, column}) : 0);
    }
  }
}

// The podium of the whole team, for warp 0 of every member.
template <class Team>
__device__ __forceinline__ void merge_teams(Team& team, Podium* podium) {
  merge_podiums(podium, false);
  if (team.size() == 1) return;
  SPECDEC_SHARED(WideKey, places, 32);
  if (warp_id() == 0) places[lane_id()] = podium->place;
  __syncthreads();
  const int mine = warp_id() + lane_id() * warps_in_block();
  if (mine < 32) team.put(member_slot(team, team.rank(), mine), places[mine]);
  team.sync();
  if (warp_id() != 0) return;
  for (int rank = 0; rank < team.size(); ++rank)
    if (rank != team.rank()) podium->offer(team.get(member_slot(team, rank, lane_id())));
}

template <class Team, class R>
__device__ __forceinline__ void store_top(const LogprobsParams& p, Team& team, int64_t index,
                                          const LawRowOf<FilteredOf<R>>& side) {
  SPECDEC_SHARED(WideKey, lowest, 1);
  const int32_t top = p.top();
  WideKey below = kCeiling;
#pragma unroll 1
  for (int32_t from = 0; from < top; from += 32) {
    Podium podium = {0, top - from < 32 ? top - from : 32, below};
    if (below) fill_podium(team, side, &podium);
    merge_teams(team, &podium);
    if (warp_id() == 0) {
      const Candidate found = candidate_of_key(podium.place);
      const bool none = found.token == kNoToken;
      if (team.rank() == 0 && lane_id() < podium.size) {
        p.top_tokens.data[index * top + from + lane_id()] = none ? -1 : found.token;
        p.top_logprobs.data[index * top + from + lane_id()] =
            none ? -kInfinity : log_probability(found.score, side.known.lse);
      }
      const WideKey last = podium.last();
      if (lane_id() == 0) lowest[0] = last;
    }
    __syncthreads();
    below = lowest[0];
    __syncthreads();
  }
}

template <class Team, class Edits>
__device__ __forceinline__ void find_logprobs(const LogprobsArguments& a, const Edits& edits) {
  using R = typename Edits::RowType;
  const LogprobsParams& p = a.p;
  Team team(a.team);
  const int64_t index = team.index(), i = index / p.rows.rows, j = index % p.rows.rows;
  const int64_t token = p.tokens.at(i * p.tokens.request_stride + j * p.tokens.slot_stride);
  const Entry who = entry_of(p.request_index, i);
  int32_t status = who.status(), rank = 0, argmax = kNoToken;
  float logprob = -kInfinity;
  bool listed = false;
  if (who.live() && (token != -1 || p.top() > 0)) {
    const Law law = law_at(p.law, who.index, j, &status);
    const Filter filter = filter_at(p.law, law, p.rows.vocab, who.index, j, &status);
    if constexpr (Edits::kEdited) status |= decode_edits(p.edits, p.rows.vocab, {who.index, j}, {i, j}, 0, edits);
    LawRowOf<FilteredOf<R>> side = law_row<FilteredOf<R>>(edits.row(true, p.rows, p.rows.offset(i, j)), law);
    FilteredRow<R> found = {kNothingKnown, {}, -1};
    if (law.greedy) found.known = look_through(team, side);
    else found = know_filtered(team, side.row, law, filter, a.cut);
    status |= found.known.status;
    argmax = found.known.argmax;
    side.known = known_law(law, found.known);
    side.kept = found.kept;
    const bool in_range = token >= 0 && token < p.rows.vocab;
    if (!in_range && token != -1) status |= kStatusTokenRange;
    if (in_range) {
      const int32_t column = static_cast<int32_t>(token);
      const float x = kept_x(side, element(side.row, column), column);
      if (column == argmax) logprob = 0.0f, rank = 1;
      else if (x > -kInfinity) rank = rank_of(team, side, x);
      if (x > -kInfinity && !law.greedy) logprob = log_probability(x, side.known.lse);
    }
    listed = !law.greedy;
    if (listed) store_top(p, team, index, side);
  }
  if (team.rank() == 0) {
    for (int place = static_cast<int>(threadIdx.x); !listed && place < p.top(); place += static_cast<int>(blockDim.x)) {
      const bool found = place == 0 && argmax != kNoToken;
      p.top_tokens.data[index * p.top() + place] = found ? argmax : -1;
      p.top_logprobs.data[index * p.top() + place] = found ? 0.0f : -kInfinity;
    }
    if (threadIdx.x == 0) {
      p.logprob.data[index] = logprob;
      p.rank.data[index] = rank;
      if (p.status.data) p.status.data[index] = status;
    }
  }
  team.leave();
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) logprobs_kernel(const LogprobsArguments a) {
  wait_for_kernel_before();
  find_logprobs<Team>(a, NoEdits{});
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) edited_logprobs_kernel(const LogprobsArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(RowEdits, edits, 1);
  find_logprobs<Team>(a, BlockEdits{edits});
}

}  // namespace

cudaError_t logprobs(const LogprobsParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(logprobs_kernel<LocalTeam>, logprobs_kernel<ClusterTeam>, logprobs_kernel<GridTeam>,
                               edited_logprobs_kernel<LocalTeam>, edited_logprobs_kernel<GridTeam>);
  *needed = 0;
  if (p.count() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    const bool edited = p.edits.on();
    const FilteredPlan plan = filtered_plan(device, p.count(), p.rows, edited);
    const Room room = room_in(workspace);
    if (!plan.team.fits(room)) return *needed = plan.team.bytes(), cudaSuccess;
    const LogprobsArguments a = {p, plan.team.team(room), plan.cut};
    if (edited)
      return launch_teams(edited_logprobs_kernel<LocalTeam>, edited_logprobs_kernel<GridTeam>, plan.team, device, a,
                          plan.shared_bytes, stream);
    return launch_teams(logprobs_kernel<LocalTeam>, logprobs_kernel<ClusterTeam>, logprobs_kernel<GridTeam>, plan.team,
                        device, a, plan.shared_bytes, stream);
  });
}

}  // namespace cuda
}  // namespace specdec
