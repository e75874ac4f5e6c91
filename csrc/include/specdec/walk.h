// Walks over the rows of one request. They have three parts, which do not depend on each other:
//
//   a topology        which drafts follow which: a chain (chain.h) or a tree (tree.h)
//   a rule            what is decided at a row: walk_race, walk_rejection, walk_traversal and walk_paths below
//   row operations    `Ops`, as a backend does them: by one thread, a block, a cluster
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
//   Noise race_noise(node, depth)       of the race that decides the token after the node
//   int32_t max_depth() const           the outputs have no place for deeper drafts: they count as absent
//   int32_t drafts() const              how many nodes there may be beside the root
//   float epsilon() const
//   float draft_share(node, status*)    h, the probability that a draft was made after this node
//   int32_t next_child(node, after, status*)   the first child of `node` with an index above `after`, or kNoNode
//   int64_t draft_token(node)           -1: absent
//   bool has_elder(node, child, token, status*)   whether a child of `node` before `child` has this token, too
//   RowPlace target_place(b, node)      of the node's row among the target's, if this is request b
//   bool is_given(node), int64_t given_token()   of a chain: whether the token after this node comes with the call, so
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
//   Number                                     float; or Range, where p, q and the sums are known by bounds
//   PathNode<Number> path(depth)               of the node at this depth of the path; the root's is root_of_path()
//   void put(depth, PathNode<Number>)
//   void leave(depth, node, token)             goes back from this draft to its parent at `depth`
// walk_paths needs all that, and of the topology
//   int32_t chains() const                     how many chains were drafted
//   int32_t leaf(chain, status*)               the node where one ends, or kNoNode
//   int32_t child_toward(node, leaf, status*)  the child of `node` on the way to a leaf, or kNoNode
// and of Ops
//   bool look(node, chains, weight, Look*, status*)   how many of these chains to look at. From now on share(p, q) q
//                                              stands in the place of q of this node, in its sums and its residual
//   float share(p, q)                          of the node that the walk is at; 1 if look was not called for it
// An operation returns false while its answer is not known. The rule then returns false as well. The backend finds the
// answer and calls the rule again with the same `Walk`: it asks the same question again. A rule returns true when the
// walk has ended: then Walk::depth drafts were accepted.
//
// Where p, q and weights are Ranges, walk_paths looks by what is exact alone, and share(p, q) is asked of exact rows.
// walk_rejection of a WalkOf<Range> asks for laws, masses and a residual by ranges, too.
//
// A new rule is one more function here; the others stay as they are.
#pragma once

#include "accept.h"
#include "law.h"
#include "paths.h"
#include "race.h"
#include "request.h"
#include "traversal.h"

SPECDEC_BEGIN

constexpr int32_t kNoNode = -1;

// A request and a row of it. Of ragged rows: 0, and a row among those of all requests.
struct RowPlace {
  int64_t outer, inner;
};

// One request, decoded: the part that all topologies share.
struct WalkRequest {
  int64_t first_target, first_draft;          // offsets of row 0, in elements
  Noise noise;                                // of the token after node 0
  Law target_law, draft_law;
  int32_t status;
  bool readable;  // false: the request is idle, or its arguments point outside of their arrays; nothing is read
  bool idle;      // -1 drafts are accepted, and no token is written

  SPECDEC_HD Noise noise_at_depth(int32_t depth, uint32_t stream) const { return later(noise, depth, stream); }

 protected:
  // Of the race at a node of request b, whose rows may have seeds of their own.
  SPECDEC_HD Noise noise_of_race(const Tokens& seeds, int64_t b, int32_t node, int32_t depth) const {
    if (!seeds.data) return noise_at_depth(depth, kStreamRace);
    return {key_of(seeds.at(b * seeds.request_stride + node * seeds.slot_stride)), 0, 0, kStreamRace};
  }
};

