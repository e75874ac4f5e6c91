// The caller's edits of a target row's logits, decoded: bias, penalties of tokens seen before, and what a grammar
// allows. A row's law (law.h) takes edited elements.
#pragma once

#include "arithmetic.h"
#include "config.h"

SPECDEC_BEGIN

// Defaults change nothing.
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
  Penalties penalties;
  if (!p.penalises()) return penalties;
  penalties.frequency = finite_or(0.0f, p.frequency.at(outer, inner), status);
  penalties.presence = finite_or(0.0f, p.presence.at(outer, inner), status);
  if (!p.repetition.data && p.repetition.value == 0.0f) return penalties;
  const float repetition = finite_or(1.0f, p.repetition.at(outer, inner), status);
  if (repetition > 0.0f) penalties.repetition = repetition, penalties.inverse_repetition = 1.0f / repetition;
  else *status |= SPECDEC_STATUS_PARAMETER;
  return penalties;
}

// Which list a row uses: the one at its index, or where an index tensor points; `there` is false if it points to none.
struct ListIndex {
  int64_t outer, inner;
  bool there = true;
  SPECDEC_HD const int32_t* of(const Lists& lists) const {
    return lists.data && there ? lists.at(outer, inner) : nullptr;
  }
};

// `entries`: how many lists the index tensor, if there is one, may point to.
SPECDEC_HD ListIndex list_index_at(const Lists& index, int64_t entries, int64_t outer, int64_t inner, int32_t* status) {
  if (!index.data) return {outer, inner};
  const int32_t entry = *index.at(outer, inner);
  const bool there = entry >= 0 && entry < entries;
  if (!there && entry != -1) *status |= SPECDEC_STATUS_PARAMETER;
  return {entry, 0, there};
}
SPECDEC_HD ListIndex seen_list_at(const specdec_edits& p, int64_t outer, int64_t inner, int32_t* status) {
  return list_index_at(p.seen_index, (p.output_mask.data ? p.output_mask : p.prompt_mask).requests, outer, inner,
                       status);
}
SPECDEC_HD ListIndex allowed_list_at(const specdec_edits& p, int64_t outer, int64_t inner, int32_t* status) {
  return list_index_at(p.allowed_index, p.allowed.requests, outer, inner, status);
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
SPECDEC_HD float decode_bias(float value) { return value == value ? min(value, kLargest) : -kInfinity; }

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
