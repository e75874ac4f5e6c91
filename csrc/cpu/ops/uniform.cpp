// uniform on the CPU.
#include "../threads.h"
#include "specdec/c/noise.h"
#include "specdec/noise.h"

SPECDEC_BEGIN

void uniform(const UniformParams& p, int threads) {
  constexpr int64_t kBlock = 1024;  // uniforms that a thread takes at a time
  const int64_t count = p.uniforms.rows * p.uniforms.columns;
  over_requests((count + kBlock - 1) / kBlock, 1, threads, [&](int64_t block, const ThreadTeam&) {
    const int64_t end = block * kBlock + kBlock < count ? block * kBlock + kBlock : count;
    for (int64_t i = block * kBlock; i < end; ++i) {
      const int64_t outer = i / p.uniforms.columns, inner = i % p.uniforms.columns;
      p.uniforms.data[i] = uniform(noise_at(p.noise, outer, inner, static_cast<uint32_t>(p.stream)),
                             static_cast<uint32_t>(p.index.at(outer, inner)));
    }
  });
}

SPECDEC_END