// Where the verdict of one request goes, and in which form. Without an index a token's place is its depth, and the path
// is of nodes. With one the place is that of its node in a row that all requests share, and the path is of places.
struct VerdictWriter {
  specdec_output_tokens tokens;
  Tokens index;
  int32_t* path;  // null where nobody wants it
  int32_t *num_accepted, *status;
  int64_t request, output_format;
  int32_t places;

  SPECDEC_HD void put(int32_t depth, int32_t node, int64_t token) const {
    if (!index.data) {
      write(tokens.offset(request, depth), token);
      if (path) path[depth] = node;
      return;
    }
    const int32_t place = place_of(node);
    if (place >= 0) write(tokens.offset(0, place), token);
    path[depth] = place;
  }

  // Of a depth behind the last.
  SPECDEC_HD void clear(int32_t depth) const {
    if (!index.data) write(tokens.offset(request, depth), output_format & SPECDEC_ZEROS ? 0 : -1);
    if (path) path[depth] = -1;
  }

  // How many nodes have token 0 at their places if they are not on the path: all of them, or none.
  SPECDEC_HD int32_t zeroed_nodes() const { return index.data && output_format & SPECDEC_ZEROS ? index.slots : 0; }

  // Before the walk.
  SPECDEC_HD void zero(int32_t node) const {
    const int32_t place = place_of(node);
    if (place >= 0) write(tokens.offset(0, place), 0);
  }

  // Behind it, once the path is written.
  SPECDEC_HD void zero_off_path(int32_t node, int32_t accepted) const {
    const int32_t place = place_of(node);
    for (int32_t depth = 0; depth <= accepted; ++depth)
      if (path[depth] == place) return;
    if (place >= 0) write(tokens.offset(0, place), 0);
  }

  // Whoever wrote the path writes how long it is: how many drafts were accepted, -1 for an idle request.
  SPECDEC_HD void count(int32_t accepted, int32_t bits) const {
    for (int32_t depth = 0; index.data && depth <= accepted; ++depth)
      if (path[depth] < 0) bits |= SPECDEC_STATUS_PARAMETER;
    *status = bits;
    const int32_t counted = accepted + (output_format & SPECDEC_EMITTED ? 1 : 0);
    if (!(output_format & SPECDEC_ADDED)) *num_accepted = counted;
    else if (counted > 0) *num_accepted += counted;
  }

 private:
  // Where the index leads, -1 if that is not among the tokens.
  SPECDEC_HD int32_t place_of(int32_t node) const {
    const int64_t place = index.at(request * index.request_stride + node * index.slot_stride);
    return place >= 0 && place < tokens.columns ? static_cast<int32_t>(place) : -1;
  }
  SPECDEC_HD void write(int64_t at, int64_t token) const {
    if (tokens.narrow) static_cast<int32_t*>(tokens.data)[at] = static_cast<int32_t>(token);
    else static_cast<int64_t*>(tokens.data)[at] = token;
  }
};

// Where a walk stands: at a node, after some of its children. `Number` is float, or Range where what was subtracted is
// known by bounds.
template <class Number>
struct WalkOf {
  int32_t node, depth;
  int32_t after;      // the child tried last; the node itself before the first
  bool tried;         // whether any child was tried
  Number subtracted;  // the multiple of q that was subtracted from p so far: T_m below
  Number share;       // with one-hot drafts: the mass of p on tokens not tried
};
using Walk = WalkOf<float>;

// How many drafts were accepted if the walk ended at `at`.
SPECDEC_HD int32_t accepted_by(const WalkRequest& r, const Walk& at) { return r.idle ? -1 : at.depth; }

template <class Number = float>
SPECDEC_HD WalkOf<Number> walk_from(int32_t node, int32_t depth) {
  WalkOf<Number> at = {node, depth, node, false, {}, {}};
  set(&at.share, 1.0f);
  return at;
}

// In place of p for a token that the target's filters took out. Over-acceptance adds 1 at most, so it cannot accept it.
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

