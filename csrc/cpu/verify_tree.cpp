// verify_tree on the CPU. Rows off the accepted path are not touched.
#include "row_pair.h"
#include "threads.h"

SPECDEC_BEGIN

namespace {

// The row operations of walk_tree for one request.
struct TreeOps {
  const TreeParams& p;
  const TreeRequest& r;
  int64_t* tokens;
  int32_t* path;
  Crew crew;
  int32_t* status;
  int32_t at_node = -1;
  RowPair pair = {};

  RowPair& rows(int32_t node) {
    if (at_node != node) {
      pair = {law_row(row_at(p.target, r.target_row + node * p.target.row_stride), r.target_law), {}, crew};
      if (has_draft()) pair.draft = law_row(row_at(p.draft, r.draft_row + node * p.draft.row_stride), r.draft_law);
      at_node = node;
    }
    return pair;
  }

  bool has_draft() const { return p.draft.data != nullptr; }

  int32_t next_child(int32_t node, int32_t after) {
    return specdec::next_child(p.parents, r.first_parent, p.nodes(), node, after, status);
  }

  int64_t draft_token(int32_t node) const {
    return p.draft_tokens.at(r.first_token + node * p.draft_tokens.slot_stride);
  }

  // The tokens that the children of a node before index `end` have. Threads share it: it writes nothing.
  struct ChildTokens {
    const TreeOps& ops;
    int32_t node, end;
    int32_t after(int32_t child) const {
      int32_t known = kStatusOk;
      return specdec::next_child(ops.p.parents, ops.r.first_parent, end, node, child, &known);
    }
    template <class F>
    void operator()(F&& f) const {
      for (int32_t child = after(node); child < end; child = after(child)) {
        const int64_t token = ops.draft_token(child);
        if (token >= 0 && token < ops.p.target.vocab) f(static_cast<int32_t>(token));
      }
    }
    bool has(int64_t token) const {
      bool found = false;
      (*this)([&](int32_t other) { found |= other == token; });
      return found;
    }
  };

  bool tried(int32_t node, int32_t child, int64_t token) { return ChildTokens{*this, node, child}.has(token); }

  bool argmax(int32_t node, Draw* draw) {
    *draw = rows(node).argmax();
    return true;
  }
  bool race(int32_t node, int32_t depth, uint32_t stream, Draw* draw) {
    *draw = rows(node).race(tree_noise(r, depth, stream));
    return true;
  }
  bool residual(int32_t node, int32_t depth, float taken, Draw* draw) {
    *draw = rows(node).residual(tree_noise(r, depth, kStreamResidual), taken, ChildTokens{*this, node, p.nodes()});
    return true;
  }
  bool laws(int32_t node, int32_t token, float* law_p, float* law_q, int32_t* bits) {
    *bits |= rows(node).laws(token, law_p, law_q);
    return true;
  }
  bool masses(int32_t node, int32_t child, float taken, Masses* sums) {
    *sums = rows(node).masses(taken, ChildTokens{*this, node, child});
    return true;
  }

  void emit(int32_t depth, int32_t node, int32_t token) { path[depth] = node, tokens[depth] = token; }
};

}  // namespace

void verify_tree(const TreeParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads, [&](int64_t b, const Crew& crew) {
    const TreeRequest r = tree_request(p, b);
    int64_t* tokens = p.tokens.data + b * p.tokens.row_stride;
    int32_t* path = p.path.data + b * p.path.row_stride;
    for (int32_t i = 0; i <= p.max_depth(); ++i) tokens[i] = path[i] = -1;
    int32_t status = r.status;
    TreeOps ops{p, r, tokens, path, crew, &status};
    TreeWalk walk = walk_from(0, 0);
    walk_tree(r, p.method, p.replacement, p.nodes(), p.max_depth(), p.target.vocab, ops, &walk, &status);
    p.num_accepted.data[b] = walk.depth;
    p.status.data[b] = status;
  });
}

SPECDEC_END
