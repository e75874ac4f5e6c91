// One row of a vocabulary on the CPU, in tiles of 2,048 tokens. A tile's sums do not depend on the thread that computes
// them, and they are added in order. So no result depends on how a row was split.
#pragma once

#include "../threads.h"
#include "elements.h"
#include "specdec/draft_map.h"
#include "specdec/law.h"

SPECDEC_BEGIN

constexpr int kTile = 2048;  // 32 groups of the race: one vector of Philox counters

inline int32_t tiles_of(int32_t vocab) { return (vocab + kTile - 1) / kTile; }

struct Row {
  const void* data;
  int32_t dtype;
  int32_t vocab;
  int32_t vocab_start;    // column 0 is this token; all other numbers here count columns
  const RowEdits* edits;  // null: none
  int32_t tiles() const { return tiles_of(vocab); }
  int32_t tile_size(int32_t tile) const {
    const int32_t left = vocab - tile * kTile;
    return left < kTile ? left : kTile;
  }
};

inline Row row_at(const Rows& rows, int64_t offset) {
  const int64_t size = rows.dtype == SPECDEC_FLOAT32 ? 4 : 2;
  return {static_cast<const char*>(rows.data) + offset * size, rows.dtype, rows.vocab, rows.vocab_start, nullptr};
}

// Some tokens. Column 0 of their row is the token `first`.
struct TokenList {
  const int32_t* tokens;
  int64_t count;
  int32_t first = 0;

  bool has_column(int32_t column) const {
    for (int64_t i = 0; i < count; ++i)
      if (tokens[i] >= first && tokens[i] - first == column) return true;
    return false;
  }
};

// Calls f with a pointer to the row's data, of its element type.
template <class F>
SPECDEC_HD auto with_data(const Row& row, F&& f) {
  switch (row.dtype) {
    case SPECDEC_BFLOAT16: return f(static_cast<const BFloat16*>(row.data));
    case SPECDEC_FLOAT16: return f(static_cast<const Float16*>(row.data));
    default: return f(static_cast<const float*>(row.data));
  }
}

template <class F>
__attribute__((noinline)) auto with_edited(const Row& row, int32_t token, const F& f) {
  return with_data(row, [&](auto data) { return f(edited_from(data, *row.edits, token)); });
}

// Calls f with the row's elements from `token` on: a pointer or an Edited. The latter is out of line, so that rows
// without edits are not slowed down: with both paths inlined, the compiler passed f's result through memory.
template <class F>
SPECDEC_HD auto with_elements(const Row& row, int32_t token, const F& f) {
  if (row.edits) return with_edited(row, token, f);
  return with_data(row, [&](auto data) { return f(data + token); });
}

SPECDEC_HD float element(const Row& row, int32_t token) {
  const float* listed;
  if (row.edits && row.edits->decide(token, &listed)) return listed ? *listed : -kInfinity;
  return with_data(row, [=](auto data) { return to_float(data[token]); });
}

// Sixteen elements from `token` on. From the `count`-th on they are `fill`.
SPECDEC_HD F32x16 elements(const Row& row, int32_t token, int32_t count, float fill) {
  return with_elements(row, token, [=](auto p) { return load_first(p, count, fill); });
}

// The elements of a cell. Past the row's end they are NaNs.
SPECDEC_HD Cell cell_of(const Row& row, int32_t token) {
  return with_elements(row, token, [&](auto p) {
    const int32_t count = row.vocab - token;
    if (count >= kCell) return load_cell(p);
    Cell cell;
    for (int k = 0; k < kCellVectors; ++k)
      cell.vector[k] = k * kLanes < count ? load_first(p + k * kLanes, count - k * kLanes, __builtin_nanf(""))
                                          : F32x16(__builtin_nanf(""));
    return cell;
  });
}

SPECDEC_END
