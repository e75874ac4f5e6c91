// Walks of requests whose rows lie in parts on several devices. Tables hold p and q of every draft, the status of every
// row, and the winners. A walk that needs a sum over a pair of rows reads it from the table of answers, or writes a
// request for it and stops. All parts then add up their sums, and the op is called again. It walks from the start each
// time, which takes a few look-ups.
#pragma once

#include "c/sharded.h"
#include "chain.h"
#include "tree.h"

SPECDEC_BEGIN

// The fields that a chain or a tree reads during its walk. A row's offset is its index among all rows of the target.
SPECDEC_HD ChainParams walked_as(const WalkTablesParams& p, const ChainRequest*) {
  ChainParams w = {};
  w.cu_drafts = p.cu_drafts;
  w.draft_prob = p.draft_prob, w.epsilon = p.epsilon;
  w.target.request_stride = p.tokens.columns;
  return w;
}
SPECDEC_HD TreeParams walked_as(const WalkTablesParams& p, const TreeRequest*) {
  TreeParams w = {};
  w.parents = p.parents;
  w.replacement = p.replacement;
  w.target.rows = w.target.request_stride = p.draft_tokens.slots;
  return w;
}
template <class Topology>
SPECDEC_HD typename Topology::Params walked(const WalkTablesParams& p) {
  typename Topology::Params w = walked_as(p, static_cast<const Topology*>(nullptr));
  w.draft_tokens = p.draft_tokens;
  w.target.row_stride = 1;
  w.target.vocab = static_cast<int32_t>(p.vocab);
  w.draft.data = p.q_of_drafts.data;
  w.request_index = p.request_index;
  w.target_law.temperature = p.temperature;
  w.draft_law.temperature.value = 1.0f;
  w.noise = p.noise;
  w.tokens = p.tokens;
  w.path = p.path;
  w.num_accepted = p.num_accepted, w.status = p.status;
  return w;
}

SPECDEC_HD int64_t first_draft_of(const ChainRequest& t, int64_t b) {
  return t.p.cu_drafts.data ? t.first_prob : b * t.p.max_drafts();
}
SPECDEC_HD int64_t first_draft_of(const TreeRequest& t, int64_t b) { return b * t.nodes(); }

// q in the units of the answers' sums.
SPECDEC_HD int64_t units_of(float q) {
  UnitSum<float> sum;
  sum.take(q);
  return static_cast<int64_t>(units_of(sum.high, sum.low));
}

// The row operations of a walk by tables.
template <class Topology>
class TableOps {
 public:
  using Number = float;
  static constexpr bool kSumsBuckets = false;

  SPECDEC_HD TableOps(const WalkTablesParams& params, const Topology& topology, const VerdictWriter& verdict,
                      int64_t request)
      : p(params), t(topology), out(verdict), b(request), first_draft(first_draft_of(t, b)) {}

