// verify_chain on the CPU. Rows past the first rejection are not touched.
#include "ops.h"
#include "race_row.h"
#include "specdec/chain.h"
#include "threads.h"

SPECDEC_BEGIN

namespace {

// The row operations of walk_chain for one request.
struct ChainOps {
  const ChainParams& p;
  const ChainRequest& r;
  int64_t* tokens;
  int threads;
  // Log-sum-exp of the pair of rows seen last; -1 for none.
  int32_t known_slot = -1;
  RowFigures target_figures = {}, draft_figures = {};

  Row target(int32_t slot) const { return row_at(p.target, r.target_row + slot * p.target.row_stride); }
  Row draft(int32_t slot) const { return row_at(p.draft, r.draft_row + slot * p.draft.row_stride); }
  bool has_draft() const { return p.draft.data != nullptr; }

  int64_t draft_token(int32_t slot) const { return p.draft_tokens.at(r.first_slot + slot * r.slot_stride); }

  float draft_prob(int32_t slot) const {
    return has_draft() ? p.draft_prob.at(r.first_prob + slot * p.draft_prob.slot_stride) : 1.0f;
  }

  void emit(int32_t slot, int32_t token) { tokens[slot] = token; }

  Draw argmax(int32_t slot) {
    const Row row = target(slot);
    float* maxima = scratch(0, row.tiles());
    const int32_t status = row_maxima(row, p.space, threads, maxima);
    return draw_of(row_argmax(row, p.space, maxima), status);
  }

  Draw race(int32_t slot, uint32_t stream) {
    const Draw winner = race_without(slot, stream, kNoToken);
    return draw_of({0.0f, winner.token}, winner.status);
  }

  // A token from p, `excluded` aside; kNoToken if nothing else has weight.
  Draw race_without(int32_t slot, uint32_t stream, int32_t excluded) {
    const Row row = target(slot);
    float* maxima = scratch(0, row.tiles());
    const int32_t status = row_maxima(row, p.space, threads, maxima);
    const Noise noise = chain_noise(r, slot, stream);
    return {p.space == Space::kLogits
                ? race_row(LogitLaw{row, r.temperature.inverse, excluded}, row, noise, maxima, threads).token
                : race_row(ProbLaw{row, excluded}, row, noise, maxima, threads).token,
            status};
  }

  int32_t know_lse(int32_t slot) {
    if (known_slot != slot) {
      target_figures = row_log_sum_exp(target(slot), r.temperature.inverse, threads, 0);
      if (has_draft()) draft_figures = row_log_sum_exp(draft(slot), r.temperature.inverse, threads, 1);
      known_slot = slot;
    }
    return target_figures.status | (has_draft() ? draft_figures.status : 0);
  }

  int32_t laws(int32_t slot, int32_t token, float* target_p, float* draft_q) {
    const float x = element(target(slot), token);
    const bool drafted = has_draft() && token < p.draft.vocab;
    const float y = drafted ? element(draft(slot), token) : 0.0f;
    if (p.space == Space::kProbs) {
      *target_p = clean_probability(x);
      *draft_q = has_draft() ? clean_probability(y) : 1.0f;
      return x >= 0.0f && y >= 0.0f && x < kInfinity && y < kInfinity ? kStatusOk : kStatusNonFinite;
    }
    const int32_t status = know_lse(slot);
    *target_p = probability(scaled(x, r.temperature.inverse), target_figures.lse);
    *draft_q = !has_draft() ? 1.0f : drafted ? probability(scaled(y, r.temperature.inverse), draft_figures.lse) : 0.0f;
    return status;
  }

  Draw residual(int32_t slot, int32_t token, float h) {
    Draw draw = has_draft() ? draw_residual(slot, h) : race_without(slot, kStreamResidual, token < 0 ? kNoToken : token);
    if (draw.token != kNoToken) return draw;
    const Draw whole = race(slot, kStreamResidual);
    return {whole.token, draw.status | whole.status | kStatusEmptyResidual};
  }

  Draw draw_residual(int32_t slot, float h) {
    const Row row = target(slot), draft_row = draft(slot);
    const Noise noise = chain_noise(r, slot, kStreamResidual);
    if (p.space == Space::kLogits) {
      const int32_t status = know_lse(slot);
      const ResidualLogitLaw law{row, draft_row, r.temperature.inverse, target_figures.lse, draft_figures.lse, h};
      return {race_row(law, row, noise, target_figures.tile_max, threads).token, status};
    }
    float* maxima = scratch(0, row.tiles());
    float* draft_maxima = scratch(1, draft_row.tiles());
    int32_t status =
        row_maxima(row, p.space, threads, maxima) | row_maxima(draft_row, p.space, threads, draft_maxima);
    if (row_argmax(draft_row, p.space, draft_maxima).token == kNoToken) status |= kStatusNonFinite;
    return {race_row(ResidualProbLaw{row, draft_row, h}, row, noise, maxima, threads).token, status};
  }
};

}  // namespace

void verify_chain(const ChainParams& p, int threads) {
  over_requests(p.batch, threads, [&](int64_t b, int threads_a_row) {
    ChainRequest r = chain_request(p, b);
    int64_t* tokens = p.tokens + b * p.tokens_stride;
    for (int32_t i = 0; i <= p.max_drafts; ++i) tokens[i] = -1;
    int32_t accepted = 0, status = r.status;
    if (r.readable) {
      ChainOps ops{p, r, tokens, threads_a_row};
      accepted = walk_chain(r, p.method, p.target.vocab, ops, &status);
    } else {
      tokens[0] = 0;
    }
    p.num_accepted[b] = accepted;
    p.status[b] = status;
  });
}

SPECDEC_END
