// context_seeds on the CPU.
#include "../threads.h"
#include "specdec/context.h"

SPECDEC_BEGIN

void context_seeds(const ContextParams& p, int threads) {
  over_requests(p.seeds.rows, 1, threads, [&](int64_t b, const ThreadTeam&) {
    for (int32_t node = 0; node < p.seeds.columns; ++node) {
      const ContextRow row(p, b, node);
      p.seeds.data[b * p.seeds.columns + node] = row.seed(row.is_marked() && !row.seen(0, 1));
    }
  });
}

SPECDEC_END
