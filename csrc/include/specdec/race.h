// The exponential race argmin E(i)/w(i), in log space: the largest score log w(i) - log E(i) wins, ties go to the
// lower id. Groups that cannot win are dismissed by bounds that leave more slack than the arithmetic has error, so the
// winner always is that of the full evaluation (docs/noise.md).
#pragma once

#include "exponential.h"
#include "noise.h"

SPECDEC_BEGIN

constexpr int32_t kNoToken = 0x7fffffff;

struct Candidate {
  float score;
  int32_t token;
};

constexpr Candidate kNoCandidate = {-kInfinity, kNoToken};

SPECDEC_HD bool better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

SPECDEC_HD Candidate best_of(const Candidate& a, const Candidate& b) { return better(a, b) ? a : b; }

// The result of a row operation: a token, and the status bits of the rows it read. `empty`: no token has weight;
// `token` is 0.
struct Draw {
  int32_t token;
  int32_t status;
  bool empty;
};

SPECDEC_HD Draw to_draw(const Candidate& winner, int32_t status) {
  if (winner.token == kNoToken) return {0, status | SPECDEC_STATUS_NON_FINITE, true};
  return {winner.token, status, false};
}

SPECDEC_HD float log_weight(float w) { return w >= kSmallest ? log(w) : -kInfinity; }
// `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float race_score(Float log_weight, Float arrival) { return sub(log_weight, log(arrival)); }

// An upper bound on the sum of all rounding errors of a score near these two.
template <class Float>
SPECDEC_HD Float slack(Float a, Float b) {
  return add(Float(2e-5f), mul(Float(4e-7f), add(magnitude(a), magnitude(b))));
}

// A group whose largest log weight is at most `log_bound` can win only if its random word `a` is at most this, since
// its first arrival is at least a * 2^-38. Callers skip a bound of -inf: no token there has weight.
SPECDEC_HD uint32_t largest_winning_word(float log_bound, float best_score) {
  const float exponent = log_bound - best_score + slack(log_bound, best_score);
  if (!(exponent < -4.16f)) return 0xffffffffu;  // 38 ln 2 - 4.16 > 32 ln 2; also no best yet, or an infinite slack
  return exponent < -40.0f ? 0u : static_cast<uint32_t>(exp_in_range(exponent) * 0x1p38f) + 1u;
}

// In [log(x) - 0.06, log(x)] (0.09 in base 2) for normal positive x: the bits of x, read as a number.
template <class Float>
SPECDEC_HD Float log_below(Float x) {
  using Word = decltype(bits(x));
  return mul(signed_float(bits(x) - Word(0x3f800000u)), Float(8.26295829e-8f));  // ln 2 / 2^23
}

// A group whose best possible score (an upper bound minus log_below) is below this has no token that wins.
SPECDEC_HD float lowest_noted(float best_score) { return best_score - slack(best_score, best_score); }

// A lower bound, without a logarithm, of the log weight that a token needs to win if it arrives at `earliest` or later.
template <class Float>
SPECDEC_HD Float needed_at_least(float best_score, Float earliest) {
  const Float best(best_score), needed = add(best, log_below(earliest));
  return sub(needed, slack(best, needed));
}

SPECDEC_END
