// The row operations of a walk (specdec/walk.h) on the CPU, for chains and trees.
#pragma once

#include <cstring>
#include <optional>

#include "../race/race_row.h"
#include "../rows/edits.h"
#include "pair_sums.h"
#include "specdec/chain.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

// A walk that knows probabilities and sums as Range knows them by bounds. An operation may then answer that these do not
// suffice; the walk has to ask again, exactly. `Number_` is what walk_traversal keeps of a path's nodes.
template <class Topology, class Number_ = float>
class WalkOps {
 public:
  using Number = Number_;
  static constexpr bool kSumsBuckets = true;

  WalkOps(const Topology& topology, int64_t request, const VerdictWriter& verdict, const ThreadTeam& threads)
      : t(topology), b(request), out(verdict), team(threads) {
    if (!t.readable) return;
    if (t.p.edits.on()) editor.emplace(t.p.edits, t.p.target.vocab, RowPlace{t.entry, 0}, t.drafts());
    target_filter = filter_at(t.p.target_law, t.target_law, t.p.target.vocab, t.entry, 0, &filter_status);
    if (t.has_draft()) draft_filter = filter_at(t.p.draft_law, t.draft_law, t.p.draft.vocab, t.entry, 0, &filter_status);
  }

  // Keeps what is known of a path's rows, and its nodes: a walk that goes back asks for them again.
  void keep_path() {
    constexpr int64_t kFloats = sizeof(Place) / sizeof(float);
    const int64_t depths = t.max_depth() + int64_t{1};
    places = reinterpret_cast<Place*>(scratch(5, (kFloats + cells_of(t.p.target.vocab)) * depths));
    cells = reinterpret_cast<float*>(places + depths);
    for (int32_t d = 0; d <= t.max_depth(); ++d) places[d].known = kNoNode, places[d].shares.even = true;
    put(0, path_node<Number>(0));
  }
  const PathNode<Number>& path(int32_t at_depth) const { return places[at_depth].node; }
  void put(int32_t at_depth, const PathNode<Number>& node) { places[at_depth].node = node; }
  void enter(int32_t at_depth, int32_t, int32_t token) {
    if (editor) put_away(), editor->count(token);
    depth = at_depth + 1;
  }
  void leave(int32_t at_depth, int32_t, int32_t) {
    if (editor) put_away(), editor->uncount();
    depth = at_depth;
  }

  bool filters_target() const { return target_filter.on(); }

  // Of filters and edits.
  int32_t status() const { return filter_status | (editor ? editor->status : SPECDEC_STATUS_OK); }

  bool argmax(int32_t node, Draw* draw) {
    go_to(node);
    scan_exact(target, team, 0);
    *draw = draw_of({0.0f, target.stats.argmax}, target.status);
    return true;
  }

  bool is_empty(int32_t node, bool* empty) {
    go_to(node);
    if (!target.stats.law.needs_sum() || !scan_bounds(target, team, 0)) scan_exact(target, team, 0);
    *empty = target.stats.is_empty();
    return true;
  }

  bool race(int32_t node, const Noise& noise, Draw* draw) {
    go_to(node);
    *draw = draw_from_target(noise);
    return true;
  }

  bool laws(int32_t node, int32_t token, float* p, float* q, int32_t* status) {
    go_to(node);
    *p = probability(target, 0, token, status);
    if (never_spared(token)) *p = kNever;
    *q = t.has_draft() ? probability(draft, 1, token, status) : 1.0f;
    return true;
  }

  bool laws(int32_t node, int32_t token, Range* p, Range* q, int32_t* status) {
    go_to(node);
    if (!scan_bounds(target, team, 0) || (t.has_draft() && !scan_bounds(draft, team, 1))) return false;
    if (!settled(target, token, 0) || (t.has_draft() && !settled(draft, token, 1))) return false;
    *p = never_spared(token) ? Range{kNever, kNever} : range(target, token, status);
    *q = t.has_draft() ? range(draft, token, status) : Range{1.0f, 1.0f};
    return true;
  }

