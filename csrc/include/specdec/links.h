// Trees as engines link them: each node has links to its first child and its next sibling. Links may hold anything, so
// they are reversed first. A node's elder is the node that links to it as next sibling; a node without one is the
// eldest of its siblings, and its parent is the node that links to it as first child. Of several the last counts.
#pragma once

#include "c/trees.h"
#include "config.h"

SPECDEC_BEGIN

// The links of one request, and its outputs, which hold intermediate values until the last step:
//
//            `parents`                           `ranks`
//   link     the node with it as first child     its elder, or kEldest
//   settle   its parent                          kFirst - rank; a cycle of siblings has no eldest, and stays as it was
//   connect                                      kLost if its ancestors do not end at the root
//   finish   its parent, or -1                   its rank, or -1
//
// Each step is done for all nodes before the next one begins, in any order. In `settle` and `connect` a node's values
// may change while another node reads them; old and new values give the same result.
struct Links {
  static constexpr int32_t kEldest = -1, kFirst = -2, kLost = 0;

  const LinksParams& p;
  int64_t first_child, next_sibling;  // offsets of node 0
  int32_t *parents, *ranks;
  int32_t nodes;

  SPECDEC_HD Links(const LinksParams& params, int64_t b)
      : p(params), first_child(b * p.first_child.request_stride), next_sibling(b * p.next_sibling.request_stride),
        parents(p.parents.data + b * p.parents.columns), ranks(p.ranks.data + b * p.parents.columns),
        nodes(static_cast<int32_t>(p.parents.columns)) {}

  SPECDEC_HD int64_t child_link(int32_t node) const { return p.first_child.at(first_child + node * p.first_child.slot_stride); }
  SPECDEC_HD int64_t sibling_link(int32_t node) const {
    return p.next_sibling.at(next_sibling + node * p.next_sibling.slot_stride);
  }
  // A link to the root is not one.
  SPECDEC_HD bool leads(int64_t link) const { return link > 0 && link < nodes; }

  SPECDEC_HD void clear(int32_t node) const {
    parents[node] = -1;
    ranks[node] = kEldest;
  }

  template <class RaiseTo>
  SPECDEC_HD void link(int32_t node, RaiseTo&& raise_to) const {
    const int64_t child = child_link(node), sibling = sibling_link(node);
    if (leads(child)) raise_to(parents + child, node);
    if (leads(sibling)) raise_to(ranks + sibling, node);
  }

  // The eldest writes its younger siblings' parents and ranks. A node has one elder, so one thread writes it, once.
  SPECDEC_HD void settle(int32_t node) const {
    if (ranks[node] != kEldest) return;
    const int32_t parent = parents[node];
    int32_t at = node;
    for (int32_t rank = 0;; ++rank) {
      parents[at] = parent;
      ranks[at] = kFirst - rank;
      const int64_t sibling = sibling_link(at);
      if (!leads(sibling) || ranks[sibling] != at) return;
      at = static_cast<int32_t>(sibling);
    }
  }

  SPECDEC_HD void connect(int32_t node) const {
    int32_t at = node;
    for (int32_t left = nodes; at > 0 && left > 0; --left) at = ranks[at] >= 0 ? -1 : parents[at];
    if (at != 0) ranks[node] = kLost;
  }

  SPECDEC_HD void finish(int32_t node) const {
    const bool lost = ranks[node] >= 0;
    parents[node] = lost ? -1 : parents[node];
    ranks[node] = lost ? -1 : kFirst - ranks[node];
  }

  // Whether a link of a node is neither -1 nor part of the tree.
  SPECDEC_HD bool astray(int32_t node) const {
    const int64_t child = child_link(node), sibling = sibling_link(node);
    const bool lost = ranks[node] < 0;
    return (child != -1 && (lost || !leads(child) || parents[child] != node || ranks[child] != 0)) ||
           (sibling != -1 && (lost || !leads(sibling) || parents[sibling] != parents[node] ||
                              ranks[sibling] != ranks[node] + 1));
  }
};

// Reads a request's links; returns its status. over_nodes(f) calls f(node) for every node, and returns when that is
// done; raise_to(word, value) sets *word to max(*word, value).
SPECDEC_CALLS_BACK
template <class OverNodes, class RaiseTo>
SPECDEC_HD int32_t read_links(const Links& links, OverNodes&& over_nodes, RaiseTo&& raise_to) {
  over_nodes([&](int32_t node) { links.clear(node); });
  over_nodes([&](int32_t node) { links.link(node, raise_to); });
  over_nodes([&](int32_t node) { links.settle(node); });
  over_nodes([&](int32_t node) { links.connect(node); });
  over_nodes([&](int32_t node) { links.finish(node); });
  int32_t status = SPECDEC_STATUS_OK;
  over_nodes([&](int32_t node) {
    if (links.astray(node)) status = SPECDEC_STATUS_PARAMETER;
  });
  return status;
}

SPECDEC_END
