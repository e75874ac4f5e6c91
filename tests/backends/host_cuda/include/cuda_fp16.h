// Half precision as csrc/cuda uses it: raw 16-bit words.
#pragma once

#include <cstdint>
#include <cstring>

struct __half_raw {
  unsigned short x;
};
struct __half {
  __half_raw raw;
  __half(__half_raw r) : raw(r) {}
};

inline float __half2float(__half h) {
  const uint32_t sign = (h.raw.x & 0x8000u) << 16, exponent = h.raw.x >> 10 & 31, mantissa = h.raw.x & 0x3ffu;
  uint32_t word;
  if (exponent == 31) {
    word = sign | 0x7f800000u | mantissa << 13;
  } else if (exponent) {
    word = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&word, &tiny, 4);
    word |= sign;
  }
  float value;
  return std::memcpy(&value, &word, 4), value;
}
