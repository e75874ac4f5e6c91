// The row operations of a walk (specdec/walk.h) on the CPU, for chains and trees.
#pragma once

#include <cstring>
#include <optional>

#include "edits.h"
#include "race_kept.h"
#include "specdec/walk.h"
#include "unit_sum.h"

SPECDEC_BEGIN

// Weights in which a set of tokens has none: one-hot drafts that were rejected.
template <class Weights, class Set>
struct Without : Weights {
  const Set& used;
  SPECDEC_HD Without(const Weights& weights, const Set& set) : Weights(weights), used(set) {}
  SPECDEC_HD float log_weight(float raw, int32_t token) const {
    return used.has(token) ? -kInfinity : Weights::log_weight(raw, token);
  }
};

template <class Weights, class Set>
SPECDEC_HD Without<Weights, Set> without(const Weights& weights, const Set& used) { return {weights, used}; }

// The tokens of a node's children with an index below `end`. Threads share it: it writes nothing.
template <class Topology>
struct ChildTokens {
  const Topology& t;
  int32_t node, end;

  SPECDEC_HD int32_t after(int32_t child) const {
    int32_t known = kStatusOk;
    const int32_t next = t.next_child(node, child, &known);
    return next < end ? next : kNoNode;
  }
  template <class F>
  SPECDEC_HD void each(F&& f) const {
    for (int32_t child = after(node); child != kNoNode; child = after(child)) {
      const int64_t token = t.draft_token(child);
      if (in_vocab(t, token)) f(static_cast<int32_t>(token));
    }
  }
  SPECDEC_HD bool has(int32_t token) const {
    bool found = false;
    each([&](int32_t other) { found |= other == token; });
    return found;
  }
};

// `Number_` says how walk_traversal knows probabilities and sums: float exactly, Range by bounds. With these an operation
// may answer that they do not suffice; the walk then has to begin again, exactly. Long functions are not inlined: there
// would be dozens of copies.
template <class Topology, class Number_ = float>
class WalkOps {
 public:
  using Number = Number_;

  SPECDEC_HD WalkOps(const Topology& topology, int64_t request, const Verdict& verdict, const Crew& threads)
      : t(topology), b(request), out(verdict), crew(threads) {
    if (!t.readable) return;
    if (t.p.edits.on()) editor.emplace(t.p.edits, t.p.target.vocab, RowPlace{t.entry, 0}, t.drafts());
    target_filter = filter_at(t.p.target_law, t.target_law, t.p.target.vocab, t.entry, 0, &filter_status);
    if (t.has_draft()) draft_filter = filter_at(t.p.draft_law, t.draft_law, t.p.draft.vocab, t.entry, 0, &filter_status);
  }

  SPECDEC_HD bool has_draft() const { return t.has_draft(); }

  // Keeps what is known of a path's rows, and its nodes: a walk that goes back asks for them again.
  SPECDEC_HD void keep_path() {
    constexpr int64_t kFloats = sizeof(Place) / sizeof(float);
    const int64_t depths = t.max_depth() + int64_t{1};
    places = reinterpret_cast<Place*>(scratch(5, (kFloats + cells_of(t.p.target.vocab)) * depths));
    cells = reinterpret_cast<float*>(places + depths);
    for (int32_t d = 0; d <= t.max_depth(); ++d) places[d].known = kNoNode;
    put(0, path_node<Number>(0));
  }
  SPECDEC_HD const PathNode<Number>& path(int32_t at_depth) const { return places[at_depth].node; }
  SPECDEC_HD void put(int32_t at_depth, const PathNode<Number>& node) { places[at_depth].node = node; }
  SPECDEC_HD void enter(int32_t at_depth, int32_t, int32_t token) {
    if (editor) put_away(), editor->count(token);
    depth = at_depth + 1;
  }
  SPECDEC_HD void leave(int32_t at_depth, int32_t, int32_t) {
    if (editor) put_away(), editor->uncount();
    depth = at_depth;
  }

  SPECDEC_HD bool filters_target() const { return target_filter.on(); }

  // Of filters and edits.
  SPECDEC_HD int32_t status() const { return filter_status | (editor ? editor->status : kStatusOk); }

  SPECDEC_HD bool argmax(int32_t node, Draw* draw) {
    go_to(node);
    look_through(target, crew, 0);
    *draw = draw_of({0.0f, target.known.argmax}, target.status);
    return true;
  }

  SPECDEC_HD bool race(int32_t node, const Noise& noise, Draw* draw) {
    go_to(node);
    *draw = draw_from_target(noise);
    return true;
  }

