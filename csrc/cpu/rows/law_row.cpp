// Scans rows: a pass over a row computes the maxima of its cells, and its tiles' masses, exactly or approximately. A
// tile that is read twice comes from the L1 cache the second time.
#include "law_row.h"

#include "specdec/bounds.h"

SPECDEC_BEGIN

namespace {

// ---- cells ----------------------------------------------------------------------------------------------------------

// The maxima of the sixteen cells from `p` on; elements from the `count`-th on are -inf. The mask returned is not 0 if
// an element is invalid in the space. also(x, k) is called for each vector, the k-th of its cell.
template <class Space, class Elements, class Also>
Mask sixteen_cells(const Space& space, Elements p, int32_t count, float* maxima, Also&& also) {
  F32x16 best[kLanes];
  Mask bad = 0;
  for (int cell = 0; cell < kLanes; ++cell) {
    best[cell] = F32x16(-kInfinity);
    for (int i = 0; i < kCellVectors; ++i) {
      const int32_t at = cell * kCell + i * kLanes;
      if (at >= count) break;
      const F32x16 x = load_first(p + at, count - at, -kInfinity);
      best[cell] = max(x, best[cell]);
      bad |= space.foreign(x, x, first_lanes(count - at));
      also(x, i);
    }
  }
  store(maxima, largest_of_each(best));
  return bad;
}

// The maxima of sixteen cells that all lie inside of the row.
template <class Space, class Elements, class Also>
SPECDEC_HD Mask sixteen_cells(const Space& space, Elements p, float* maxima, Also&& also) {
  F32x16 best[kLanes];
  Mask bad = 0;
  for (int cell = 0; cell < kLanes; ++cell) {
    const Elements at = p + cell * kCell;
    prefetch_cell(at + kTile);
    const auto [a, b, c, d] = load_cell(at).vector;
    // max(NaN, x) is x, but max(x, NaN) is NaN, so each new element is on the left.
    best[cell] = max(d, max(c, max(b, max(a, F32x16(-kInfinity)))));
    const Mask all = 0xffffu;
    bad |= space.foreign(a, b, all) | space.foreign(c, d, all);
    also(a, 0), also(b, 1), also(c, 2), also(d, 3);
  }
  store(maxima, largest_of_each(best));
  return bad;
}

// Fills the raw maxima of the cells of a tile of `size` columns.
template <class Space, class Elements, class Also>
SPECDEC_HD void tile_cells(const Space& space, Elements p, int32_t size, float* maxima, int32_t* status, Also&& also) {
  constexpr int32_t kBlock = kLanes * kCell;
  Mask bad = 0;
  for (int32_t at = 0; at < kTile; at += kBlock) {
    float* const mine = maxima + at / kCell;
    bad |= at + kBlock <= size ? sixteen_cells(space, p + at, mine, also)
                               : sixteen_cells(space, p + at, size - at, mine, also);
  }
  bad |= at_least(max(load(maxima), load(maxima + kLanes)), F32x16(kInfinity));
  if (bad) *status |= SPECDEC_STATUS_NON_FINITE;
}

template <class Space, class Elements>
SPECDEC_HD void tile_cells(const Space& space, Elements p, int32_t size, float* maxima, int32_t* status) {
  tile_cells(space, p, size, maxima, status, [](F32x16, int) {});
}

// The first column of a cell whose element is at least `value`, or kNoToken.
int32_t first_at_least(const Row& row, int32_t cell, float value) {
  const Cell elements = cell_of(row, cell * kCell);
  for (int k = 0; k < kCellVectors; ++k) {
    const Mask matches = at_least(elements.vector[k], F32x16(value));
    if (matches) return cell * kCell + k * kLanes + __builtin_ctz(matches);
  }
  return kNoToken;
}

// ---- masses (specdec/mass.h) ----------------------------------------------------------------------------------------

// The sum of the unit_weights of `count` columns whose largest x is `top_x`. Prefetches `ahead` columns further on.
template <class Elements>
uint64_t units_of(const Logits& space, Elements p, int32_t count, float top_x, int32_t ahead) {
  Sum16 sum;
  int32_t i = 0;
  if (top_x < kLargest) {  // no +inf
    const bool divided = space.inverse == 1.0f;
    for (; i + kCell <= count; i += kCell) {
      prefetch_cell(p + i + ahead);  // memory is idle while exponentials are computed
      const auto [a, b, c, d] = load_cell(p + i).vector;
      const Four raw({a, b}, {c, d}), x = divided ? raw : space.key(raw);
      const auto w = unit_weight(sub(x, Four(top_x)));
      sum.add(w.a.a + w.a.b);
      sum.add(w.b.a + w.b.b);
    }
  }
  // min(zero, NaN) is NaN, which has no weight. For +inf, the maximum is the largest finite number, and min gives 0.
  const F32x16 top(top_x), zero(0.0f);
  const auto weight = [&](F32x16 raw) { return unit_weight(min(zero, space.below(raw, top))); };
  for (; i < count; i += kLanes) sum.add(weight(load_first(p + i, count - i, -kInfinity)));
  return sum.total();
}

static_assert(kMassTile == kLanes * kCell, "Sixteen cells are a mass tile");

// Fills the mass tiles of a tile of `size` columns from its cells' maxima.
template <class Elements>
void tile_masses(const Logits& space, Elements p, int32_t size, const float* maxima, MassTile* tiles) {
  for (int t = 0; t < kMassTilesATile; ++t) {
    const float top = space.scaled(largest(load(maxima + t * kLanes)));
    const int32_t begin = t * kMassTile, count = size - begin < kMassTile ? size - begin : kMassTile;
    tiles[t] = top == -kInfinity ? kNoTile : MassTile{units_of(space, p + begin, count, top, kTile), top};
  }
}

// ---- bounds of masses (specdec/bounds.h) ----------------------------------------------------------------------------

// Scans tiles of a row in order. A tile is weighed in the same pass as its maxima, in units from the tiles before. If
// its maximum is far above that unit, it is weighed again.
class BoundTiles {
 public:
  explicit BoundTiles(const Logits& of) : space_(of), scale_(of.inverse * 1.44269504f) {}

