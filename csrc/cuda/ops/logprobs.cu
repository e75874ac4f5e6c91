// logprobs: a team finds the law of a row, counts the tokens that are at least as probable as the one asked for, and takes
// the most probable ones, 32 at a time.
#include "../rows/filtered_row.cuh"
#include "../team/topk.cuh"

namespace specdec {
namespace cuda {

namespace {

struct LogprobsArguments {
  LogprobsParams p;
  TeamRoom team;
  CutRoom cut;  // where there may be filters or edits
};

// x of an element, -inf if the row's law does not keep it.
template <class Kept>
__device__ __forceinline__ float kept_x(const LawRowOf<Kept>& side, float raw, int32_t column) {
  return side.kept.keeps(raw, column) ? side.stats.law.logits().scaled(raw) : -kInfinity;
}

// How many kept tokens have at least this x.
template <class Kept>
__device__ __forceinline__ int32_t rank_of(Team& team, const LawRowOf<Kept>& side, float x) {
  uint64_t rank[1] = {0};
  over_sum_tiles(
      part_of(team), side.row.vocab, [](int) {},
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
template <class Kept>
__device__ __forceinline__ void fill_topk(const Team& team, const LawRowOf<Kept>& side, TopK* topk) {
  const int warps = team.size() * warps_in_block();
#pragma unroll 1
  for (int tile = team.rank() * warps_in_block() + warp_id(); tile < sum_tiles_of(side.row.vocab); tile += warps) {
#pragma unroll 1
    for (int32_t first = tile * kSumTile; first < (tile + 1) * kSumTile; first += 32) {
      const int32_t column = first + lane_id();
      const float x = column < side.row.vocab ? kept_x(side, element(side.row, column), column) : -kInfinity;
      topk->offer(x > -kInfinity ? key_of_candidate({x, column}) : 0);
    }
  }
}

// Writes bits of the tokens that the row's law keeps, and how many these are.
template <class Kept>
__device__ __forceinline__ void store_kept(const LogprobsParams& p, Team& team, int64_t index,
                                           const LawRowOf<Kept>& side) {
  uint64_t count[1] = {0};
  const int32_t warps = team.size() * warps_in_block();
#pragma unroll 1
  for (int32_t word = team.rank() * warps_in_block() + warp_id(); word < p.words(); word += warps) {
    const int32_t column = 32 * word + lane_id();
    const bool mine = column < side.row.vocab && kept_x(side, element(side.row, column), column) > -kInfinity;
    const unsigned bits = __ballot_sync(kWarp, mine);
    if (lane_id() == 0) p.kept_bits.data[index * p.words() + word] = static_cast<int32_t>(bits);
    count[0] += mine;
  }
  team_sums(team, count);
  if (team.rank() == 0 && threadIdx.x == 0) p.kept_count.data[index] = static_cast<int32_t>(count[0]);
}

// That of a row that keeps one token, or with kNoToken none.
__device__ __forceinline__ void store_kept_alone(const LogprobsParams& p, int64_t index, int32_t token) {
  for (int32_t word = static_cast<int32_t>(threadIdx.x); word < p.words(); word += static_cast<int32_t>(blockDim.x))
    p.kept_bits.data[index * p.words() + word] =
        token != kNoToken && word == token / 32 ? static_cast<int32_t>(1u << token % 32) : 0;
  if (threadIdx.x == 0) p.kept_count.data[index] = token != kNoToken;
}

// The best keys of the whole team, for warp 0 of every member.
__device__ __forceinline__ void merge_teams(Team& team, TopK* topk) {
  merge_topk(topk, false);
  if (team.size() == 1) return;
  SPECDEC_SHARED(WideKey, places, 32);
  if (warp_id() == 0) places[lane_id()] = topk->place;
  __syncthreads();
  const int mine = warp_id() + lane_id() * warps_in_block();
  if (mine < 32) team.put(member_slot(team, team.rank(), mine), places[mine]);
  team.sync();
  if (warp_id() != 0) return;
  for (int rank = 0; rank < team.size(); ++rank)
    if (rank != team.rank()) topk->offer(team.get(member_slot(team, rank, lane_id())));
}

template <class Kept>
__device__ __forceinline__ void store_top(const LogprobsParams& p, Team& team, int64_t index,
                                          const LawRowOf<Kept>& side) {
  SPECDEC_SHARED(WideKey, lowest, 1);
  const int32_t top = p.top();
  WideKey below = kCeiling;
#pragma unroll 1
  for (int32_t from = 0; from < top; from += 32) {
    TopK topk = {0, top - from < 32 ? top - from : 32, below};
    if (below) fill_topk(team, side, &topk);
    merge_teams(team, &topk);
    if (warp_id() == 0) {
      const Candidate found = candidate_of_key(topk.place);
      const bool none = found.token == kNoToken;
      if (team.rank() == 0 && lane_id() < topk.size) {
        p.top_tokens.data[index * top + from + lane_id()] = none ? -1 : found.token;
        p.top_logprobs.data[index * top + from + lane_id()] =
            none ? -kInfinity : log_probability(found.score, side.stats.lse);
      }
      const WideKey last = topk.last();
      if (lane_id() == 0) lowest[0] = last;
    }
    __syncthreads();
    below = lowest[0];
    __syncthreads();
  }
}

// What is known of the law of a row, for every thread of the team.
__device__ __forceinline__ void know(const LogprobsArguments&, Team& team, int64_t, int64_t, LawRow* side,
                                     int32_t* status) {
  SPECDEC_SHARED(RowStats, stats, 1);
  const Law law = side->stats.law;
  RowStats found;
  if (law.greedy) {
    found = scan_argmax(team, *side);
  } else {
    take_sums_of_rows(
        team, 1, mass_tiles_of(side->row.vocab), [&](int) { return *side; },
        [&](int, const RowStats& whole) { stats[0] = whole; });
    __syncthreads();
    found = stats[0];
  }
  side->stats = with_stats(law, found);
  *status |= found.status;
}

__device__ __forceinline__ void know(const LogprobsArguments& a, Team& team, int64_t n, int64_t j,
                                     LawRowOf<Filtered>* side, int32_t* status) {
  const Law law = side->stats.law;
  const Filter filter = filter_at(a.p.law, law, side->row.vocab, n, j, status);
  FilteredRow found = {kNoStats, {}, -1};
  if (law.greedy) found.stats = scan_argmax(team, *side);
  else found = know_filtered(team, side->row, law, filter, a.cut);
  side->stats = with_stats(law, found.stats);
  side->kept = found.kept;
  *status |= found.stats.status;
}

template <class Reader>
__device__ __forceinline__ void find_logprobs(const LogprobsArguments& a, const Reader& reader) {
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
    status |= reader.decode(p.edits, p.rows.vocab, {who.index, j}, {i, j});
    auto side = law_row<typename Reader::Kept>(reader.of(row_at(p.rows, p.rows.offset(i, j))), law);
    know(a, team, who.index, j, &side, &status);
    argmax = side.stats.argmax;
    const bool in_range = token >= 0 && token < p.rows.vocab;
    if (!in_range && token != -1) status |= SPECDEC_STATUS_TOKEN_RANGE;
    if (in_range) {
      const int32_t column = static_cast<int32_t>(token);
      const float x = kept_x(side, element(side.row, column), column);
      if (column == argmax) logprob = 0.0f, rank = 1;
      else if (x > -kInfinity) rank = rank_of(team, side, x);
      if (x > -kInfinity && !law.greedy) logprob = log_probability(x, side.stats.lse);
    }
    listed = !law.greedy;
    if (listed) store_top(p, team, index, side);
    if (listed && p.kept_bits.data) store_kept(p, team, index, side);
  }
  if (team.rank() == 0) {
    if (!listed && p.kept_bits.data) store_kept_alone(p, index, argmax);
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

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) logprobs_kernel(const LogprobsArguments a) {
  wait_for_kernel_before();
  find_logprobs(a, PlainRows{});
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_logprobs_kernel(const LogprobsArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  find_logprobs(a, ShapedRows{edits, a.p.edits.on()});
}

}  // namespace

cudaError_t logprobs(const LogprobsParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(logprobs_kernel, shaped_logprobs_kernel);
  *needed = 0;
  if (p.count() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    const bool shaped = p.edits.on() || p.law.rules & SPECDEC_FILTERED;
    ShapedPlan plan = shaped_plan(device, shaped_team(device, p.count(), p.rows), p.count(), p.rows.vocab);
    if (!shaped) {
      const TeamShape shape = team_shape(device, p.count(), p.rows, 1, Ends::kTogether);
      const int masses = places_of(shape, mass_tiles_of(p.rows), kWordsATile), sums = items_of_members(shape);
      plan.team = team_plan(shape, p.count(), masses > sums ? masses : sums, 0, 0);
      plan.shared_bytes = plan.team.shared_bytes();
    }
    const Room room = room_in(workspace);
    if (!plan.team.fits(room)) return *needed = plan.team.bytes(), cudaSuccess;
    return launch_teams(shaped ? shaped_logprobs_kernel : logprobs_kernel, plan.team, device,
                        {p, plan.team.team(room), plan.cut}, plan.shared_bytes, stream);
  });
}

}  // namespace cuda
}  // namespace specdec
