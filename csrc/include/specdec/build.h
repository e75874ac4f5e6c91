// Trees as EAGLE's drafting makes them. Candidates are numbered: candidate c is one of group c / topk, and a group follows
// one candidate. Group 0 follows the root. The selected candidates are the nodes behind the root, in the order of their
// numbers, so that a parent stands before its children.
#pragma once

#include "c/trees.h"
#include "tree.h"

SPECDEC_BEGIN

// Bytes of the full masks of requests `from`, `from` + `step`, ... before `to`; more than mask.rows if they do not fit.
SPECDEC_HD int64_t count_mask_bytes(const BuildParams& p, int64_t from, int64_t to, int64_t step) {
  int64_t bytes = 0;
  if (p.layout != SPECDEC_TREE_FULL) return bytes;
  for (int64_t b = from; b < to && bytes <= p.mask.rows; b += step) {
    int32_t reported = SPECDEC_STATUS_OK;
    const int64_t columns = clamp_prefix(p.prefix_len.at(b), p.mask.rows, &reported) + p.nodes();
    bytes += columns > p.mask.rows / p.nodes() ? p.mask.rows + 1 : p.nodes() * columns;
  }
  return bytes;
}

// The tree of one request. `before` is count_mask_bytes of all requests before it. Until the last step `index` holds each
// node's parent. Each step is done for all nodes before the next one begins, in any order.
struct Build {
  const BuildParams& p;
  int64_t request, before;
  int64_t parent_list, selected;  // offsets
  int64_t prefix;
  int64_t *positions, *index, *first_child, *next_sibling;
  int32_t nodes;
  int32_t status = SPECDEC_STATUS_OK;

  SPECDEC_HD Build(const BuildParams& params, int64_t b, int64_t bytes_before)
      : p(params), request(b), before(bytes_before), parent_list(b * p.parent_list.request_stride),
        selected(b * p.selected.request_stride), positions(p.positions.data + b * p.nodes()),
        index(p.index.data + b * p.nodes()), first_child(p.first_child.data + b * p.nodes()),
        next_sibling(p.next_sibling.data + b * p.nodes()), nodes(p.nodes()) {
    prefix = clamp_prefix(p.prefix_len.at(b), INT64_MAX - nodes, &status);
  }

  SPECDEC_HD int64_t candidate(int32_t node) const {
    return p.selected.at(selected + (node - 1) * p.selected.slot_stride);
  }

  // Writes a node's parent: -1 for the root, and where no node before this one is the candidate that it follows.
  SPECDEC_HD void find_parent(int32_t node, int32_t* bits) const {
    index[node] = node == 0 ? -1 : parent_of(node);
    if (node > 0 && index[node] < 0) *bits |= SPECDEC_STATUS_PARAMETER;
  }

  // Writes the node's position and its mask row: it attends to itself and its ancestors.
  SPECDEC_HD void look_up(int32_t node, int32_t* bits) const {
    int64_t depth = 0;
    for (int64_t above = index[node]; above >= 0; above = index[above]) ++depth;
    positions[node] = prefix + depth;
    const int64_t at = row_of(node);
    if (at < 0) *bits |= SPECDEC_STATUS_PARAMETER;
    else write_row(node, p.mask.data + at);
  }

  // The first of the nodes behind this one that has it as parent, and the first that has its parent.
  SPECDEC_HD void link(int32_t node) const {
    int64_t child = -1, sibling = -1;
    for (int32_t other = nodes - 1; other > node; --other) {
      if (index[other] == node) child = other;
      if (index[other] == index[node] && index[node] >= 0) sibling = other;
    }
    first_child[node] = child;
    next_sibling[node] = sibling;
  }

  SPECDEC_HD void number(int32_t node) const { index[node] = request * nodes + node; }

 private:
  // If several nodes are one candidate, the first is the parent.
  SPECDEC_HD int64_t parent_of(int32_t node) const {
    const int64_t chosen = candidate(node), group = chosen < 0 ? -1 : chosen / p.topk;
    if (group == 0) return 0;
    if (group < 0 || group >= p.parent_list.slots) return -1;
    const int64_t followed = p.parent_list.at(parent_list + group * p.parent_list.slot_stride);
    for (int32_t other = 1; followed >= 0 && other < node; ++other)
      if (candidate(other) == followed) return other;
    return -1;
  }

  // The byte offset of a node's row; -1 if the row does not fit the mask.
  SPECDEC_HD int64_t row_of(int32_t node) const {
    if (p.layout != SPECDEC_TREE_FULL) return (request * nodes + node) * p.row_bytes();
    const int64_t left = p.mask.rows - before;
    if (left < 0 || prefix > left || prefix + nodes > left / (node + 1)) return -1;
    return before + node * (prefix + nodes) + prefix;
  }

  // Bit j: whether the node attends to node `first` + j. Parents stand before their children.
  SPECDEC_HD uint32_t attended(int32_t node, int32_t first) const {
    uint32_t word = 0;
    for (int64_t at = node; at >= first; at = index[at])
      if (at - first < 32) word |= 1u << (at - first);
    return word;
  }

  SPECDEC_HD void write_row(int32_t node, uint8_t* row) const {
    if (p.layout == SPECDEC_TREE_BITS) {
      const uint32_t word = attended(node, 0);
      for (int32_t byte = 0; byte < p.row_bytes(); ++byte) row[byte] = static_cast<uint8_t>(word >> 8 * byte);
      return;
    }
    for (int32_t first = 0; first < nodes; first += 32) {
      const uint32_t word = attended(node, first);
      for (int32_t j = 0; j < 32 && first + j < nodes; ++j) row[first + j] = word >> j & 1u;
    }
  }
};

// Builds a request's tree; returns its status. over_nodes(f) calls f(node) for every node, and returns when that is done.
SPECDEC_CALLS_BACK
template <class OverNodes>
SPECDEC_HD int32_t build(const Build& tree, OverNodes&& over_nodes) {
  int32_t status = tree.status;
  over_nodes([&](int32_t node) { tree.find_parent(node, &status); });
  over_nodes([&](int32_t node) {
    tree.look_up(node, &status);
    tree.link(node);
  });
  over_nodes([&](int32_t node) { tree.number(node); });
  return status;
}

SPECDEC_END
