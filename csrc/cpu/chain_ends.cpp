// chain_ends on the CPU.
#include "specdec/chain_ends.h"
#include "threads.h"

SPECDEC_BEGIN

void chain_ends(const ChainEndsParams& p, int threads) {
  over_requests(p.batch(), 1, threads, [&](int64_t b, const Crew&) { ChainEnd(p, b).finish(); });
}

SPECDEC_END
