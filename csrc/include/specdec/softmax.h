// One row's law from its logits: p(i) = exp((x_i - max) - log_sum), never normalised in memory.
#pragma once

#include "race.h"

SPECDEC_BEGIN

// The log-sum-exp of a row, kept in two parts so that large logits lose nothing: lse = max + log_sum.
struct LogSumExp {
  float max, log_sum;
};

// Of a row without any weight; every probability then comes out 0.
constexpr LogSumExp kNoMass = {0.0f, kInfinity};

SPECDEC_HD LogSumExp log_sum_exp(float max, float sum) {
  return max == -kInfinity ? kNoMass : LogSumExp{max, log(sum)};
}

SPECDEC_HD float log_probability(float x, const LogSumExp& lse) { return sub(sub(x, lse.max), lse.log_sum); }
SPECDEC_HD float probability(float x, const LogSumExp& lse) { return exp_or_zero(log_probability(x, lse)); }

SPECDEC_END
