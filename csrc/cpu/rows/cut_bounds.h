// Bounds of a row's cut where top_p is a share of the row's mass, without that mass: by cheap exponentials (bounds.h,
// docs/noise.md).
#pragma once

#include <array>

#include "cut.h"
#include "specdec/bounds.h"

SPECDEC_BEGIN

constexpr int kTilesShare = 18;  // 2^-18 of a row's mass: more than its tiles together lose by rounding
constexpr double kLineError = 0.0615;  // (1 + f) / 2^f - 1 is at most this

// Selects the tokens of at least `low`.
struct From {
  float low;
  Mask operator()(F32x16 values, int32_t) const { return at_least(values, F32x16(low)); }
};

class CutBounds : public CutFinder {
 public:
  using CutFinder::CutFinder;

  // Whether top_p keeps a token, if it is a share of the row's mass. Mostly bounds decide: a lower bound of the row's
  // mass where few cells hold all tokens before this one, else cheap exponentials of both masses. If they do not,
  // whole() returns the exact mass.
  template <class Whole>
  bool top_p_keeps(float v, int32_t column, Whole&& whole) const {
    const Cut earlier = before_token(v, column);
    if (cells_from(v) < count / 8) {
      const uint64_t above = mass_in(f.order, top, earlier);
      if (above == 0) return true;  // the first of the order
      const uint64_t least = least_mass(above + weight(v), v);
      if (above < top_p_limit(f, least - (least >> kTilesShare))) return true;
    }
    const Side side = side_of_mass_before(v, column);
    if (side != Side::kUnknown) return side == Side::kBelow;
    const uint64_t above = mass_in(f.order, top, earlier);
    return above == 0 || above < top_p_limit(f, whole());
  }

  // Compares the mass before a token with top_p of the row's mass, as far as cheap exponentials decide: lines first.
  enum class Side { kBelow, kUnknown, kAbove };
  Side side_of_mass_before(float v, int32_t column) const {
    if (!has_masses_about()) return Side::kUnknown;
    const Cut before = before_token(v, column);
    const auto lines = sums_by_lines(before);
    const Side side = side_of(lines[0], lines[1], kLineError + 2.0 * log_sum_error(top));
    if (side != Side::kUnknown) return side;
    const auto masses = masses_about(
        -kLargest, [&](F32x16 values, int32_t at) { return lanes_in_cut(before, values, at); }, From{-kLargest});
    return side_of(masses[0], masses[1], 2.0 * log_sum_error(top));
  }

  // Two cuts around that of top_p, a share of the row's mass: it keeps all tokens of `least`, and none outside of
  // `most`. The mass it keeps is at least top_p of the row's, and at most `over` times that.
  struct Bracket {
    Cut least, most;
    double over;
  };
  // Computes a bracket from an approximate mass of the row. Two levels are guessed from the maxima and a sample of the
  // cells. Returns false if the row is short, or if cheap exponentials do not confirm the upper level.
  bool bracket(double mass, Bracket* b) const {
    if (count < 4 * kSampledCells || !has_masses_about()) return false;
    const double top_p = static_cast<double>(f.top_p_fixed) / Filter::kWhole;
    float high, low;
    if (!guess_levels(mass, top_p, &high, &low)) return false;
    const auto masses = masses_about(low, From{high}, From{low});
    const double error = 2.0 * log_sum_error(top);
    if (side_of(masses[0], mass, error) != Side::kBelow) return false;
    const bool ends = side_of(masses[1], mass, error) == Side::kAbove;
    // The last token that top_p keeps is below `high`; it, or the tokens equal to it, may exceed top_p of the mass.
    const double most = !f.ties_all() ? top_p * mass + static_cast<double>(weight(high))
                        : ends        ? masses[1] * (1.0 + error + 2.0 * added_error())
                                      : mass;
    const double beyond = most / (top_p * mass);
    *b = {{high, kNoToken}, {ends ? low : -kLargest, kNoToken}, beyond};
    return beyond < 1.1;
  }

 private:
  // A lower bound of the row's mass: the tokens down to v, and the largest token of each cell below it. The exact mass
  // is summed by tiles, and may be smaller than the sum of its weights by at most 2^-kTilesShare of it.
  uint64_t least_mass(uint64_t down_to_v, float v) const {
    Sum16 below;
    const F32x16 least(v), high(top);
    for (int32_t i = 0; i < count; i += kLanes) {
      const F32x16 largest_in = load(cells + i);
      const Mask lower_cells = ~at_least(largest_in, least) & 0xffffu;
      if (!lower_cells) continue;
      const auto e = integer_exp(sub(largest_in, high));
      below.add(e.q, e.n, lower_cells);
    }
    return down_to_v + below.total();
  }

