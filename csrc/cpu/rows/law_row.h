// A row and its law. The functions below look through the row and fill in what the law needs to know of it: its
// normaliser or its argmax, and what its filters keep.
#pragma once

#include "kept.h"
#include "specdec/bounds.h"
#include "specdec/mass.h"

SPECDEC_BEGIN

// Room for what a race notes of the groups of a row (race_scan.h): for each tile the even groups, then the odd ones.
struct RaceMemory {
  float* scores;    // the best that a group can reach
  uint32_t* words;  // the words a of the even and the odd groups, then their words b

  RaceMemory() = default;
  RaceMemory(float* memory, const Row& row)
      : scores(memory), words(reinterpret_cast<uint32_t*>(memory + tiles(row) * 2 * kLanes)) {}
  // The race's tiles are those of the whole vocabulary, so there may be one more.
  static int64_t tiles(const Row& row) { return int64_t{row.tiles()} + 1; }
  static int64_t floats(const Row& row) { return tiles(row) * 6 * kLanes; }
};

// How much is known of a row.
enum class Knowledge {
  kNothing,
  kMaxima,     // its cells' maxima, and what its filters keep
  kUndecided,  // its maxima; `kept` may hold tokens that top_p drops: ask still_kept
  kBounds,     // the row is rough: its normaliser, and what its filters keep, by bounds alone
  kExact,      // all that its probabilities need
};

struct LawRow {
  Row row;
  LawWithStats stats;
  Filter filter;
  DraftMap map;     // the tokens of its columns
  float* cells;     // raw maxima, in scratch memory; null once other rows have that memory
  RaceMemory race;
  Kept kept;        // what the filter keeps, if it is on; of a rough row, what it keeps at least
  Cut most;         // of a rough row: what the filter keeps at most
  int32_t status;   // of all its elements
  Knowledge knowledge;
  float error;      // of a rough row: stats.lse.log_sum may differ from the normaliser's by this
  uint64_t mass;    // of the whole row; 0 until it is needed

  bool keeps(int32_t column, float raw) const {
    return !filter.on() || kept.cut.keeps(filter.order.scaled(raw), column);
  }

  // p(token); 0 for a token that the row does not have, or that its filters drop.
  float probability(int32_t token) const {
    const int32_t column = map.column(token);
    if (column == kNoColumn) return 0.0f;
    const float raw = element(row, column);
    return keeps(column, raw) ? stats.probability(column, raw) : 0.0f;
  }

  // Whether the row was looked through, and its maxima are in memory. A row that the walk comes back to may be known
  // without them.
  bool in_memory() const { return cells && knowledge != Knowledge::kNothing; }
  bool rough() const { return knowledge == Knowledge::kBounds; }
  // The row with the largest and the least probabilities that it may have.
  LawRow at_most() const {
    LawRow moved = with_log_sum(-error);
    if (rough()) moved.kept.cut = most;
    return moved;
  }
  LawRow at_least() const { return with_log_sum(error); }
  Range probability_range(int32_t token) const {
    const float p = probability(token);
    return rough() ? Range{at_least().probability(token), at_most().probability(token)} : Range{p, p};
  }

  // Sixteen probabilities from `token` on, zero from `end` on and for tokens that the row does not have. `column` is
  // first_column(token) at the first call; calls with rising tokens move it on.
  SPECDEC_HD F32x16 probabilities(int32_t token, int32_t end, int32_t* column) const {
    return map.tokens ? mapped_probabilities(token, end, column) : probabilities(token, end);
  }
  // The same with their logarithms.
  SPECDEC_HD Weighed<F32x16> weighed(int32_t token, int32_t end, int32_t* column) const {
    if (stats.law.greedy) {
      const F32x16 p = probabilities(token, end, column);
      return {p, where(greater(p, F32x16(0.0f)), F32x16(0.0f), F32x16(-kInfinity))};
    }
    const F32x16 raw = map.tokens ? mapped_elements(token, end, column, -kInfinity) : kept_elements(token, end);
    return stats.law.in_space([&](auto space) { return space.weighed(raw, stats.lse); });
  }
  int32_t first_column(int32_t token) const { return map.tokens ? map.first_at_least(token) : 0; }

