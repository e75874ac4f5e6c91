// verify_tree on the CPU. Rows off the accepted path are not touched; traversal reads those it comes by.
#include "../threads.h"
#include "../walk/walk_ops.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

void verify_tree(const TreeParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads,
                [&](int64_t b, const ThreadTeam& team) { verify_request<TreeRequest>(p, b, team); });
}

SPECDEC_END
