// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include "arithmetic.h"

SPECDEC_BEGIN

template <class Word>
struct Words {
  Word word[4];
};

struct Key {
  uint32_t low, high;
};

SPECDEC_HD Key key_of(int64_t seed) {
  const uint64_t s = static_cast<uint64_t>(seed);
  return {static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32)};
}

// `Word` is uint32_t, or a vector of them: one call then serves one counter per lane.
template <class Word>
SPECDEC_HD Words<Word> philox(Key key, Word c0, Word c1, Word c2, Word c3) {
  const Word m0 = Word(0xD2511F53u), m1 = Word(0xCD9E8D57u);
  uint32_t k0 = key.low, k1 = key.high;
#if defined(__CUDA_ARCH__)
#pragma unroll 2  // a kernel runs most of its code once, so fetching unrolled code takes longer than a loop
#endif
  for (int round = 0; round < 10; ++round) {
    const Word high0 = mulhi(m0, c0), low0 = m0 * c0;
    const Word high1 = mulhi(m1, c2), low1 = m1 * c2;
    c0 = high1 ^ c1 ^ Word(k0);
    c1 = low1;
    c2 = high0 ^ c3 ^ Word(k1);
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

SPECDEC_END
