// overlap: a team sums over a pair of rows tile by tile.
#include "specdec/overlap.h"

#include "../rows/filtered_row.cuh"
#include "specdec/request.h"

namespace specdec {
namespace cuda {

namespace {

struct OverlapArguments {
  OverlapParams p;
  PairArguments pair;
  CutRoom cut;  // where there may be filters or edits
};

__device__ __forceinline__ void store(const OverlapParams& p, int64_t index, const TwoSums& first,
                                      const TwoSums& second, int32_t status) {
  p.accept.data[index] = first.a;
  p.tv.data[index] = 0.5f * first.b;
  p.kl.data[index] = second.a;
  p.harmonic.data[index] = second.b;
  if (p.status.data) p.status.data[index] = status;
}

template <class Reader>
__device__ __forceinline__ void find_overlap(const OverlapArguments& a, const Reader& reader) {
  using Kept = typename Reader::Kept;
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
  int32_t status = SPECDEC_STATUS_OK;
  LawRowOf<Kept> sides[2] = {
      law_row<Kept>(row_of_pair(p, reader, 0, i, n, j), law_at(p.target_law, n, j, &status)),
      law_row<Kept>(row_of_pair(p, reader, 1, i, n, j), law_at(p.draft_law, n, j, &status), p.draft_map.data)};
  status |= reader.decode(p.edits, p.target.vocab, {n, j}, {i, j});
  if constexpr (Kept::kFiltered) know_filtered_rows(team, p, reader, i, n, j, a.cut, sides, &status);
  else know_rows(team, a.pair.tiles, sides, p.status.data != nullptr, &status);

  const int32_t vocab = p.target.vocab;
  const int tiles = sum_tiles_of(vocab), stride = word_stride(team, tiles);
  OverlapSums<float> sums = {};
  over_sum_tiles(
      part_of(team), vocab, [&](int tile) { prefetch_tile(sides, tile); },
      [&](int32_t token) {
        const FourWeighed target = weighed(sides[0], token, vocab), draft = weighed(sides[1], token, vocab);
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

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) overlap_kernel(const OverlapArguments a) {
  wait_for_kernel_before();
  find_overlap(a, PlainRows{});
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_overlap_kernel(const OverlapArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  find_overlap(a, ShapedRows{edits, a.p.edits.on()});
}

}  // namespace

cudaError_t overlap(const OverlapParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  static const Kernels kernels(overlap_kernel, shaped_overlap_kernel);
  *needed = 0;
  if (p.count() == 0) return cudaSuccess;
  return on_device(stream, kernels, [&](const Device& device) {
    TeamPlan plan;
    CutPlan cut;
    OverlapArguments a = {p, {}, {}};
    plan_pair(p, workspace, needed, device, &plan, &a.pair, &cut);
    if (*needed) return cudaSuccess;
    a.cut = cut.room;
    if (is_shaped(p))
      return launch_teams(shaped_overlap_kernel, plan, device, a, a.cut.at + cut.shared_bytes(), stream);
    return launch_teams(overlap_kernel, plan, device, a, plan.shared_bytes(), stream);
  });
}

}  // namespace cuda
}  // namespace specdec
