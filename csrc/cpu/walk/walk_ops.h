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

// `Number_` is the type of the path's weights and sums: float, or Range in a walk by bounds. An operation on Ranges may
// return false because bounds do not suffice; the walk is then repeated with exact numbers.
template <class Topology, class Number_ = float>
class WalkOps {
 public:
  using Number = Number_;
  static constexpr bool kSumsBuckets = true;

  WalkOps(const Topology& topology, int64_t request, const VerdictWriter& verdict, const ThreadTeam& threads)
      : t(topology), b(request), out(verdict), team(threads) {
    if (!t.readable) return;
    if (t.p.edits.on()) editor.emplace(t.p.edits, t.p.target.vocab, RowIndex{t.entry, 0}, t.drafts());
    target_filter = filter_at(t.p.target_law, t.target_law, t.p.target.vocab, t.entry, 0, &filter_status);
    if (t.has_draft()) draft_filter = filter_at(t.p.draft_law, t.draft_law, t.p.draft.vocab, t.entry, 0, &filter_status);
  }

  // Makes the walk store its path's nodes and their rows' statistics, which a walk that goes back reads again.
  void store_path() {
    const int64_t depths = t.max_depth() + int64_t{1}, all_cells = cells_of(t.p.target.vocab) * depths;
    Arrays arrays(scratch_bytes(5, depths * sizeof(PathEntry) + all_cells * sizeof(float)));
    path_entries = arrays.take<PathEntry>(depths), cells = arrays.take<float>(all_cells);
    for (int32_t d = 0; d <= t.max_depth(); ++d)
      path_entries[d].row_node = kNoNode, path_entries[d].scales.all_one = true;
    put(0, path_node<Number>(0));
  }
  const PathNode<Number>& path(int32_t at_depth) const { return path_entries[at_depth].node; }
  void put(int32_t at_depth, const PathNode<Number>& node) { path_entries[at_depth].node = node; }
  void enter(int32_t at_depth, int32_t, int32_t token) {
    if (editor) save_rows(), editor->count(token);
    depth = at_depth + 1;
  }
  void leave(int32_t at_depth, int32_t, int32_t) {
    if (editor) save_rows(), editor->uncount();
    depth = at_depth;
  }

  bool filters_target() const { return target_filter.on(); }

  // The status bits of filters and edits.
  int32_t status() const { return filter_status | (editor ? editor->status : SPECDEC_STATUS_OK); }

  bool argmax(int32_t node, Draw* draw) {
    go_to(node);
    scan_exact(target, team, 0);
    *draw = to_draw({0.0f, target.stats.argmax}, target.status);
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
    const Draw draw_from_p = draw_from_target(noise);
    const int32_t bits = draw_from_p.empty ? SPECDEC_STATUS_OK : SPECDEC_STATUS_EMPTY_RESIDUAL;
    *draw = {draw_from_p.token, draw->status | draw_from_p.status | bits, draw_from_p.empty};
    return true;
  }

  // Draws from the residual by bounds of p and q; exactly where T is exact. The exact walk handles an empty one.
  bool residual(int32_t node, const Noise& noise, Range subtracted, Draw* draw) {
    if (!t.has_draft()) return residual(node, noise, 0.0f, draw);
    go_to(node);
    if (is_exact(subtracted)) *draw = race_residual(noise, subtracted.low);
    else
      *draw = {scales_are_one() ? winner_by_bounds(noise, subtracted) : kNoToken, target.status | draft.status, false};
    return draw->token != kNoToken;
  }

  bool masses(int32_t node, int32_t child, float subtracted, Masses* m) {
    go_to(node);
    scan_both_exact();
    const BucketScales* const scales = current_scales();
    *m = scales ? pair_sums(target, draft, subtracted, *scales, team) : sums(node, child, subtracted);
    return true;
  }

