// compact_kv on the CPU.
#include <cstring>

#include "../threads.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

void compact_kv(const CompactParams& p, int threads) {
  const CacheLimits limits = cache_limits(p);
  int64_t bytes = 0;
  for (int64_t i = 0; i < p.layers.size; ++i) bytes += int64_t{p.layers.data[i].heads} * p.layers.data[i].entry_bytes;
  over_requests(p.path.rows, tiles_of_bytes(bytes * p.path.columns), threads, [&](int64_t b, const ThreadTeam&) {
    int32_t status = SPECDEC_STATUS_OK;
    const int32_t* path = p.path.data + b * p.path.row_stride;
    const int32_t* pages = p.block_table.data ? p.block_table.data + b * p.block_table.row_stride : nullptr;
    const NodeSlots slots = {limits, b, p.prefix_len.at(b), pages};
    const int32_t moves = count_moves(path, static_cast<int32_t>(p.path.columns), slots, &status);
    for (int64_t i = 0; i < p.layers.size && moves > 0; ++i) {
      const specdec_cache_layer& layer = p.layers.data[i];
      for (int32_t head = 0; head < layer.heads; ++head) {
        char* entries = layer.data + head * layer.head_stride;
        // In order: path[d] >= d, so a slot is written only after its last read.
        for (int32_t d = 0; d < moves; ++d)
          if (path[d] != d)
            std::memcpy(entries + slots.offset(layer, d), entries + slots.offset(layer, path[d]),
                        static_cast<size_t>(layer.entry_bytes));
      }
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