  SPECDEC_HD bool laws(int32_t node, int32_t token, float* p, float* q, int32_t* status) {
    go_to(node);
    *p = probability(target, 0, token, status);
    if (never_spared(token)) *p = kNever;
    *q = t.has_draft() ? probability(draft, 1, token, status) : 1.0f;
    return true;
  }

  SPECDEC_HD bool laws(int32_t node, int32_t token, Range* p, Range* q, int32_t* status) {
    go_to(node);
    if (!look_roughly(target, crew, 0) || (t.has_draft() && !look_roughly(draft, crew, 1))) return false;
    if (!settled(target, token, 0) || (t.has_draft() && !settled(draft, token, 1))) return false;
    *p = never_spared(token) ? Range{kNever, kNever} : range(target, token, status);
    *q = t.has_draft() ? range(draft, token, status) : Range{1.0f, 1.0f};
    return true;
  }

  // Decides a test by bounds of both probabilities if these suffice. Then *p is not known.
  SPECDEC_HD bool decided_by_bounds(int32_t node, int32_t token, const AcceptTest& test, bool* accepted,
                                    int32_t* status) {
    Range p, q;
    return laws(node, token, &p, &q, status) && test.decided(p, q, accepted);
  }

  // An empty residual draws from p.
  SPECDEC_HD bool residual(int32_t node, const Noise& noise, float taken, Draw* draw) {
    go_to(node);
    *draw = t.has_draft() ? race_residual(noise, taken) : race_without(noise, {t, node, kNoToken});
    if (draw->token != kNoToken) return true;
    const Draw whole = draw_from_target(noise);
    *draw = {whole.token, draw->status | whole.status | kStatusEmptyResidual};
    return true;
  }

  // The same by bounds of p and q. An empty residual is not known by them.
  SPECDEC_HD bool residual(int32_t node, const Noise& noise, Range taken, Draw* draw) {
    if (!t.has_draft()) return residual(node, noise, 0.0f, draw);
    go_to(node);
    *draw = {winner_by_bounds(noise, taken), target.status | draft.status};
    return draw->token != kNoToken;
  }

  SPECDEC_HD bool masses(int32_t node, int32_t child, float taken, Masses* m) {
    go_to(node);
    const int32_t status = look_through_both();
    const TileMasses sums = over_pair<TileMasses>(
        [&](int32_t tile) { return tile_masses({t, node, child}, taken, tile); });
    *m = {sum_of_units(sums.left), sum_of_units(sums.untried), status};
    return true;
  }

  SPECDEC_HD bool masses(int32_t node, int32_t child, Range taken, SumsOf<Range>* m) {
    go_to(node);
    if (!look_roughly(target, crew, 0) || !look_roughly(draft, crew, 1) || !target.rough()) return false;
    const Range p = factors(target), q = factors(draft);
    const TileBounds sums = over_pair<TileBounds>(
        [&](int32_t tile) { return tile_bounds({t, node, child}, p, {taken.low * q.low, taken.high * q.high}, tile); });
    const auto widened = [&](double low, double high) {
      const double units = target.row.vocab * kUnitError;
      return Range{max(static_cast<float>(low * (1.0 - kSumError) - units), 0.0f),
                   static_cast<float>(high * (1.0 + kSumError) + units)};
    };
    *m = {widened(sums.least, sums.most), widened(sums.untried * q.low, sums.untried * q.high),
          target.status | draft.status};
    return true;
  }

  SPECDEC_HD void emit(int32_t depth, int32_t node, int32_t token) { out.put(depth, node, token); }

 private:
  struct Place {
    PathNode<Number> node;
    int32_t known;  // the node whose rows these are
    LawRow target, draft;
    bool has_cells;  // whether the target's are kept, too
  };

  // Keeps what is known of the rows that the walk is at, and leaves them. A token that is counted, or no longer is,
  // changes the list that their edits are made from.
  SPECDEC_HD void put_away() {
    if (places && at != kNoNode) {
      Place& place = places[at_depth];
      place.has_cells &= place.known == at;
      if (target.looked && !target.filter.on()) {
        std::memcpy(cells_at(at_depth), target.cells, cell_bytes());
        place.has_cells = true;
      }
      place.known = at, place.target = target, place.draft = draft;
    }
    at = kNoNode;
  }
  SPECDEC_HD float* cells_at(int32_t at_depth) { return cells + int64_t{cells_of(t.p.target.vocab)} * at_depth; }
  SPECDEC_HD size_t cell_bytes() const { return sizeof(float) * cells_of(t.p.target.vocab); }