  SPECDEC_HD bool argmax(int32_t node, Draw* draw) {
    const int64_t row = t.target_row(node);
    const int32_t winner = p.winners.data ? static_cast<int32_t>(p.winners.at(row * p.winners.slot_stride)) : 0;
    *draw = {winner < 0 ? 0 : winner, p.row_status.data[row], winner < 0};
    return true;
  }
  SPECDEC_HD bool is_empty(int32_t node, bool* empty) {
    *empty = !(p.row_stats.data[2 * t.target_row(node) + 1] < kInfinity);
    return true;
  }
  // The race's winners are in a table. With the other methods this is the last token, which another op draws later.
  SPECDEC_HD bool race(int32_t node, const Noise&, Draw* draw) {
    if (p.method == SPECDEC_RACE) return argmax(node, draw);
    last = node, refused = false, last_scale = 1.0f;
    *draw = {0, p.row_status.data[t.target_row(node)], false};
    return true;
  }
  SPECDEC_HD bool residual(int32_t node, const Noise&, float subtracted, Draw* draw) {
    last = node, refused = true, last_scale = t.has_draft() ? subtracted : 1.0f;
    *draw = {0, status_of(node), false};
    return true;
  }
  SPECDEC_HD bool laws(int32_t node, int32_t token, float* p_of_token, float* q_of_token, int32_t* status) {
    const int32_t child = child_of(node, token);
    *p_of_token = p.p_of_drafts.data[t.target_row(child - kShift)];
    *q_of_token = t.has_draft() ? q_of(child) : 1.0f;
    *status |= status_of(node);
    return true;
  }
  SPECDEC_HD bool masses(int32_t node, int32_t child, float subtracted, Masses* m) {
    const int64_t pair = b * p.requested_subtracted.columns + child - 1;
    const int64_t residual_mass = answer(2 * pair);
    if (residual_mass < 0) {
      p.requested_rows.data[2 * pair] = static_cast<int32_t>(t.target_row(node));
      p.requested_rows.data[2 * pair + 1] = static_cast<int32_t>(draft_row(node));
      p.requested_subtracted.data[pair] = subtracted;
      return false;
    }
    int64_t untried_mass = answer(2 * pair + 1);
    if constexpr (Topology::kSiblings) {
      int32_t reported = SPECDEC_STATUS_OK;
      for (int32_t elder = t.next_child(node, node, &reported); elder != kNoNode && elder < child;
           elder = t.next_child(node, elder, &reported)) {
        const int64_t token = t.draft_token(elder);
        if (in_vocab(t, token) && !t.has_elder(node, elder, token, &reported)) untried_mass -= units_of(q_of(elder));
      }
    }
    *m = {sum_of_units(static_cast<uint64_t>(residual_mass)), sum_of_units(static_cast<uint64_t>(untried_mass)),
          status_of(node)};
    return true;
  }

  SPECDEC_HD void emit(int32_t depth, int32_t node, int32_t token) { out.put(depth, node, token); }
  SPECDEC_HD void enter(int32_t, int32_t, int32_t) {}
  SPECDEC_HD void leave(int32_t, int32_t, int32_t) {}
  SPECDEC_HD const PathNode<float>& path(int32_t depth) const { return nodes()[depth]; }
  SPECDEC_HD void put(int32_t depth, const PathNode<float>& node) { nodes()[depth] = node; }

  SPECDEC_HD void clear() const {
    for (int32_t depth = 0; depth < out.columns; ++depth) out.clear(depth);
  }
  SPECDEC_HD void clear_requests() const {
    const int64_t columns = p.requested_subtracted.columns;
    for (int64_t i = b * columns; p.requested_rows.data && i < (b + 1) * columns; ++i) {
      p.requested_rows.data[2 * i] = p.requested_rows.data[2 * i + 1] = -1;
      p.requested_subtracted.data[i] = 0.0f;
    }
  }

  // Writes which rows the last token is drawn from, if it is still to be drawn.
  SPECDEC_HD void put_last(int32_t depth) const {
    if (!p.row.data) return;
    const bool drawn = last != kNoNode;
    const int64_t row = drawn ? t.target_row(last) : -1, beside = drawn && refused ? draft_row(last) : -1;
    p.row.data[b] = static_cast<int32_t>(row);
    p.draft_row.data[b] = static_cast<int32_t>(beside);
    p.subtracted.data[b] = drawn ? last_scale : 1.0f;
    p.slot.data[b] = drawn ? depth : 0;
    const bool has_law = p.draft_row_stats.data && beside >= 0 && 2 * beside < p.draft_row_stats.size;
    for (int i = 0; i < 2; ++i) {
      const float target_stat = drawn ? p.row_stats.data[2 * row + i] : 0.0f;
      p.laws.data[4 * b + i] = target_stat;
      p.laws.data[4 * b + 2 + i] = has_law ? p.draft_row_stats.data[2 * beside + i] : target_stat;
    }
    if (!p.excluded.data) return;
    int32_t* const excluded = p.excluded.data + b * p.excluded.columns;
    int32_t count = 0, reported = SPECDEC_STATUS_OK;
    if (drawn && refused)
      for (int32_t child = t.next_child(last, last, &reported); child != kNoNode;
           child = t.next_child(last, child, &reported))
        if (in_vocab(t, t.draft_token(child))) excluded[count++] = static_cast<int32_t>(t.draft_token(child));
    while (count < p.excluded.columns) excluded[count++] = -1;
  }
  SPECDEC_HD void forget_last() { last = kNoNode; }