  // Sixteen probabilities from `token` on, zero from `end` and from the row's own vocabulary on.
  SPECDEC_HD F32x16 probabilities(int32_t token, int32_t end) const {
    if (token >= end || token >= row.vocab) return F32x16(0.0f);
    if (stats.law.greedy) {
      float lane[kLanes];
      for (int i = 0; i < kLanes; ++i) lane[i] = token + i == stats.argmax ? 1.0f : 0.0f;
      return load(lane);
    }
    const F32x16 raw = kept_elements(token, end);
    if (filter.on() && !greater(raw, F32x16(-kInfinity))) return F32x16(0.0f);  // most filters keep few tokens
    return filter_free(raw);
  }

 private:
  // Sixteen raw elements; -inf, which has no weight in any space, from `end` and from the row's own vocabulary on, and
  // for what filters drop.
  SPECDEC_HD F32x16 kept_elements(int32_t token, int32_t end) const {
    const int32_t count = (end < row.vocab ? end : row.vocab) - token;
    if (count <= 0) return F32x16(-kInfinity);
    const F32x16 raw = elements(row, token, count, -kInfinity);
    if (!filter.on()) return raw;
    return where(lanes_kept(kept.cut, value_of(filter, raw), token), raw, F32x16(-kInfinity));
  }

  SPECDEC_HD F32x16 filter_free(F32x16 raw) const {
    return stats.law.in_space([&](auto space) { return space.probability(raw, stats.lse); });
  }

  LawRow with_log_sum(float more) const {
    LawRow moved = *this;
    if (rough()) moved.stats.lse.log_sum = add(stats.lse.log_sum, more);
    return moved;
  }

  F32x16 mapped_probabilities(int32_t token, int32_t end, int32_t* column) const {
    if (stats.law.greedy) return mapped_elements(token, end, column, 0.0f);
    return filter_free(mapped_elements(token, end, column, -kInfinity));
  }

  // Of a greedy law 1 for the argmax. If a map does not rise, some lanes stay without weight, which is `nothing`; nothing
  // outside of them is written.
  F32x16 mapped_elements(int32_t token, int32_t end, int32_t* column, float nothing) const {
    const int32_t stop = end - token < kLanes ? end : token + kLanes;
    float lane[kLanes];
    for (float& raw : lane) raw = nothing;
    for (; *column < map.columns && map.tokens[*column] < stop; ++*column) {
      if (map.tokens[*column] < token) continue;
      const float raw = element(row, *column);
      lane[map.tokens[*column] - token] =
          stats.law.greedy ? (*column == stats.argmax ? 1.0f : 0.0f) : keeps(*column, raw) ? raw : -kInfinity;
    }
    return load(lane);
  }
};

inline LawRow law_row(const Row& row, const Law& law, const Filter& filter, const DraftMap& map) {
  return {row, without_stats(law), filter, map, nullptr, {}, kUncut, kKeepsAll, SPECDEC_STATUS_OK,
          Knowledge::kNothing, 0.0f, 0};
}

// Takes over what was known of the same row when another one took its scratch memory.
inline void recall(LawRow& r, const LawRow& before) {
  if (before.knowledge == Knowledge::kNothing) return;
  r.stats = before.stats;
  r.kept = before.kept;
  r.kept.list = nullptr;
  r.most = before.most;
  r.status = before.status;
  r.knowledge = before.knowledge;
  r.error = before.error;
  r.mass = before.mass;
}

// The row at an offset, with the law of (outer, inner).
inline LawRow law_row_of(const Rows& rows, int64_t offset, const specdec_law& p, int64_t outer, int64_t inner,
                             const DraftMap& map, int32_t* status) {
  const Law law = law_at(p, outer, inner, status);
  return law_row(row_at(rows, offset), law, filter_at(p, law, rows.vocab, outer, inner, status), map);
}

