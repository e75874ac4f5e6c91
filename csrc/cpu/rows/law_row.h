// A row and its law. The functions below scan the row and fill in the statistics that its law needs: the normaliser or
// the argmax, and the cut of its filters.
#pragma once

#include "row_cut.h"
#include "specdec/bounds.h"
#include "specdec/mass.h"

SPECDEC_BEGIN

// A race's notes on the groups of a row (race_scan.h): for each tile the even groups, then the odd ones.
struct RaceMemory {
  float* scores;           // the best score that a group can reach
  uint32_t* random_words;  // the words a of the even and the odd groups, then their words b

  RaceMemory() = default;
  RaceMemory(float* memory, const Row& row)
      : scores(memory), random_words(reinterpret_cast<uint32_t*>(memory + tiles(row) * 2 * kLanes)) {}
  // The race's tiles are those of the whole vocabulary, so there may be one more.
  static int64_t tiles(const Row& row) { return int64_t{row.tiles()} + 1; }
  static int64_t floats(const Row& row) { return tiles(row) * 6 * kLanes; }
};

// Which fields of a LawRow are filled in.
enum class RowState {
  kNothing,
  kMaxima,     // the cells' maxima, and the cut
  kUndecided,  // the maxima; the cut may include tokens that top_p drops, which confirm_winner tests
  kBounds,     // the row is rough: the normaliser and the cut have bounds
  kExact,      // all that probabilities need
};

struct LawRow {
  Row row;
  LawWithStats stats;
  Filter filter;
  DraftMap map;     // the columns' tokens
  float* cells;     // raw maxima, in scratch memory; null once other rows have that memory
  RaceMemory race;
  RowCut in_support;        // what the filter keeps, if it is on; of a rough row, what it keeps at least
  Cut most;         // of a rough row: what the filter keeps at most
  int32_t status;   // bits of all elements
  RowState state;
  float error;      // of a rough row: stats.lse.log_sum may differ from the normaliser's by this
  uint64_t mass;    // the whole row's; 0 until it is needed

  bool keeps(int32_t column, float raw) const {
    return !filter.on() || in_support.cut.keeps(filter.order.scaled(raw), column);
  }

  // p(token); 0 for a token without a column, or that the filters drop.
  float probability(int32_t token) const {
    const int32_t column = map.column(token);
    if (column == kNoColumn) return 0.0f;
    const float raw = element(row, column);
    return keeps(column, raw) ? stats.probability(column, raw) : 0.0f;
  }

  // Whether the row was scanned and its maxima are in memory, which a walk that returns to a row has no more.
  bool in_memory() const { return cells && state != RowState::kNothing; }
  bool rough() const { return state == RowState::kBounds; }
  // The row with the upper and the lower bounds of its probabilities.
  LawRow at_most() const {
    LawRow moved = with_log_sum(-error);
    if (rough()) moved.in_support.cut = most;
    return moved;
  }
  LawRow at_least() const { return with_log_sum(error); }
  Range probability_range(int32_t token) const {
    const float p = probability(token);
    return rough() ? Range{at_least().probability(token), at_most().probability(token)} : Range{p, p};
  }

  // Sixteen probabilities from `token` on, zero from `end` on and for tokens without a column. `column` is
  // first_column(token) at the first call; calls with rising tokens advance it.
  SPECDEC_HD F32x16 probabilities(int32_t token, int32_t end, int32_t* column) const {
    return map.tokens ? mapped_probabilities(token, end, column) : probabilities(token, end);
  }
  // The probabilities with their logarithms.
  SPECDEC_HD Weighed<F32x16> weighed(int32_t token, int32_t end, int32_t* column) const {
    if (stats.law.greedy) {
      const F32x16 p = probabilities(token, end, column);
      return {p, where(greater(p, F32x16(0.0f)), F32x16(0.0f), F32x16(-kInfinity))};
    }
    const F32x16 raw = map.tokens ? mapped_elements(token, end, column, -kInfinity) : filtered_elements(token, end);
    return stats.law.in_space([&](auto space) { return space.weighed(raw, stats.lse); });
  }
  int32_t first_column(int32_t token) const { return map.tokens ? map.first_at_least(token) : 0; }

  // Sixteen probabilities from `token` on, zero from `end` and from the row's vocabulary on.
  SPECDEC_HD F32x16 probabilities(int32_t token, int32_t end) const {
    if (token >= end || token >= row.vocab) return F32x16(0.0f);
    if (stats.law.greedy) {
      float lane[kLanes];
      for (int i = 0; i < kLanes; ++i) lane[i] = token + i == stats.argmax ? 1.0f : 0.0f;
      return load(lane);
    }
    const F32x16 raw = filtered_elements(token, end);
    if (filter.on() && !greater(raw, F32x16(-kInfinity))) return F32x16(0.0f);  // most filters keep few tokens
    return filter_free(raw);
  }