  // Approximate masses, by cheap exponentials (bounds.h), of the tokens of at least `low` that each of `keeps` selects.
  // keeps(values, column of the first) returns a mask of sixteen tokens. A lane adds every 64th token.
  template <class... Keeps>
  std::array<double, sizeof...(Keeps)> masses_about(float low, const Keeps&... keeps) const {
    constexpr size_t kSums = sizeof...(Keeps);
    const float log2_e = 1.44269504f, whole = sub(add(mul(top, log2_e), 12582912.0f), 12582912.0f);
    const AboutExp2 weight_of(log2_e, -whole);
    const F32x16 zero(0.0f);
    F32x16 sums[kCellVectors][kSums];
    for (auto& vectors : sums)
      for (F32x16& sum : vectors) sum = zero;
    each_cell_from(low, [&](int32_t index) {
      const Cell cell = cell_of(row, index * kCell);
      for (int k = 0; k < kCellVectors; ++k) {
        const F32x16 v = value(cell.vector[k]), e = weight_of(v);
        const Mask lanes[] = {keeps(v, index * kCell + k * kLanes)...};
        for (size_t i = 0; i < kSums; ++i) sums[k][i] = add(sums[k][i], where(lanes[i], e, zero));
      }
      return true;
    });
    const double unit = kOneToken * std::exp2(static_cast<double>(whole) - 1.44269504088896 * top);
    std::array<double, kSums> masses = {};
    for (const auto& vectors : sums)
      for (size_t i = 0; i < kSums; ++i) masses[i] += unit * total(vectors[i]);
    return masses;
  }
  // The weights of the tokens that a cut keeps, and of all, with 1 + f for 2^f. A lane adds every 32nd token. The low
  // bits of a number of [2^23, 2^24) are a weight's exponent and the upper 15 bits of its fraction.
  std::array<double, 2> sums_by_lines(const Cut& cut) const {
    using Vectors = Two<F32x16>;
    constexpr float kUnit = 0x1p15f;  // one step of the exponent
    const float log2_e = 1.44269504f, whole = sub(add(mul(top, log2_e), 12582912.0f), 12582912.0f);
    const Vectors scale(log2_e * kUnit), shift(0x1p23f + (127.0f - whole) * kUnit), lowest(0x1p23f + kUnit), zero(0.0f);
    const auto lanes_of = [&](F32x16 x, int32_t at) {  // one comparison for most vectors
      return cut.last - at >= kLanes - 1 ? at_least(x, F32x16(cut.value)) : lanes_in_cut(cut, x, at);
    };
    struct Sums { Vectors in_support, all; };
    const auto with = [&](Sums sums, const Cell& cell, int32_t at) -> Sums {
      for (int k = 0; k < kCellVectors; k += 2) {
        const Vectors x = f.order.key(Vectors(cell.vector[k], cell.vector[k + 1]));
        const Vectors weight = from_bits(shift_left(bits(max(fma(x, scale, shift), lowest)), 8));
        const Two<Mask> lanes(lanes_of(x.a, at + k * kLanes), lanes_of(x.b, at + (k + 1) * kLanes));
        sums = {add(sums.in_support, where(lanes, weight, zero)), add(sums.all, weight)};
      }
      return sums;
    };
    const int32_t inside = row.vocab / kCell;
    Sums sums = with_elements(row, 0, [&](auto p) {
      Sums inner = {zero, zero};
      for (int32_t i = 0; i < inside; ++i) inner = with(inner, load_cell(p + i * kCell), i * kCell);
      return inner;
    });
    if (inside * kCell < row.vocab) sums = with(sums, cell_of(row, inside * kCell), inside * kCell);
    const auto sum = [](Vectors lanes) { return static_cast<double>(total(add(lanes.a, lanes.b))); };
    return {sum(sums.in_support), sum(sums.all)};
  }
  // Whether these sums have a known error.
  bool has_masses_about() const { return magnitude(top) < kLargestBounded; }
  // The relative rounding error of such a sum: at most two additions a lane for each cell, the sum of the lanes, and
  // the tiles of an exact mass.
  double added_error() const { return 0x1p-23 * (count + 64); }
  // Compares a part with top_p of all, if each token's weight has a relative error of at most `error`. The part is
  // compared with the rest, because an error common to both cancels in their ratio.
  Side side_of(double part, double all, double error) const {
    const double top_p = static_cast<double>(f.top_p_fixed) / Filter::kWhole, spare = 2.5 * added_error() * all;
    const double mine = (1.0 - top_p) * part, others = top_p * (all - part);
    if (mine * (1.0 + error) + spare < others) return Side::kBelow;
    return mine > others * (1.0 + error) + spare ? Side::kAbove : Side::kUnknown;
  }

  // Two values: the tokens above the first have probably a little less than top_p of the row's mass, and those above
  // the second a little more. Maxima of cells are counted exactly, and the sample represents all other tokens.
  bool guess_levels(double mass, double top_p, float* high, float* low) const {
    constexpr double kMargin = 0.04;
    const Between all = {ordered(-kLargest), ordered(top) + 1, 0, 0};
    const Bins bins(all, true);
    Sums maxima, others;
    fill(bins, all, true, of_cells(), &maxima);
    fill(bins, all, true, of_sample(false), &others);
    double maxima_mass = 0.0, sample_mass = 0.0;
    for (int bin = 0; bin < kBins; ++bin) {
      maxima_mass += static_cast<double>(maxima.masses[bin]);
      sample_mass += static_cast<double>(others.masses[bin]);
    }
    const double scale = sample_mass > 0.0 ? std::max(mass - maxima_mass, 0.0) / sample_mass : 0.0;
    const double goal = top_p * mass, spare = std::min(kMargin * goal, 0.5 * (mass - goal));
    double sum = 0.0;
    int first = -1, bin = 0;
    for (; bin < kBins; ++bin) {
      sum += static_cast<double>(maxima.masses[bin]) + scale * static_cast<double>(others.masses[bin]);
      if (first < 0 && sum > (1.0 - kMargin) * goal) first = bin;
      if (sum >= goal + spare) break;
    }
    if (first <= 0) return false;
    Between range = all;
    bins.narrow(&range, first);
    *high = from_ordered(range.end);
    range = all;
    bins.narrow(&range, std::min(bin, kBins - 1));
    *low = from_ordered(range.first);
    return true;
  }
};

SPECDEC_END