constexpr int32_t kMassTilesATile = kTile / kMassTile;
inline int32_t mass_tiles_of(int32_t vocab) { return tiles_of(vocab) * kMassTilesATile; }

// Scratch memory for looking through one row.
struct RowMemory {
  MassTile* mass_tiles;
  float* cells;
  RaceMemory race;
  float* values;
  uint64_t* list;

  RowMemory(int slot, const Row& row, bool filtered) {
    const int64_t masses = mass_tiles_of(row.vocab) * (sizeof(MassTile) / sizeof(float)), count = cells_of(row.vocab);
    float* memory = scratch(slot, masses + count + RaceMemory::floats(row) + (filtered ? count + 2 * kListed : 0));
    mass_tiles = reinterpret_cast<MassTile*>(memory);
    cells = memory + masses;
    race = RaceMemory(cells + count, row);
    values = cells + count + RaceMemory::floats(row);
    list = reinterpret_cast<uint64_t*>(values + count);
  }
};

// How far to look through a row of logits whose filter is on.
enum class ScanFor {
  kWinner,  // for a race's winner: may leave the row undecided
  kCut,     // what is kept
  kBounds,  // bounds of what is kept and of the normaliser: may leave the row rough
  kLaw,     // both exactly
};

// filtered_row.cpp.
void scan_filtered(LawRow& r, ScanFor goal, const ThreadTeam& team, int scratch_slot);

// What the filters of a row keep, its cells being known, with count and mass; the cut is at the last token kept. `top` is
// the row's largest value: at -inf no token has weight.
Kept kept_exactly(const LawRow& r, const RowMemory& memory, const ThreadTeam& team, float* top);

// Whether it is known if the filter keeps a token, as `keeps` says from then on. Of a rough row one pass may tell.
bool settled(LawRow& r, int32_t token, int scratch_slot);

// For an undecided row: whether the winner of a race over what it keeps so far is kept. If not, `kept` ends before it
// from then on.
bool still_kept(LawRow& r, int32_t column, const ThreadTeam& team, int scratch_slot);

// Makes scratch memory the row's.
inline RowMemory memory_of(LawRow& r, int scratch_slot) {
  const RowMemory memory(scratch_slot, r.row, r.filter.on());
  r.cells = memory.cells;
  r.race = memory.race;
  return memory;
}

// Looks through a row, once. Then its probabilities, its maxima and its status are known.
void scan_exact(LawRow& r, const ThreadTeam& team, int scratch_slot);

// Looks through a row if its law's probabilities need that. A row that holds probabilities needs it only for its
// status.
void scan_if_needed(LawRow& r, bool for_status, const ThreadTeam& team, int scratch_slot);

// Looks through a row as far as bounds of its probabilities need it; these may be exact. Returns false if there are
// none: then only scan_exact helps. Bounds are for rows in which all is as usual.
bool scan_bounds(LawRow& r, const ThreadTeam& team, int scratch_slot);

// Looks through a row as far as a race needs it: its maxima, and what its filters keep.
void scan_maxima(LawRow& r, ScanFor goal, const ThreadTeam& team, int scratch_slot);

// The parts of that. They fill the raw maxima of a row's cells, and what its tiles weigh: exactly, or about. All but
// row_masses return the status of the row's elements.
int32_t row_cells(const Row& row, const Law& law, const ThreadTeam& team, float* cells);
int32_t row_cells_and_masses(const Row& row, const Logits& space, const ThreadTeam& team, float* cells,
                             MassTile* tiles);
int32_t row_cells_and_bounds(const Row& row, const Logits& space, const ThreadTeam& team, float* cells,
                             BoundTile* tiles);
// Of a row whose cells are known.
void row_masses(const Row& row, const Logits& space, const ThreadTeam& team, const float* cells, MassTile* tiles);
// The most probable token, the lowest on ties.
Candidate row_argmax(const Row& row, const Law& law, const float* cells);

SPECDEC_END
