// build_tree on the CPU.
#include "../threads.h"
#include "specdec/build.h"

SPECDEC_BEGIN

void build_tree(const BuildParams& p, int threads) {
  over_requests(p.index.rows, 1, threads, [&](int64_t b, const ThreadTeam&) {
    const Build tree(p, b, count_mask_bytes(p, 0, b, 1));
    p.status.data[b] = build(tree, [&](auto&& f) {
      for (int32_t node = 0; node < tree.nodes; ++node) f(node);
    });
  });
}

SPECDEC_END
