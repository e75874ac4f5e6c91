// cutoff on the CPU: where the filters of a row cut, and what they keep.
#include "../rows/edits.h"
#include "specdec/c/rows.h"
#include "specdec/request.h"

SPECDEC_BEGIN

namespace {

void store(const CutoffParams& p, int64_t index, const RowCut& in_support, float max, int32_t status) {
  p.value.data[index] = in_support.cut.value;
  p.last.data[index] = in_support.cut.last;
  p.support_size.data[index] = in_support.count;
  p.mass.data[index] = static_cast<int64_t>(in_support.mass);
  p.max.data[index] = max;
  if (p.status.data) p.status.data[index] = status;
}

void cutoff_row(const CutoffParams& p, int64_t index, const ThreadTeam& team) {
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  const Entry source = decode_entry(p.request_index, i);
  if (!source.live()) return store(p, index, kUncut, -kInfinity, source.status());
  TargetRow edited_row(p.rows, p.law, p.edits, source.index, i, j);
  LawRow& r = edited_row.row;
  int32_t status = edited_row.status;
  if (r.stats.law.greedy) {
    scan_exact(r, team, 0);
    status |= r.status;
    const int32_t column = r.stats.argmax;
    if (column == kNoToken) return store(p, index, kUncut, -kInfinity, status);
    const float v = Logits{1.0f}.scaled(element(r.row, column));
    return store(p, index, {{v, column}, kOneToken, 1, nullptr}, v, status);
  }
  if (!(p.law.rules & SPECDEC_FILTERED)) r.filter.order = r.stats.law.logits();
  const RowMemory memory(0, r.row, true);
  status |= row_cells(r.row, r.stats.law, team, memory.cells);
  float top;
  const RowCut in_support = find_exact_cut(r, memory, team, &top);
  store(p, index, in_support, top, status | (top == -kInfinity ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK));
}

}  // namespace

void cutoff(const CutoffParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.rows.vocab), threads,
                [&](int64_t index, const ThreadTeam& team) { cutoff_row(p, index, team); });
}

SPECDEC_END
