// walk_tables on the CPU.
#include "specdec/walk_tables.h"
#include "../threads.h"

SPECDEC_BEGIN

void walk_tables(const WalkTablesParams& p, int threads) {
  over_requests(p.batch(), 1, threads, [&](int64_t b, const ThreadTeam&) { walk_tables_at(p, b); });
}

SPECDEC_END
