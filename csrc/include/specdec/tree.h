// A tree of drafts: how a request of it is decoded, and its topology (walk.h). Children are tried by rising index.
#pragma once

#include "c/caches.h"
#include "c/verify_tree.h"
#include "walk.h"

SPECDEC_BEGIN

// The parent of a node: -1 for the root, for an absent node, and for a bad entry (not a node before this one), which
// also sets the status.
SPECDEC_HD int32_t parent_of(const Tokens& parents, int64_t first_parent, int32_t node, int32_t* status) {
  const int64_t parent = parents.at(first_parent + node * parents.slot_stride);
  if (parent >= 0 && parent < node) return static_cast<int32_t>(parent);
  if (parent != -1) *status |= SPECDEC_STATUS_PARAMETER;
  return -1;
}

// The decoded fields of a request.
struct TreeState : WalkRequest {
  int64_t request = 0;
  int64_t first_token = 0, first_parent = 0;  // offsets of node 0
  int64_t first_leaf = 0;                     // offset of chain 0
  int64_t entry = 0;
};

struct TreeRequest : TreeState {
  using Params = TreeParams;
  using State = TreeState;
  static constexpr bool kSiblings = true;
  const Params& p;

  SPECDEC_HD TreeRequest(const Params& params, const State& decoded) : State(decoded), p(params) {}
  SPECDEC_HD TreeRequest(const Params& params, int64_t b) : State{}, p(params) {
    request = b;
    const Entry source = decode_entry(p.request_index, b);
    status = source.status();
    readable = source.live();
    idle = source.idle();
    if (!readable) return;
    entry = source.index;
    first_token = b * p.draft_tokens.request_stride;
    first_parent = b * p.parents.request_stride;
    first_leaf = b * p.leaves.request_stride;
    first_target = b * p.target.request_stride;
    first_draft = entry * p.draft.request_stride;
    noise = noise_at(p.noise, entry, 0, kStreamRace);
    const Tokens& x = p.input_positions;
    if (x.data) noise.position = static_cast<uint32_t>(x.at(b * x.request_stride)) + 1;
    target_law = law_at(p.target_law, entry, 0, &status);
    draft_law = p.draft.data ? law_at(p.draft_law, entry, 0, &status) : target_law;
    parent(0, &status);  // sets the status if the root has a parent
  }

  SPECDEC_HD int32_t nodes() const { return p.nodes(); }
  SPECDEC_HD Noise race_noise(int32_t node, int32_t depth) const { return noise_of_race(p.row_seeds, request, node, depth); }
  SPECDEC_HD int64_t target_row(int32_t node) const { return first_target + node * p.target.row_stride; }
  SPECDEC_HD int64_t draft_row(int32_t node) const { return first_draft + node * p.draft.row_stride; }
  SPECDEC_HD int32_t vocab() const { return p.target.vocab; }
  SPECDEC_HD bool has_draft() const { return p.draft.data != nullptr; }
  SPECDEC_HD bool has_draft_row(int32_t) const { return has_draft(); }
  SPECDEC_HD bool replacement() const { return p.replacement || p.method == SPECDEC_PATHS; }
  SPECDEC_HD int32_t max_depth() const { return p.max_depth(); }
  SPECDEC_HD int32_t drafts() const { return nodes() - 1; }
  SPECDEC_HD float epsilon() const { return 0.0f; }
  SPECDEC_HD float draft_prob_at(int32_t, int32_t*) const { return 1.0f; }
  SPECDEC_HD RowIndex target_index(int64_t b, int32_t node) const { return {b, node}; }

  SPECDEC_HD int32_t parent(int32_t node, int32_t* bits) const {
    return parent_of(p.parents, first_parent, node, bits);
  }
  SPECDEC_HD int64_t draft_token(int32_t node) const {
    return p.draft_tokens.at(first_token + node * p.draft_tokens.slot_stride);
  }
  // Children come after their parent, so a walk reads every entry once and never leaves [0, nodes).
  SPECDEC_HD int32_t next_child(int32_t node, int32_t after, int32_t* bits) const {
    for (int32_t child = after + 1; child < nodes(); ++child)
      if (parent(child, bits) == node) return child;
    return kNoNode;
  }
  SPECDEC_HD bool has_elder(int32_t node, int32_t child, int64_t token, int32_t* bits) const {
    for (int32_t elder = node + 1; elder < child; ++elder)
      if (parent(elder, bits) == node && draft_token(elder) == token) return true;
    return false;
  }