// A target row in which no token has weight ends the chain or branch: the drafts after its node count as absent. Grammars
// write such rows behind a stop token. If they counted as drafts of probability 0 the rules that look ahead (traversal,
// paths) would refuse the tokens before them for their sake, and the target's law would be lost.

// Whether the drafts after `node` count as absent. `p` is that of one of them, if it is a token of the vocabulary: the row
// is looked at only where p leaves the answer open.
template <class Ops, class Number>
SPECDEC_HD bool ends_at(Ops& ops, int32_t node, bool in_range, const Number& p, bool* ends) {
  *ends = false;
  return (in_range && low(p) > 0.0f) || ops.is_empty(node, ends);
}

// Passes over the drafts from `child` on, which count as absent: what is wrong with the tree itself is still reported.
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

// The token after a node if it comes with the call. One out of range is token 0.
template <class Topology>
SPECDEC_HD bool given(const Topology& t, int32_t node, Draw* draw) {
  if constexpr (!Topology::kSiblings) {
    if (!t.is_given(node)) return false;
    const int64_t token = t.given_token();
    *draw = in_vocab(t, token) ? Draw{static_cast<int32_t>(token), SPECDEC_STATUS_OK, false}
                               : Draw{0, SPECDEC_STATUS_PARAMETER, false};
    return true;
  }
  return false;
}

