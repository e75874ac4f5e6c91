// One row of a vocabulary on the CPU, in tiles of 2,048 tokens. A tile's figures do not depend on the thread that took
// it, and they are combined in order. So no result depends on how a row was split.
#pragma once

#include "simd.h"
#include "specdec/draft_map.h"
#include "specdec/law.h"
#include "specdec/partial.h"
#include "threads.h"

SPECDEC_BEGIN

constexpr int kTile = 2048;  // 32 groups of the race: one vector of Philox counters

SPECDEC_HD int32_t tiles_of(int32_t vocab) { return (vocab + kTile - 1) / kTile; }

struct Row {
  const void* data;
  DType dtype;
  int32_t vocab;
  int32_t first_token;  // column 0 is this token; all other numbers here count columns
  SPECDEC_HD int32_t tiles() const { return tiles_of(vocab); }
  SPECDEC_HD int32_t tile_size(int32_t tile) const {
    const int32_t left = vocab - tile * kTile;
    return left < kTile ? left : kTile;
  }
};

SPECDEC_HD Row row_at(const Rows& rows, int64_t offset) {
  const int64_t size = rows.dtype == DType::kFloat32 ? 4 : 2;
  return {static_cast<const char*>(rows.data) + offset * size, rows.dtype, rows.vocab, rows.first_token};
}

// Calls f with the row's elements as their own type, from `token` on.
template <class F>
SPECDEC_HD auto with_elements(const Row& row, int32_t token, F&& f) {
  switch (row.dtype) {
    case DType::kBFloat16: return f(static_cast<const BFloat16*>(row.data) + token);
    case DType::kFloat16: return f(static_cast<const Float16*>(row.data) + token);
    default: return f(static_cast<const float*>(row.data) + token);
  }
}

SPECDEC_HD float element(const Row& row, int32_t token) {
  return with_elements(row, token, [](auto p) { return to_float(*p); });
}

// Sixteen elements from `token` on. From the `count`-th on they are `fill`.
SPECDEC_HD F16 elements(const Row& row, int32_t token, int32_t count, float fill) {
  return with_elements(row, token, [=](auto p) { return load_first(p, count, fill); });
}

// The largest element of a tile; a NaN does not count. The status tells of values that are impossible in a law.
template <class Space, class T>
SPECDEC_HD float tile_max_of(const Space& space, const T* p, int32_t count, int32_t* status) {
  constexpr int kStep = 4;
  F16 best[kStep] = {F16(-kInfinity), F16(-kInfinity), F16(-kInfinity), F16(-kInfinity)};
  Mask bad = 0;
  const auto take = [&](F16 x, int k, Mask lanes) {
    best[k] = max(x, best[k]);
    bad |= space.foreign(x, lanes);
  };
  int32_t i = 0;
  for (; i + kStep * kLanes <= count; i += kStep * kLanes)
    for (int k = 0; k < kStep; ++k) take(load(p + i + k * kLanes), k, 0xffffu);
  for (; i < count; i += kLanes) {
    const int lanes = count - i;
    take(load_first(p + i, lanes, -kInfinity), 0, lanes >= kLanes ? 0xffffu : (1u << lanes) - 1u);
  }
  const float value = largest(max(max(best[0], best[1]), max(best[2], best[3])));
  if (bad != 0 || value == kInfinity) *status |= kStatusNonFinite;
  return value;
}

template <class Space>
SPECDEC_HD float tile_max(const Row& row, const Space& space, int32_t tile, int32_t* status) {
  return with_elements(row, tile * kTile, [&](auto p) { return tile_max_of(space, p, row.tile_size(tile), status); });
}