  template <class Elements>
  BoundTile next(Elements p, int32_t size, float* maxima, int32_t* status) {
    constexpr float kFar = 64.0f, kMagic = 12582912.0f;  // rounds, as in exponential.h
    BoundTile bound = {0.0f, -kInfinity};
    if (unit_ > -kInfinity) bound = weighed(p, size, maxima, status);
    else tile_cells(space_, p, size, maxima, status);
    const float top = largest(max(load(maxima), load(maxima + kLanes)));
    const float whole = sub(add(mul(top, scale_), kMagic), kMagic);
    if (!(whole > unit_ + kFar)) return bound;
    unit_ = whole;
    return weighed(p, size, maxima, status);
  }

 private:
  template <class Elements>
  __attribute__((noinline)) BoundTile weighed(Elements p, int32_t size, float* maxima, int32_t* status) const {
    const AboutExp2 weight(scale_, -unit_);
    const F32x16 zero(0.0f);
    F32x16 even = zero, odd = zero;
    tile_cells(space_, p, size, maxima, status, [&](F32x16 raw, int k) __attribute__((always_inline)) {
      F32x16& sum = k % 2 ? odd : even;
      sum = weight.added(raw, sum);
    });
    return {total(add(even, odd)), unit_};
  }

  Logits space_;
  float scale_, unit_ = -kInfinity;
};

// ---- whole rows -----------------------------------------------------------------------------------------------------

// Calls f(tile, its elements, &status) for every tile, in parts. Each part has a copy of f and takes its tiles in
// order. Returns the OR of the status bits.
template <class F>
int32_t over_tiles(const Row& row, const ThreadTeam& team, const F& f) {
  int32_t status[kMaxParts];
  const int parts = over_parts(row.tiles(), team, [&](int part, int32_t from, int32_t to) {
    status[part] = with_elements(row, from * kTile, [&](auto p) {
      auto mine = f;
      int32_t bits = SPECDEC_STATUS_OK;
      for (int32_t tile = from; tile < to; ++tile) mine(tile, p + (tile - from) * kTile, &bits);
      return bits;
    });
  });
  int32_t all = SPECDEC_STATUS_OK;
  for (int part = 0; part < parts; ++part) all |= status[part];
  return all;
}

}  // namespace

int32_t row_cells(const Row& row, const Law& law, const ThreadTeam& team, float* cells) {
  return law.in_space([&](auto space) {
    return over_tiles(row, team, [&](int32_t tile, auto p, int32_t* status) {
      tile_cells(space, p, row.tile_size(tile), cells + tile * kCellsATile, status);
    });
  });
}

void row_masses(const Row& row, const Logits& space, const ThreadTeam& team, const float* cells, MassTile* tiles) {
  over_tiles(row, team, [&](int32_t tile, auto p, int32_t*) {
    tile_masses(space, p, row.tile_size(tile), cells + tile * kCellsATile, tiles + tile * kMassTilesATile);
  });
}

