// Trees of chains: chains that begin alike share nodes. Each chain adds the nodes that no chain before it has.
#pragma once

#include "c/trees.h"
#include "config.h"

SPECDEC_BEGIN

// The chains of one request. Each step is done for all chains before the next one begins. Until the end `leaves` holds
// how many nodes each of them adds.
struct MergedChains {
  const MergeParams& p;
  int64_t first_token;
  int64_t* tokens;
  int32_t *parents, *leaves;

  SPECDEC_HD MergedChains(const MergeParams& params, int64_t b)
      : p(params), first_token(b * p.paths.request_stride), tokens(p.draft_tokens.data + b * p.draft_tokens.columns),
        parents(p.parents.data + b * p.parents.columns), leaves(p.leaves.data + b * p.chains()) {}

  SPECDEC_HD void count(int32_t chain) const {
    const Chain c = chain_at(chain);
    leaves[chain] = c.length - c.shared;
  }

  // The nodes that a chain adds.
  SPECDEC_HD void put_nodes(int32_t chain) const {
    const Chain c = chain_at(chain);
    int32_t node = c.first, parent = node_of(c, c.shared);
    for (int32_t depth = c.shared; depth < c.length; ++depth, parent = node++)
      tokens[node] = token(chain, depth), parents[node] = parent;
  }

  // Fills the root, or an index behind the last node.
  SPECDEC_HD void clear(int32_t node) const { tokens[node] = parents[node] = -1; }
  SPECDEC_HD int32_t nodes() const { return first_of(p.chains()); }

  // The final value of `leaves`.
  SPECDEC_HD int32_t leaf(int32_t chain) const {
    const Chain c = chain_at(chain);
    return c.length > 0 ? node_of(c, c.length) : -1;
  }

 private:
  struct Chain {
    int32_t length;  // tokens before its first -1
    int32_t shared;  // the most tokens that it has in common with a chain before it
    int32_t elder;   // the first such chain
    int32_t first;   // the first node that it adds, if it adds any
  };

  SPECDEC_HD int64_t token(int32_t chain, int32_t depth) const {
    return p.paths.at(first_token + (int64_t{chain} * p.length() + depth) * p.paths.slot_stride);
  }
  // How many tokens two chains have in common at their beginnings.
  SPECDEC_HD int32_t common(int32_t a, int32_t b) const {
    int32_t count = 0;
    while (count < p.length() && token(a, count) != -1 && token(a, count) == token(b, count)) ++count;
    return count;
  }
  SPECDEC_HD int32_t first_of(int32_t chain) const {
    int32_t first = 1;
    for (int32_t elder = 0; elder < chain; ++elder) first += leaves[elder];
    return first;
  }
  SPECDEC_HD Chain chain_at(int32_t chain) const {
    Chain decoded = {common(chain, chain), 0, 0, 0};
    for (int32_t elder = 0; elder < chain && decoded.shared < decoded.length; ++elder) {
      const int32_t both = common(elder, chain);
      if (both > decoded.shared) decoded.shared = both, decoded.elder = elder;
    }
    decoded.first = first_of(chain);
    return decoded;
  }
  // The node after `length` tokens of a chain. The elder is the first chain with the shared tokens, so it added them.
  SPECDEC_HD int32_t node_of(const Chain& chain, int32_t length) const {
    if (length == 0) return 0;
    if (length > chain.shared) return chain.first + length - chain.shared - 1;
    const Chain elder = chain_at(chain.elder);
    return elder.first + length - elder.shared - 1;
  }
};

SPECDEC_END
