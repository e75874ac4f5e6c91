// How a row of logits is looked through if a filter is on. It has a file of its own because the code is long: so it is
// not compiled again in every op.
#include "cut.h"

SPECDEC_BEGIN

namespace {

// The filter without its top_p.
Filter without_top_p(Filter f) {
  f.share = Filter::kWhole;
  return f;
}

CutRow cut_row(const LawRow& r, const Filter& filter, const RowMemory& memory) {
  return CutRow(r.row, filter, memory.cells, memory.values, memory.list);
}

uint64_t mass_of_row(LawRow& r, const RowMemory& memory, float top, const Crew& crew) {
  if (r.mass == 0) r.mass = row_mass(r.row, r.filter.order, crew, memory.cells, memory.mass_tiles, top);
  return r.mass;
}

// Between what numbers a row's mass lies.
struct Span {
  uint64_t least, most;
};

Span mass_span(const BoundTile* tiles, int32_t count, float top) {
  const double sum = std::exp(static_cast<double>(about_log_sum_exp(tiles, count, top).log_sum)) * kOneToken;
  const double error = std::exp(static_cast<double>(log_sum_error(top)));
  return {static_cast<uint64_t>(sum / error), static_cast<uint64_t>(sum * error)};
}

}  // namespace

void look_filtered(LawRow& r, Look look, const Crew& crew, int scratch_slot) {
  const Logits space = r.known.law.logits();
  const RowMemory memory = memory_of(r, scratch_slot);
  // If top_p is a share of the row's mass, bounds of that mass come first.
  const bool bounded = look == Look::kForLaw && r.filter.of_row();
  BoundTile* const tiles = reinterpret_cast<BoundTile*>(memory.mass_tiles);
  if (bounded) r.status = row_bounds(r.row, {Space::kLogits, r.filter.order.inverse, false}, crew, memory.cells, tiles);
  else r.status = row_cells(r.row, r.known.law, crew, memory.cells);
  CutRow finder = cut_row(r, r.filter, memory);
  r.weighed = look == Look::kForLaw;
  r.undecided = false;
  if (finder.top == -kInfinity) {
    r.kept = {{kInfinity, -1}, 0, 0, memory.list};
    r.status |= kStatusNonFinite;
    return;
  }
  // If top_p is a share of the row's mass, a race may go before it: still_kept then tests the winner alone.
  if (look == Look::kForWinner && r.filter.of_row()) {
    const Filter others = without_top_p(r.filter);
    r.undecided = true;
    if (others.on()) r.kept = cut_row(r, others, memory).kept(false, [] { return uint64_t{0}; });
    else r.kept = {{-kLargest, kNoToken}, 0, 0, nullptr};
    return;
  }
  r.kept.list = nullptr;
  if (bounded && r.status == kStatusOk && magnitude(finder.top) < kLargestBounded) {
    const Span mass = mass_span(tiles, r.row.tiles(), finder.top);
    r.kept = finder.kept_of_few(mass.least, mass.most);
  }
  if (!r.kept.list) r.kept = finder.kept(r.weighed, [&] { return mass_of_row(r, memory, finder.top, crew); });
  if (!r.weighed) return;
  if (r.filter.order.inverse == space.inverse) {
    r.known.lse = log_sum_exp(finder.top, r.kept.mass);
    return;
  }
  float top = -kInfinity;
  for (int32_t tile = 0; tile < r.row.tiles(); ++tile) top = max(tile_max(memory.cells, tile), top);
  top = space.scaled(top);
  r.known.lse = log_sum_exp(top, finder.mass_in(space, top, r.kept.cut));
}

bool still_kept(LawRow& r, int32_t column, const Crew& crew, int scratch_slot) {
  const RowMemory memory(scratch_slot, r.row, true);
  const CutRow finder = cut_row(r, r.filter, memory);
  const float v = r.filter.order.scaled(element(r.row, column));
  if (finder.keeps_by_mass(v, column, [&] { return mass_of_row(r, memory, finder.top, crew); })) return true;
  r.kept.cut = finder.before_token(v, column);
  return false;
}

SPECDEC_END