int32_t row_cells_and_masses(const Row& row, const Logits& space, const ThreadTeam& team, float* cells,
                             MassTile* tiles) {
  return over_tiles(row, team, [&](int32_t tile, auto p, int32_t* status) {
    float* const maxima = cells + tile * kCellsATile;
    tile_cells(space, p, row.tile_size(tile), maxima, status);
    tile_masses(space, p, row.tile_size(tile), maxima, tiles + tile * kMassTilesATile);
  });
}

int32_t row_cells_and_bounds(const Row& row, const Logits& space, const ThreadTeam& team, float* cells,
                             BoundTile* tiles) {
  return over_tiles(row, team, [&, part = BoundTiles(space)](int32_t tile, auto p, int32_t* status) mutable {
    tiles[tile] = part.next(p, row.tile_size(tile), cells + tile * kCellsATile, status);
  });
}

Candidate row_argmax(const Row& row, const Law& law, const float* cells) {
  F32x16 most(-kInfinity);
  for (int32_t i = 0; i < cells_of(row.vocab); i += kLanes) most = max(load(cells + i), most);
  const float raw = largest(most), top = law.rank(raw);
  if (top == -kInfinity) return kNoCandidate;
  const F32x16 least(top);
  int32_t i = 0;
  while (!at_least(load(cells + i), least)) i += kLanes;
  return {top, first_at_least(row, i + __builtin_ctz(at_least(load(cells + i), least)), top)};
}

// ---- rows and their laws --------------------------------------------------------------------------------------------

void scan_exact(LawRow& r, const ThreadTeam& team, int scratch_id) {
  if (r.state == RowState::kExact) return;
  const Law& law = r.stats.law;
  if (r.filter.on()) return scan_filtered(r, ScanFor::kLaw, team, scratch_id);
  const bool has_maxima = r.in_memory();
  const RowMemory memory = memory_of(r, scratch_id);
  if (law.needs_sum()) {
    weighed_rows.fetch_add(1, std::memory_order_relaxed);
    if (has_maxima) row_masses(r.row, law.logits(), team, r.cells, memory.mass_tiles);
    else r.status = row_cells_and_masses(r.row, law.logits(), team, r.cells, memory.mass_tiles);
    const int32_t tiles = mass_tiles_of(r.row.vocab);
    if (largest_of(memory.mass_tiles, tiles) == -kInfinity) r.status |= SPECDEC_STATUS_NON_FINITE;
    r.stats.lse = log_sum_exp(memory.mass_tiles, tiles);
  } else {
    r.status = row_cells(r.row, law, team, r.cells);
    r.stats.argmax = row_argmax(r.row, law, r.cells).token;
    if (r.stats.argmax == kNoToken) r.status |= SPECDEC_STATUS_NON_FINITE;
  }
  r.state = RowState::kExact;
}

void scan_if_needed(LawRow& r, bool for_status, const ThreadTeam& team, int scratch_id) {
  if (for_status || r.stats.law.needs_row()) scan_exact(r, team, scratch_id);
}

bool scan_bounds(LawRow& r, const ThreadTeam& team, int scratch_id) {
  if (!r.stats.law.needs_sum()) scan_if_needed(r, false, team, scratch_id);
  if (r.state == RowState::kExact || !r.stats.law.needs_sum()) return true;
  if (r.state == RowState::kNothing && r.filter.on()) {
    scan_filtered(r, ScanFor::kBounds, team, scratch_id);
  } else if (r.state == RowState::kNothing) {
    const RowMemory memory = memory_of(r, scratch_id);
    BoundTile* const tiles = reinterpret_cast<BoundTile*>(memory.mass_tiles);
    r.status = row_cells_and_bounds(r.row, r.stats.law.logits(), team, r.cells, tiles);
    r.state = RowState::kMaxima;
    float top = -kInfinity;
    for (int32_t tile = 0; tile < r.row.tiles(); ++tile) top = max(tile_max(r.cells, tile), top);
    top = r.stats.law.logits().scaled(top);
    if (magnitude(top) < kLargestBounded && r.status == SPECDEC_STATUS_OK) {
      r.stats.lse = about_log_sum_exp(tiles, r.row.tiles(), top);
      r.error = log_sum_error(top);
      r.state = RowState::kBounds;
    }
  }
  return r.state == RowState::kExact || r.rough();
}

void scan_maxima(LawRow& r, ScanFor goal, const ThreadTeam& team, int scratch_id) {
  if (r.in_memory() && !(r.filter.on() && r.rough() && goal != ScanFor::kBounds)) return;
  if (r.filter.on()) return scan_filtered(r, goal, team, scratch_id);
  memory_of(r, scratch_id);
  r.status = row_cells(r.row, r.stats.law, team, r.cells);
}

SPECDEC_END