// The target's own token decides: the winner of the race that the draft took part in, or the argmax at temperature 0.
template <class Topology, class Ops>
SPECDEC_HD bool walk_race(const Topology& t, Ops& ops, Walk* at, int32_t* status) {
  for (;;) {
    Draw draw;
    const bool known = given(t, at->node, &draw) ||
                       (t.target_law.greedy ? ops.argmax(at->node, &draw)
                                            : ops.race(at->node, t.race_noise(at->node, at->depth), &draw));
    if (!known) return false;
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

// Sampling without replacement asks, for the m-th child tried at a node, u q^m(x) < p^m(x), where
//   p^1 = p, p^{m+1} = norm((p^m - q^m)^+),   q^1 = q, q^{m+1} = norm(q^m without the token tried).
// None of these laws has to be stored. On tokens not tried q^m = q / R_m, where R_m is the mass of q on them. And
// (a^+ - b)^+ = (a - b)^+ for b >= 0, so all the subtractions add up to one multiple of q:
//   p^m = (p - T_m q)^+ / W_m,   T_1 = 0,   T_{m+1} = T_m + W_m / R_m,   W_m = sum (p - T_m q)^+,   W_1 = R_1 = 1.
// A token that was tried has p^m = 0 from then on. So the test is u (W_m / R_m) q(x) < p(x) - T_m q(x), and after the
// last child the law left is norm((p - T q)^+). With replacement R_m = 1 throughout. If a draft is made only with
// probability h, h q takes the place of q for the first child. A chain has no second child.

// Tries the children after at->after, in order. *accepted is the one accepted, or kNoNode.
template <class Topology, class Ops, class Number>
SPECDEC_HD bool try_children(const Topology& t, Ops& ops, WalkOf<Number>* at, int32_t* accepted, int32_t* status) {
  const bool has_draft = t.has_draft(), repeats = has_draft && t.replacement();
  const int32_t node = at->node;
  *accepted = kNoNode;
  for (int32_t child = next_draft(t, *at, at->after, status); child != kNoNode;
       child = next_draft(t, *at, child, status)) {
    const int64_t token = t.draft_token(child);
    const bool in_range = in_vocab(t, token);
    Number share = at->share;
    if (!at->tried) set(&share, t.draft_share(node, status));
    if constexpr (Topology::kSiblings) {
      // A second child with the same token cannot come from q^m, which no longer holds it. Subtracting it again would
      // bias the result.
      if (at->tried && !repeats && in_range && t.has_elder(node, child, token, status)) continue;
      if (at->tried && has_draft) {
        SumsOf<Number> m;
        if (!ops.masses(node, child, at->subtracted, &m)) return false;
        *status |= m.status;
        if (repeats) set(&m.untried_mass, 1.0f);
        share = share_of(m.residual_mass, m.untried_mass);
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
                                         at->subtracted, share, t.epsilon()};
      bool passed;
      if (!test.decided(p, q, &passed)) return false;
      if (passed) {
        *accepted = child;
        return true;
      }
    }
    at->after = child;
    at->tried = true;
    if (has_draft) at->subtracted = subtracted_after(at->subtracted, share);
    else at->share = untried_after(share, p);
  }
  return true;
}

// The token after a node if none of its children was accepted.
template <class Topology, class Ops, class Number>
SPECDEC_HD bool draw_instead(const Topology& t, Ops& ops, const WalkOf<Number>& at, Draw* draw, int32_t* status) {
  if (given(t, at.node, draw)) return true;
  const Noise noise = t.noise_at_depth(at.depth, kStreamResidual);
  Number subtracted = at.subtracted;
  if (!at.tried) set(&subtracted, t.draft_share(at.node, status));
  // A slot that could have been drafted but was not (h < 1) is decided like a rejected draft.
  if (at.tried || low(subtracted) < 1.0f) return ops.residual(at.node, noise, subtracted, draw);
  return ops.race(at.node, noise, draw);
}

// Accepts a draft with probability min(1, p / q), and draws from what is left of p if it accepts none. `one_step`: decides
// what comes after one node; the walk has ended if it is still there.
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
// s = a W_{m+1} / W_m. No sum is taken before it is asked for. A node of weight 1 keeps its weight, and weights do not
// grow: if the uniform refuses a leaf by its weight before, the sums of its rows are not needed. Nothing below a node
// of weight 0 can be accepted: it counts as a leaf.

// A node on the path. The root's is never a leaf to be refused.
template <class Number>
struct PathNode {
  int32_t node, after;  // the child taken off last; the node itself before the first
  bool summed;          // whether the weight and the sums below know of it
  // a, T, W, R. With one-hot drafts W is the mass of p on tokens not tried.
  Number weight, subtracted, residual_mass, untried_mass;
  Number p;                             // of its token under its parent, with one-hot drafts
};

template <class Number>
SPECDEC_HD PathNode<Number> path_node(int32_t node) {
  PathNode<Number> fresh = {};
  fresh.node = fresh.after = node;
  fresh.summed = true;
  set(&fresh.weight, 1.0f), set(&fresh.residual_mass, 1.0f), set(&fresh.untried_mass, 1.0f);
  return fresh;
}

// Takes the sums that are left to take, and the node's weight by them.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool sum_up(const Topology& t, Ops& ops, int32_t depth, Node* here, int32_t* status) {
  if (here->summed) return true;
  SumsOf<typename Ops::Number> sums;
  if (!ops.masses(here->node, here->after + 1, here->subtracted, &sums)) return false;
  *status |= sums.status;
  here->weight = weight_after(here->weight, here->residual_mass, sums.residual_mass);
  here->residual_mass = sums.residual_mass;
  if (Topology::kSiblings && !t.replacement()) here->untried_mass = sums.untried_mass;
  here->summed = true;
  ops.put(depth, *here);
  return true;
}

// The first child that is left of a node, kNoNode if there is none.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool first_left(const Topology& t, Ops& ops, const Walk& at, Node* here, int32_t* child, int32_t* status) {
  *child = next_draft(t, at, here->after, status);
  if (!Topology::kSiblings || here->after == here->node) return true;
  if constexpr (Topology::kSiblings) {
    const bool repeats = t.has_draft() && t.replacement();
    while (*child != kNoNode && !repeats && in_vocab(t, t.draft_token(*child)) &&
           t.has_elder(at.node, *child, t.draft_token(*child), status))
      *child = next_draft(t, at, *child, status);
  }
  if (*child == kNoNode) return true;
  bool weighs;
  if (!sum_up(t, ops, at.depth, here, status) || !decide_at_least(here->weight, kSmallest, &weighs)) return false;
  if (!weighs) *child = kNoNode;
  return true;
}

