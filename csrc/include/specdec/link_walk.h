// A walk through a tree by its links (links.h). Siblings are tried in the order in which they are linked. The call has
// a uniform for the children of each node, or the target's tokens. Without both, uniforms come from the noise.
//
// Below a node one uniform u decides. Child m, with token x_m, is accepted iff p(x_m) > 0 and
//   u total < p(x_1) + ... + p(x_m),   or p(x_m) >= single.
// With u uniform and both thresholds at 1 token x_m is accepted with probability p(x_m); if none is, the token after
// the node comes from p without x_1 ... x_m. So the law is p. A token that is listed twice counts once.
#pragma once

#include "accept.h"
#include "c/verify_linked_tree.h"
#include "walk.h"

SPECDEC_BEGIN

// The state of a walk.
struct LinkWalk {
  int32_t node, depth;
  bool tried;  // whether children of the node were tried and refused
  int32_t status;
};

struct LinkedRequest {
  const LinkedParams& p;
  int64_t request;
  bool valid;

  SPECDEC_HD LinkedRequest(const LinkedParams& params, int64_t b)
      : p(params), request(b), valid(!params.tree_valid.data || params.tree_valid.data[b]) {}

  SPECDEC_HD int32_t nodes() const { return p.draft_tokens.slots; }
  SPECDEC_HD int32_t vocab() const { return p.target.vocab; }
  SPECDEC_HD int32_t max_depth() const { return p.width() - 1; }
  SPECDEC_HD bool has_tokens() const { return p.target_tokens.data != nullptr; }
  SPECDEC_HD int64_t draft_token(int32_t node) const { return of(p.draft_tokens, node); }
  SPECDEC_HD int64_t target_token(int32_t node) const { return of(p.target_tokens, node); }
  SPECDEC_HD int64_t row(int32_t node) const { return p.target.offset(request, node); }
  SPECDEC_HD Noise noise_at_depth(int32_t depth) const {
    return later(noise_at(p.noise, request, 0, kStreamRace), depth, kStreamResidual);
  }
  // The uniform for the children of a node. In a chain the noise's uniform equals verify_tree's.
  SPECDEC_HD float uniform_at(int32_t node, int32_t depth) const {
    return p.uniforms.data ? p.uniforms.at(request, node)
                           : accept_uniform(noise_at_depth(depth), static_cast<uint32_t>(node));
  }

  // Calls f(child, token) for the children of a node that are not absent, until it returns true. Any links end: a list
  // is no longer than the tree, and nothing leads to the root.
  SPECDEC_CALLS_BACK
  template <class F>
  SPECDEC_HD void over_children(int32_t node, int32_t* bits, F&& f) const {
    if (!valid) return;
    int64_t link = of(p.first_child, node);
    for (int32_t left = nodes(); left > 0 && link > 0 && link < nodes(); --left) {
      const int32_t child = static_cast<int32_t>(link);
      const int64_t token = draft_token(child);
      if (token != -1 && f(child, token)) return;
      link = of(p.next_sibling, child);
    }
    if (link != -1) *bits |= SPECDEC_STATUS_PARAMETER;
  }

  // Whether one of the first `count` children of a node has this token.
  SPECDEC_HD bool lists(int32_t node, int64_t token, int32_t count) const {
    bool listed = false;
    int32_t reported = SPECDEC_STATUS_OK;
    over_children(node, &reported, [&](int32_t, int64_t other) {
      listed = count > 0 && other == token;
      return listed || --count <= 0;
    });
    return listed;
  }

  // Tests the child after `count` others, whose tokens weigh `total`.
  SPECDEC_CALLS_BACK
  template <class Probability>
  SPECDEC_HD bool accepts(int32_t node, int64_t token, float uniform, int32_t count, float* total,
                          Probability&& probability, int32_t* bits) const {
    if (has_tokens()) return token == target_token(node);
    if (!in_vocab(*this, token)) {
      *bits |= SPECDEC_STATUS_TOKEN_RANGE;
      return false;
    }
    if (lists(node, token, count)) return false;
    const float weight = probability(node, static_cast<int32_t>(token), bits);
    *total = add(*total, weight);
    return weight > 0.0f && (mul(uniform, p.threshold_total.at(request)) < *total ||
                             weight >= p.threshold_single.at(request));
  }

 private:
  SPECDEC_HD int64_t of(const Tokens& x, int32_t node) const {
    return x.at(request * x.request_stride + node * x.slot_stride);
  }
};

// Walks from the root for as long as a child is accepted. probability(node, token, &status) is that of a token of the
// vocabulary; put(depth, node, token) takes what is decided on the way.
SPECDEC_CALLS_BACK
template <class Probability, class Put>
SPECDEC_HD LinkWalk walk_links(const LinkedRequest& t, Probability&& probability, Put&& put) {
  LinkWalk at = {0, 0, false, SPECDEC_STATUS_OK};
  for (;;) {
    int32_t next = kNoNode, count = 0;
    float total = 0.0f;
    const float uniform = t.has_tokens() ? 0.0f : t.uniform_at(at.node, at.depth);
    t.over_children(at.node, &at.status, [&](int32_t child, int64_t token) {
      if (at.depth == t.max_depth()) {
        at.status |= SPECDEC_STATUS_PARAMETER;
        return true;
      }
      at.tried = true;
      if (!t.accepts(at.node, token, uniform, count++, &total, probability, &at.status)) return false;
      put(at.depth, at.node, token);
      next = child;
      return true;
    });
    if (next == kNoNode) return at;
    at = {next, at.depth + 1, false, at.status};
  }
}

// A raw value as a probability.
SPECDEC_HD float checked_probability(float raw, int32_t* bits) {
  if (!Probs{}.is_element(raw)) *bits |= SPECDEC_STATUS_NON_FINITE;
  return Probs{}.probability(raw, {});
}

SPECDEC_HD VerdictWriter verdict_at(const LinkedParams& p, int64_t b) {
  return {p.tokens, p.index, p.path.data + b * p.path.row_stride, p.num_accepted.data + b, p.status.data + b,
          b, p.output_format, p.width()};
}

SPECDEC_END
