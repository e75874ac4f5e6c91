// Walks over the rows of one request. They have three parts, which do not depend on each other:
//
//   a topology        which drafts follow which: a chain (chain.h) or a tree (tree.h)
//   a rule            what is decided at a row: walk_race, walk_rejection, walk_traversal and walk_paths below
//   row operations    `Ops`, one per backend: for one thread, a block, a cluster
//
// Rows are wide; a walk is short and sequential. Node 0 is the last committed token, every other node is a draft, and
// row i is the law of the token after node i, whichever topology it is.
//
// A topology is a WalkRequest that also gives
//   kSiblings                           whether a node may have more than one child
//   int64_t target_row(node), draft_row(node)   where the node's rows start, in elements
//   int32_t vocab() const
//   bool has_draft() const              whether there are draft laws; without them a draft is certain (one-hot)
//   bool replacement() const            whether siblings were drawn with replacement
//   Noise race_noise(node, depth)       noise of the race that decides the token after the node
//   int32_t max_depth() const           the outputs have no column for deeper drafts, which count as absent
//   int32_t drafts() const              how many nodes there may be beside the root
//   float epsilon() const
//   float draft_prob_at(node, status*)    h, the probability that a draft was made after this node
//   int32_t next_child(node, after, status*)   the first child of `node` with an index above `after`, or kNoNode
//   int64_t draft_token(node)           -1: absent
//   bool has_elder(node, child, token, status*)   whether a child of `node` before `child` has this token, too
//   RowIndex target_index(b, node)      the node's row among the target's rows, for request b
//   bool has_bonus(node), int64_t bonus_token()   chains only: whether the token after this node comes with the call,
//   so
//                                       that the node has no row; and that token
//
// Ops gives, for the rows of a node,
//   bool argmax(node, Draw*)                   the most probable token
//   bool race(node, noise, Draw*)              a token from p
//   bool is_empty(node, bool*)                 whether no token of the target's row has weight
//   bool laws(node, token, p*, q*, status*)    p(token), q(token) (1 without draft laws), and status bits of the rows;
//                                              p is kNever for a token that the target's filters took out
//   bool masses(node, child, subtracted, Masses*)   sums over both rows; the children before `child` were tried
//   bool residual(node, noise, subtracted, Draw*)   a token from norm((p - subtracted q)^+); without draft laws from p,
//                                              less the tokens of the node's children
//   void emit(depth, node, token)              writes the token decided after `node`
//   void enter(depth, node, token)             goes on to this draft, from its parent at `depth`
//   kSumsBuckets                               whether it has what walk_paths needs
// walk_traversal goes back, too. It needs
//   Number                                     float; or Range, where p, q and the sums are bounds
//   PathNode<Number> path(depth)               the node at this depth of the path
//   void put(depth, PathNode<Number>)
//   void leave(depth, node, token)             goes back from this draft to its parent at `depth`
// walk_paths needs all that, and from the topology
//   int32_t chains() const                     how many chains were drafted
//   int32_t leaf(chain, status*)               the node where one ends, or kNoNode
//   int32_t child_toward(node, leaf, status*)  the child of `node` on the way to a leaf, or kNoNode
// and of Ops
//   bool look(node, chains, weight, Look*, status*)   how many of these chains to look at. After the call
//                                              bucket_scale(p, q) q replaces q in this node's sums and its residual
//   float bucket_scale(p, q)                   for the walk's current node; 1 if look was not called for it
// An operation returns false while its value is not computed, and the rule then returns false as well. The backend
// computes the value and calls the rule again with the same `Walk`, which requests the same value again. A rule returns
// true when the walk has ended: then Walk::depth drafts were accepted.
//
// Where p, q and weights are Ranges, walk_paths looks only where they are exact, and calls bucket_scale(p, q) for exact
// rows alone. walk_rejection of a WalkOf<Range> requests laws, masses and a residual as ranges, too.
#pragma once

#include "accept.h"
#include "law.h"
#include "paths.h"
#include "race.h"
#include "request.h"
#include "traversal.h"

SPECDEC_BEGIN

constexpr int32_t kNoNode = -1;