// `share` says which multiple of q a token was drawn with, from its p and q. *ends: the child counts as absent.
template <class Topology, class Ops, class Node, class Share>
SPECDEC_HD bool weigh_child(const Topology& t, Ops& ops, const Node& here, Node* child, Share&& share, bool* ends,
                            int32_t* status) {
  const int64_t token = t.draft_token(child->node);
  const bool in_range = in_vocab(t, token);
  int32_t bits = in_range ? SPECDEC_STATUS_OK : SPECDEC_STATUS_TOKEN_RANGE;
  typename Ops::Number q = {};
  set(&child->weight, 0.0f);
  if (in_range && !ops.laws(here.node, static_cast<int32_t>(token), &child->p, &q, &bits)) return false;
  *ends = false;
  if (here.after == here.node && !ends_at(ops, here.node, in_range, child->p, ends)) return false;
  if (*ends) return true;
  *status |= bits;
  if (in_range) child->weight = child_weight(here.weight, child->p, q, here.subtracted, share(child->p, q));
  return true;
}

template <class Topology, class Ops, class Node>
SPECDEC_HD void take_off(const Topology& t, Ops& ops, int32_t depth, Node here, const Node& leaf) {
  here.after = leaf.node;
  if (t.has_draft()) {
    here.subtracted = subtracted_after(here.subtracted, share_of(here.residual_mass, here.untried_mass), here.weight);
    here.summed = false;
  } else {
    const auto residual_mass = untried_after(here.residual_mass, leaf.p);
    here.weight = weight_after(here.weight, here.residual_mass, residual_mass);
    here.residual_mass = residual_mass;
  }
  ops.put(depth, here);
}

// Draws the token after the leaf `here`, and writes its path.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool accept_path(const Topology& t, Ops& ops, const Walk& at, const Node& here, int32_t* status) {
  const Noise noise = t.noise_at_depth(at.depth, kStreamResidual);
  Draw draw;
  const bool known = given(t, at.node, &draw) || (here.after == here.node
                                                      ? ops.race(at.node, noise, &draw)
                                                      : ops.residual(at.node, noise, here.subtracted, &draw));
  if (!known) return false;
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

// Whether the leaf that the walk stands at is accepted with its path. The root is.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool try_leaf(const Topology& t, Ops& ops, const Walk& at, Node* here, bool* accepted, int32_t* status) {
  *accepted = at.depth == 0;
  if (*accepted) return true;
  const float u = leaf_uniform(t.noise_at_depth(at.depth - 1, 0), at.node);
  if (!decide_above(here->weight, u, accepted)) return false;
  bool stays = here->summed || !*accepted;
  if (!stays && !decide_at_least(here->weight, 1.0f, &stays)) return false;
  return stays || (sum_up(t, ops, at.depth, here, status) && decide_above(here->weight, u, accepted));
}

// Goes on to a child that weighs something, or takes it off.
template <class Topology, class Ops, class Node>
SPECDEC_HD bool go_down(const Topology& t, Ops& ops, Walk* at, const Node& here, const Node& child) {
  bool weighs;
  if (!decide_at_least(child.weight, kSmallest, &weighs)) return false;
  if (!weighs) {
    take_off(t, ops, at->depth, here, child);
    return true;
  }
  ops.enter(at->depth, child.node, static_cast<int32_t>(t.draft_token(child.node)));
  *at = walk_from(child.node, at->depth + 1);
  ops.put(at->depth, child);
  return true;
}

