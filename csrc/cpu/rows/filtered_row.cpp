// Scans a row of logits whose filter is on. The code is long, so this .cpp file is compiled once, not in every op.
#include "cut_bounds.h"

SPECDEC_BEGIN

namespace {

// The filter without its top_p.
Filter without_top_p(Filter f) {
  f.top_p_fixed = Filter::kWhole;
  return f;
}

CutBounds cut_row(const LawRow& r, const Filter& filter, const RowMemory& memory) {
  return CutBounds(r.row, filter, memory.cells, memory.values, memory.list);
}

// The cut at the last token that `cut` keeps. The value of `cut` itself may lie between two tokens' values.
Cut cut_at_last_token(const CutFinder& row, const Cut& cut) {
  uint64_t last = ~uint64_t{0};
  row.each_from(cut.value, [&](float v, int32_t column) {
    if (cut.keeps(v, column)) last = std::min(last, list_entry(v, column));
    return true;
  });
  return {value_at(last), column_at(last)};
}

// The mass of a row from its cells; `top` is its largest value.
uint64_t row_mass(const LawRow& r, const RowMemory& memory, float top, const ThreadTeam& team) {
  row_masses(r.row, r.filter.order, team, memory.cells, memory.mass_tiles);
  return mass_of(memory.mass_tiles, mass_tiles_of(r.row.vocab), top);
}

uint64_t mass_of_row(LawRow& r, const RowMemory& memory, float top, const ThreadTeam& team) {
  if (r.mass != 0) return r.mass;
  weighed_rows.fetch_add(1, std::memory_order_relaxed);
  return r.mass = row_mass(r, memory, top, team);
}

// Bounds of a row's mass, and its approximate value.
struct Span {
  double least, about, most;
};

Span mass_span(const LogSumExp& lse) {
  const double sum = std::exp(static_cast<double>(lse.log_sum)) * kOneToken;
  const double error = std::exp(static_cast<double>(log_sum_error(lse.max)));
  return {sum / error, sum, sum * error};
}

// Sets the cut of top_p from bounds of the row's mass: exactly if they decide it. Else the row becomes rough, which
// needs a filter of top_p alone. Returns false if neither works.
bool cut_by_bounds(LawRow& r, ScanFor goal, const LogSumExp& row_lse, CutBounds& finder) {
  const Span mass = mass_span(row_lse);
  r.in_support = finder.find_cut_in_few_cells(static_cast<uint64_t>(mass.least), static_cast<uint64_t>(mass.most));
  if (r.in_support.list) return true;
  const bool plain = !r.filter.has_top_k() && !r.filter.has_min_p();
  CutBounds::Bracket cuts;
  if (goal != ScanFor::kBounds || !plain || !finder.bracket(mass.about, &cuts)) return false;
  r.in_support.cut = cuts.least;
  r.most = cuts.most;
  const double top_p = static_cast<double>(r.filter.top_p_fixed) / Filter::kWhole, half = 0.5 * std::log(cuts.over);
  r.stats.lse = {row_lse.max, row_lse.log_sum + static_cast<float>(std::log(top_p) + half)};
  r.error = log_sum_error(row_lse.max) + static_cast<float>(half);
  r.state = RowState::kBounds;
  return true;
}

}  // namespace