// A request and a row of it. With ragged rows `outer` is 0, and `inner` counts the rows of all requests.
struct RowIndex {
  int64_t outer, inner;
};

// One request, decoded: the part that all topologies share.
struct WalkRequest {
  int64_t first_target, first_draft;          // offsets of row 0, in elements
  Noise noise;                                // decides the token after node 0
  Law target_law, draft_law;
  int32_t status;
  bool readable;  // false: the request is idle, or its arguments point outside of their arrays; nothing is read
  bool idle;      // -1 drafts are accepted, and no token is written

  SPECDEC_HD Noise noise_at_depth(int32_t depth, uint32_t stream) const { return later(noise, depth, stream); }

 protected:
  // The race at a node of request b; row_seeds, where the call has them, replace the request's seed.
  SPECDEC_HD Noise noise_of_race(const Tokens& seeds, int64_t b, int32_t node, int32_t depth) const {
    if (!seeds.data) return noise_at_depth(depth, kStreamRace);
    return {key_of(seeds.at(b * seeds.request_stride + node * seeds.slot_stride)), 0, 0, kStreamRace};
  }
};

// Writes the verdict of one request. Without an index a token's column is its depth, and the path holds nodes. With one
// all requests write to one row, index[node] is the column of the token after the node, and the path holds columns.
struct VerdictWriter {
  specdec_output_tokens tokens;
  Tokens index;
  int32_t* path;  // null: not an output of this call
  int32_t *num_accepted, *status;
  int64_t request, output_format;
  int32_t columns;

  SPECDEC_HD void put(int32_t depth, int32_t node, int64_t token) const {
    if (!index.data) {
      write(tokens.offset(request, depth), token);
      if (path) path[depth] = node;
      return;
    }
    const int32_t column = column_of(node);
    if (column >= 0) write(tokens.offset(0, column), token);
    path[depth] = column;
  }

  // Fills a depth behind the last token.
  SPECDEC_HD void clear(int32_t depth) const {
    if (!index.data) write(tokens.offset(request, depth), output_format & SPECDEC_ZEROS ? 0 : -1);
    if (path) path[depth] = -1;
  }

  // How many nodes get token 0 in their columns if they are not on the path: all of them, or none.
  SPECDEC_HD int32_t zeroed_nodes() const { return index.data && output_format & SPECDEC_ZEROS ? index.slots : 0; }

  // Called before the walk; zero_off_path afterwards, once the path is written.
  SPECDEC_HD void zero(int32_t node) const {
    const int32_t column = column_of(node);
    if (column >= 0) write(tokens.offset(0, column), 0);
  }

  SPECDEC_HD void zero_off_path(int32_t node, int32_t accepted) const {
    const int32_t column = column_of(node);
    for (int32_t depth = 0; depth <= accepted; ++depth)
      if (path[depth] == column) return;
    if (column >= 0) write(tokens.offset(0, column), 0);
  }

  // Writes how many drafts were accepted, -1 for an idle request. Called by the thread that wrote the path.
  SPECDEC_HD void count(int32_t accepted, int32_t bits) const {
    for (int32_t depth = 0; index.data && depth <= accepted; ++depth)
      if (path[depth] < 0) bits |= SPECDEC_STATUS_PARAMETER;
    *status = bits;
    const int32_t counted = accepted + (output_format & SPECDEC_EMITTED ? 1 : 0);
    if (!(output_format & SPECDEC_ADDED)) *num_accepted = counted;
    else if (counted > 0) *num_accepted += counted;
  }

 private:
  // The node's column; -1 if the index points outside of the tokens.
  SPECDEC_HD int32_t column_of(int32_t node) const {
    const int64_t column = index.at(request * index.request_stride + node * index.slot_stride);
    return column >= 0 && column < tokens.columns ? static_cast<int32_t>(column) : -1;
  }
  SPECDEC_HD void write(int64_t at, int64_t token) const {
    if (tokens.narrow) static_cast<int32_t*>(tokens.data)[at] = static_cast<int32_t>(token);
    else static_cast<int64_t*>(tokens.data)[at] = token;
  }
};

