// store_rows on the CPU: copies.
#include <cstring>

#include "row.h"

SPECDEC_BEGIN

void store_rows(const StoreRowsParams& p, int threads) {
  const int32_t tiles = tiles_of(p.rows.vocab);
  over_requests(p.count(), tiles, threads, [&](int64_t index, const Crew& crew) {
    const int64_t place = p.place(index);
    if (place < 0) return;
    const Row row = row_at(p.rows, p.rows.offset(index, 0)), out = row_at(p.cache, place);
    over_parts(tiles, crew, [&](int, int32_t from, int32_t to) {
      const int64_t first = int64_t{from} * kTile;
      const int64_t end = int64_t{to} * kTile < row.vocab ? int64_t{to} * kTile : row.vocab;
      with_data(row, [&](auto data) {
        auto* const into = const_cast<std::remove_const_t<std::remove_pointer_t<decltype(data)>>*>(
            static_cast<decltype(data)>(out.data));
        std::memcpy(into + first, data + first, (end - first) * sizeof(*data));
      });
    });
  });
}

SPECDEC_END