// Takes the leaf that the walk stands at off, and goes back to its parent.
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
    PathNode<Number> here = ops.path(at->depth);
    int32_t first;
    if (!first_left(t, ops, *at, &here, &first, status)) return false;
    if (first != kNoNode) {
      PathNode<Number> child = path_node<Number>(first);
      const auto share = [&](const Number&, const Number&) {
        return t.has_draft() ? share_of(here.residual_mass, here.untried_mass) : here.residual_mass;
      };
      bool ends;
      if (!weigh_child(t, ops, here, &child, share, &ends, status)) return false;
      if (!ends) {
        if (!go_down(t, ops, at, here, child)) return false;
        continue;
      }
      skip_drafts(t, *at, first, status);
    }
    bool accepted;
    if (!try_leaf(t, ops, *at, &here, &accepted, status)) return false;
    if (accepted) return accept_path(t, ops, *at, here, status);
    go_back(t, ops, at, here);
  }
}

// ---- paths ----------------------------------------------------------------------------------------------------------

// Several chains were drawn from the draft, independently of each other. The walk goes down from the root with those
// that begin alike. At a node that m of them go on from, it looks at the first j, and takes the token of the first that
// lies in the best bucket of them (paths.h). The chains with that token go on, whichever they are: their next tokens are
// still independent draws from q. So the taken token has the law q' = q G, where G depends on its bucket, and j's law
// is chosen by what is known before the token. The chain taken in the end is verified as a block, with q' in the place
// of q.

// The uniform by which j is drawn. One a depth.
constexpr uint32_t kLookUniform = 1u << 31;

// What a chain has after a node, kNoNode if it ends there or does not come by.
template <class Topology>
SPECDEC_HD int32_t next_of_chain(const Topology& t, int32_t node, int32_t chain, int32_t* status) {
  const int32_t child = t.child_toward(node, t.leaf(chain, status), status);
  return child != kNoNode && t.draft_token(child) != -1 ? child : kNoNode;
}

// How many chains go on from a node, 0 if there is no place for their drafts.
template <class Topology>
SPECDEC_HD int32_t chains_from(const Topology& t, const Walk& at, int32_t* status) {
  int32_t count = 0;
  for (int32_t chain = 0; chain < t.chains(); ++chain) count += next_of_chain(t, at.node, chain, status) != kNoNode;
  if (count == 0 || at.depth < t.max_depth()) return count;
  *status |= SPECDEC_STATUS_PARAMETER;
  return 0;
}

// The first in the best bucket among the next drafts of the first chains. One that was not drawn from q is behind all.
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
      if (low(q) > 0.0f) bucket = static_cast<int32_t>(bucket_of(max(low(p), 0.0f), low(q)));
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
    Node here = ops.path(at->depth);
    const int32_t chains = here.after == here.node ? chains_from(t, *at, status) : 0;
    bool ends = chains == 0;
    if (chains > 1 && !ops.is_empty(at->node, &ends)) return false;
    if (!ends) {
      int32_t looked = 1, best = kNoNode;
      if (chains > 1) {
        Look look;
        if (!is_exact(here.weight) || !ops.look(at->node, chains, low(here.weight), &look, status)) return false;
        looked = look.chains(accept_uniform(t.noise_at_depth(at->depth, 0), kLookUniform));
      }
      if (!best_of_chains(t, ops, at->node, looked, &best, status)) return false;
      Node child = path_node<Number>(best);
      const auto share = [&](const Number& p, const Number& q) {
        Number found;
        set(&found, ops.share(max(low(p), 0.0f), low(q)));
        return found;
      };
      if (!weigh_child(t, ops, here, &child, share, &ends, status)) return false;
      if (!ends) {
        if (!go_down(t, ops, at, here, child)) return false;
        continue;
      }
    }
    bool accepted;
    if (!try_leaf(t, ops, *at, &here, &accepted, status)) return false;
    if (accepted) return accept_path(t, ops, *at, here, status);
    go_back(t, ops, at, here);
  }
}

// ---- by method ------------------------------------------------------------------------------------------------------

// Whether a method's walk goes back up, so that what is known of a path's rows is kept.
SPECDEC_HD bool goes_back(int32_t method) { return method == SPECDEC_TRAVERSAL || method == SPECDEC_PATHS; }

// Such a walk, of a method that does.
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