// The state of a walk: a node, and which of its children were tried. `Number` is float, or Range for bounds.
template <class Number>
struct WalkOf {
  int32_t node, depth;
  int32_t after;      // the child tried last; the node itself before the first
  bool tried;         // whether any child was tried
  Number subtracted;  // the multiple of q that was subtracted from p so far: T_m below
  Number scale;  // the multiple of q that the next child is tested with; one-hot drafts: p's mass on tokens not tried
};
using Walk = WalkOf<float>;

// How many drafts were accepted if the walk ended at `at`.
SPECDEC_HD int32_t accepted_by(const WalkRequest& r, const Walk& at) { return r.idle ? -1 : at.depth; }

template <class Number = float>
SPECDEC_HD WalkOf<Number> walk_from(int32_t node, int32_t depth) {
  WalkOf<Number> at = {node, depth, node, false, {}, {}};
  set(&at.scale, 1.0f);
  return at;
}

// Replaces p for a token that the filters remove: over-acceptance adds 1 at most, so it cannot accept the token.
constexpr float kNever = -1.0f;

template <class Topology>
SPECDEC_HD bool in_vocab(const Topology& t, int64_t token) { return token >= 0 && token < t.vocab(); }

// The next child that is not absent; kNoNode if there is none.
template <class Topology, class Number>
SPECDEC_HD int32_t next_draft(const Topology& t, const WalkOf<Number>& at, int32_t after, int32_t* status) {
  int32_t child = t.next_child(at.node, after, status);
  while (child != kNoNode && t.draft_token(child) == -1) child = t.next_child(at.node, child, status);
  if (child == kNoNode || at.depth < t.max_depth()) return child;
  *status |= SPECDEC_STATUS_PARAMETER;
  return kNoNode;
}

// ---- rows without weight --------------------------------------------------------------------------------------------

// A target row in which no token has weight ends the chain or branch: the drafts after its node count as absent.
// Grammars write such rows behind a stop token. If these drafts counted with probability 0, the rules that look ahead
// (traversal, paths) would refuse the tokens before them, and the target's law would be lost.

// Whether the drafts after `node` count as absent. `p` belongs to one of them, if it is a token of the vocabulary: only
// where p is 0 does the row have to be scanned.
template <class Ops, class Number>
SPECDEC_HD bool ends_at(Ops& ops, int32_t node, bool in_range, const Number& p, bool* ends) {
  *ends = false;
  return (in_range && low(p) > 0.0f) || ops.is_empty(node, ends);
}

// Passes over the drafts from `child` on, which count as absent, so that faults of the tree itself are still reported.
template <class Topology, class Number>
SPECDEC_HD void skip_drafts(const Topology& t, const WalkOf<Number>& at, int32_t child, int32_t* status) {
  while (child != kNoNode) child = next_draft(t, at, child, status);
}

// ---- race -----------------------------------------------------------------------------------------------------------

// The first child with this token, kNoNode if there is none.
template <class Topology>
SPECDEC_HD int32_t child_with(const Topology& t, const Walk& at, int32_t token, int32_t* status) {
  int32_t child = next_draft(t, at, at.node, status);
  for (; child != kNoNode; child = next_draft(t, at, child, status)) {
    const int64_t drafted = t.draft_token(child);
    if (drafted == token) break;
    if (!in_vocab(t, drafted)) *status |= SPECDEC_STATUS_TOKEN_RANGE;
  }
  return child;
}

// Draws the bonus token, if the token after the node comes with the call. A token out of range becomes token 0.
template <class Topology>
SPECDEC_HD bool bonus_given(const Topology& t, int32_t node, Draw* draw) {
  if constexpr (!Topology::kSiblings) {
    if (!t.has_bonus(node)) return false;
    const int64_t token = t.bonus_token();
    *draw = in_vocab(t, token) ? Draw{static_cast<int32_t>(token), SPECDEC_STATUS_OK, false}
                               : Draw{0, SPECDEC_STATUS_PARAMETER, false};
    return true;
  }
  return false;
}