  // look_for_race for the target. A row that the walk comes back to need not be read again for its cells.
  __attribute__((noinline)) void look_for_last_race(Look look) {
    if (target.looked || !target.recalled || !places[at_depth].has_cells)
      return look_for_race(target, look, crew, 0);
    memory_of(target, 0);
    std::memcpy(target.cells, cells_at(at_depth), cell_bytes());
    target.looked = true;
  }

  // To the rows of `node`, which is at `depth`.
  __attribute__((noinline)) void go_to(int32_t node) {
    if (at == node) return;
    put_away();
    at = node;
    at_depth = depth;
    target = law_row(row_at(t.p.target, t.target_row(node)), t.target_law, target_filter, {nullptr, t.p.target.vocab});
    if (editor) editor->edit(&target.row, t.target_place(b, node));
    draft = t.has_draft_row(node) ? draft_at(node) : LawRow{};
    if (!places || places[depth].known != node) return;
    recall(target, places[depth].target);
    recall(draft, places[depth].draft);
  }

  SPECDEC_HD LawRow draft_at(int32_t node) const {
    return law_row(row_at(t.p.draft, t.draft_row(node)), t.draft_law, draft_filter,
                   draft_map_of(t.p.draft_map, t.p.draft));
  }

  // Whether filters or edits took a token out.
  __attribute__((noinline)) bool never_spared(int32_t token) const {
    if (!target.filter.on() && !target.row.edits) return false;
    const float logit = element(target.row, token);
    return !target.keeps(token, logit) || (target.row.edits && !(logit > -kInfinity));
  }

  __attribute__((noinline)) int32_t look_through_both() {
    look_through(target, crew, 0);
    look_through(draft, crew, 1);
    return target.status | draft.status;
  }

  // Looks through the whole row only where its law needs that. Otherwise it looks at the one element. 0 of a token that
  // is not kept.
  __attribute__((noinline)) float probability(LawRow& side, int scratch_slot, int32_t token, int32_t* bits) {
    look_if_needed(side, false, crew, scratch_slot);
    note_status(side, token, bits);
    return side.probability(token);
  }
  SPECDEC_HD void note_status(const LawRow& side, int32_t token, int32_t* bits) const {
    const int32_t column = side.map.column(token);
    if (side.looked) *bits |= side.status;
    else if (column != kNoColumn && !side.known.law.is_element(element(side.row, column))) *bits |= kStatusNonFinite;
  }

  // Bounds of p(token), after look_roughly.
  SPECDEC_HD Range range(const LawRow& side, int32_t token, int32_t* bits) const {
    note_status(side, token, bits);
    return side.probability_range(token);
  }

  // The winner by the weights that `restricted` makes of p; kNoToken if no token has weight.
  template <class Restricted>
  SPECDEC_HD Draw race_target(const Noise& noise, const Restricted& restricted) {
    look_for_last_race(Look::kForWinner);
    return target.known.law.in_space([&](auto space) -> Draw {
      return {row_winner(restricted(row_weights(space)), target, noise, crew, 0).token, target.status};
    });
  }

  __attribute__((noinline)) Draw draw_from_target(const Noise& noise) {
    const Draw winner = race_target(noise, [](const auto& weights) { return weights; });
    return draw_of({0.0f, winner.token}, winner.status);
  }

  __attribute__((noinline)) Draw race_without(const Noise& noise, const ChildTokens<Topology>& used) {
    return race_target(noise, [&](const auto& weights) { return without(weights, used); });
  }

  __attribute__((noinline)) Draw race_residual(const Noise& noise, float taken) {
    const int32_t found = winner_by_bounds(noise, {taken, taken});
    if (found != kNoToken) return {found, target.status | draft.status};
    const int32_t status = look_through_both();
    look_for_last_race(Look::kForLaw);
    return target.known.law.in_space([&](auto space) -> Draw {
      const ResidualWeights<decltype(space)> weights = {target, draft, space, taken};
      return {row_winner(weights, target, noise, crew, 0).token, status};
    });
  }

  // The winner of the residual's race if bounds of its weights tell, else kNoToken.
  __attribute__((noinline)) int32_t winner_by_bounds(const Noise& noise, Range taken) {
    if (!look_roughly(target, crew, 0) || !look_roughly(draft, crew, 1)) return kNoToken;
    if (!target.rough() && !draft.rough()) return kNoToken;
    look_for_last_race(Look::kForBounds);
    const LawRow p_most = target.at_most(), p_least = target.at_least();
    const LawRow q_most = draft.at_most(), q_least = draft.at_least();
    return target.known.law.in_space([&](auto space) {
      using Weights = ResidualBounds<decltype(space)>;
      const Weights weights = {{p_most, q_least, space, taken.low}, {p_least, q_most, space, taken.high}};
      ContestedWinner winner;
      race_row(weights, p_most, noise, crew, winner);
      return winner.decided() ? winner.sure.token : kNoToken;
    });
  }

