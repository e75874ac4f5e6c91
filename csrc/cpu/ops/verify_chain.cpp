// verify_chain on the CPU. Rows past the first rejection are not read; block reads all rows that may be accepted.
#include "../threads.h"
#include "../walk/walk_ops.h"
#include "specdec/chain.h"

SPECDEC_BEGIN

void verify_chain(const ChainParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads,
                [&](int64_t b, const ThreadTeam& team) { verify_request<ChainRequest>(p, b, team); });
}

SPECDEC_END