// The target's token decides: the winner of the race that the draft took part in, or the argmax at temperature 0.
template <class Topology, class Ops>
SPECDEC_HD bool walk_race(const Topology& t, Ops& ops, Walk* at, int32_t* status) {
  for (;;) {
    Draw draw;
    const bool decided = bonus_given(t, at->node, &draw) ||
                       (t.target_law.greedy ? ops.argmax(at->node, &draw)
                                            : ops.race(at->node, t.race_noise(at->node, at->depth), &draw));
    if (!decided) return false;
    *status |= draw.status;
    int32_t child = kNoNode;
    if (draw.empty) skip_drafts(t, *at, at->node, status);
    else child = child_with(t, *at, draw.token, status);
    ops.emit(at->depth, at->node, draw.token);
    if (child == kNoNode) return true;
    ops.enter(at->depth, child, draw.token);
    *at = walk_from(child, at->depth + 1);
  }
}

// ---- rejection ------------------------------------------------------------------------------------------------------

// Sampling without replacement accepts the m-th child tried at a node if u q^m(x) < p^m(x), where
//   p^1 = p, p^{m+1} = norm((p^m - q^m)^+),   q^1 = q, q^{m+1} = norm(q^m without the token tried).
// None of these laws has to be stored. On tokens not tried q^m = q / R_m, where R_m is the mass of q on them. And
// (a^+ - b)^+ = (a - b)^+ for b >= 0, so all the subtractions add up to one multiple of q:
//   p^m = (p - T_m q)^+ / W_m,   T_1 = 0,   T_{m+1} = T_m + W_m / R_m,   W_m = sum (p - T_m q)^+,   W_1 = R_1 = 1.
// A token that was tried has p^m = 0 from then on. So the test is u (W_m / R_m) q(x) < p(x) - T_m q(x), and after the
// last child the law left is norm((p - T q)^+). With replacement R_m = 1 throughout. If a draft is made only with
// probability h, h q replaces q for the first child. A chain has no second child.

// Tries the children after at->after, in order. *accepted is the first that passes, or kNoNode.
template <class Topology, class Ops, class Number>
SPECDEC_HD bool try_children(const Topology& t, Ops& ops, WalkOf<Number>* at, int32_t* accepted, int32_t* status) {
  const bool has_draft = t.has_draft(), repeats = has_draft && t.replacement();
  const int32_t node = at->node;
  *accepted = kNoNode;
  for (int32_t child = next_draft(t, *at, at->after, status); child != kNoNode;
       child = next_draft(t, *at, child, status)) {
    const int64_t token = t.draft_token(child);
    const bool in_range = in_vocab(t, token);
    Number scale = at->scale;
    if (!at->tried) set(&scale, t.draft_prob_at(node, status));
    if constexpr (Topology::kSiblings) {
      // A second child with the same token cannot come from q^m, which no longer holds it. Subtracting it again would
      // bias the result.
      if (at->tried && !repeats && in_range && t.has_elder(node, child, token, status)) continue;
      if (at->tried && has_draft) {
        SumsOf<Number> m;
        if (!ops.masses(node, child, at->subtracted, &m)) return false;
        *status |= m.status;
        if (repeats) set(&m.untried_mass, 1.0f);
        scale = draft_scale(m.residual_mass, m.untried_mass);
      }
    }
    Number p = {}, q = {};
    int32_t bits = in_range ? SPECDEC_STATUS_OK : SPECDEC_STATUS_TOKEN_RANGE;
    if (in_range && !ops.laws(node, static_cast<int32_t>(token), &p, &q, &bits)) return false;
    if (!at->tried) {
      bool ends;
      if (!ends_at(ops, node, in_range, p, &ends)) return false;
      if (ends) {
        skip_drafts(t, *at, child, status);
        return true;
      }
    }
    *status |= bits;
    if (in_range) {
      const AcceptTestOf<Number> test = {t.noise_at_depth(at->depth, 0), static_cast<uint32_t>(child - 1),
                                         at->subtracted, scale, t.epsilon()};
      bool passed;
      if (!test.decided(p, q, &passed)) return false;
      if (passed) {
        *accepted = child;
        return true;
      }
    }
    at->after = child;
    at->tried = true;
    if (has_draft) at->subtracted = subtracted_after(at->subtracted, scale);
    else at->scale = untried_after(scale, p);
  }
  return true;
}

