// residual: a team weighs a pair of rows tile by tile, agrees on the sum, and divides what it wrote.
#include "pair_rows.cuh"
#include "specdec/chain.h"

namespace specdec {
namespace cuda {

namespace {

struct ResidualArguments {
  ResidualParams p;
  PairArguments pair;
};

// Are tokens token .. token + 3 one vector in memory?
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

template <class Team>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) residual_kernel(const ResidualArguments a) {
  const ResidualParams& p = a.p;
  Team team(a.pair.team);
  const int64_t index = team.index(), i = index / p.target.rows, j = index % p.target.rows;
  int32_t status = kStatusOk;
  const float h = draft_prob_of(p.draft_prob.at(i, j), &status), epsilon = epsilon_of(p.epsilon.at(i, j), &status);
  LawRow sides[2] = {law_row(p.target, i, j, law_at(p.target_law, i, j, &status)),
                     law_row(p.draft, i, j, law_at(p.draft_law, i, j, &status))};
  know_rows(team, a.pair.tiles, sides, p.status.data != nullptr, &status);
  const int32_t vocab = p.target.vocab;
  float* probs = p.probs.data + index * vocab;

  float weight = 0.0f, rejected = 0.0f;
  over_sum_tiles(
      team, vocab, [&](int tile) { prefetch_tile(sides, tile); },
      [&](int32_t token) {
        const Four target = probabilities(sides[0], token), draft = probabilities(sides[1], token);
        Four left;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float drafted = mul(h, draft.value[k]);
          left.value[k] = residual_weight(target.value[k], drafted);
          weight = add(weight, left.value[k]);
          rejected = add(rejected, rejected_weight(target.value[k], drafted, epsilon));
        }
        store_four(probs, token, vocab, left);
      },
      [&](int tile) {
        const WideKey word = packed(warp_sum(weight), warp_sum(rejected));
        if (lane_id() == 0) team.put(tile, word);
        weight = rejected = 0.0f;
      });
  team.sync();
  const TwoSums sums = sum_items(team, 0, sum_tiles_of(vocab));
  const bool empty = !(sums.a > 0.0f);
  // Every thread meets its own tokens again.
  over_sum_tiles(
      team, vocab, [](int) {},
      [&](int32_t token) {
        Four four = empty ? probabilities(sides[0], token) : load_four(probs, token, vocab);
        if (!empty) {
#pragma unroll
          for (int k = 0; k < 4; ++k) four.value[k] /= sums.a;
        }
        store_four(probs, token, vocab, four);
      },
      [](int) {});
  if (team.rank() == 0 && threadIdx.x == 0) {
    p.mass.data[index] = empty ? 0.0f : residual_mass(sums.a, sums.b, h, epsilon);
    if (p.status.data) p.status.data[index] = empty ? status | kStatusEmptyResidual : status;
  }
  team.leave();
}

}  // namespace

cudaError_t residual(const ResidualParams& p, const Workspace& workspace, cudaStream_t stream, int64_t* needed) {
  if (p.count() == 0) return *needed = 0, cudaSuccess;
  Device device;
  TeamPlan plan;
  ResidualArguments a = {p, {}};
  const cudaError_t e = plan_pair(p, workspace, needed, &device, &plan, &a.pair);
  if (e != cudaSuccess || *needed) return e;
  return launch_teams(residual_kernel<LocalTeam>, residual_kernel<ClusterTeam>, residual_kernel<GridTeam>, plan, device,
                      a, plan.shared_bytes(), stream);
}

}  // namespace cuda
}  // namespace specdec
