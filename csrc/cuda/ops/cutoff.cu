// cutoff: a team finds where the filters of a row cut (cut.cuh).
#include "../rows/cut.cuh"
#include "specdec/c/rows.h"
#include "specdec/request.h"

namespace specdec::cuda {

namespace {

struct CutoffArguments {
  CutoffParams p;
  TeamRoom team;
  CutRoom room;
};

__device__ __forceinline__ void store(const CutoffParams& p, int64_t index, const KeptRow& kept) {
  p.value.data[index] = kept.cut.value;
  p.last.data[index] = kept.cut.last;
  p.kept.data[index] = static_cast<int32_t>(kept.count);
  p.mass.data[index] = static_cast<int64_t>(kept.mass);
  p.max.data[index] = kept.top;
  if (p.status.data) p.status.data[index] = kept.status;
}

// The cut at the last token that `cut` keeps, for every thread. The value of `cut` itself may lie between two tokens'.
__device__ __forceinline__ Cut last_kept(Team& team, const EditedRow& row, const Logits& order, const Cut& cut) {
  RowPartial mine = kNoPart;  // the last of the order is the best of the order turned round
  over_sum_tiles(
      part_of(team), row.vocab, [](int) {},
      [&](int32_t token) {
        const Four four = four_elements(row, token);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float v = order.scaled(four.value[i]);
          const Candidate c = {-v, row.vocab - 1 - (token + i)};
          if (token + i < row.vocab && cut.keeps(v, token + i)) mine.best = best_of(c, mine.best);
        }
      },
      [](int) {});
  const Candidate last = best_of_team(team, best_of_block(mine.best, false)).best;
  return {-last.score, row.vocab - 1 - last.token};
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) cutoff_kernel(const CutoffArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  const CutoffParams& p = a.p;
  Team team(a.team);
  const ShapedRows reader = {edits, p.edits.on()};
  const int64_t index = team.index(), i = index / p.rows.rows, j = index % p.rows.rows;
  const Entry who = entry_of(p.request_index, i);
  KeptRow kept = {kKeepsAll, -1, 0, 0, -kInfinity, false, who.status()};
  if (who.live()) {
    int32_t status = reader.decode(p.edits, p.rows.vocab, {who.index, j}, {i, j});
    const EditedRow row = reader.of(row_at(p.rows, p.rows.offset(i, j)));
    const Law law = law_at(p.law, who.index, j, &status);
    Filter filter = filter_at(p.law, law, p.rows.vocab, who.index, j, &status);
    if (law.greedy) {
      const Draw draw = draw_of(scan_argmax(team, law_row<Filtered>(row, law)));
      const float v = Logits{1.0f}.scaled(element(row, draw.token));
      if (v > -kInfinity) kept = {{v, draw.token}, -1, 1, kOneToken, v, false, SPECDEC_STATUS_OK};
      kept.status = draw.status;
    } else {
      if (!(p.law.rules & SPECDEC_FILTERED)) filter.order = law.logits();
      TeamCutFinder finder(team, row, filter, a.room);
      const KeptRow whole = finder.scan(!filter.on() || filter.of_row());
      kept = whole;
      if (whole.top > -kInfinity) {
        kept = finder.kept(whole);
        if (!filter.on()) kept.cut = kKeepsAll, kept.mass = whole.mass;
        else if (kept.cut.last == kNoToken) kept.cut = last_kept(team, row, filter.order, kept.cut);
      }
    }
    kept.status |= status;
  }
  if (team.rank() == 0 && threadIdx.x == 0) store(p, index, kept);
  team.leave();
}

}  // namespace

cudaError_t cutoff(const CutoffParams& p, const Call& call) {
  static const Kernels kernels(cutoff_kernel);
  return on_device(call, p.count(), kernels, [&](const Device& device) {
    const ShapedPlan plan = shaped_plan(device, shaped_team(device, p.count(), p.rows), p.count(), p.rows.vocab);
    if (plan.team.lacks(device.room)) return cudaSuccess;
    return launch_teams(cutoff_kernel, plan.team, device, {p, plan.team.team(device.room), plan.cut},
                        plan.shared_bytes);
  });
}

}  // namespace specdec::cuda
