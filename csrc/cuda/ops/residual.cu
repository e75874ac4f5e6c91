// residual: a team weighs a pair of rows tile by tile, adds up the sum, and divides the weights that it wrote.
#include "../rows/pair.cuh"
#include "specdec/c/pairs.h"
#include "specdec/chain.h"

namespace specdec::cuda {

namespace {

using ResidualArguments = PairArguments<ResidualParams>;

// Whether the tokens token .. token + 3 are one vector in memory.
__device__ __forceinline__ bool whole(const float* probs, int32_t token, int32_t vocab) {
  return token + 4 <= vocab && reinterpret_cast<uintptr_t>(probs + token) % sizeof(Four) == 0;
}

__device__ __forceinline__ void store_four(float* probs, int32_t token, int32_t vocab, const Four& four) {
  if (whole(probs, token, vocab)) {
    *reinterpret_cast<Four*>(probs + token) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (token + i < vocab) probs[token + i] = four.value[i];
}

__device__ __forceinline__ Four load_four(const float* probs, int32_t token, int32_t vocab) {
  if (whole(probs, token, vocab)) return *reinterpret_cast<const Four*>(probs + token);
  Four four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.value[i] = token + i < vocab ? probs[token + i] : 0.0f;
  return four;
}

__device__ __forceinline__ void store_figures(const ResidualParams& p, int64_t index, float mass, int32_t status) {
  p.mass.data[index] = mass;
  if (p.status.data) p.status.data[index] = status;
}

template <class Reader>
__device__ __forceinline__ void find_residual(const ResidualArguments& a, const Reader& reader) {
  const ResidualParams& p = a.p;
  Team team(a.team);
  const PairIndex at(p, team.index());
  const int32_t vocab = p.target.vocab;
  float* probs = p.probs.data + at.index * vocab;
  if (!at.entry.live()) {
    over_sum_tiles(part_of(team), vocab, [](int) {}, [&](int32_t token) { store_four(probs, token, vocab, {{}}); }, [](int) {});
    if (team.rank() == 0 && threadIdx.x == 0) store_figures(p, at.index, 0.0f, at.entry.status());
    team.leave();
    return;
  }
  int32_t status = SPECDEC_STATUS_OK;
  const float h = checked_draft_prob(p.draft_prob.at(at.entry.index, at.j), &status);
  LawRowOf<typename Reader::Support> sides[2];
  load_pair(team, a, at, reader, sides, &status);

  TwoUnitSums weights;  // `b` stays 0
  over_sum_tiles(
      part_of(team), vocab, [&](int tile) { prefetch_tile(sides, tile); },
      [&](int32_t token) {
        const Four target = probabilities(sides[0], token, vocab), draft = probabilities(sides[1], token, vocab);
        Four left;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          left.value[k] = min(residual_weight(target.value[k], mul(h, draft.value[k])), 1.0f);
          weights.a.take(left.value[k]);
        }
        store_four(probs, token, vocab, left);
      },
      [&](int) { weights.end_tile(); });
  const TwoSums sums = add_up(team, weights);
  const bool empty = !(sums.a > 0.0f);
  // Every thread gets the same tokens as before, so it reads what it wrote.
  over_sum_tiles(
      part_of(team), vocab, [](int) {},
      [&](int32_t token) {
        Four four = empty ? probabilities(sides[0], token, vocab) : load_four(probs, token, vocab);
        if (!empty) {
#pragma unroll
          for (int k = 0; k < 4; ++k) four.value[k] /= sums.a;
        }
        store_four(probs, token, vocab, four);
      },
      [](int) {});
  if (team.rank() == 0 && threadIdx.x == 0)
    store_figures(p, at.index, sums.a, empty ? status | SPECDEC_STATUS_EMPTY_RESIDUAL : status);
  team.leave();
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) residual_kernel(const ResidualArguments a) {
  wait_for_kernel_before();
  find_residual(a, PlainRows{});
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) shaped_residual_kernel(const ResidualArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  find_residual(a, ShapedRows{edits, a.p.edits.on()});
}

}  // namespace

cudaError_t residual(const ResidualParams& p, const Call& call) {
  return launch_pairs<residual_kernel, shaped_residual_kernel>(p, call);
}

}  // namespace specdec::cuda
