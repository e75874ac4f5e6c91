// A row's cells and their maxima: passes over the tokens of at least some value open no other cells.
#pragma once

#include <cmath>

#include "cut_bins.h"
#include "law_row.h"

SPECDEC_BEGIN

constexpr int32_t kSampledCells = 32;

// The cells of one row, whose maxima are values that its filters compare.
class CutCells {
 public:
  // Shapes: raw_cells and values [cells].
  CutCells(const Row& r, const Filter& filter, const float* raw_cells, float* values)
      : row(r), f(filter), cells(values), count(cells_of(r.vocab)) {
    F32x16 best(-kInfinity);
    for (int32_t i = 0; i < count; i += kLanes) {
      const F32x16 v = value(load(raw_cells + i));
      store(values + i, v);
      best = max(v, best);
    }
    top = largest(best);
  }

  float top;  // the largest value

  // The cut just before this token in the order; with ties together, before all tokens of its value.
  Cut before_token(float v, int32_t column) const { return {v, f.ties_all() ? -1 : column - 1}; }

  // Calls g(v, column) for every token of at least `low`, by rising column, until it returns false.
  template <class G>
  void each_from(float low, G&& g) const {
    const F32x16 least(low);
    each_sixteen(low, [&](F32x16 raw, int32_t at) {
      const F32x16 v = value(raw);
      Mask lanes = at_least(v, least);
      if (!lanes) return true;
      float lane[kLanes];
      store(lane, v);
      for (; lanes; lanes &= lanes - 1) {
        const int i = __builtin_ctz(lanes);
        if (!g(lane[i], at + i)) return false;
      }
      return true;
    });
  }

  // Calls g(raw, lanes) for sixteen elements at a time if the cut keeps some of them; `lanes` is the mask of these.
  template <class G>
  void each_in_cut(const Cut& cut, G&& g) const {
    each_sixteen(cut.value, [&](F32x16 raw, int32_t at) {
      const Mask lanes = lanes_in_cut(cut, value(raw), at);
      if (lanes) g(raw, lanes);
      return true;
    });
  }

  // Fills in how many tokens a cut keeps, and their mass.
  void sum(RowCut* k) const {
    int32_t in_support = 0;
    each_in_cut(k->cut, [&](F32x16, Mask lanes) { in_support += __builtin_popcount(lanes); });
    k->count = in_support;
    k->mass = mass_in(f.order, top, k->cut);
  }

  // The mass of the tokens that a cut keeps, at the temperature of `space`; `top_x` is the row's largest x there.
  uint64_t mass_in(const Logits& space, float top_x, const Cut& cut) const {
    Sum16 mass;
    const F32x16 zero(0.0f), high(top_x);
    Packed packed([&](F32x16 raw, Mask lanes) {
      const auto e = integer_exp(min(zero, space.below(raw, high)));
      mass.add(e.q, e.n, lanes);
    });
    each_sixteen(cut.value, [&](F32x16 raw, int32_t at) {
      packed.add(raw, lanes_in_cut(cut, value(raw), at));
      return true;
    });
    packed.flush();
    return mass.total();
  }

 protected:
  // Calls g(cell) for the cells that reach `low`, until it returns false.
  template <class G>
  void each_cell_from(float low, G&& g) const {
    const F32x16 least(low);
    for (int32_t block = 0; block < count; block += kLanes) {
      const Mask all = at_least(load(cells + block), least);
      for (Mask open = all; open; open &= open - 1)
        with_elements(row, (block + __builtin_ctz(open)) * kCell, [](auto p) { prefetch_cell(p); });
      for (Mask open = all; open; open &= open - 1)
        if (!g(block + __builtin_ctz(open))) return;
    }
  }

  // Calls g(raw, column of the first) for sixteen elements at a time of the cells that reach `low`, until it returns
  // false. Past the row's end there are NaNs.
  template <class G>
  void each_sixteen(float low, G&& g) const {
    each_cell_from(low, [&](int32_t index) {
      const Cell cell = cell_of(row, index * kCell);
      for (int k = 0; k < kCellVectors; ++k)
        if (!g(cell.vector[k], index * kCell + k * kLanes)) return false;
      return true;
    });
  }

  SPECDEC_HD F32x16 value(F32x16 raw) const { return value_of(f, raw); }
  uint64_t weight(float v) const { return row_weight(sub(v, top)); }

  // A level that the maxima of at least `wanted` cells reach, and of few more; -inf if there are fewer cells.
  float level_of_cells(int32_t wanted) const {
    const int32_t spare = wanted / 4 + 8;
    if (cells_from(-kLargest) < wanted) return -kInfinity;
    float low = -kLargest, high = top, step = 4.0f;  // enough cells reach `low`
    if (cells_from(high) >= wanted) return high;
    for (int turn = 0; turn < 48 && ordered(high) - ordered(low) > 1; ++turn) {
      float level;
      if (low == -kLargest && turn < 8) level = max(sub(top, step), low), step = mul(step, 2.0f);
      else if (turn < 16) level = low + 0.5f * (high - low);
      else level = from_ordered(ordered(low) + (ordered(high) - ordered(low)) / 2);
      if (!(level > low) || !(level < high)) continue;
      const int32_t reached = cells_from(level);
      if (reached < wanted) {
        high = level;
      } else {
        low = level;
        if (reached <= wanted + spare) break;
      }
    }
    return low;
  }
  int32_t cells_from(float level) const {
    const F32x16 least(level);
    int32_t reached = 0;
    for (int32_t i = 0; i < count; i += kLanes) reached += __builtin_popcount(at_least(load(cells + i), least));
    return reached;
  }

  // Sources of values: functions that call `add` with sixteen at a time, and NaNs where there are fewer.
  auto of_row(float low) const {
    return [this, low](auto&& add) {
      each_sixteen(low, [&](F32x16 raw, int32_t) {
        add(value(raw));
        return true;
      });
    };
  }
  auto of_cells() const {
    return [this](auto&& add) {
      for (int32_t i = 0; i < count; i += kLanes) add(load(cells + i));
    };
  }
  // The values of some cells, with their maxima or without.
  auto of_sample(bool maxima) const {
    return [this, maxima](auto&& add) {
      for (int64_t i = 1; i < 2 * kSampledCells; i += 2) {
        const int32_t cell = static_cast<int32_t>(count * i / (2 * kSampledCells));
        for (const F32x16& raw : cell_of(row, cell * kCell).vector) {
          const F32x16 v = value(raw);
          add(maxima ? v : where(at_least(v, F32x16(cells[cell])), F32x16(NAN), v));
        }
      }
    };
  }

  const Row& row;
  const Filter& f;
  float* cells;  // the maxima of the cells, as values
  int32_t count;
};

SPECDEC_END