  // Sums of the tiles of the row pair, added up.
  template <class Sums, class F>
  SPECDEC_HD Sums over_pair(F&& sums_of_tile) {
    const int32_t tiles = target.row.tiles();
    Sums* const sums = reinterpret_cast<Sums*>(scratch(2, static_cast<int64_t>(sizeof(Sums) / sizeof(float)) * tiles));
    over_parts(tiles, crew, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) sums[tile] = sums_of_tile(tile);
    });
    Sums all = {};
    for (int32_t tile = 0; tile < tiles; ++tile) all += sums[tile];
    return all;
  }

  // Whether a row holds logits that are taken as they came, one for each token.
  SPECDEC_HD static bool is_plain(const LawRow& side) {
    return side.known.law.needs_sum() && !side.filter.on() && !side.row.edits && !side.map.tokens;
  }

  // How over_tile weighs plain logits: as the law has it, or nearly, in half of the operations.
  struct ByLaw {
    Logits space;
    LogSumExp lse;
    explicit ByLaw(const LawRow& side) : space(side.known.law.logits()), lse(side.known.lse) {}
    SPECDEC_HD F16 operator()(F16 raw) const { return space.probability(raw, lse); }
  };
  struct Nearly {
    F16 scale, down;
    explicit Nearly(const LawRow& side)
        : scale(mul(side.known.law.logits().inverse, 1.44269504f)),
          down(mul(add(side.known.lse.max, side.known.lse.log_sum), -1.44269504f)) {}
    SPECDEC_HD F16 operator()(F16 raw) const { return about_exp2(fma(raw, scale, down)); }
  };

  // Calls f(p, q, q of the tokens not tried) for sixteen tokens of a tile at a time. A chain has no use for the last.
  template <class Weigh, class F>
  SPECDEC_HD void over_tile(const ChildTokens<Topology>& tried, int32_t tile, F&& f) const {
    Mask gone[kTile / kLanes] = {};
    if constexpr (Topology::kSiblings) {
      tried.each([&](int32_t token) {
        if (token / kTile == tile) gone[token % kTile / kLanes] |= 1u << token % kLanes;
      });
    }
    const F16 zero(0.0f);
    const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
    const auto give = [&](int32_t token, F16 p, F16 q) __attribute__((always_inline)) {
      f(p, q, Topology::kSiblings ? where(gone[(token - begin) / kLanes], zero, q) : zero);
    };
    int32_t token = begin;
    // Whole cells of logits of one type, as they came: nothing is asked of each of them.
    if (is_plain(target) && is_plain(draft) && target.row.dtype == draft.row.dtype) {
      const int32_t columns = end < draft.row.vocab ? end : draft.row.vocab;
      const Weigh of_target(target), of_draft(draft);
      with_data(target.row, [&](auto p) {
        const auto q = static_cast<decltype(p)>(draft.row.data);
        for (; token + kCell <= columns; token += kCell) {
          prefetch_cell(p + token + kTile), prefetch_cell(q + token + kTile);
          for (int32_t at = token; at < token + kCell; at += kLanes)
            give(at, of_target(load(p + at)), of_draft(load(q + at)));
        }
      });
    }
    for (int32_t column = draft.first_column(token); token < end; token += kLanes)
      give(token, target.probabilities(token, end), draft.probabilities(token, end, &column));
  }

  struct TileMasses {
    uint64_t left, untried;
    SPECDEC_HD void operator+=(const TileMasses& other) { left += other.left, untried += other.untried; }
  };
  __attribute__((noinline)) TileMasses tile_masses(const ChildTokens<Topology>& tried, float taken, int32_t tile) const {
    UnitSum<F16> left, untried;
    over_tile<ByLaw>(tried, tile, [&](F16 p, F16 q, F16 q_untried) __attribute__((always_inline)) {
      left.take(residual_weight(p, mul(F16(taken), q)));
      if constexpr (Topology::kSiblings) untried.take(q_untried);
    });
    return {total(left), total(untried)};
  }

  // What figures by `Nearly` are multiplied by to get the least and the largest that they may be. Each of them is off by
  // as much as their sum may be, and so may be the sum.
  SPECDEC_HD static Range factors(const LawRow& side) {
    const float error = log_sum_error(side.known.lse.max) + (side.rough() ? side.error : 0.0f);
    return {1.0f - error, 1.0f + error * (1.0f + error)};  // of e^-error and e^error
  }
  // Of a tile's sum: 64 additions a lane and at most 15 of lanes, each wrong by 2^-24 at most. What log_sum_error leaves
  // for roundings covers the products and differences before them.
  static constexpr double kSumError = 5e-6;
  // Of a weight in whole numbers, to the nearest multiple of 2^-42, and of `Nearly`, which is never below 2^-125.
  static constexpr double kUnitError = 0x1.001p-43;

  struct TileBounds {
    double least, most, untried;
    SPECDEC_HD void operator+=(const TileBounds& other) {
      least += other.least, most += other.most, untried += other.untried;
    }
  };
  __attribute__((noinline)) TileBounds tile_bounds(const ChildTokens<Topology>& tried, Range p_factors, Range taken,
                                    int32_t tile) const {
    const F16 zero(0.0f), p_low(p_factors.low), p_high(p_factors.high), low(taken.low), high(min(taken.high, kLargest));
    F16 least = zero, most = zero, untried = zero;
    over_tile<Nearly>(tried, tile, [&](F16 p, F16 q, F16 q_untried) __attribute__((always_inline)) {
      least = add(least, max(sub(mul(p_low, p), mul(high, q)), zero));
      most = add(most, max(sub(mul(p_high, p), mul(low, q)), zero));
      if constexpr (Topology::kSiblings) untried = add(untried, q_untried);
    });
    return {total(least), total(most), total(untried)};
  }

  const Topology& t;
  const int64_t b;
  const Verdict& out;
  const Crew& crew;
  int32_t filter_status = kStatusOk;
  std::optional<Editor> editor;  // if there are edits
  Place* places = nullptr;   // by depth, if they are kept
  float* cells = nullptr;    // of their targets
  int32_t at = kNoNode, at_depth = 0;
  int32_t depth = 0;  // of the walk, which may have gone on
  Filter target_filter, draft_filter;
  LawRow target = {}, draft = {};  // of node `at`
};

