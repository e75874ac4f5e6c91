// A chain of drafts: how a request of it is decoded, and its topology (walk.h). Node j + 1 is the draft of slot j.
#pragma once

#include "c/verify_chain.h"
#include "walk.h"

SPECDEC_BEGIN

SPECDEC_HD float checked_draft_prob(float h, int32_t* status) {
  if (h >= 0.0f && h <= 1.0f) return h;
  *status |= SPECDEC_STATUS_PARAMETER;
  return h < 0.0f ? 0.0f : 1.0f;
}

SPECDEC_HD float checked_epsilon(float e, int32_t* status) {
  if (e >= 0.0f) return min(e, 1.0f);
  *status |= SPECDEC_STATUS_PARAMETER;
  return 0.0f;
}

// The decoded fields of a request.
struct ChainState : WalkRequest {
  int64_t request = 0;
  int64_t first_token = 0;            // offset of slot 0
  int64_t entry = 0, first_prob = 0;  // the draft_prob of slot j is at (entry, first_prob + j)
  int32_t slots = 0;                  // drafts at most
  float over_acceptance = 0.0f;
};

struct ChainRequest : ChainState {
  using Params = ChainParams;
  using State = ChainState;
  static constexpr bool kSiblings = false;
  const Params& p;

  SPECDEC_HD ChainRequest(const Params& params, const State& decoded) : State(decoded), p(params) {}
  SPECDEC_HD ChainRequest(const Params& params, int64_t b) : State{}, p(params) {
    request = b;
    const Entry source = decode_entry(p.request_index, b);
    status = source.status();
    readable = source.live();
    idle = source.idle();
    if (!readable) return;
    slots = p.max_drafts();
    entry = source.index;
    first_token = b * p.draft_tokens.request_stride;
    first_target = b * p.target.request_stride;
    first_draft = entry * p.draft.request_stride;
    if (p.cu_drafts.data) read_ragged(b, p.cu_drafts.data[b], p.cu_drafts.data[b + 1]);
    noise = noise_at(p.noise, entry, 0, kStreamRace);
    if (p.input_positions.data && readable) noise.position = static_cast<uint32_t>(input_position(b)) + 1;
    if (p.input_nonces.data) noise.nonce = static_cast<uint32_t>(p.input_nonces.at(b * p.input_nonces.slot_stride));
    target_law = law_at(p.target_law, entry, 0, &status);
    draft_law = p.draft.data ? law_at(p.draft_law, entry, 0, &status) : target_law;
    over_acceptance = checked_epsilon(p.epsilon.at(entry), &status);
  }

  SPECDEC_HD Noise race_noise(int32_t node, int32_t depth) const { return noise_of_race(p.row_seeds, request, node, depth); }
  SPECDEC_HD int64_t target_row(int32_t node) const { return first_target + node * p.target.row_stride; }
  SPECDEC_HD int64_t draft_row(int32_t node) const { return first_draft + node * p.draft.row_stride; }
  SPECDEC_HD int32_t vocab() const { return p.target.vocab; }
  SPECDEC_HD bool has_draft() const { return p.draft.data != nullptr; }
  SPECDEC_HD bool has_draft_row(int32_t node) const { return has_draft() && node < slots; }
  SPECDEC_HD bool replacement() const { return false; }
  SPECDEC_HD int32_t max_depth() const { return slots; }
  SPECDEC_HD int32_t drafts() const { return readable ? slots : 0; }
  SPECDEC_HD float epsilon() const { return over_acceptance; }

  SPECDEC_HD float draft_prob_at(int32_t node, int32_t* bits) const {
    return has_draft_row(node) ? checked_draft_prob(p.draft_prob.at(entry, first_prob + node), bits) : 1.0f;
  }
  SPECDEC_HD int32_t next_child(int32_t node, int32_t after, int32_t*) const {
    return after == node && node < slots ? node + 1 : kNoNode;
  }
  SPECDEC_HD int64_t draft_token(int32_t node) const {
    return p.draft_tokens.at(first_token + (node - 1) * p.draft_tokens.slot_stride);
  }