 private:
  // Sixteen raw elements; -inf, which has no weight in any space, from `end` and from the row's vocabulary on, and for
  // filtered tokens.
  SPECDEC_HD F32x16 filtered_elements(int32_t token, int32_t end) const {
    const int32_t count = (end < row.vocab ? end : row.vocab) - token;
    if (count <= 0) return F32x16(-kInfinity);
    const F32x16 raw = elements(row, token, count, -kInfinity);
    if (!filter.on()) return raw;
    return where(lanes_in_cut(in_support.cut, value_of(filter, raw), token), raw, F32x16(-kInfinity));
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

  // The same through the draft map; for a greedy law 1 at the argmax. Lanes without a column are `nothing`. If a map
  // does not rise, some more lanes are; no map makes this write outside of `lane`.
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
          RowState::kNothing, 0.0f, 0};
}

// Restores the statistics of a row that was scanned before another row took its scratch memory.
inline void recall(LawRow& r, const LawRow& before) {
  if (before.state == RowState::kNothing) return;
  r.stats = before.stats;
  r.in_support = before.in_support;
  r.in_support.list = nullptr;
  r.most = before.most;
  r.status = before.status;
  r.state = before.state;
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

// Scratch memory for the scan of one row.
struct RowMemory {
  MassTile* mass_tiles;
  float* cells;
  RaceMemory race;
  float* values;
  uint64_t* list;

  RowMemory(int scratch_id, const Row& row, bool filtered) {
    const int64_t tiles = mass_tiles_of(row.vocab), count = cells_of(row.vocab), listed = filtered ? kListed : 0;
    const int64_t floats = count + RaceMemory::floats(row) + (filtered ? count : 0);
    Arrays arrays(scratch_bytes(
        scratch_id, listed * sizeof(uint64_t) + tiles * sizeof(MassTile) + floats * sizeof(float)));
    list = arrays.take<uint64_t>(listed), mass_tiles = arrays.take<MassTile>(tiles);
    cells = arrays.take<float>(count);
    race = RaceMemory(arrays.take<float>(RaceMemory::floats(row)), row);
    values = arrays.take<float>(filtered ? count : 0);
  }
};

// What a scan of a row of logits with filters is for.
enum class ScanFor {
  kWinner,  // a race's winner: may leave the row undecided
  kCut,     // the cut
  kBounds,  // bounds of the cut and of the normaliser: may leave the row rough
  kLaw,     // both exactly
};

// filtered_row.cpp.
void scan_filtered(LawRow& r, ScanFor goal, const ThreadTeam& team, int scratch_id);

// The cut of a row from its cells, with count and mass, at the last token that it keeps. `top` is the row's largest
// value: at -inf no token has weight.
RowCut find_exact_cut(const LawRow& r, const RowMemory& memory, const ThreadTeam& team, float* top);

// Whether r.keeps is exact for a token. For a rough row one pass may decide that, and narrows its cuts.
bool settled(LawRow& r, int32_t token, int scratch_id);

// Whether top_p keeps the winner of a race over an undecided row. If not, the cut then ends before that token.
bool confirm_winner(LawRow& r, int32_t column, const ThreadTeam& team, int scratch_id);

// Gives scratch memory to the row.
inline RowMemory memory_of(LawRow& r, int scratch_id) {
  const RowMemory memory(scratch_id, r.row, r.filter.on());
  r.cells = memory.cells;
  r.race = memory.race;
  return memory;
}

// Scans a row once, for its probabilities, its maxima and its status.
void scan_exact(LawRow& r, const ThreadTeam& team, int scratch_id);

// Scans a row if its law's probabilities need that. A row that holds probabilities needs it only for its status.
void scan_if_needed(LawRow& r, bool for_status, const ThreadTeam& team, int scratch_id);

// Scans a row for bounds of its probabilities, which may be exact. Returns false if there are none, for instance with
// status bits or huge logits: then only scan_exact helps.
bool scan_bounds(LawRow& r, const ThreadTeam& team, int scratch_id);

// Scans a row for a race: its maxima, and its cut.
void scan_maxima(LawRow& r, ScanFor goal, const ThreadTeam& team, int scratch_id);

// Passes over a row. They fill the raw maxima of its cells, and its tiles' masses, exactly or approximately. All but
// row_masses return the status of the row's elements.
int32_t row_cells(const Row& row, const Law& law, const ThreadTeam& team, float* cells);
int32_t row_cells_and_masses(const Row& row, const Logits& space, const ThreadTeam& team, float* cells,
                             MassTile* tiles);
int32_t row_cells_and_bounds(const Row& row, const Logits& space, const ThreadTeam& team, float* cells,
                             BoundTile* tiles);
// Needs the row's cells.
void row_masses(const Row& row, const Logits& space, const ThreadTeam& team, const float* cells, MassTile* tiles);
// The most probable token, the lowest on ties.
Candidate row_argmax(const Row& row, const Law& law, const float* cells);

SPECDEC_END
