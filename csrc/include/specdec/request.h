// Which entry's numbers and draft rows a request uses: its own index or, with request_index, another one.
#pragma once

#include "config.h"

SPECDEC_BEGIN

struct Entry {
  enum Kind : int32_t { kLive, kIdle, kOutside };
  int64_t index;
  Kind kind;
  SPECDEC_HD bool live() const { return kind == kLive; }
  SPECDEC_HD bool idle() const { return kind == kIdle; }
  // The status and the first token that a request which is not live gets.
  SPECDEC_HD int32_t status() const { return kind == kOutside ? SPECDEC_STATUS_PARAMETER : SPECDEC_STATUS_OK; }
  SPECDEC_HD int32_t token() const { return kind == kOutside ? 0 : -1; }
};

SPECDEC_HD Entry decode_entry(const specdec_request_index& index, int64_t b) {
  if (!index.data) return {b, Entry::kLive};
  const int64_t i = index.at(b);
  if (i == -1) return {0, Entry::kIdle};
  if (i < 0 || i >= index.entries) return {0, Entry::kOutside};
  return {i, Entry::kLive};
}

SPECDEC_END
