// Sampling filters: top-k, top-p and min-p as cuts of one order (docs/filters.md). The larger value comes first, equal
// values by rising token. Every filter keeps the first tokens of this order, up to some rank. All filters together keep
// the tokens up to the smallest of these ranks, and always the first token.
#pragma once

#include "law.h"
#include "mass.h"

SPECDEC_BEGIN

// The filters of one row, decoded.
struct Filter {
  static constexpr uint64_t kWhole = uint64_t{1} << 32;

  int32_t top_k = kNoToken;      // kNoToken: off
  float log_min_p = -kInfinity;  // -inf: off
  uint64_t top_p_fixed = kWhole;       // top_p 2^32, rounded down; kWhole: off
  int64_t rules = 0;
  Logits order = {1.0f};         // filters compare order.scaled(raw)

  SPECDEC_HD bool has_top_k() const { return top_k != kNoToken; }
  SPECDEC_HD bool has_min_p() const { return log_min_p > -kInfinity; }
  SPECDEC_HD bool has_top_p() const { return top_p_fixed != kWhole; }
  SPECDEC_HD bool on() const { return has_top_k() || has_min_p() || has_top_p(); }
  SPECDEC_HD bool ties_all() const { return (rules & SPECDEC_TIES_ALL) != 0; }
  // Whether top_p is a share of what that cut keeps.
  SPECDEC_HD bool after_top_k() const { return has_top_k() && (rules & SPECDEC_TOP_P_AFTER_TOP_K) != 0; }
  SPECDEC_HD bool after_min_p() const { return has_min_p() && (rules & SPECDEC_TOP_P_AFTER_MIN_P) != 0; }
  // Whether top_p is a share of the row's whole mass.
  SPECDEC_HD bool of_row() const { return has_top_p() && !after_top_k() && !after_min_p(); }
  // The smallest value that min_p keeps, from the row's largest.
  SPECDEC_HD float floor_below(float largest) const { return has_min_p() ? add(largest, log_min_p) : -kInfinity; }
};

// At temperature 0 the law is one token, so filters are off.
SPECDEC_HD Filter filter_at(const specdec_law& p, const Law& law, int32_t vocab, int64_t outer, int64_t inner,
                            int32_t* status) {
  Filter f;
  if (!(p.rules & SPECDEC_FILTERED)) return f;
  const int64_t k = p.top_k.at(outer, inner);
  const float top_p = p.top_p.at(outer, inner), min_p = p.min_p.at(outer, inner);
  if (!(top_p >= 0.0f) || !(min_p >= 0.0f)) *status |= SPECDEC_STATUS_PARAMETER;
  if (!law.needs_sum()) return f;
  if (k > 0 && k < vocab) f.top_k = static_cast<int32_t>(k);
  if (min_p >= kSmallest) f.log_min_p = log(min(min_p, 1.0f));
  if (top_p >= 0.0f && top_p < 1.0f) f.top_p_fixed = static_cast<uint64_t>(mul(top_p, 0x1p32f));
  f.rules = p.rules;
  f.order = p.rules & SPECDEC_BEFORE_TEMPERATURE ? Logits{1.0f} : law.logits();
  return f;
}

// top_p keeps a token if the mass before it is less than this limit: top_p times `whole`, rounded up.
SPECDEC_HD uint64_t top_p_limit(const Filter& f, uint64_t whole) {
  if (!f.has_top_p()) return ~uint64_t{0};
  return f.top_p_fixed * (whole >> 32) + ((f.top_p_fixed * (whole & 0xffffffffu) + 0xffffffffu) >> 32);
}

// The result of a row's filters: they keep values above `value`, and `value` itself up to the token `last`.
struct Cut {
  float value;
  int32_t last;
  SPECDEC_HD bool keeps(float v, int32_t token) const { return v > value || (v == value && token <= last); }
};

constexpr Cut kKeepsAll = {-kInfinity, -1};

// The cut of a part of a row. Filters compare order.scaled(raw).
struct PartCut {
  Cut cut;  // cut.last is a column of the part
  Logits order;
  SPECDEC_HD bool on() const { return cut.value > -kInfinity; }
};

// Decodes a call's cut of the target's row (side 0) or the draft's (side 1): for each side the value as bits of a
// float32, the last column, and the factor of the order, as bits.
SPECDEC_HD PartCut part_cut_at(const specdec_path& cuts, int64_t index, int side) {
  if (!cuts.data) return {kKeepsAll, {1.0f}};
  const int32_t* fields = cuts.data + index * cuts.row_stride + 3 * side;
  return {{from_bits(static_cast<uint32_t>(fields[0])), fields[1]}, {from_bits(static_cast<uint32_t>(fields[2]))}};
}

SPECDEC_END
