// The record of a request's tokens that penalties read: a bit for each token that occurred, and a count.
#pragma once

#include "config.h"

SPECDEC_BEGIN

// How many of `slots` tokens to take; a number outside of [0, slots] counts as the nearest, and sets the status.
SPECDEC_HD int32_t tokens_to_count(int64_t num, int32_t slots, int32_t* status) {
  if (num >= 0 && num <= slots) return static_cast<int32_t>(num);
  *status |= SPECDEC_STATUS_PARAMETER;
  return num < 0 ? 0 : slots;
}

SPECDEC_HD bool has_bit(const int32_t* mask, int64_t token) {
  return static_cast<uint32_t>(mask[token / 32]) >> token % 32 & 1;
}

// A count in memory means 0 without the token's bit, and at least 1 with it.
SPECDEC_HD int32_t decode_count(int32_t count, bool seen) { return !seen ? 0 : count < 1 ? 1 : count; }

SPECDEC_END