  bool look(int32_t node, int32_t chains, float weight, Look* look, int32_t* status) {
    go_to(node);
    *status |= scan_both_exact();
    const BucketSums sums = bucket_sums(target, draft, team);
    float memory[kLookFloats];
    const Looks<float*> looks(memory, chains);
    for (int32_t b = 0; b < kBuckets; ++b) looks.fill(sums.units, weight, b);
    *look = looks.best(OneWorker{});
    BucketScales& scales = path_entries[depth].scales;
    for (int32_t b = 0; b < kBuckets; ++b) scales.by_bucket[b] = looks.scale(*look, b);
    scales.all_one = look->many == 1;
    return true;
  }
  float bucket_scale(float p, float q) const { return path_entries[depth].scales(p, q); }

  bool masses(int32_t node, int32_t child, Range subtracted, SumsOf<Range>* m) {
    go_to(node);
    if (!scales_are_one()) return false;
    if (!scan_bounds(target, team, 0) || !scan_bounds(draft, team, 1) || !target.rough()) return false;
    if (cut_is_rough(target) || cut_is_rough(draft)) return false;  // sums have no bounds where the cut is not exact
    *m = sums(node, child, subtracted);
    return true;
  }

  void emit(int32_t depth, int32_t node, int32_t token) { out.put(depth, node, token); }

 private:
  struct PathEntry {
    PathNode<Number> node;
    BucketScales scales;  // for SPECDEC_PATHS
    int32_t row_node;     // the node of the rows below
    LawRow target, draft;
    bool has_cells;  // whether the target's cells are stored, too
  };

  // Stores the statistics of the current rows and leaves them. Called before a token is counted or uncounted, since
  // that changes the list of edits that the rows read.
  void save_rows() {
    if (path_entries && at != kNoNode) {
      PathEntry& entry = path_entries[at_depth];
      entry.has_cells &= entry.row_node == at;
      if (target.in_memory() && !target.filter.on()) {
        std::memcpy(cells_at(at_depth), target.cells, cell_bytes());
        entry.has_cells = true;
      }
      entry.row_node = at, entry.target = target, entry.draft = draft;
    }
    at = kNoNode;
  }
  // Whether the current node's q has the factor 1 in every bucket.
  bool scales_are_one() const { return !path_entries || path_entries[depth].scales.all_one; }
  // The factors of the current node's q; null except for SPECDEC_PATHS.
  const BucketScales* current_scales() const {
    return t.p.method == SPECDEC_PATHS ? &path_entries[depth].scales : nullptr;
  }
  float* cells_at(int32_t at_depth) { return cells + int64_t{cells_of(t.p.target.vocab)} * at_depth; }
  size_t cell_bytes() const { return sizeof(float) * cells_of(t.p.target.vocab); }

  // scan_maxima for the target. A row to which the walk returns has its cells stored.
  void scan_maxima_again(ScanFor goal) {
    if (target.cells || target.state == RowState::kNothing || !path_entries[at_depth].has_cells)
      return scan_maxima(target, goal, team, 0);
    memory_of(target, 0);
    std::memcpy(target.cells, cells_at(at_depth), cell_bytes());
  }

  // Whether there are tokens for which bounds leave open if the row's filter keeps them.
  static bool cut_is_rough(const LawRow& side) { return side.rough() && side.filter.on(); }

  // Moves to the rows of `node`, which is at `depth`.
  void go_to(int32_t node) {
    if (at == node) return;
    save_rows();
    at = node;
    at_depth = depth;
    read_whole = false;
    target = law_row(row_at(t.p.target, t.target_row(node)), t.target_law, target_filter, {nullptr, t.p.target.vocab});
    if (editor) editor->edit(&target.row, t.target_index(b, node));
    draft = t.has_draft_row(node) ? draft_at(node) : LawRow{};
    if (!path_entries || path_entries[depth].row_node != node) return;
    recall(target, path_entries[depth].target);
    recall(draft, path_entries[depth].draft);
  }

