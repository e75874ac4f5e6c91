// verify_linked_tree on the CPU. Rows on the path are read at their children's tokens; the last one is scanned.
#include "../race/race_row.h"
#include "specdec/link_walk.h"

SPECDEC_BEGIN

namespace {

// The tokens of a node's children.
TokenList children_of(const LinkedRequest& t, int32_t node) {
  int32_t* const tokens = scratch<int32_t>(6, t.nodes());
  int32_t count = 0, reported = SPECDEC_STATUS_OK;
  t.over_children(node, &reported, [&](int32_t, int64_t token) {
    if (in_vocab(t, token)) tokens[count++] = static_cast<int32_t>(token);
    return false;
  });
  return {tokens, count};
}

// The token after the node at which a walk ended: from p, without the tokens that were tried.
Draw last_token(const LinkedRequest& t, const LinkWalk& at, const ThreadTeam& team) {
  const Row row = row_at(t.p.target, t.row(at.node));
  LawRow target = law_row(row, {SPECDEC_PROBS, 1.0f, false}, {}, {nullptr, row.vocab});
  scan_maxima(target, ScanFor::kWinner, team, 0);
  const Noise noise = t.noise_at_depth(at.depth);
  int32_t status = target.status;
  if (at.tried) {
    const Candidate winner = row_winner(target, children_of(t, at.node), noise, team, 0);
    if (winner.token != kNoToken) return to_draw(winner, status);
  }
  Draw draw = to_draw(row_winner(target, {}, noise, team, 0), status);
  if (at.tried && !draw.empty) draw.status |= SPECDEC_STATUS_EMPTY_RESIDUAL;
  return draw;
}

}  // namespace

void verify_linked_tree(const LinkedParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads, [&](int64_t b, const ThreadTeam& team) {
    const LinkedRequest t(p, b);
    const VerdictWriter verdict = verdict_at(p, b);
    for (int32_t depth = 0; depth < verdict.columns; ++depth) verdict.clear(depth);
    for (int32_t node = 0; node < verdict.zeroed_nodes(); ++node) verdict.zero(node);
    const auto probability = [&](int32_t node, int32_t token, int32_t* status) {
      return checked_probability(element(row_at(p.target, t.row(node)), token), status);
    };
    LinkWalk at = walk_links(t, probability, [&](int32_t depth, int32_t node, int64_t token) {
      verdict.put(depth, node, token);
    });
    int64_t last;
    if (t.has_tokens()) {
      last = t.target_token(at.node);
    } else {
      const Draw draw = last_token(t, at, team);
      last = draw.token;
      at.status |= draw.status;
    }
    verdict.put(at.depth, at.node, last);
    verdict.count(at.depth, at.status);
  });
}

SPECDEC_END