 private:
  static constexpr int32_t kShift = Topology::kSiblings ? 0 : 1;  // a chain's tables begin with its first draft

  SPECDEC_HD PathNode<float>* nodes() const {
    static_assert(sizeof(PathNode<float>) == 8 * sizeof(int32_t));
    return reinterpret_cast<PathNode<float>*>(p.memory.data + 8 * out.columns * b);
  }
  SPECDEC_HD float q_of(int32_t child) const { return p.q_of_drafts.data[first_draft + child - kShift]; }
  SPECDEC_HD int64_t answer(int64_t i) const { return p.answers.at(i * p.answers.slot_stride); }
  SPECDEC_HD int64_t draft_row(int32_t node) const {
    const int64_t draft = first_draft + node;
    return p.draft_row_indices.data ? p.draft_row_indices.at(draft * p.draft_row_indices.slot_stride) : draft;
  }
  SPECDEC_HD int32_t status_of(int32_t node) const {
    return p.row_status.data[t.target_row(node)] |
           (p.draft_row_status.data ? p.draft_row_status.data[first_draft + node] : SPECDEC_STATUS_OK);
  }
  // The first child with this token; p and q are equal for all that have it.
  SPECDEC_HD int32_t child_of(int32_t node, int32_t token) const {
    int32_t reported = SPECDEC_STATUS_OK, child = t.next_child(node, node, &reported);
    while (t.draft_token(child) != token) child = t.next_child(node, child, &reported);
    return child;
  }

  const WalkTablesParams& p;
  const Topology& t;
  const VerdictWriter& out;
  const int64_t b;
  const int64_t first_draft;  // among all drafts: the one after node 0, or of a tree node 0 itself
  int32_t last = kNoNode;     // the node after which a token is still to be drawn
  bool refused = false;       // whether that token is drawn from the residual
  float last_scale = 1.0f;
};

// Requests the sums that the walk may need later, so that one round answers them, too: traversal those at the nodes of
// its path, to which it may go back; other walks those of the nodes below. None of them depends on the missing answer.
template <class Topology>
SPECDEC_HD void request_ahead(const Topology& t, TableOps<Topology>& ops, int32_t method, Walk at) {
  int32_t reported = SPECDEC_STATUS_OK;
  if (method == SPECDEC_TRAVERSAL) {
    while (at.depth > 0) {
      const PathNode<float> leaf = ops.path(at.depth), parent = ops.path(at.depth - 1);
      at = walk_from(parent.node, at.depth - 1);
      take_off(t, ops, at.depth, parent, leaf);
      if (walk_traversal(t, ops, &at, &reported)) return;
    }
  } else if constexpr (Topology::kSiblings) {
    for (int32_t node = at.node + 1; node < t.nodes(); ++node) {
      int32_t depth = at.depth, above = node, child;
      for (; above > at.node; ++depth) above = t.parent(above, &reported);
      if (above != at.node) continue;
      Walk there = walk_from(node, depth);
      try_children(t, ops, &there, &child, &reported);
    }
  }
}

// Walks request b, and writes its verdict or its requests for sums.
template <class Topology>
SPECDEC_HD void walk_by_tables(const WalkTablesParams& p, int64_t b) {
  const typename Topology::Params params = walked<Topology>(p);
  const Topology t(params, b);
  const VerdictWriter out = verdict_at(params, b);
  TableOps<Topology> ops(p, t, out, b);
  ops.clear();
  ops.clear_requests();
  if (p.method == SPECDEC_TRAVERSAL) ops.put(0, path_node<float>(0));
  Walk at = walk_from(0, 0);
  int32_t status = t.status;
  const bool ended = walk(t, p.method, ops, &at, &status);
  if (!ended) {
    request_ahead(t, ops, p.method, at);
    ops.clear();
    ops.forget_last();
  }
  out.count(ended ? accepted_by(t, at) : 0, ended ? status : SPECDEC_STATUS_OK);
  ops.put_last(at.depth);
}

SPECDEC_HD void walk_tables_at(const WalkTablesParams& p, int64_t b) {
  if (p.parents.data) walk_by_tables<TreeRequest>(p, b);
  else walk_by_tables<ChainRequest>(p, b);
}

SPECDEC_END
