// merge_chains on the CPU.
#include "../threads.h"
#include "specdec/merge.h"

SPECDEC_BEGIN

void merge_chains(const MergeParams& p, int threads) {
  over_requests(p.draft_tokens.rows, 1, threads, [&](int64_t b, const ThreadTeam&) {
    const MergedChains tree(p, b);
    for (int32_t chain = 0; chain < p.chains(); ++chain) tree.count(chain);
    for (int32_t chain = 0; chain < p.chains(); ++chain) tree.put_nodes(chain);
    tree.clear(0);
    for (int32_t node = tree.nodes(); node < p.draft_tokens.columns; ++node) tree.clear(node);
    for (int32_t chain = p.chains() - 1; chain >= 0; --chain) p.leaves.data[b * p.chains() + chain] = tree.leaf(chain);
  });
}

SPECDEC_END
