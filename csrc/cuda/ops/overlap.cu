// overlap: a team sums over a pair of rows tile by tile.
#include "specdec/c/pairs.h"
#include "specdec/overlap.h"

#include "../rows/pair.cuh"

namespace specdec::cuda {

namespace {

using OverlapArguments = PairArguments<OverlapParams>;

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
  const OverlapParams& p = a.p;
  Team team(a.team);
  const PairIndex at(p, team.index());
  if (!at.entry.live()) {
    if (team.rank() == 0 && threadIdx.x == 0) store(p, at.index, {0.0f, 0.0f}, {0.0f, 0.0f}, at.entry.status());
    team.leave();
    return;
  }
  int32_t status = SPECDEC_STATUS_OK;
  LawRowOf<typename Reader::Support> sides[2];
  load_pair(team, a, at, reader, sides, &status);

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
        // The two words of a tile are items of the warp that owns the tile.
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
  if (team.rank() == 0 && threadIdx.x == 0) store(p, at.index, first, second, status);
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

cudaError_t overlap(const OverlapParams& p, const Call& call) {
  return launch_pairs<overlap_kernel, shaped_overlap_kernel>(p, call);
}

}  // namespace specdec::cuda
