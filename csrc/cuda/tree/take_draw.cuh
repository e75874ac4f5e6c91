// Work on rows: an argmax, or a draw.
#pragma once

#include "take_sums.cuh"

namespace specdec::cuda {

// The weights of the draw that the work requests.
template <class Shaping>
__device__ __forceinline__ WeightsOf<typename Shaping::Support> weights_of_work(const WalkArguments& a,
                                                                                const RowWork& work,
                                                                                const WalkMemory& memory,
                                                                                const Shaping& shaping) {
  if (work.residual && !work.end) {
    auto residual = weights_of_residual(row_of_work(a, work, true, memory, shaping),
                                        row_of_work(a, work, false, memory, shaping), work.subtracted);
    residual.leaves_out = work.scales >= 0;
    if (residual.leaves_out)
      residual.tried = dynamic_shared<unsigned>(a.paths_at + sizeof(float) * work.scales * kSharesADepth, kBuckets);
    return residual;
  }
  WeightsOf<typename Shaping::Support> weights =
      weights_of_row(read_node_row(a.p, work.target, true, shaping), work.target.law,
                     shaping.support(kTarget, work.target.stats_index));
  if (!work.end) return weights;
  weights.tried = memory.tried;
  weights.leaves_out = true;
  return weights;
}

// Looks through rows, then draws. Every member gets the draw of a walk that goes on. If the walk ends with it, only the
// last member to arrive gets it and writes the verdict, and no block waits.
template <class Shaping, class Arguments>
__device__ __forceinline__ void take_draw(const Arguments& a, Team& team, const RowWork& work, const WalkMemory& memory,
                                          const Shaping& shaping) {
  RowPartial partial, scanned = kNoPartial;
#pragma unroll 1
  for (int side = 1; side >= 0; --side) {
    if (!(work.sides >> side & 1u)) continue;
    const NodeRow row = work.row(side == 0);
    scanned = argmax_part(read_node_row(a.p, row, side == 0, shaping), row.law, part_of(team));
    if (work.kind != RowWork::kArgmax) continue;
    const RowStats whole = argmax_stats(best_of_team(team, scanned));
    if (threadIdx.x == 0) memory.row_stats[row.stats_index] = whole;
  }
  if (work.kind == RowWork::kArgmax) return;

  auto weights = weights_of_work(a, work, memory, shaping);
  bool writes;
  int32_t status = scanned.status;
  if (!work.sides || scanned.best.token != kNoToken) status |= kDraftWeighs;
  for (;;) {
    // Only `status` lives across the race: registers are few.
    const auto alone = [&] { return (status & SPECDEC_STATUS_EMPTY_RESIDUAL) != 0; };
    const int listed = shaping.count(work.node);
    if (listed < 0)
      partial = race_part(weights, work.noise, alone() ? Part{0, 1} : part_of(team));
    else if constexpr (Shaping::kShaped)
      partial = race_listed(race_of(weights.target.row, work.target.law, work.noise), weights, listed, a.cut,
                            static_cast<RowStats>(memory.row_stats[work.target.stats_index]).status);
    partial.status |= status;
    writes = alone() || team.rank() == 0;
    if (a.p.method == SPECDEC_RACE) {  // the walk may go on
      if (shaping.count(work.node) < 0) partial = best_of_team(team, partial);
    } else if (!alone() && team.size() > 1) {
      writes = a.draws.gather(&partial);
      if (!writes) break;
    }
    if (partial.best.token != kNoToken || !work.residual || alone()) break;
    // Nothing is left of p - q after rounding: the last member alone draws from p.
    status = partial.status | SPECDEC_STATUS_EMPTY_RESIDUAL;
    weights = weights_of_row(weights.target.row, work.target.law, weights.target.support);
  }
  if (!(partial.status & kDraftWeighs)) partial.status |= SPECDEC_STATUS_NON_FINITE;
  partial.status &= ~kDraftWeighs;
  if (partial.best.token == kNoToken) partial.status &= ~SPECDEC_STATUS_EMPTY_RESIDUAL;  // p is empty, too
  if (threadIdx.x == 0) {
    WalkAnswers answer = {};
    answer.drawn = to_draw(partial);
    answer.writes = writes;
    memory.answers[0] = answer;
  }
}

}  // namespace specdec::cuda
