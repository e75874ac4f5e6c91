// The softmax of a row: p(i) = exp((x_i - max) - log_sum), never normalised in memory.
#pragma once

#include "exponential.h"
#include "logarithm.h"

SPECDEC_BEGIN

// The log-sum-exp of a row, kept in two parts so that large logits lose nothing: lse = max + log_sum.
struct LogSumExp {
  float max, log_sum;
};

// For a row without any weight: every probability comes out 0.
constexpr LogSumExp kNoMass = {0.0f, kInfinity};

SPECDEC_HD LogSumExp log_sum_exp(float max, float sum) {
  return max == -kInfinity ? kNoMass : LogSumExp{max, log(sum)};
}

// `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float log_probability(Float x, const LogSumExp& lse) {
  return sub(sub(x, Float(lse.max)), Float(lse.log_sum));
}

SPECDEC_END