void scan_filtered(LawRow& r, ScanFor goal, const ThreadTeam& team, int scratch_id) {
  const Logits space = r.stats.law.logits();
  const bool has_maxima = r.in_memory();
  const RowMemory memory = memory_of(r, scratch_id);
  const bool by_law = goal == ScanFor::kBounds || goal == ScanFor::kLaw, same = r.filter.order.inverse == space.inverse;
  // If top_p is a share of the row's mass, bounds of that mass come first.
  const bool bounded = by_law && r.filter.of_row() && !has_maxima;
  BoundTile* const tiles = reinterpret_cast<BoundTile*>(memory.mass_tiles);
  if (bounded) r.status = row_cells_and_bounds(r.row, r.filter.order, team, memory.cells, tiles);
  else if (!has_maxima) r.status = row_cells(r.row, r.stats.law, team, memory.cells);
  CutBounds finder = cut_row(r, r.filter, memory);
  r.state = by_law ? RowState::kExact : RowState::kMaxima;
  r.in_support.list = nullptr;
  if (finder.top == -kInfinity) {
    r.in_support = {{kInfinity, -1}, 0, 0, memory.list};
    r.status |= SPECDEC_STATUS_NON_FINITE;
    return;
  }
  // If top_p is a share of the row's mass, a race may go before it: confirm_winner then tests the winner alone.
  if (goal == ScanFor::kWinner && r.filter.of_row()) {
    const Filter others = without_top_p(r.filter);
    r.state = RowState::kUndecided;
    if (others.on()) r.in_support = cut_row(r, others, memory).find_cut(false, [] { return uint64_t{0}; });
    else r.in_support = {{-kLargest, kNoToken}, 0, 0, nullptr};
    return;
  }
  if (bounded && r.status == SPECDEC_STATUS_OK && magnitude(finder.top) < kLargestBounded) {
    const LogSumExp lse = about_log_sum_exp(tiles, r.row.tiles(), finder.top);
    if (cut_by_bounds(r, same ? goal : ScanFor::kLaw, lse, finder) && r.rough()) return;
  }
  if (!r.in_support.list)
    r.in_support = finder.find_cut(by_law, [&] { return mass_of_row(r, memory, finder.top, team); });
  if (!by_law) return;
  if (same) {
    r.stats.lse = log_sum_exp(finder.top, r.in_support.mass);
    return;
  }
  float top = -kInfinity;
  for (int32_t tile = 0; tile < r.row.tiles(); ++tile) top = max(tile_max(memory.cells, tile), top);
  top = space.scaled(top);
  r.stats.lse = log_sum_exp(top, finder.mass_in(space, top, r.in_support.cut));
}

RowCut find_exact_cut(const LawRow& r, const RowMemory& memory, const ThreadTeam& team, float* top) {
  CutFinder finder = cut_row(r, r.filter, memory);
  *top = finder.top;
  if (finder.top == -kInfinity) return kUncut;
  const auto whole = [&] { return row_mass(r, memory, finder.top, team); };
  RowCut in_support = kUncut;
  if (r.filter.on()) {
    in_support = finder.find_cut(true, whole);
    in_support.cut = cut_at_last_token(finder, in_support.cut);
  } else {
    finder.sum(&in_support);
    in_support.mass = whole();
  }
  return in_support;
}

bool settled(LawRow& r, int32_t token, int scratch_id) {
  const int32_t column = r.map.column(token);
  if (!r.filter.on() || !r.rough() || column == kNoColumn) return true;
  const float v = r.filter.order.scaled(element(r.row, column));
  if (r.in_support.cut.keeps(v, column) || !r.most.keeps(v, column)) return true;
  if (!r.in_memory()) return false;  // its maxima are no longer in memory
  const CutBounds finder = cut_row(r, r.filter, RowMemory(scratch_id, r.row, true));
  const CutBounds::Side side = finder.side_of_mass_before(v, column);
  if (side == CutBounds::Side::kBelow) r.in_support.cut = {v, r.filter.ties_all() ? kNoToken : column};
  if (side == CutBounds::Side::kAbove) r.most = finder.before_token(v, column);
  return side != CutBounds::Side::kUnknown;
}

bool confirm_winner(LawRow& r, int32_t column, const ThreadTeam& team, int scratch_id) {
  const RowMemory memory(scratch_id, r.row, true);
  const CutBounds finder = cut_row(r, r.filter, memory);
  const float v = r.filter.order.scaled(element(r.row, column));
  if (finder.top_p_keeps(v, column, [&] { return mass_of_row(r, memory, finder.top, team); })) return true;
  r.in_support.cut = finder.before_token(v, column);
  return false;
}

SPECDEC_END
