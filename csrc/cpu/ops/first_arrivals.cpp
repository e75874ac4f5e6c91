// first_arrivals on the CPU.
#include "specdec/first_arrivals.h"
#include "../threads.h"

SPECDEC_BEGIN

void first_arrivals(const FirstArrivalsParams& p, int threads) {
  constexpr int64_t kBlock = 256;  // rows that a thread takes at a time
  const int64_t rows = p.tokens.rows;
  over_requests((rows + kBlock - 1) / kBlock, 1, threads, [&](int64_t block, const ThreadTeam&) {
    const int64_t end = block * kBlock + kBlock < rows ? block * kBlock + kBlock : rows;
    for (int64_t row = block * kBlock; row < end; ++row) first_arrival(p, row);
  });
}

SPECDEC_END
