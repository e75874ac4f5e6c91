// The noise contract: docs/noise.md. Every number is a pure function of (seed, index, position, nonce, stream).
#pragma once

#include "logarithm.h"
#include "config.h"
#include "philox.h"

SPECDEC_BEGIN

constexpr int kGroup = 64;  // tokens that share one draw of their first arrival

enum Stream : uint32_t {
  kStreamRace = 0,      // the race shared by draft and target (1: second words)
  kStreamResidual = 2,  // residuals and bonus tokens of rejection (3: second words)
  kStreamAccept = 4,    // accept uniforms
  kStreamPolicy = 6,    // whether, or how far, to draft
  kStreamContext = 8,   // seeds from the tokens before a row (9: from their sum, 10: from the request's seed)
};

// The noise of one decided token.
struct Noise {
  Key key;
  uint32_t position, nonce, stream;
};

SPECDEC_HD Noise noise_at(const specdec_noise& p, int64_t outer, int64_t inner, uint32_t stream) {
  return {key_of(p.seed.at(outer, inner)), static_cast<uint32_t>(p.position.at(outer, inner)),
          static_cast<uint32_t>(p.nonce.at(outer, inner)), stream};
}

// The noise of the token `tokens` positions later.
SPECDEC_HD Noise later(const Noise& noise, int32_t tokens, uint32_t stream) {
  return {noise.key, noise.position + static_cast<uint32_t>(tokens), noise.nonce, stream};
}

template <class Word>
SPECDEC_HD Words<Word> noise_words(const Noise& noise, Word index, uint32_t second = 0) {
  return philox(noise.key, index, Word(noise.position), Word(noise.nonce), Word(noise.stream + second));
}

// n * 2^-bits_of_n, rounded toward zero to 24 significant bits: exact in float32.
SPECDEC_HD float truncated(uint64_t n, float scale) {
  const int excess = 40 - leading_zeros(n);
  if (excess > 0) n = n >> excess << excess;
  return mul(static_cast<float>(n), scale);
}

// U_g = (a 2^24 + (b mod 2^24) + 1/2) 2^-56, written in halves of the last place.
SPECDEC_HD float group_uniform(uint32_t a, uint32_t b) {
  return truncated((static_cast<uint64_t>(a) << 25) | ((static_cast<uint64_t>(b) & 0xffffffu) << 1) | 1u, 0x1p-57f);
}

// `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float to_first_arrival(Float group_uniform) { return mul(neg_log1p_neg(group_uniform), Float(0x1p-6f)); }
SPECDEC_HD float first_arrival(uint32_t a, uint32_t b) { return to_first_arrival(group_uniform(a, b)); }
SPECDEC_HD int first_winner(uint32_t b) { return static_cast<int>(b >> 26); }

// How much later than the group's first any other of its tokens arrives; `word` is its second word.
SPECDEC_HD float later_by(uint32_t word) {
  return neg_log1p_neg(truncated((static_cast<uint64_t>(word) << 1) | 1u, 0x1p-33f));
}

struct Group {
  uint32_t index;
  float first;
  int winner;
};

SPECDEC_HD Group group_of(uint32_t index, uint32_t a, uint32_t b) {
  return {index, first_arrival(a, b), first_winner(b)};
}

SPECDEC_HD Group group_at(const Noise& noise, uint32_t index) {
  const Words<uint32_t> w = noise_words(noise, index >> 1);
  const int odd = index & 1;
  return group_of(index, odd ? w.word[1] : w.word[0], odd ? w.word[3] : w.word[2]);
}

SPECDEC_HD uint32_t second_word(const Noise& noise, uint32_t token) {
  const Words<uint32_t> w = noise_words(noise, token >> 2, 1);
  const uint32_t low = token & 1 ? w.word[1] : w.word[0], high = token & 1 ? w.word[3] : w.word[2];
  return token & 2 ? high : low;
}

// E(token), given its group.
SPECDEC_HD float arrival(const Noise& noise, const Group& group, uint32_t token) {
  if (static_cast<int>(token & (kGroup - 1)) == group.winner) return group.first;
  return add(group.first, later_by(second_word(noise, token)));
}

SPECDEC_HD float arrival(const Noise& noise, uint32_t token) {
  return arrival(noise, group_at(noise, token / kGroup), token);
}

// A float32 in [0, 1), exact: word 0 of the counter.
SPECDEC_HD float uniform_of(uint32_t c) {
  return c < (1u << 24) ? mul(static_cast<float>(c), 0x1p-32f) : mul(static_cast<float>(c >> 8), 0x1p-24f);
}

SPECDEC_HD float uniform(const Noise& noise, uint32_t index) { return uniform_of(noise_words(noise, index).word[0]); }

SPECDEC_END
