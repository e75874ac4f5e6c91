// The caller's edits of a target row's logits, decoded: bias, penalties of tokens seen before, and what a grammar
// allows. Whoever asks the law of a row (law.h) gives it edited elements.
#pragma once

#include "arithmetic.h"
#include "config.h"

SPECDEC_BEGIN

// Numbers that change nothing are off.
struct Penalties {
  float repetition = 1.0f, inverse_repetition = 1.0f, frequency = 0.0f, presence = 0.0f;
  // Whether tokens of the prompt matter, and whether those of the output do.
  SPECDEC_HD bool of_prompt() const { return repetition != 1.0f; }
  SPECDEC_HD bool on() const { return of_prompt() || frequency != 0.0f || presence != 0.0f; }
};

SPECDEC_HD float finite_or(float off, float x, int32_t* status) {
  if (magnitude(x) < kInfinity) return x;
  *status |= SPECDEC_STATUS_PARAMETER;
  return off;
}

SPECDEC_HD Penalties penalties_at(const specdec_edits& p, int64_t outer, int64_t inner, int32_t* status) {
  Penalties found;
  if (!p.penalises()) return found;
  found.frequency = finite_or(0.0f, p.frequency.at(outer, inner), status);
  found.presence = finite_or(0.0f, p.presence.at(outer, inner), status);
  if (!p.repetition.data && p.repetition.value == 0.0f) return found;
  const float repetition = finite_or(1.0f, p.repetition.at(outer, inner), status);
  if (repetition > 0.0f) found.repetition = repetition, found.inverse_repetition = 1.0f / repetition;
  else *status |= SPECDEC_STATUS_PARAMETER;
  return found;
}

// Where lists of a place are: there, or where an index says; or nowhere.
struct ListPlace {
  int64_t outer, inner;
  bool there = true;
  SPECDEC_HD const int32_t* of(const Lists& lists) const {
    return lists.data && there ? lists.at(outer, inner) : nullptr;
  }
};

// `entries`: of the lists that the index, if there is one, points to.
SPECDEC_HD ListPlace list_place(const Lists& index, int64_t entries, int64_t outer, int64_t inner, int32_t* status) {
  if (!index.data) return {outer, inner};
  const int32_t entry = *index.at(outer, inner);
  const bool there = entry >= 0 && entry < entries;
  if (!there && entry != -1) *status |= SPECDEC_STATUS_PARAMETER;
  return {entry, 0, there};
}
SPECDEC_HD ListPlace seen_place(const specdec_edits& p, int64_t outer, int64_t inner, int32_t* status) {
  return list_place(p.seen_index, (p.output_mask.data ? p.output_mask : p.prompt_mask).requests, outer, inner, status);
}
SPECDEC_HD ListPlace allowed_place(const specdec_edits& p, int64_t outer, int64_t inner, int32_t* status) {
  return list_place(p.allowed_index, p.allowed.requests, outer, inner, status);
}

constexpr float kNoBias = -0.0f;  // added to any number, it gives that number

// The entries [begin, end) of bias_tokens and bias_values.
struct BiasSpan {
  int64_t begin, end;
};

SPECDEC_HD BiasSpan bias_span_at(const specdec_edits& p, int64_t outer, int64_t inner, int32_t* status) {
  if (p.bias_tokens.size == 0) return {0, 0};
  const int32_t* span = p.bias_spans.at(outer, inner);
  if (span[0] >= 0 && span[1] >= span[0] && span[1] <= p.bias_tokens.size) return {span[0], span[1]};
  *status |= SPECDEC_STATUS_PARAMETER;
  return {0, 0};
}

// NaN forbids like -inf; +inf is the largest finite number.
SPECDEC_HD float bias_of(float value) { return value == value ? min(value, kLargest) : -kInfinity; }

// A token's count is how often it stands in the output.
constexpr int32_t kUnseen = -1;  // neither in the prompt nor in the output. 0: in the prompt alone

SPECDEC_HD int32_t count_after(int32_t count) { return count < 1 ? 1 : count < 0x7fffffff ? count + 1 : count; }

// A logit after all edits but the grammar's. `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD Float edited(Float logit, Float bias, Float count, const Penalties& p) {
  const Float zero(0.0f), biased = add(logit, bias);
  const Float repeated =
      where(greater(biased, zero), mul(biased, Float(p.inverse_repetition)), mul(biased, Float(p.repetition)));
  const Float z = where(at_least(count, zero), repeated, biased);
  return where(greater(count, zero), sub(sub(z, mul(Float(p.frequency), count)), Float(p.presence)), z);
}

SPECDEC_END
