// overlap: a team sums over a pair of rows tile by tile.
#include "specdec/overlap.h"

#include "filtered_row.cuh"
#include "specdec/request.h"

namespace specdec {
namespace cuda {

namespace {

struct OverlapArguments {
  OverlapParams p;
  PairArguments pair;
};

struct FilteredOverlapArguments : OverlapArguments {
  CutRoom cut;
};

__device__ __forceinline__ void store(const OverlapParams& p, int64_t index, const TwoSums& first,
                                      const TwoSums& second, int32_t status) {
  p.accept.data[index] = first.a;
  p.tv.data[index] = 0.5f * first.b;
  p.kl.data[index] = second.a;
  p.harmonic.data[index] = second.b;
  if (p.status.data) p.status.data[index] = status;
}

template <class Kept, class Team, class Arguments, class Edits>
__device__ __forceinline__ void find_overlap(const Arguments& a, const Edits& edits) {
  const OverlapParams& p = a.p;
  Team team(a.pair.team);
  const int64_t index = team.index(), i = index / p.target.rows, j = index % p.target.rows;
  const Entry who = entry_of(p.request_index, i);
  if (!who.live()) {
    if (team.rank() == 0 && threadIdx.x == 0) store(p, index, {0.0f, 0.0f}, {0.0f, 0.0f}, who.status());
    team.leave();
    return;
  }
  const int64_t n = who.index;
  int32_t status = kStatusOk;
  LawRowOf<Kept> sides[2] = {
      law_row<Kept>(row_of_pair(p, edits, 0, i, n, j), law_at(p.target_law, n, j, &status)),
      law_row<Kept>(row_of_pair(p, edits, 1, i, n, j), law_at(p.draft_law, n, j, &status), p.draft_map.data)};
  if constexpr (Edits::kEdited) status |= decode_edits(p.edits, p.target.vocab, {n, j}, {i, j}, 0, edits);
  if constexpr (Kept::kFiltered) know_filtered_rows(team, p, edits, i, n, j, a.cut, sides, &status);
  else know_rows(team, a.pair.chunks, sides, p.status.data != nullptr, &status);

  const int32_t vocab = p.target.vocab;
  const int tiles = sum_tiles_of(vocab), stride = word_stride(team, tiles);
  OverlapSums<float> sums = {};
  over_sum_tiles(
      team, vocab, [&](int tile) { prefetch_tile(sides, tile); },
      [&](int32_t token) {
        const Four target = probabilities(sides[0], token, vocab), draft = probabilities(sides[1], token, vocab);
#pragma unroll
        for (int k = 0; k < 4; ++k) sums = add(sums, overlap_terms(target.value[k], draft.value[k]));
      },
      [&](int tile) {
        // Each of the two words of a tile is an item of the warp that owns the tile.
        const WideKey first = packed(warp_sum(sums.accept), warp_sum(sums.tv));
        const WideKey second = packed(warp_sum(sums.kl), warp_sum(sums.harmonic));
        if (lane_id() == 0) {
          team.put(tile, first);
          team.put(stride + tile, second);
        }
        sums = {};
      });
  team.sync();
  const TwoSums first = sum_items(team, 0, tiles), second = sum_items(team, stride, tiles);
  if (team.rank() == 0 && threadIdx.x == 0) store(p, index, first, second, status);
  team.leave();
}

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) overlap_kernel(const OverlapArguments a) {
  wait_for_kernel_before();
  find_overlap<Unfiltered, Team>(a, NoEdits{});
}
template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    filtered_overlap_kernel(const FilteredOverlapArguments a) {
  wait_for_kernel_before();
  find_overlap<Filtered, Team>(a, NoEdits{});
}
template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    edited_overlap_kernel(const FilteredOverlapArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(RowEdits, edits, 1);
  find_overlap<FilteredOf<EditedRow>, Team>(a, BlockEdits{edits});
}

}  // namespace

cudaError_t overlap(const OverlapParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(overlap_kernel<LocalTeam>, overlap_kernel<ClusterTeam>, overlap_kernel<GridTeam>,
                               filtered_overlap_kernel<LocalTeam>, filtered_overlap_kernel<ClusterTeam>,
                               filtered_overlap_kernel<GridTeam>, edited_overlap_kernel<LocalTeam>,
                               edited_overlap_kernel<GridTeam>);
  *needed = 0;
  if (p.count() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    TeamPlan plan;
    CutPlan cut;
    FilteredOverlapArguments a = {{p, {}}, {}};
    plan_pair(p, workspace, needed, device, &plan, &a.pair, &cut);
    if (*needed) return cudaSuccess;
    a.cut = cut.room;
    const size_t shared = a.cut.at + cut.shared_bytes();
    if (p.edits.on())
      return launch_teams(edited_overlap_kernel<LocalTeam>, edited_overlap_kernel<GridTeam>, plan, device, a, shared,
                          stream);
    if (has_filters(p))
      return launch_teams(filtered_overlap_kernel<LocalTeam>, filtered_overlap_kernel<ClusterTeam>,
                          filtered_overlap_kernel<GridTeam>, plan, device, a, shared, stream);
    return launch_teams<OverlapArguments>(overlap_kernel<LocalTeam>, overlap_kernel<ClusterTeam>,
                                          overlap_kernel<GridTeam>, plan, device, a, plan.shared_bytes(), stream);
  });
}

}  // namespace cuda
}  // namespace specdec