  LawRow draft_at(int32_t node) const {
    return law_row(row_at(t.p.draft, t.draft_row(node)), t.draft_law, draft_filter,
                   draft_map_of(t.p.draft_map, t.p.draft));
  }

  // Whether filters or edits remove a token.
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

  // p(token); 0 for a filtered token. Scans the whole row only where its law needs that, else reads the one element.
  float probability(LawRow& side, int scratch_id, int32_t token, int32_t* bits) {
    scan_if_needed(side, false, team, scratch_id);
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
    return to_draw({0.0f, winner.token}, winner.status);
  }

  // kNoToken if no other token has weight.
  Draw race_without(const Noise& noise, const TokenList& excluded) {
    scan_maxima_again(ScanFor::kWinner);
    return {row_winner(target, excluded, noise, team, 0).token, target.status, false};
  }

  // kNoToken if the residual is empty.
  Draw race_residual(const Noise& noise, float subtracted) {
    const BucketScales* const scales = current_scales();
    const int32_t token_by_bounds =
        scales && !scales->all_one ? kNoToken : winner_by_bounds(noise, {subtracted, subtracted});
    if (token_by_bounds != kNoToken) return {token_by_bounds, target.status | draft.status, false};
    const int32_t status = scan_both_exact();
    scan_maxima_again(ScanFor::kLaw);
    return {residual_winner(target, draft, subtracted, scales, noise, team, 0).token, status, false};
  }

  // The winner of the residual's race if bounds of its weights decide it, else kNoToken.
  int32_t winner_by_bounds(const Noise& noise, Range subtracted) {
    if (!scan_bounds(target, team, 0) || !scan_bounds(draft, team, 1)) return kNoToken;
    if (!target.rough() && !draft.rough()) return kNoToken;
    scan_maxima_again(ScanFor::kBounds);
    return residual_winner_by_bounds(target, draft, subtracted, noise, team);
  }

  // The tokens of a node's children with an index below `end`.
  TokenList children_before(int32_t node, int32_t end) const {
    int32_t* const tokens = scratch<int32_t>(6, t.drafts());
    int32_t count = 0, reported = SPECDEC_STATUS_OK;
    for (int32_t child = t.next_child(node, node, &reported); child != kNoNode && child < end;
         child = t.next_child(node, child, &reported)) {
      const int64_t token = t.draft_token(child);
      if (in_vocab(t, token)) tokens[count++] = static_cast<int32_t>(token);
    }
    return {tokens, count};
  }

  // W and R of a node's row pair; the children before `child` were tried.
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
  PathEntry* path_entries = nullptr;  // by depth; null unless the walk stores its path
  float* cells = nullptr;             // the cells of their targets
  int32_t at = kNoNode, at_depth = 0;
  bool read_whole = false;  // whether the walk used all of both rows: the status of rows of probabilities counts then
  int32_t depth = 0;        // the walk's depth, which may be beyond at_depth
  Filter target_filter, draft_filter;
  LawRow target = {}, draft = {};  // the rows of node `at`
};

// Walks by rejection. Each step is decided by bounds, and exactly only where these do not suffice.
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
  ops.store_path();
  const bool through = walk_back(t, t.p.method, ops, at, status);
  *status |= ops.status();
  return through;
}

// Walks request `b` and writes its verdict.
template <class Topology>
inline void verify_request(const typename Topology::Params& p, int64_t b, const ThreadTeam& team) {
  const Topology t(p, b);
  const VerdictWriter verdict = verdict_at(p, b);
  for (int32_t depth = 0; depth < verdict.columns; ++depth) verdict.clear(depth);
  for (int32_t node = 0; node < verdict.zeroed_nodes(); ++node) verdict.zero(node);
  Walk at = walk_from(0, 0);
  int32_t status = t.status;
  if (!traverse_by_bounds(t, b, verdict, team, &at, &status)) {
    at = walk_from(0, 0), status = t.status;
    WalkOps<Topology> ops(t, b, verdict, team);
    if (goes_back(p.method)) ops.store_path();
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
