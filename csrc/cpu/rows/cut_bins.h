// Bins of values, by which the range of a cut is narrowed down where too many tokens are left to list them (cut.h).
#pragma once

#include <algorithm>

#include "row_cut.h"

SPECDEC_BEGIN

// Packs the wanted values and calls work(values, mask of lanes) for sixteen at a time: mostly few of the values are
// wanted, and the work on them is long.
template <class G>
class Packed {
 public:
  explicit Packed(G g) : work(g) {}
  void add(F32x16 v, Mask wanted) {
    compress(values + count, wanted, v);
    count += __builtin_popcount(wanted);
    if (count >= kFull) flush();
  }
  void flush() {
    for (int32_t i = 0; i < count; i += kLanes)
      work(load(values + i), count - i < kLanes ? (Mask{1} << (count - i)) - 1 : Mask{0xffff});
    count = 0;
  }

 private:
  static constexpr int32_t kFull = 1024;

  G work;
  int32_t count = 0;
  float values[kFull + 2 * kLanes] = {};
};

// The keys [first, end), and the count and mass of the tokens of larger keys.
struct Between {
  uint32_t first, end;
  uint64_t rank, mass;
};

constexpr int kBins = 1024;

// Bins of equal steps of the value, or of the key. The first one has the largest values.
class Bins {
 public:
  Bins(const Between& range, bool by_value)
      : last(range.end - 1), high(from_ordered(last)),
        scale((kBins - 1) / std::min(high - from_ordered(range.first), kDeepest)),
        step(by_value && scale < kLargest ? 0 : (last - range.first) / kBins + 1) {}

  // The bins of sixteen values.
  void of(F32x16 v, uint32_t* bin) const {
    if (step == 0) {
      const F32x16 steps = min(mul(sub(F32x16(high), v), F32x16(scale)), F32x16(kBins - 1.0f));
      store(bin, bits(add(steps, F32x16(kInteger))) - U32x16(bits(kInteger)));
    } else {
      float lane[kLanes];
      store(lane, v);
      for (int i = 0; i < kLanes; ++i) bin[i] = (last - ordered(lane[i])) / step;
    }
  }

  // Narrows the range to one bin.
  void narrow(Between* range, int bin) const {
    const uint32_t end = lowest_key(*range, bin - 1);
    range->first = lowest_key(*range, bin);
    range->end = end;
  }

 private:
  static constexpr float kDeepest = 40.0f;    // tokens further below the largest value have next to no mass
  static constexpr float kInteger = 0x1p23f;  // a number added to it is rounded to an integer, in its lowest bits

  // The bin of a key and its value. Each of the two zeros has a key, but no token has that of -0.
  int of(uint32_t key, float v) const {
    if (step != 0) return static_cast<int>((last - key) / step);
    return static_cast<int>(bits(add(min(mul(sub(high, v), scale), kBins - 1.0f), kInteger)) - bits(kInteger));
  }

  // The lowest key of the bins up to this one. Bins rise with falling keys.
  uint32_t lowest_key(const Between& range, int bin) const {
    uint32_t low = range.first, high_key = range.end;
    while (low < high_key) {
      const uint32_t middle = low + (high_key - low) / 2;
      if (of(middle, from_ordered(middle)) <= bin) high_key = middle;
      else low = middle + 1;
    }
    return low;
  }

  uint32_t last;  // the largest key
  float high, scale;
  uint32_t step;  // 0: by value
};

struct Sums {
  uint32_t ranks[kBins] = {};
  uint64_t masses[kBins] = {};
};

SPECDEC_END
