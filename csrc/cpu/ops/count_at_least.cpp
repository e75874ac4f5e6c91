// count_at_least on the CPU: how many tokens of rows are at least as large as a number.
#include "../rows/edits.h"
#include "../rows/law_row.h"
#include "specdec/c/sharded.h"
#include "specdec/request.h"

SPECDEC_BEGIN

namespace {

int32_t count_in_row(const Row& row, const Logits& space, float least, const ThreadTeam& team) {
  int32_t counts[kMaxParts];
  const F32x16 bar(least), largest_x(kLargest);
  const int parts = over_parts(row.tiles(), team, [&](int part, int32_t from, int32_t to) {
    int32_t count = 0;
    for (int32_t tile = from; tile < to; ++tile) {
      const int32_t begin = tile * kTile, end = begin + row.tile_size(tile);
      for (int32_t at = begin; at < end; at += kLanes) {
        const F32x16 raw = elements(row, at, end - at, __builtin_nanf(""));
        count += __builtin_popcount(at_least(min(largest_x, space.key(raw)), bar));
      }
    }
    counts[part] = count;
  });
  int32_t all = 0;
  for (int part = 0; part < parts; ++part) all += counts[part];
  return all;
}

}  // namespace

void count_at_least(const CountAtLeastParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.rows.vocab), threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
    const Entry source = decode_entry(p.request_index, i);
    const float least = p.least.data[index];
    p.counts.data[index] = 0;
    if (!source.live() || !(least > -kInfinity)) return;
    int32_t reported = SPECDEC_STATUS_OK;
    const Law law = law_at(p.law, source.index, j, &reported);
    Row row = row_at(p.rows, p.rows.offset(i, j));
    Editor editor(p.edits, p.rows.vocab, {source.index, j}, 0);
    editor.edit(&row, {i, j});
    p.counts.data[index] = count_in_row(row, law.logits(), least, team);
  });
}

SPECDEC_END
