// verify_chain on the CPU. Rows past the first rejection are not touched.
#include "row_pair.h"
#include "threads.h"

SPECDEC_BEGIN

namespace {

// The row operations of walk_chain for one request.
struct ChainOps {
  const ChainParams& p;
  const ChainRequest& r;
  int64_t* tokens;
  Crew crew;
  int32_t at_slot = -1;
  RowPair pair = {};

  // The rows of a slot; past the last draft only the target's.
  RowPair& rows(int32_t slot) {
    if (at_slot != slot) {
      pair = {law_row(row_at(p.target, r.target_row + slot * p.target.row_stride), r.target_law), {}, crew};
      if (p.draft.data && slot < r.slots)
        pair.draft = law_row(row_at(p.draft, r.draft_row + slot * p.draft.row_stride), r.draft_law);
      at_slot = slot;
    }
    return pair;
  }

  int64_t draft_token(int32_t slot) const { return chain_draft_token(p, r, slot); }
  float draft_prob(int32_t slot) const { return chain_draft_prob(p, r, slot); }

  // The token that a one-hot draft used up; -1 if none.
  struct OneToken {
    int32_t token;
    bool has(int32_t other) const { return other == token; }
  };

  bool argmax(int32_t slot, Draw* draw) {
    *draw = rows(slot).argmax();
    return true;
  }
  bool race(int32_t slot, uint32_t stream, Draw* draw) {
    *draw = rows(slot).race(chain_noise(r, slot, stream));
    return true;
  }
  bool residual(int32_t slot, int32_t token, float h, Draw* draw) {
    *draw = rows(slot).residual(chain_noise(r, slot, kStreamResidual), h, OneToken{token});
    return true;
  }
  bool laws(int32_t slot, int32_t token, float* law_p, float* law_q, int32_t* bits) {
    *bits |= rows(slot).laws(token, law_p, law_q);
    return true;
  }

  void emit(int32_t slot, int32_t token) { tokens[slot] = token; }
};

}  // namespace

void verify_chain(const ChainParams& p, int threads) {
  over_requests(p.batch(), tiles_of(p.target.vocab), threads, [&](int64_t b, const Crew& crew) {
    ChainRequest r = chain_request(p, b);
    int64_t* tokens = p.tokens.data + b * p.tokens.row_stride;
    for (int32_t i = 0; i <= p.max_drafts(); ++i) tokens[i] = -1;
    int32_t accepted = 0, status = r.status;
    if (r.readable) {
      ChainOps ops{p, r, tokens, crew};
      walk_chain(r, p.method, p.target.vocab, ops, &accepted, &status);
    } else {
      tokens[0] = 0;
    }
    p.num_accepted.data[b] = accepted;
    p.status.data[b] = status;
  });
}

SPECDEC_END