// The token after a node if none of its children was accepted.
template <class Topology, class Ops, class Number>
SPECDEC_HD bool draw_instead(const Topology& t, Ops& ops, const WalkOf<Number>& at, Draw* draw, int32_t* status) {
  if (bonus_given(t, at.node, draw)) return true;
  const Noise noise = t.noise_at_depth(at.depth, kStreamResidual);
  Number subtracted = at.subtracted;
  if (!at.tried) set(&subtracted, t.draft_prob_at(at.node, status));
  // Where a draft could have been made but was not (h < 1), the token is drawn as after a rejected draft.
  if (at.tried || low(subtracted) < 1.0f) return ops.residual(at.node, noise, subtracted, draw);
  return ops.race(at.node, noise, draw);
}

// Accepts a draft with probability min(1, p / q), and draws from what is left of p if it accepts none. With `one_step`
// the walk takes one node; it has ended if it is still there.
template <class Topology, class Ops, class Number>
SPECDEC_HD bool walk_rejection(const Topology& t, Ops& ops, WalkOf<Number>* at, int32_t* status, bool one_step = false) {
  for (;;) {
    int32_t child;
    if (!try_children(t, ops, at, &child, status)) return false;
    if (child == kNoNode) {
      Draw draw;
      if (!draw_instead(t, ops, *at, &draw, status)) return false;
      *status |= draw.status;
      ops.emit(at->depth, at->node, draw.token);
      return true;
    }
    const int32_t token = static_cast<int32_t>(t.draft_token(child));
    ops.emit(at->depth, at->node, token);
    ops.enter(at->depth, child, token);
    *at = walk_from<Number>(child, at->depth + 1);
    if (one_step) return true;
  }
}

// ---- traversal ------------------------------------------------------------------------------------------------------

// Traversal verification; block verification on a chain. Leaves are tried, from the bottom up. A node on the path from
// the root has its laws p^m and q^m, as for rejection, and a weight: of the root 1, of a child with token x under a
// node of weight a
//   min(1, a p^m(x) / q^m(x)).
// The walk goes to the first child that is left, again and again. The leaf it comes to is accepted, with its path, with
// probability a, and the token after it drawn from its p^m. Else the leaf is taken off: for its parent, of weight a,
//   p^{m+1} = norm((a p^m - q^m)^+),   a' = s / (s + 1 - a),   s = sum (a p^m - q^m)^+.
// With W, R and T as above, (a p^m - q^m)^+ = a / W_m (p - T_{m+1} q)^+, where T_{m+1} = T_m + W_m / (a R_m), and
// s = a W_{m+1} / W_m. Sums are taken late, since many are never needed: a node of weight 1 stays at 1, weights do not
// grow, and a uniform that refuses a leaf by its earlier weight refuses it by the later one. Nothing below a node of
// weight 0 can be accepted: it counts as a leaf.

// A node on the path. The root's is never a leaf to be refused.
template <class Number>
struct PathNode {
  int32_t node, after;  // the child taken off last; the node itself before the first
  bool summed;          // whether the weight and the sums below include that child
  // a, T, W, R. With one-hot drafts W is the mass of p on tokens not tried.
  Number weight, subtracted, residual_mass, untried_mass;
  Number p;  // probability of its token under its parent, for one-hot drafts
};

template <class Number>
SPECDEC_HD PathNode<Number> path_node(int32_t node) {
  PathNode<Number> fresh = {};
  fresh.node = fresh.after = node;
  fresh.summed = true;
  set(&fresh.weight, 1.0f), set(&fresh.residual_mass, 1.0f), set(&fresh.untried_mass, 1.0f);
  return fresh;
}

