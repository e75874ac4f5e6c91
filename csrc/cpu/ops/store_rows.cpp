// store_rows on the CPU: copies.
#include <cstring>

#include "../threads.h"
#include "specdec/c/rows.h"

SPECDEC_BEGIN

void store_rows(const StoreRowsParams& p, int threads) {
  constexpr int64_t kPart = 4096;  // bytes
  const int64_t size = p.rows.dtype == SPECDEC_FLOAT32 ? 4 : 2, bytes = p.rows.vocab * size;
  const int32_t parts = static_cast<int32_t>((bytes + kPart - 1) / kPart);
  over_requests(p.count(), parts, threads, [&](int64_t index, const ThreadTeam& team) {
    const int64_t offset = p.cache_offset(index);
    if (offset < 0) return;
    const char* const row = static_cast<const char*>(p.rows.data) + p.rows.offset(index, 0) * size;
    char* const out = static_cast<char*>(const_cast<void*>(p.cache.data)) + offset * size;
    over_parts(parts, team, [&](int, int32_t from, int32_t to) {
      const int64_t first = from * kPart, end = to * kPart < bytes ? to * kPart : bytes;
      std::memcpy(out + first, row + first, static_cast<size_t>(end - first));
    });
  });
}

SPECDEC_END