// How the CPU tests a draft: by bounds, and by the laws only if a coin is too close to its threshold for them. Siblings
// without draft laws have to know p itself.
struct ByBounds {
  template <class Topology>
  SPECDEC_HD bool operator()(WalkOps<Topology>& ops, int32_t node, int32_t token, const AcceptTest& test, float* p,
                             bool* accepted, int32_t* status) const {
    if ((ops.has_draft() || !Topology::kSiblings) && ops.decided_by_bounds(node, token, test, accepted, status))
      return true;
    return ByLaws{}(ops, node, token, test, p, accepted, status);
  }
};

// Traverses a request by bounds. Returns false if they do not suffice, or if there would be none.
template <class Topology>
SPECDEC_HD bool traverse_by_bounds(const Topology& t, int64_t b, const Verdict& verdict, const Crew& crew, Walk* at,
                                   int32_t* status) {
  if (t.p.method != Method::kTraversal || !t.readable || !t.target_law.needs_sum()) return false;
  WalkOps<Topology, Range> ops(t, b, verdict, crew);
  if (ops.filters_target()) return false;
  ops.keep_path();
  const bool through = walk_traversal(t, ops, at, status);
  *status |= ops.status();
  return through;
}

// Walks request `b` and writes its verdict.
template <class Topology>
SPECDEC_HD void verify_request(const typename Topology::Params& p, int64_t b, const Crew& crew) {
  const Topology t(p, b);
  const Verdict verdict = verdict_at(p, b);
  for (int32_t depth = 0; depth < verdict.places; ++depth) verdict.clear(depth);
  for (int32_t node = 0; node < verdict.zeroed_nodes(); ++node) verdict.zero(node);
  Walk at = walk_from(0, 0);
  int32_t status = t.status;
  if (!traverse_by_bounds(t, b, verdict, crew, &at, &status)) {
    at = walk_from(0, 0), status = t.status;
    WalkOps<Topology> ops(t, b, verdict, crew);
    if (p.method == Method::kTraversal) ops.keep_path();
    walk(t, p.method, ops, &at, &status, ByBounds{});
    status |= ops.status();
  }
  verdict.count(accepted_by(t, at), t.drafts(), status);
  if constexpr (!Topology::kSiblings) {
    count_passing(t, b, at.depth, [](const Rows& rows, int64_t offset, int32_t token) {
      return Probs{}.probability(element(row_at(rows, offset), token), {});
    });
  }
}

SPECDEC_END
