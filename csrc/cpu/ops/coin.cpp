// coin on the CPU.
#include "../threads.h"
#include "specdec/c/noise.h"
#include "specdec/noise.h"

SPECDEC_BEGIN

void coin(const CoinParams& p, int threads) {
  constexpr int64_t kBlock = 1024;  // coins worth handing to a thread
  const int64_t count = p.coins.rows * p.coins.columns;
  over_requests((count + kBlock - 1) / kBlock, 1, threads, [&](int64_t block, const ThreadTeam&) {
    const int64_t end = block * kBlock + kBlock < count ? block * kBlock + kBlock : count;
    for (int64_t i = block * kBlock; i < end; ++i) {
      const int64_t outer = i / p.coins.columns, inner = i % p.coins.columns;
      p.coins.data[i] = coin(noise_at(p.noise, outer, inner, static_cast<uint32_t>(p.stream)),
                             static_cast<uint32_t>(p.index.at(outer, inner)));
    }
  });
}

SPECDEC_END