  // An empty residual draws from p.
  bool residual(int32_t node, const Noise& noise, float subtracted, Draw* draw) {
    go_to(node);
    *draw = t.has_draft() ? race_residual(noise, subtracted) : race_without(noise, children_before(node, kNoToken));
    if (draw->token != kNoToken) return true;
    const Draw whole = draw_from_target(noise);
    const int32_t bits = whole.empty ? SPECDEC_STATUS_OK : SPECDEC_STATUS_EMPTY_RESIDUAL;
    *draw = {whole.token, draw->status | whole.status | bits, whole.empty};
    return true;
  }

  // Draws from the residual by bounds of p and q; exactly where T is exact. An empty one is left to the exact walk.
  bool residual(int32_t node, const Noise& noise, Range subtracted, Draw* draw) {
    if (!t.has_draft()) return residual(node, noise, 0.0f, draw);
    go_to(node);
    if (is_exact(subtracted)) *draw = race_residual(noise, subtracted.low);
    else *draw = {even_here() ? winner_by_bounds(noise, subtracted) : kNoToken, target.status | draft.status, false};
    return draw->token != kNoToken;
  }

  bool masses(int32_t node, int32_t child, float subtracted, Masses* m) {
    go_to(node);
    scan_both_exact();
    const BucketShares* const shares = shares_here();
    *m = shares ? pair_sums(target, draft, subtracted, *shares, team) : sums(node, child, subtracted);
    return true;
  }

  bool look(int32_t node, int32_t chains, float weight, Look* found, int32_t* status) {
    go_to(node);
    *status |= scan_both_exact();
    const BucketSums sums = bucket_sums(target, draft, team);
    float memory[kLookFloats];
    const Looks<float*> looks(memory, chains);
    for (int32_t b = 0; b < kBuckets; ++b) looks.fill(sums.units, weight, b);
    *found = looks.best(OneWorker{});
    BucketShares& shares = places[depth].shares;
    for (int32_t b = 0; b < kBuckets; ++b) shares.of[b] = looks.share(*found, b);
    shares.even = found->many == 1;
    return true;
  }
  float share(float p, float q) const { return places[depth].shares(p, q); }

  bool masses(int32_t node, int32_t child, Range subtracted, SumsOf<Range>* m) {
    go_to(node);
    if (!even_here()) return false;
    if (!scan_bounds(target, team, 0) || !scan_bounds(draft, team, 1) || !target.rough()) return false;
    if (kept_by_bounds(target) || kept_by_bounds(draft)) return false;  // no sum has bounds of what is kept
    *m = sums(node, child, subtracted);
    return true;
  }

  void emit(int32_t depth, int32_t node, int32_t token) { out.put(depth, node, token); }

 private:
  struct Place {
    PathNode<Number> node;
    BucketShares shares;  // if paths are walked
    int32_t known;  // the node whose rows these are
    LawRow target, draft;
    bool has_cells;  // whether the target's are kept, too
  };

  // Keeps what is known of the rows that the walk is at, and leaves them. A token that is counted, or no longer is,
  // changes the list that their edits are made from.
  void put_away() {
    if (places && at != kNoNode) {
      Place& place = places[at_depth];
      place.has_cells &= place.known == at;
      if (target.in_memory() && !target.filter.on()) {
        std::memcpy(cells_at(at_depth), target.cells, cell_bytes());
        place.has_cells = true;
      }
      place.known = at, place.target = target, place.draft = draft;
    }
    at = kNoNode;
  }
  // Whether q at the node that the walk is at is as it came, whatever its bucket.
  bool even_here() const { return !places || places[depth].shares.even; }
  // Of q at the node that the walk is at, null where q is as it came.
  const BucketShares* shares_here() const { return t.p.method == SPECDEC_PATHS ? &places[depth].shares : nullptr; }
  float* cells_at(int32_t at_depth) { return cells + int64_t{cells_of(t.p.target.vocab)} * at_depth; }
  size_t cell_bytes() const { return sizeof(float) * cells_of(t.p.target.vocab); }

