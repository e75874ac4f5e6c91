// compact_kv on the CPU.
#include <cstring>

#include "specdec/tree.h"
#include "threads.h"

SPECDEC_BEGIN

void compact_kv(const CompactParams& p, int threads) {
  int64_t slots = INT64_MAX;
  for (int64_t i = 0; i < p.layers.size; ++i) slots = p.layers.data[i].slots < slots ? p.layers.data[i].slots : slots;
  over_requests(p.path.rows, 1, threads, [&](int64_t b, const Crew&) {
    int32_t status = kStatusOk;
    const int32_t* path = p.path.data + b * p.path.row_stride;
    const int64_t prefix = p.prefix_len.at(b);
    const int32_t moves = moves_of(path, static_cast<int32_t>(p.path.columns), prefix, slots, &status);
    for (int64_t i = 0; i < p.layers.size && moves > 0; ++i) {
      const CacheLayer& layer = p.layers.data[i];
      for (int32_t head = 0; head < layer.heads; ++head) {
        char* root = layer.data + b * layer.batch_stride + head * layer.head_stride + prefix * layer.slot_stride;
        // In order: path[d] >= d, so a slot is written only after its last read.
        for (int32_t d = 0; d < moves; ++d)
          if (path[d] != d)
            std::memcpy(root + d * layer.slot_stride, root + path[d] * layer.slot_stride,
                        static_cast<size_t>(layer.entry_bytes));
      }
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