// Takes the sums that are still missing, and updates the node's weight.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool sum_up(const Topology& t, Ops& ops, int32_t depth, Node* current, int32_t* status) {
  if (current->summed) return true;
  SumsOf<typename Ops::Number> sums;
  if (!ops.masses(current->node, current->after + 1, current->subtracted, &sums)) return false;
  *status |= sums.status;
  current->weight = weight_after(current->weight, current->residual_mass, sums.residual_mass);
  current->residual_mass = sums.residual_mass;
  if (Topology::kSiblings && !t.replacement()) current->untried_mass = sums.untried_mass;
  current->summed = true;
  ops.put(depth, *current);
  return true;
}

// The first child of a node that was not taken off, kNoNode if there is none.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool first_left(const Topology& t, Ops& ops, const Walk& at, Node* current, int32_t* child,
                           int32_t* status) {
  *child = next_draft(t, at, current->after, status);
  if (!Topology::kSiblings || current->after == current->node) return true;
  if constexpr (Topology::kSiblings) {
    const bool repeats = t.has_draft() && t.replacement();
    while (*child != kNoNode && !repeats && in_vocab(t, t.draft_token(*child)) &&
           t.has_elder(at.node, *child, t.draft_token(*child), status))
      *child = next_draft(t, at, *child, status);
  }
  if (*child == kNoNode) return true;
  bool weighs;
  if (!sum_up(t, ops, at.depth, current, status) || !decide_at_least(current->weight, kSmallest, &weighs)) return false;
  if (!weighs) *child = kNoNode;
  return true;
}

// scale(p, q) is the multiple of q that a token was drawn with. *ends: the child counts as absent.
template <class Topology, class Ops, class Node, class Scale>
SPECDEC_HD bool weigh_child(const Topology& t, Ops& ops, const Node& current, Node* child, Scale&& scale, bool* ends,
                            int32_t* status) {
  const int64_t token = t.draft_token(child->node);
  const bool in_range = in_vocab(t, token);
  int32_t bits = in_range ? SPECDEC_STATUS_OK : SPECDEC_STATUS_TOKEN_RANGE;
  typename Ops::Number q = {};
  set(&child->weight, 0.0f);
  if (in_range && !ops.laws(current.node, static_cast<int32_t>(token), &child->p, &q, &bits)) return false;
  *ends = false;
  if (current.after == current.node && !ends_at(ops, current.node, in_range, child->p, ends)) return false;
  if (*ends) return true;
  *status |= bits;
  if (in_range) child->weight = child_weight(current.weight, child->p, q, current.subtracted, scale(child->p, q));
  return true;
}

template <class Topology, class Ops, class Node>
SPECDEC_HD void take_off(const Topology& t, Ops& ops, int32_t depth, Node current, const Node& leaf) {
  current.after = leaf.node;
  if (t.has_draft()) {
    current.subtracted =
        subtracted_after(current.subtracted, draft_scale(current.residual_mass, current.untried_mass), current.weight);
    current.summed = false;
  } else {
    const auto residual_mass = untried_after(current.residual_mass, leaf.p);
    current.weight = weight_after(current.weight, current.residual_mass, residual_mass);
    current.residual_mass = residual_mass;
  }
  ops.put(depth, current);
}

// Draws the token after the leaf `current`, and writes the leaf's path.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool accept_path(const Topology& t, Ops& ops, const Walk& at, const Node& current, int32_t* status) {
  const Noise noise = t.noise_at_depth(at.depth, kStreamResidual);
  Draw draw;
  const bool decided = bonus_given(t, at.node, &draw) || (current.after == current.node
                                                      ? ops.race(at.node, noise, &draw)
                                                      : ops.residual(at.node, noise, current.subtracted, &draw));
  if (!decided) return false;
  *status |= draw.status;
  int32_t node = 0;
  for (int32_t depth = 0; depth < at.depth; ++depth) {
    const int32_t next = ops.path(depth + 1).node;
    ops.emit(depth, node, static_cast<int32_t>(t.draft_token(next)));
    node = next;
  }
  ops.emit(at.depth, at.node, draw.token);
  return true;
}

