// The tree walk: from the root, which children a request tries and what it decides of them. As in chain.h a backend
// hands in `Ops`, the row operations as it does them, and the rule has one home.
//
// Sampling without replacement asks, for the m-th child tried at a node, u q^m(x) < p^m(x), where
//   p^1 = p, p^{m+1} = norm((p^m - q^m)^+),   q^1 = q, q^{m+1} = norm(q^m without the token tried).
// Nothing of that needs a second row. On tokens not tried q^m = q / R_m, R_m the mass of q on them; and since
// (a^+ - b)^+ = (a - b)^+ for b >= 0, all the subtractions add up to one multiple of q:
//   p^m = (p - T_m q)^+ / W_m,   T_1 = 0,   T_{m+1} = T_m + W_m / R_m,   W_m = sum (p - T_m q)^+,   W_1 = R_1 = 1.
// A token that was tried has p^m = 0 ever after. So the test is u (W_m / R_m) q(x) < p(x) - T_m q(x), and the law left
// after the last child is the residual of chain.h with T in the place of its h. With replacement R_m = 1 throughout.
#pragma once

#include "chain.h"

SPECDEC_BEGIN

// One request of a tree call, decoded.
struct TreeRequest {
  int64_t first_token, first_parent;  // offsets of node 0
  int64_t target_row, draft_row;      // offsets in elements of row 0
  Noise noise;                        // of the token after the root
  Law target_law, draft_law;
  int32_t status;
};

// The token after a node of this depth.
SPECDEC_HD Noise tree_noise(const TreeRequest& r, int32_t depth, uint32_t stream) {
  return later(r.noise, depth, stream);
}

// The parent of a node if it is one, and lies before it; -1 where the node is absent (-1, or the root) or its entry is
// no parent at all (then the status says so).
SPECDEC_HD int32_t parent_of(const Tokens& parents, int64_t first_parent, int32_t node, int32_t* status) {
  const int64_t parent = parents.at(first_parent + node * parents.slot_stride);
  if (parent >= 0 && parent < node) return static_cast<int32_t>(parent);
  if (parent != -1) *status |= kStatusParameter;
  return -1;
}

SPECDEC_HD TreeRequest tree_request(const TreeParams& p, int64_t b) {
  TreeRequest r;
  r.status = kStatusOk;
  r.first_token = b * p.draft_tokens.request_stride;
  r.first_parent = b * p.parents.request_stride;
  r.target_row = b * p.target.request_stride;
  r.draft_row = b * p.draft.request_stride;
  r.noise = noise_at(p.noise, b, 0, kStreamRace);
  r.target_law = law_at(p.target_law, b, 0, &r.status);
  r.draft_law = p.draft.data ? law_at(p.draft_law, b, 0, &r.status) : r.target_law;
  parent_of(p.parents, r.first_parent, 0, &r.status);  // the root has none
  return r;
}

// The first child of `node` after index `after`, `nodes` if there is none. Children come after their parent, so a walk
// that goes on from the child it accepted looks at every entry once, and can never leave [0, nodes).
SPECDEC_HD int32_t next_child(const Tokens& parents, int64_t first_parent, int32_t nodes, int32_t node, int32_t after,
                              int32_t* status) {
  int32_t child = after + 1;
  while (child < nodes && parent_of(parents, first_parent, child, status) != node) ++child;
  return child;
}

// A prefix length in [0, most].
SPECDEC_HD int64_t prefix_of(int64_t prefix, int64_t most, int32_t* status) {
  if (prefix >= 0 && prefix <= most) return prefix;
  *status |= kStatusParameter;
  return prefix < 0 ? 0 : most;
}

// How many entries of a path can be moved together: as far as it rises and stays inside the cache.
SPECDEC_HD int32_t moves_of(const int32_t* path, int32_t length, int64_t prefix, int64_t slots, int32_t* status) {
  int32_t moves = 0, last = -1;
  for (; moves < length && path[moves] != -1; last = path[moves++]) {
    if (prefix >= 0 && path[moves] > last && path[moves] < slots - prefix) continue;
    *status |= kStatusParameter;
    break;
  }
  return moves;
}

// Sums over a row pair: W = sum (p - T q)^+, and R = sum of q over the tokens no child tried.
struct Masses {
  float left, untried;
  int32_t status;
};

// How much of q the next child's law takes from p: W / R; nothing once either is used up.
SPECDEC_HD float share_of(float left, float untried) {
  return untried >= kSmallest ? min(left / untried, kLargest) : 0.0f;
}

// Whether a child is there that the outputs have no room for.
template <class Ops>
SPECDEC_HD bool has_children(int32_t node, int32_t nodes, Ops& ops) {
  for (int32_t child = ops.next_child(node, node); child < nodes; child = ops.next_child(node, child))
    if (ops.draft_token(child) != -1) return true;
  return false;
}

// Where a walk stands: at a node, past some of its children.
struct TreeWalk {
  int32_t node, depth;
  int32_t after;  // the child tried last; the node itself before the first
  bool tried;     // any child yet
  float taken, share;  // T_m and W_m / R_m; with one-hot drafts the share is the mass not yet tried
};

