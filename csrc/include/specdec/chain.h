// The chain walk: which rows a request reads and what it decides of them. The walk is sequential and cheap; the rows
// are wide. So a backend hands in `Ops`, the row operations as it does them (a thread, a block, a cluster), and the
// rule has one home. An operation may say that it does not know yet: the walk is left there, and gone on with later.
#pragma once

#include "accept.h"
#include "law.h"
#include "race.h"

SPECDEC_BEGIN

SPECDEC_HD float draft_prob_of(float h, int32_t* status) {
  if (h >= 0.0f && h <= 1.0f) return h;
  *status |= kStatusParameter;
  return h < 0.0f ? 0.0f : 1.0f;
}

SPECDEC_HD float epsilon_of(float e, int32_t* status) {
  if (e >= 0.0f) return min(e, 1.0f);
  *status |= kStatusParameter;
  return 0.0f;
}

// One request of a chain call, decoded.
struct ChainRequest {
  int64_t first_slot;             // offset of its draft tokens
  int64_t request, first_prob;    // where its draft_prob is: (request, first_prob + slot)
  int64_t target_row, draft_row;  // offsets in elements of row 0
  int32_t slots;                  // drafts at most
  Noise noise;                    // of slot 0
  Law target_law, draft_law;
  float epsilon;
  int32_t status;
  bool readable;  // false if cu_drafts points outside: nothing is read then
};

SPECDEC_HD ChainRequest chain_request(const ChainParams& p, int64_t b) {
  ChainRequest r;
  r.status = kStatusOk;
  r.readable = true;
  r.slots = p.max_drafts();
  r.request = b;
  r.first_prob = 0;
  r.first_slot = b * p.draft_tokens.request_stride;
  r.target_row = b * p.target.request_stride;
  r.draft_row = b * p.draft.request_stride;
  if (p.cu_drafts.data) {
    const int64_t from = p.cu_drafts.data[b], to = p.cu_drafts.data[b + 1];
    r.readable = from >= 0 && to >= from && to <= p.draft_tokens.slots;
    if (!r.readable) r.status |= kStatusParameter;
    if (to - from > p.max_drafts()) r.status |= kStatusParameter;
    if (to - from < r.slots) r.slots = static_cast<int32_t>(to - from);
    r.first_prob = from;
    r.first_slot = from * p.draft_tokens.slot_stride;
    r.target_row = (from + b) * p.target.row_stride;
    r.draft_row = from * p.draft.row_stride;
  }
  r.noise = noise_at(p.noise, b, 0, kStreamRace);
  r.target_law = law_at(p.target_law, b, 0, &r.status);
  r.draft_law = p.draft.data ? law_at(p.draft_law, b, 0, &r.status) : r.target_law;
  r.epsilon = epsilon_of(p.epsilon.at(b), &r.status);
  return r;
}

SPECDEC_HD int64_t chain_draft_token(const ChainParams& p, const ChainRequest& r, int32_t slot) {
  return p.draft_tokens.at(r.first_slot + slot * p.draft_tokens.slot_stride);
}

// h; 1 where there is no draft law.
SPECDEC_HD float chain_draft_prob(const ChainParams& p, const ChainRequest& r, int32_t slot) {
  return p.draft.data ? p.draft_prob.at(r.request, r.first_prob + slot) : 1.0f;
}

SPECDEC_HD Noise chain_noise(const ChainRequest& r, int32_t slot, uint32_t stream) {
  return later(r.noise, slot, stream);
}

// The walk. `Ops` gives, for target row `slot` of this request,
//   int64_t draft_token(slot)                      the draft token, -1 at the end
//   float draft_prob(slot)                         h, 1 where there is no draft law
//   bool argmax(slot, Draw*)                       the greedy token
//   bool race(slot, stream, Draw*)                 a token from p_slot
//   bool residual(slot, token, h, Draw*)           a token from norm((p - h q)^+), q one-hot at `token` without a draft
//   bool laws(slot, token, p*, q*, status*)        p(token), q(token), and adds status bits of what was read
//   void emit(slot, token)                         writes one output token
// `at` is the slot where the walk stands, 0 at first. A backend that reads rows apart from the walk returns false where
// it does not know yet; so does the walk then, and called again with the same `at` it asks the same again. Once it is
// through, *at were accepted; `status` gathers the bits.
template <class Ops>
SPECDEC_HD bool walk_chain(const ChainRequest& r, Method method, int32_t vocab, Ops& ops, int32_t* at,
                           int32_t* status) {
  for (;; ++*at) {
    const int32_t slot = *at;
    const int64_t token = slot < r.slots ? ops.draft_token(slot) : -1;
    const bool drafted = token != -1;
    const bool in_range = token >= 0 && token < vocab;
    if (drafted && !in_range) *status |= kStatusTokenRange;

    Draw draw;
    bool accepted = false;
    if (r.target_law.greedy || method == Method::kRace) {
      const bool known = r.target_law.greedy ? ops.argmax(slot, &draw) : ops.race(slot, kStreamRace, &draw);
      if (!known) return false;
      accepted = drafted && draw.token == token;
    } else {
      const float h = slot < r.slots ? draft_prob_of(ops.draft_prob(slot), status) : 1.0f;
      if (in_range) {
        float p, q;
        if (!ops.laws(slot, static_cast<int32_t>(token), &p, &q, status)) return false;
        accepted = accepts(accept_coin(chain_noise(r, slot, 0), slot), p, mul(h, q), r.epsilon);
      }
      if (accepted) {
        draw = {static_cast<int32_t>(token), kStatusOk};
      } else {
        const bool known = drafted || h < 1.0f
                               ? ops.residual(slot, in_range ? static_cast<int32_t>(token) : -1, h, &draw)
                               : ops.race(slot, kStreamResidual, &draw);
        if (!known) return false;
      }
    }
    *status |= draw.status;
    ops.emit(slot, draw.token);
    if (!accepted) return true;
  }
}

SPECDEC_END