// Whether the walk's current leaf is accepted with its path. The root always is.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool try_leaf(const Topology& t, Ops& ops, const Walk& at, Node* current, bool* accepted, int32_t* status) {
  *accepted = at.depth == 0;
  if (*accepted) return true;
  const float u = leaf_uniform(t.noise_at_depth(at.depth - 1, 0), at.node);
  if (!decide_above(current->weight, u, accepted)) return false;
  bool stays = current->summed || !*accepted;
  if (!stays && !decide_at_least(current->weight, 1.0f, &stays)) return false;
  return stays || (sum_up(t, ops, at.depth, current, status) && decide_above(current->weight, u, accepted));
}

// Goes on to a child of positive weight; takes off one of weight 0.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool go_down(const Topology& t, Ops& ops, Walk* at, const Node& current, const Node& child) {
  bool weighs;
  if (!decide_at_least(child.weight, kSmallest, &weighs)) return false;
  if (!weighs) {
    take_off(t, ops, at->depth, current, child);
    return true;
  }
  ops.enter(at->depth, child.node, static_cast<int32_t>(t.draft_token(child.node)));
  *at = walk_from(child.node, at->depth + 1);
  ops.put(at->depth, child);
  return true;
}

// Takes off the walk's current leaf, and goes back to its parent.
template <class Topology, class Ops, class Node>
SPECDEC_HD void go_back(const Topology& t, Ops& ops, Walk* at, const Node& leaf) {
  ops.leave(at->depth - 1, at->node, static_cast<int32_t>(t.draft_token(at->node)));
  const Node parent = ops.path(at->depth - 1);
  *at = walk_from(parent.node, at->depth - 1);
  take_off(t, ops, at->depth, parent, leaf);
}

// Accepts a draft only together with drafts before it, as far down the tree as their probabilities allow.
template <class Topology, class Ops>
SPECDEC_HD bool walk_traversal(const Topology& t, Ops& ops, Walk* at, int32_t* status) {
  using Number = typename Ops::Number;
  for (;;) {
    PathNode<Number> current = ops.path(at->depth);
    int32_t first;
    if (!first_left(t, ops, *at, &current, &first, status)) return false;
    if (first != kNoNode) {
      PathNode<Number> child = path_node<Number>(first);
      const auto scale = [&](const Number&, const Number&) {
        return t.has_draft() ? draft_scale(current.residual_mass, current.untried_mass) : current.residual_mass;
      };
      bool ends;
      if (!weigh_child(t, ops, current, &child, scale, &ends, status)) return false;
      if (!ends) {
        if (!go_down(t, ops, at, current, child)) return false;
        continue;
      }
      skip_drafts(t, *at, first, status);
    }
    bool accepted;
    if (!try_leaf(t, ops, *at, &current, &accepted, status)) return false;
    if (accepted) return accept_path(t, ops, *at, current, status);
    go_back(t, ops, at, current);
  }
}

// ---- paths ----------------------------------------------------------------------------------------------------------

// Several chains were drawn from the draft, independently of each other. The walk goes down from the root with those
// that begin alike. At a node from which m of them go on, it looks at the first j, and takes the token of the first
// that lies in the best bucket (paths.h). All chains with that token go on: their next tokens are still independent
// draws from q. So the taken token has the law q' = q G, where G depends on its bucket, and j is drawn without looking
// at the token. The chain taken in the end is verified as a block, with q' for q.

// The uniform that draws j, one a depth.
constexpr uint32_t kLookUniform = 1u << 31;

// A chain's draft after a node, kNoNode if the chain ends there or does not pass the node.
template <class Topology>
SPECDEC_HD int32_t next_of_chain(const Topology& t, int32_t node, int32_t chain, int32_t* status) {
  const int32_t child = t.child_toward(node, t.leaf(chain, status), status);
  return child != kNoNode && t.draft_token(child) != -1 ? child : kNoNode;
}

// How many chains go on from a node, 0 if the outputs have no column for their drafts.
template <class Topology>
SPECDEC_HD int32_t chains_from(const Topology& t, const Walk& at, int32_t* status) {
  int32_t count = 0;
  for (int32_t chain = 0; chain < t.chains(); ++chain) count += next_of_chain(t, at.node, chain, status) != kNoNode;
  if (count == 0 || at.depth < t.max_depth()) return count;
  *status |= SPECDEC_STATUS_PARAMETER;
  return 0;
}