// Sum of exp(x - top) over a tile, x = logit / T.
template <class T>
SPECDEC_HD float tile_sum_of(const Logits& space, const T* p, int32_t count, float top_x) {
  constexpr int kStep = 4;
  const F16 top(top_x), low(kExpUnderflow), zero(0.0f);
  F16 sum[kStep] = {zero, zero, zero, zero};
  // With the operands in this order a NaN becomes `low`.
  const auto term = [&](F16 logit) { return exp_in_range(max(min(zero, space.below(logit, top)), low)); };
  int32_t i = 0;
  for (; i + kStep * kLanes <= count; i += kStep * kLanes) {
    for (int k = 0; k < kStep; ++k) {
      __builtin_prefetch(p + i + k * kLanes + kTile);  // the next tile arrives while exponentials are taken
      sum[k] = add(sum[k], term(load(p + i + k * kLanes)));
    }
  }
  for (; i < count; i += kLanes) sum[0] = add(sum[0], term(load_first(p + i, count - i, -kInfinity)));
  return total(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

// Fills tile_maxima[0 .. tiles) with raw maxima. The status tells of values that are impossible in a law.
SPECDEC_HD int32_t row_maxima(const Row& row, const Law& law, const Crew& crew, float* tile_maxima) {
  return law.in_space([&](auto space) {
    int32_t status[kMaxParts];
    const int parts = over_parts(row.tiles(), crew, [&](int part, int32_t from, int32_t to) {
      int32_t met = kStatusOk;
      for (int32_t tile = from; tile < to; ++tile) tile_maxima[tile] = tile_max(row, space, tile, &met);
      status[part] = met;
    });
    int32_t all = kStatusOk;
    for (int part = 0; part < parts; ++part) all |= status[part];
    return all;
  });
}

// The first element of a tile that is at least `value`, or kNoToken.
SPECDEC_HD int32_t first_at_least(const Row& row, int32_t tile, float value) {
  const F16 wanted(value);
  const int32_t begin = tile * kTile, end = begin + row.tile_size(tile);
  for (int32_t token = begin; token < end; token += kLanes) {
    const Mask found = at_least(elements(row, token, end - token, __builtin_nanf("")), wanted);
    if (found) return token + __builtin_ctz(found);
  }
  return kNoToken;
}

// The most probable token, the lowest on ties. `tile_maxima` comes from row_maxima.
SPECDEC_HD Candidate row_argmax(const Row& row, const Law& law, const float* tile_maxima) {
  float top = -kInfinity;
  int32_t tile = 0;
  for (int32_t t = 0; t < row.tiles(); ++t) {
    const float rank = law.rank(tile_maxima[t]);
    if (rank > top) top = rank, tile = t;
  }
  return top == -kInfinity ? kNobody : Candidate{top, first_at_least(row, tile, top)};
}

// ---- rows that were looked through ----------------------------------------------------------------------------------

// A row and its law. Once the row was looked through, also what the law needs to know of it.
struct LawRow {
  Row row;
  KnownLaw known;
  float* tile_max;  // raw maxima, one a tile, in scratch memory
  int32_t status;   // of all its elements
  bool looked;
  DraftMap map;  // which tokens its columns are

  // p(token); 0 of a token that the row does not know.
  SPECDEC_HD float probability(int32_t token) const {
    const int32_t column = map.column(token);
    return column == kNoColumn ? 0.0f : known.probability(column, element(row, column));
  }

  // Sixteen probabilities from `token` on; zero from `end` on, and for tokens that the row does not know. `column` is
  // the caller's place in the map. It begins as first_column(the first token) and moves on with each call.
  SPECDEC_HD F16 probabilities(int32_t token, int32_t end, int32_t* column) const {
    return map.tokens ? mapped_probabilities(token, end, column) : probabilities(token, end);
  }
  SPECDEC_HD int32_t first_column(int32_t token) const { return map.tokens ? map.first_at_least(token) : 0; }

  // Sixteen probabilities from `token` on; zero from `end` on, and from the end of the row on.
  SPECDEC_HD F16 probabilities(int32_t token, int32_t end) const {
    const int32_t count = (end < row.vocab ? end : row.vocab) - token;
    if (count <= 0) return F16(0.0f);
    if (known.law.greedy) {
      float lane[kLanes];
      for (int i = 0; i < kLanes; ++i) lane[i] = token + i == known.argmax ? 1.0f : 0.0f;
      return load(lane);
    }
    const F16 raw = elements(row, token, count, -kInfinity);
    return known.law.in_space([&](auto space) { return space.probability(raw, known.lse); });
  }

 private:
  // Where a bad map falls, some lanes stay zero.
  SPECDEC_HD F16 mapped_probabilities(int32_t token, int32_t end, int32_t* column) const {
    const bool greedy = known.law.greedy;
    const int32_t stop = end - token < kLanes ? end : token + kLanes;
    float lane[kLanes];
    for (float& raw : lane) raw = greedy ? 0.0f : -kInfinity;
    for (; *column < map.columns && map.tokens[*column] < stop; ++*column) {
      if (map.tokens[*column] < token) continue;
      lane[map.tokens[*column] - token] = !greedy ? element(row, *column) : *column == known.argmax ? 1.0f : 0.0f;
    }
    const F16 raw = load(lane);
    if (greedy) return raw;
    return known.law.in_space([&](auto space) { return space.probability(raw, known.lse); });
  }
};

SPECDEC_HD LawRow law_row(const Row& row, const Law& law, const DraftMap& map) {
  return {row, nothing_known(law), nullptr, kStatusOk, false, map};
}

SPECDEC_HD LawRow law_row(const Row& row, const Law& law) { return law_row(row, law, {nullptr, row.vocab}); }

// What is known of a tile of logits. It is read twice, the second time from the L1 cache. *raw_max: its largest
// element.
SPECDEC_HD RowPartial look_at_tile(const Row& row, const Logits& space, int32_t tile, float* raw_max) {
  RowPartial part = kNoPart;
  *raw_max = tile_max(row, space, tile, &part.status);
  part.max = space.scaled(*raw_max);
  if (part.max == -kInfinity) return part;
  part.sum = with_elements(row, tile * kTile, [&](auto p) {
    return tile_sum_of(space, p, row.tile_size(tile), part.max);
  });
  return part;
}

// The maximum, the sum and the status of a row of logits. Fills tile_maxima[0 .. tiles) with raw maxima.
SPECDEC_HD RowPartial row_sum(const Row& row, const Logits& space, const Crew& crew, float* tile_maxima,
                              RowPartial* parts) {
  const int32_t tiles = row.tiles();
  over_parts(tiles, crew, [&](int, int32_t from, int32_t to) {
    for (int32_t tile = from; tile < to; ++tile) parts[tile] = look_at_tile(row, space, tile, tile_maxima + tile);
  });
  RowPartial whole = kNoPart;
  for (int32_t tile = 0; tile < tiles; ++tile) {
    whole.max = max(parts[tile].max, whole.max);
    whole.status |= parts[tile].status;
  }
  for (int32_t tile = 0; tile < tiles; ++tile) whole.sum = add(whole.sum, sum_below(parts[tile], whole.max));
  if (whole.max == -kInfinity) whole.status |= kStatusNonFinite;
  return whole;
}

// Looks through a row, once. After that its law's probabilities, its maxima and its status are known.
SPECDEC_HD void look_through(LawRow& r, const Crew& crew, int scratch_slot) {
  if (r.looked) return;
  r.looked = true;
  const Law& law = r.known.law;
  const int32_t tiles = r.row.tiles();
  constexpr int64_t kFloatsAPart = sizeof(RowPartial) / sizeof(float);
  static_assert(sizeof(RowPartial) == 5 * sizeof(float), "RowPartials live in scratch memory");
  RowPartial whole = kNoPart;
  if (law.needs_sum()) {
    r.tile_max = scratch(scratch_slot, (1 + kFloatsAPart) * tiles);
    whole = row_sum(r.row, law.logits(), crew, r.tile_max, reinterpret_cast<RowPartial*>(r.tile_max + tiles));
  } else {
    r.tile_max = scratch(scratch_slot, tiles);
    whole.status = row_maxima(r.row, law, crew, r.tile_max);
    whole.best = row_argmax(r.row, law, r.tile_max);
    if (whole.best.token == kNoToken) whole.status |= kStatusNonFinite;
  }
  r.known = known_law(law, whole);
  r.status = whole.status;
}

// Looks through a row where its probabilities need that, or for its status. A row of probabilities does not need it.
SPECDEC_HD void look_if_needed(LawRow& r, bool for_status, const Crew& crew, int scratch_slot) {
  if (for_status || r.known.law.needs_row()) look_through(r, crew, scratch_slot);
}

SPECDEC_END
