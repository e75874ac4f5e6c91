// What ends a chain of which a walk accepted some drafts: the tokens before the last one, and what the last one is drawn
// from. The rows themselves lie in parts on several devices, so the walk was on a few numbers of each.
#pragma once

#include "chain.h"

SPECDEC_BEGIN

struct ChainEnd {
  const ChainEndsParams& p;
  int64_t b, first_row, first_draft;  // among those of all requests
  int64_t entry;
  int32_t slots;  // drafts at most
  bool live, greedy;

  SPECDEC_HD ChainEnd(const ChainEndsParams& params, int64_t request) : p(params), b(request), slots(p.max_drafts()) {
    const Entry who = entry_of(p.request_index, b);
    entry = who.index, live = who.live();
    first_row = b * p.tokens.columns, first_draft = b * p.max_drafts();
    if (p.cu_drafts.data) {
      const int64_t from = p.cu_drafts.data[b], to = p.cu_drafts.data[b + 1];
      live = live && from >= 0 && to >= from && to <= p.draft_tokens.slots;
      first_row = from + b, first_draft = from;
      if (to - from < slots) slots = static_cast<int32_t>(to - from);
    }
    greedy = live && !(p.temperature.at(entry) >= kSmallest);
  }

  SPECDEC_HD int64_t draft_token(int32_t slot) const {
    const Tokens& x = p.draft_tokens;
    return p.cu_drafts.data ? x.at((first_draft + slot) * x.slot_stride)
                            : x.at(b * x.request_stride + slot * x.slot_stride);
  }

  // Whether the row of a slot before the last decided the output.
  SPECDEC_HD bool read(int32_t slot, int32_t last) const {
    return p.read.data && !greedy ? p.read.data[b * p.tokens.columns + slot] : slot < last;
  }

  // Writes the tokens, -1 behind the last; `token` is the last itself, as far as it is known.
  SPECDEC_HD void put_tokens(int32_t last, int64_t token) const {
    int64_t* const tokens = p.tokens.data + b * p.tokens.columns;
    for (int32_t slot = 0; slot <= p.max_drafts(); ++slot)
      tokens[slot] = slot < last ? draft_token(slot) : slot == last ? token : -1;
  }

  SPECDEC_HD void put_laws(int64_t row, int64_t draft_row) const {
    const float* const known = p.known.data + 2 * row;
    const bool beside_it = draft_row >= 0 && 2 * draft_row < p.draft_known.size;
    const float* const beside = beside_it ? p.draft_known.data + 2 * draft_row : known;
    float* const laws = p.laws.data + 4 * b;
    laws[0] = known[0], laws[1] = known[1], laws[2] = beside[0], laws[3] = beside[1];
  }

  // Of a request from which nothing is drawn.
  SPECDEC_HD void put_nothing(int32_t status) const {
    p.status.data[b] = status;
    p.row.data[b] = p.draft_row.data[b] = p.tried.data[b] = -1;
    p.taken.data[b] = 1.0f;
    p.slot.data[b] = 0;
    for (int i = 0; i < 4; ++i) p.laws.data[4 * b + i] = 0.0f;
  }

  SPECDEC_HD void finish() const {
    const int32_t last = p.num_accepted.data[b] < slots ? p.num_accepted.data[b] : slots;
    // The walk met rows of a few tokens. Their other bits say nothing.
    int32_t status = p.walked.data[b] & (SPECDEC_STATUS_TOKEN_RANGE | SPECDEC_STATUS_PARAMETER);
    if (!live || last < 0) {
      put_tokens(last < 0 ? -1 : 0, 0);
      return put_nothing(status);
    }
    for (int32_t slot = 0; slot <= slots; ++slot)
      if (slot == last || read(slot, last)) status |= p.met.data[first_row + slot];
    if (greedy) {
      put_tokens(last, p.winners.data ? p.winners.at((first_row + last) * p.winners.slot_stride) : 0);
      return put_nothing(status);
    }
    put_tokens(last, 0);

    const int64_t refused = last < slots ? draft_token(last) : -1;
    int32_t unused = SPECDEC_STATUS_OK;  // the walk told of it
    const int64_t first_share = p.cu_drafts.data ? first_draft : 0;
    const float share = last < slots ? draft_prob_of(p.draft_prob.at(entry, first_share + last), &unused) : 1.0f;
    // A slot that could have been drafted but was not (h < 1) is decided like a rejected draft.
    const bool left = last < slots && (refused != -1 || share < 1.0f);
    for (int32_t slot = 0; p.draft_met.data && slot < slots; ++slot)
      if (slot == last ? left : read(slot, last)) status |= p.draft_met.data[first_draft + slot];

    const int64_t draft = first_draft + last;
    int64_t draft_row = left ? draft : -1;
    if (left && p.draft_places.data) draft_row = p.draft_places.at(draft * p.draft_places.slot_stride);
    p.status.data[b] = status;
    p.row.data[b] = static_cast<int32_t>(first_row + last);
    p.draft_row.data[b] = static_cast<int32_t>(draft_row);
    p.tried.data[b] = left && refused >= 0 && refused < p.vocab ? static_cast<int32_t>(refused) : -1;
    p.taken.data[b] = share;
    p.slot.data[b] = last;
    put_laws(first_row + last, p.draft_known.data ? draft_row : -1);
  }
};

SPECDEC_END
