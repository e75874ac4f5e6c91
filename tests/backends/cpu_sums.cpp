// What the CPU knows of a pair of rows by bounds, and exactly.
#include <vector>

#include "../../csrc/cpu/walk/pair_sums.h"

namespace specdec {
std::atomic<int64_t> weighed_rows{0};
std::byte* scratch_bytes(int scratch_id, int64_t bytes) {
  static std::vector<std::byte> memory[7];
  memory[scratch_id].resize(static_cast<size_t>(bytes));
  return memory[scratch_id].data();
}
}  // namespace specdec

using namespace specdec;

extern "C" {

// A pair of rows, and the multiple of q that is taken from p, between two numbers. `tried` are tokens of children.
struct TwoRows {
  const float *target, *draft;
  const int32_t* tried;
  float top_p, subtracted_low, subtracted_high;
  float* Sums;  // W by bounds, R by bounds; W of the least multiple, W of the largest, R
  float* Probs;  // [vocab, 3] of the target: bounds, and exactly
};

// Whether both rows are rough, so that there are bounds.
int pair_bounds(const TwoRows* p, int64_t vocab) {
  specdec_law law = {};
  law.temperature.value = 1.0f, law.top_p.value = p->top_p, law.rules = p->top_p < 1.0f ? SPECDEC_FILTERED : 0;
  const int32_t size = static_cast<int32_t>(vocab);
  const auto row = [&](const float* data) {
    const Rows rows = {data, 0, vocab, 1, 1, size, SPECDEC_FLOAT32, 0};
    int32_t status = SPECDEC_STATUS_OK;
    return law_row_of(rows, 0, law, 0, 0, {nullptr, size}, &status);
  };
  LawRow target = row(p->target), draft = row(p->draft);
  const TokenList tried = {p->tried, 2};
  const ThreadTeam alone = {};
  if (!scan_bounds(target, alone, 0) || !scan_bounds(draft, alone, 1) || !target.rough() || !draft.rough()) return 0;
  const Range subtracted = {p->subtracted_low, p->subtracted_high};
  const SumsOf<Range> near = pair_sums(target, draft, subtracted, &tried, alone);
  for (int32_t token = 0; token < size; ++token) {
    const Range bounds = settled(target, token, 0) ? target.probability_range(token) : Range{0.0f, 1.0f};
    p->Probs[3 * token] = bounds.low, p->Probs[3 * token + 1] = bounds.high;
  }
  target = row(p->target), draft = row(p->draft);
  scan_exact(target, alone, 0), scan_exact(draft, alone, 1);
  for (int32_t token = 0; token < size; ++token) p->Probs[3 * token + 2] = target.probability(token);
  const Masses most = pair_sums(target, draft, subtracted.low, &tried, alone);
  const float least = pair_sums(target, draft, subtracted.high, &tried, alone).residual_mass;
  const float sums[] = {near.residual_mass.low, near.residual_mass.high, near.untried_mass.low, near.untried_mass.high,
                        most.residual_mass,     least,                   most.untried_mass};
  std::copy(std::begin(sums), std::end(sums), p->Sums);
  return 1;
}
}
