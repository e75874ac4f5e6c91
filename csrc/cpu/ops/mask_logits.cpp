// mask_logits on the CPU.
#include "../rows/row.h"
#include "specdec/c/rows.h"
#include "specdec/filter.h"

SPECDEC_BEGIN

namespace {

SPECDEC_HD float minus_infinity(const float*) { return -kInfinity; }
SPECDEC_HD BFloat16 minus_infinity(const BFloat16*) { return {0xff80}; }
SPECDEC_HD Float16 minus_infinity(const Float16*) { return {0xfc00}; }

// The row may be written over itself.
template <class T>
void mask(const T* from, T* to, int32_t first, int32_t end, const PartCut& what) {
  const T nothing = minus_infinity(from);
  const float value = what.cut.value;
  for (int32_t token = first; token < end; ++token) {
    const float v = min(kLargest, what.order.key(to_float(from[token])));  // in this order a NaN stays
    to[token] = v < value || (v == value && token > what.cut.last) ? nothing : from[token];
  }
}

}  // namespace

void mask_logits(const MaskLogitsParams& p, int threads) {
  const int32_t tiles = tiles_of(p.rows.vocab);
  over_requests(p.count(), tiles, threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
    int32_t reported = SPECDEC_STATUS_OK;
    const Law law = decode_law(SPECDEC_LOGITS, p.temperature.at(i, j), &reported);
    const PartCut what = {{p.value.data[index], static_cast<int32_t>(p.last.at(index * p.last.slot_stride))},
                          law.logits()};
    const Row row = row_at(p.rows, p.rows.offset(i, j)), out = row_at(p.out, p.out.offset(i, j));
    over_parts(tiles, team, [&](int, int32_t from, int32_t to) {
      const int32_t end = to * kTile < row.vocab ? to * kTile : row.vocab;
      with_data(row, [&](auto data) {
        mask(data, const_cast<std::remove_const_t<std::remove_pointer_t<decltype(data)>>*>(
                       static_cast<decltype(data)>(out.data)), from * kTile, end, what);
      });
    });
  });
}

SPECDEC_END