  SPECDEC_HD RowIndex target_index(int64_t b, int32_t node) const {
    return p.cu_drafts.data ? RowIndex{0, rows_before() + node} : RowIndex{b, node};
  }

  // True only after the last of all drafts that the request has, not where max_drafts cuts it off.
  SPECDEC_HD bool has_bonus(int32_t node) const {
    if (!p.bonus.data || node != slots) return false;
    return !p.cu_drafts.data || p.cu_drafts.data[request + 1] - p.cu_drafts.data[request] == slots;
  }
  SPECDEC_HD int64_t bonus_token() const { return p.bonus.at(request * p.bonus.slot_stride); }

 private:
  // Target rows of the requests before this one, where requests are packed.
  SPECDEC_HD int64_t rows_before() const { return first_prob + (p.bonus.data ? 0 : request); }

  // The position of the token before the first draft.
  SPECDEC_HD int64_t input_position(int64_t b) const {
    const Tokens& x = p.input_positions;
    return x.at(b * x.request_stride + (p.cu_drafts.data ? rows_before() * x.slot_stride : 0));
  }

  // Requests are packed one after another from 0 on: this one has the drafts [from, to), and one target row more than
  // drafts, if the call has no bonus tokens. Bounds that break this leave the request without drafts.
  SPECDEC_HD void read_ragged(int64_t b, int64_t from, int64_t to) {
    if (p.tokens_by_row) from -= b, to -= b + 1;
    readable = (b > 0 ? from >= 0 : from == 0) && to >= from && to <= p.packed_drafts();
    if (!readable || to - from > p.max_drafts()) status |= SPECDEC_STATUS_PARAMETER;
    if (!readable) slots = 0;
    else if (to - from < slots) slots = static_cast<int32_t>(to - from);
    first_prob = from;
    first_token = (p.tokens_by_row ? from + b + 1 : from) * p.draft_tokens.slot_stride;
    first_target = rows_before() * p.target.row_stride;
    if (!p.request_index.data) first_draft = from * p.draft.row_stride;  // else draft rows are an entry's
  }
};

// How many drafts pass their test: those that were accepted, and those behind the first rejection that their uniforms
// would accept. Rows hold probabilities; probability(rows, offset, token) reads one of them.
SPECDEC_CALLS_BACK
template <class Probability>
SPECDEC_HD int32_t drafts_passing(const ChainRequest& t, int32_t accepted, Probability&& probability) {
  int32_t count = accepted;
  for (int32_t slot = accepted + 1; slot < t.slots && t.draft_token(slot) != -1; ++slot) {
    const int64_t token = t.draft_token(slot + 1);
    if (token < 0 || token >= t.p.draft.vocab) continue;
    const AcceptTest test = {t.noise_at_depth(slot, 0), static_cast<uint32_t>(slot), 0.0f, 1.0f, 0.0f};
    count += test(probability(t.p.target, t.target_row(slot), static_cast<int32_t>(token)),
                  probability(t.p.draft, t.draft_row(slot), static_cast<int32_t>(token)));
  }
  return count;
}

// Writes that count, if num_passed is an output of the call. An idle request counts as 0 here.
SPECDEC_CALLS_BACK
template <class Probability>
SPECDEC_HD void count_passing(const ChainRequest& t, int64_t b, int32_t accepted, Probability&& probability) {
  if (!t.p.num_passed.data) return;
  const int32_t count = t.readable ? drafts_passing(t, accepted, probability) : 0;
  if (t.p.output_format & SPECDEC_ADDED) t.p.num_passed.data[b] += count;
  else t.p.num_passed.data[b] = count;
}

SPECDEC_HD VerdictWriter verdict_at(const ChainParams& p, int64_t b) {
  return {p.tokens, p.index, p.path.data ? p.path.data + b * p.path.row_stride : nullptr, p.num_accepted.data + b,
          p.status.data + b, b, p.output_format, p.width()};
}

SPECDEC_END
