// count_tokens on the CPU.
#include "../threads.h"
#include "specdec/c/caches.h"
#include "specdec/count.h"

SPECDEC_BEGIN

void count_tokens(const CountParams& p, int threads) {
  over_requests(p.mask.rows, 1, threads, [&](int64_t b, const ThreadTeam&) {
    int32_t status = SPECDEC_STATUS_OK;
    const int32_t num = tokens_to_count(p.num.at(b), p.tokens.slots, &status);
    int32_t* mask = p.mask.data + b * p.mask.row_stride;
    int32_t* counts = p.counts.data ? p.counts.data + b * p.counts.row_stride : nullptr;
    for (int32_t i = 0; i < num; ++i) {
      const int64_t token = p.tokens.at(b * p.tokens.request_stride + i * p.tokens.slot_stride);
      if (token < 0 || token >= p.vocab()) continue;
      if (counts) {
        const int32_t count = decode_count(counts[token], has_bit(mask, token));
        counts[token] = count == INT32_MAX ? count : count + 1;
      }
      mask[token / 32] = static_cast<int32_t>(static_cast<uint32_t>(mask[token / 32]) | 1u << token % 32);
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