  SPECDEC_HD int32_t chains() const { return p.leaves.slots; }
  SPECDEC_HD int32_t leaf(int32_t chain, int32_t* bits) const {
    const int64_t node = p.leaves.at(first_leaf + chain * p.leaves.slot_stride);
    if (node >= 0 && node < nodes()) return static_cast<int32_t>(node);
    if (node != -1) *bits |= SPECDEC_STATUS_PARAMETER;
    return kNoNode;
  }
  SPECDEC_HD int32_t child_toward(int32_t node, int32_t leaf, int32_t* bits) const {
    for (int32_t child = leaf; child > node;) {
      const int32_t above = parent(child, bits);
      if (above == node) return child;
      child = above;
    }
    return kNoNode;
  }
};

SPECDEC_HD VerdictWriter verdict_at(const TreeParams& p, int64_t b) {
  return {p.tokens, p.index, p.path.data + b * p.path.row_stride, p.num_accepted.data + b, p.status.data + b, b,
          p.output_format, p.width()};
}

// A prefix length, moved into [0, most]; one outside sets the status.
SPECDEC_HD int64_t clamp_prefix(int64_t prefix, int64_t most, int32_t* status) {
  if (prefix >= 0 && prefix <= most) return prefix;
  *status |= SPECDEC_STATUS_PARAMETER;
  return prefix < 0 ? 0 : most;
}

// The smallest sizes among a cache's tensors: slots of a request, and pages if there is a block table.
struct CacheLimits {
  int64_t slots = INT64_MAX;
  int32_t page_slots = 1, pages = INT32_MAX;
};
inline CacheLimits cache_limits(const CompactParams& p) {
  CacheLimits limits;
  for (int64_t i = 0; i < p.layers.size; ++i) {
    const specdec_cache_layer& layer = p.layers.data[i];
    limits.slots = layer.slots < limits.slots ? layer.slots : limits.slots;
    limits.pages = layer.batch < limits.pages ? layer.batch : limits.pages;
  }
  if (!p.block_table.data) return limits;
  limits.page_slots = p.layers.size > 0 ? static_cast<int32_t>(limits.slots) : 1;
  limits.slots = p.block_table.columns * limits.page_slots;
  return limits;
}

// The cache slots of a request's nodes: behind its prefix, in order or in the pages of its row of the block table.
struct NodeSlots {
  CacheLimits limits;
  int64_t request, prefix;
  const int32_t* pages;  // null without a block table

  SPECDEC_HD bool has(int32_t node) const {
    if (prefix < 0 || node >= limits.slots - prefix) return false;
    return !pages || (page_of(node) >= 0 && page_of(node) < limits.pages);
  }
  // A byte offset from the layer's start. Slots of pages have 32 bits, since GPUs divide 64 slowly.
  SPECDEC_HD int64_t offset(const specdec_cache_layer& layer, int32_t node) const {
    if (!pages) return request * layer.batch_stride + (prefix + node) * layer.slot_stride;
    return page_of(node) * layer.batch_stride + slot_of(node) % limits.page_slots * layer.slot_stride;
  }

 private:
  SPECDEC_HD uint32_t slot_of(int32_t node) const { return static_cast<uint32_t>(prefix + node); }
  SPECDEC_HD int64_t page_of(int32_t node) const { return pages[slot_of(node) / limits.page_slots]; }
};

// How many entries of a path can be moved: those before the first that does not rise, or whose slot, old or new, lies
// outside of the cache.
SPECDEC_HD int32_t count_moves(const int32_t* path, int32_t length, const NodeSlots& slots, int32_t* status) {
  int32_t moves = 0, last = -1;
  for (; moves < length && path[moves] != -1; last = path[moves++]) {
    if (path[moves] > last && slots.has(path[moves]) && slots.has(moves)) continue;
    *status |= SPECDEC_STATUS_PARAMETER;
    break;
  }
  return moves;
}

SPECDEC_END