// The first in the best bucket among the next drafts of the first chains. A draft of q = 0 comes after all others.
template <class Topology, class Ops>
SPECDEC_HD bool best_of_chains(const Topology& t, Ops& ops, int32_t node, int32_t chains, int32_t* best,
                               int32_t* status) {
  int32_t best_bucket = -2;
  for (int32_t chain = 0, looked = 0; looked < chains; ++chain) {
    const int32_t child = next_of_chain(t, node, chain, status);
    if (child == kNoNode) continue;
    ++looked;
    int32_t bucket = -1;
    const int64_t token = t.draft_token(child);
    if (chains > 1 && !in_vocab(t, token)) {
      *status |= SPECDEC_STATUS_TOKEN_RANGE;
    } else if (chains > 1) {
      typename Ops::Number p, q;
      if (!ops.laws(node, static_cast<int32_t>(token), &p, &q, status) || !is_exact(p) || !is_exact(q)) return false;
      if (low(q) > 0.0f) bucket = static_cast<int32_t>(find_bucket(max(low(p), 0.0f), low(q)));
    }
    if (bucket > best_bucket) *best = child, best_bucket = bucket;
  }
  return true;
}

template <class Topology, class Ops>
SPECDEC_HD bool walk_paths(const Topology& t, Ops& ops, Walk* at, int32_t* status) {
  using Number = typename Ops::Number;
  using Node = PathNode<Number>;
  for (;;) {
    Node current = ops.path(at->depth);
    const int32_t chains = current.after == current.node ? chains_from(t, *at, status) : 0;
    bool ends = chains == 0;
    if (chains > 1 && !ops.is_empty(at->node, &ends)) return false;
    if (!ends) {
      int32_t looked = 1, best = kNoNode;
      if (chains > 1) {
        Look look;
        if (!is_exact(current.weight) || !ops.look(at->node, chains, low(current.weight), &look, status)) return false;
        looked = look.chains(accept_uniform(t.noise_at_depth(at->depth, 0), kLookUniform));
      }
      if (!best_of_chains(t, ops, at->node, looked, &best, status)) return false;
      Node child = path_node<Number>(best);
      const auto scale = [&](const Number& p, const Number& q) {
        Number bucket;
        set(&bucket, ops.bucket_scale(max(low(p), 0.0f), low(q)));
        return bucket;
      };
      if (!weigh_child(t, ops, current, &child, scale, &ends, status)) return false;
      if (!ends) {
        if (!go_down(t, ops, at, current, child)) return false;
        continue;
      }
    }
    bool accepted;
    if (!try_leaf(t, ops, *at, &current, &accepted, status)) return false;
    if (accepted) return accept_path(t, ops, *at, current, status);
    go_back(t, ops, at, current);
  }
}

// ---- by method ------------------------------------------------------------------------------------------------------

// Whether a method's walk goes back up, so that the state of the path's rows has to be stored.
SPECDEC_HD bool goes_back(int32_t method) { return method == SPECDEC_TRAVERSAL || method == SPECDEC_PATHS; }

// The walk of such a method.
template <class Topology, class Ops>
SPECDEC_HD bool walk_back(const Topology& t, int32_t method, Ops& ops, Walk* at, int32_t* status) {
  if constexpr (Topology::kSiblings && Ops::kSumsBuckets)
    if (method == SPECDEC_PATHS) return walk_paths(t, ops, at, status);
  return walk_traversal(t, ops, at, status);
}

template <class Topology, class Ops>
SPECDEC_HD bool walk(const Topology& t, int32_t method, Ops& ops, Walk* at, int32_t* status) {
  if (!t.readable) {
    if (!t.idle) ops.emit(0, 0, 0);
    return true;
  }
  if (t.target_law.greedy || method == SPECDEC_RACE) return walk_race(t, ops, at, status);
  if (goes_back(method)) return walk_back(t, method, ops, at, status);
  return walk_rejection(t, ops, at, status);
}

SPECDEC_END