SPECDEC_HD TreeWalk walk_from(int32_t node, int32_t depth) { return {node, depth, node, false, 0.0f, 1.0f}; }

// What came of a node: the child walked to (-1: none) and the token emitted.
struct Step {
  int32_t child, token;
};

template <class Ops>
SPECDEC_HD bool match_children(const TreeRequest& r, const TreeWalk& at, int32_t nodes, int32_t vocab, Ops& ops,
                               Step* step, int32_t* status) {
  Draw draw;
  const bool known =
      r.target_law.greedy ? ops.argmax(at.node, &draw) : ops.race(at.node, at.depth, kStreamRace, &draw);
  if (!known) return false;
  *status |= draw.status;
  *step = {-1, draw.token};
  for (int32_t child = ops.next_child(at.node, at.node); child < nodes; child = ops.next_child(at.node, child)) {
    const int64_t token = ops.draft_token(child);
    if (token == draw.token) {
      step->child = child;
      break;
    }
    if (token < -1 || token >= vocab) *status |= kStatusTokenRange;
  }
  return true;
}

template <class Ops>
SPECDEC_HD bool try_children(const TreeRequest& r, bool replacement, int32_t nodes, int32_t vocab, Ops& ops,
                             TreeWalk* at, Step* step, int32_t* status) {
  const bool has_draft = ops.has_draft(), repeats = has_draft && replacement;
  const int32_t node = at->node;
  for (int32_t child = ops.next_child(node, at->after); child < nodes; child = ops.next_child(node, child)) {
    const int64_t token = ops.draft_token(child);
    if (token == -1) continue;
    const bool in_range = token >= 0 && token < vocab;
    if (!in_range) *status |= kStatusTokenRange;
    // A second child with a token is no draw from q^m, which has it no more: it must not be subtracted again.
    if (at->tried && !repeats && in_range && ops.tried(node, child, token)) continue;
    float share = at->share;
    if (at->tried && has_draft) {
      Masses m;
      if (!ops.masses(node, child, at->taken, &m)) return false;
      *status |= m.status;
      share = share_of(m.left, repeats ? 1.0f : m.untried);
    }
    float p = 0.0f, q;
    if (in_range) {
      if (!ops.laws(node, static_cast<int32_t>(token), &p, &q, status)) return false;
      const float u = accept_coin(tree_noise(r, at->depth, 0), static_cast<uint32_t>(child - 1));
      if (accepts(u, sub(p, mul(at->taken, q)), mul(share, q), 0.0f)) {
        *step = {child, static_cast<int32_t>(token)};
        return true;
      }
    }
    at->after = child;
    at->tried = true;
    if (has_draft) {
      at->taken = min(add(at->taken, share), kLargest);
    } else {
      at->share = max(sub(share, p), 0.0f);
    }
  }
  Draw draw;
  const bool known = at->tried ? ops.residual(node, at->depth, at->taken, &draw)
                               : ops.race(node, at->depth, kStreamResidual, &draw);
  if (!known) return false;
  *status |= draw.status;
  *step = {-1, draw.token};
  return true;
}

// The walk. `Ops` gives, for the rows of this request,
//   int32_t next_child(node, after)                the next child of `node` after index `after`, or the number of nodes
//   int64_t draft_token(node)                      its token, -1 if absent
//   bool has_draft()                               whether there are draft laws
//   bool tried(node, child, token)                 whether a child of `node` before `child` has this token
//   bool argmax(node, Draw*)                       the greedy token
//   bool race(node, depth, stream, Draw*)          a token from p
//   bool residual(node, depth, taken, Draw*)       a token from norm((p - taken q)^+); without draft laws from p
//                                                  without the tokens of the node's children
//   bool laws(node, token, p*, q*, status*)        p(token), q(token) (1 without draft laws), and adds status bits
//   bool masses(node, child, taken, Masses*)       over the node's rows; tried are its children before `child`
//   void emit(depth, node, token)                  writes path[depth] and tokens[depth]
// next_child adds the status bits of parent_of. The coin of child i has index i - 1, the draft slot where the tree is a
// chain. A backend that reads rows apart from the walk returns false where it does not know yet; so does the walk then,
// and called again with the same `at` it asks the same again. Once it is through, at->depth were accepted; `status`
// gathers the bits.
template <class Ops>
SPECDEC_HD bool walk_tree(const TreeRequest& r, Method method, bool replacement, int32_t nodes, int32_t max_depth,
                          int32_t vocab, Ops& ops, TreeWalk* at, int32_t* status) {
  const bool matches = r.target_law.greedy || method == Method::kRace;
  for (;;) {
    const bool last = at->depth == max_depth;
    if (last && has_children(at->node, nodes, ops)) *status |= kStatusParameter;
    const int32_t below = last ? 0 : nodes;
    Step step;
    const bool known = matches ? match_children(r, *at, below, vocab, ops, &step, status)
                               : try_children(r, replacement, below, vocab, ops, at, &step, status);
    if (!known) return false;
    ops.emit(at->depth, at->node, step.token);
    if (step.child < 0) return true;
    *at = walk_from(step.child, at->depth + 1);
  }
}

SPECDEC_END