  // scan_maxima for the target. A row that the walk comes back to need not be read again for its cells.
  void scan_maxima_again(ScanFor goal) {
    if (target.cells || target.knowledge == Knowledge::kNothing || !places[at_depth].has_cells)
      return scan_maxima(target, goal, team, 0);
    memory_of(target, 0);
    std::memcpy(target.cells, cells_at(at_depth), cell_bytes());
  }

  // Whether it is not known of all tokens if the row's filter keeps them.
  static bool kept_by_bounds(const LawRow& side) { return side.rough() && side.filter.on(); }

  // To the rows of `node`, which is at `depth`.
  void go_to(int32_t node) {
    if (at == node) return;
    put_away();
    at = node;
    at_depth = depth;
    read_whole = false;
    target = law_row(row_at(t.p.target, t.target_row(node)), t.target_law, target_filter, {nullptr, t.p.target.vocab});
    if (editor) editor->edit(&target.row, t.target_place(b, node));
    draft = t.has_draft_row(node) ? draft_at(node) : LawRow{};
    if (!places || places[depth].known != node) return;
    recall(target, places[depth].target);
    recall(draft, places[depth].draft);
  }

  LawRow draft_at(int32_t node) const {
    return law_row(row_at(t.p.draft, t.draft_row(node)), t.draft_law, draft_filter,
                   draft_map_of(t.p.draft_map, t.p.draft));
  }

  // Whether filters or edits took a token out.
  bool never_spared(int32_t token) const {
    if (!target.filter.on() && !target.row.edits) return false;
    const float logit = element(target.row, token);
    return !target.keeps(token, logit) || (target.row.edits && !(logit > -kInfinity));
  }

  int32_t scan_both_exact() {
    read_whole = true;
    scan_exact(target, team, 0);
    scan_exact(draft, team, 1);
    return target.status | draft.status;
  }

  // Looks through the whole row only where its law needs that. Otherwise it looks at the one element. 0 of a token that
  // is not kept.
  float probability(LawRow& side, int scratch_slot, int32_t token, int32_t* bits) {
    scan_if_needed(side, false, team, scratch_slot);
    note_status(side, token, bits);
    return side.probability(token);
  }
  void note_status(const LawRow& side, int32_t token, int32_t* bits) const {
    const int32_t column = side.map.column(token);
    if (side.in_memory() && (read_whole || side.stats.law.needs_row())) *bits |= side.status;
    else if (column != kNoColumn && !side.stats.law.is_element(element(side.row, column)))
      *bits |= SPECDEC_STATUS_NON_FINITE;
  }

  // Bounds of p(token), after scan_bounds.
  Range range(const LawRow& side, int32_t token, int32_t* bits) const {
    note_status(side, token, bits);
    return side.probability_range(token);
  }

  Draw draw_from_target(const Noise& noise) {
    const Draw winner = race_without(noise, {});
    return draw_of({0.0f, winner.token}, winner.status);
  }

  // kNoToken if no other token has weight.
  Draw race_without(const Noise& noise, const TokenList& excluded) {
    scan_maxima_again(ScanFor::kWinner);
    return {row_winner(target, excluded, noise, team, 0).token, target.status, false};
  }

  // kNoToken if the residual is empty.
  Draw race_residual(const Noise& noise, float subtracted) {
    const BucketShares* const shares = shares_here();
    const int32_t found = shares && !shares->even ? kNoToken : winner_by_bounds(noise, {subtracted, subtracted});
    if (found != kNoToken) return {found, target.status | draft.status, false};
    const int32_t status = scan_both_exact();
    scan_maxima_again(ScanFor::kLaw);
    return {residual_winner(target, draft, subtracted, shares, noise, team, 0).token, status, false};
  }

  // The winner of the residual's race if bounds of its weights tell, else kNoToken.
  int32_t winner_by_bounds(const Noise& noise, Range subtracted) {
    if (!scan_bounds(target, team, 0) || !scan_bounds(draft, team, 1)) return kNoToken;
    if (!target.rough() && !draft.rough()) return kNoToken;
    scan_maxima_again(ScanFor::kBounds);
    return residual_winner_by_bounds(target, draft, subtracted, noise, team);
  }

  // The tokens of a node's children with an index below `end`.
  TokenList children_before(int32_t node, int32_t end) const {
    int32_t* const tokens = reinterpret_cast<int32_t*>(scratch(6, t.drafts()));
    int32_t count = 0, reported = SPECDEC_STATUS_OK;
    for (int32_t child = t.next_child(node, node, &reported); child != kNoNode && child < end;
         child = t.next_child(node, child, &reported)) {
      const int64_t token = t.draft_token(child);
      if (in_vocab(t, token)) tokens[count++] = static_cast<int32_t>(token);
    }
    return {tokens, count};
  }

  // Of the row pair of a node, some of whose children were tried.
  template <class Subtracted>
  SumsOf<Subtracted> sums(int32_t node, int32_t child, Subtracted subtracted) const {
    if constexpr (!Topology::kSiblings) return pair_sums(target, draft, subtracted, nullptr, team);
    const TokenList tried = children_before(node, child);
    return pair_sums(target, draft, subtracted, &tried, team);
  }

  const Topology& t;
  const int64_t b;
  const VerdictWriter& out;
  const ThreadTeam& team;
  int32_t filter_status = SPECDEC_STATUS_OK;
  std::optional<Editor> editor;  // if there are edits
  Place* places = nullptr;   // by depth, if they are kept
  float* cells = nullptr;    // of their targets
  int32_t at = kNoNode, at_depth = 0;
  bool read_whole = false;  // whether the walk used all of both rows: the status of rows of probabilities counts then
  int32_t depth = 0;  // of the walk, which may have gone on
  Filter target_filter, draft_filter;
  LawRow target = {}, draft = {};  // of node `at`
};

// Walks by rejection. What comes after a node is decided by bounds, and exactly only where these do not suffice.
template <class Topology>
inline void reject(const Topology& t, WalkOps<Topology>& ops, Walk* at, int32_t* status) {
  int32_t node;
  do {
    node = at->node;
    auto near = walk_from<Range>(node, at->depth);
    if (walk_rejection(t, ops, &near, status, true)) *at = walk_from(near.node, near.depth);
    else walk_rejection(t, ops, at, status, true);
  } while (at->node != node);
}

// Traverses a request by bounds. Returns false if they do not suffice, or if there would be none.
template <class Topology>
inline bool traverse_by_bounds(const Topology& t, int64_t b, const VerdictWriter& verdict, const ThreadTeam& team,
                               Walk* at, int32_t* status) {
  if (!goes_back(t.p.method) || !t.readable || !t.target_law.needs_sum()) return false;
  WalkOps<Topology, Range> ops(t, b, verdict, team);
  if (ops.filters_target()) return false;
  ops.keep_path();
  const bool through = walk_back(t, t.p.method, ops, at, status);
  *status |= ops.status();
  return through;
}

// Walks request `b` and writes its verdict.
template <class Topology>
inline void verify_request(const typename Topology::Params& p, int64_t b, const ThreadTeam& team) {
  const Topology t(p, b);
  const VerdictWriter verdict = verdict_at(p, b);
  for (int32_t depth = 0; depth < verdict.places; ++depth) verdict.clear(depth);
  for (int32_t node = 0; node < verdict.zeroed_nodes(); ++node) verdict.zero(node);
  Walk at = walk_from(0, 0);
  int32_t status = t.status;
  if (!traverse_by_bounds(t, b, verdict, team, &at, &status)) {
    at = walk_from(0, 0), status = t.status;
    WalkOps<Topology> ops(t, b, verdict, team);
    if (goes_back(p.method)) ops.keep_path();
    if (t.readable && !t.target_law.greedy && p.method == SPECDEC_REJECTION) reject(t, ops, &at, &status);
    else walk(t, p.method, ops, &at, &status);
    status |= ops.status();
  }
  verdict.count(accepted_by(t, at), status);
  if constexpr (!Topology::kSiblings) {
    count_passing(t, b, at.depth, [](const Rows& rows, int64_t offset, int32_t token) {
      return Probs{}.probability(element(row_at(rows, offset), token), {});
    });
  }
}

SPECDEC_END
