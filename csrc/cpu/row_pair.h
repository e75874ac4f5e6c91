// The target row that decides a token and, where there is one, the draft row beside it: what verify_chain and
// verify_tree ask of them.
#pragma once

#include "pair_rows.h"
#include "race_row.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

// A law without the tokens of a set, which one-hot drafts used up.
template <class Law, class Set>
struct Without : Law {
  const Set& used;
  SPECDEC_HD Without(const Law& law, const Set& set) : Law(law), used(set) {}
  SPECDEC_HD float log_weight(int32_t token) const { return used.has(token) ? -kInfinity : Law::log_weight(token); }
};

template <class Law, class Set>
SPECDEC_HD Without<Law, Set> without(const Law& law, const Set& used) { return {law, used}; }

struct RowPair {
  Law law;
  Crew crew;
  Row target, draft;  // draft.data is null where there is none
  // What know() found: of logits the log-sum-exp, of both the tiles' maxima, in scratch memory.
  bool known = false;
  RowFigures target_figures = {}, draft_figures = {};

  bool has_draft() const { return draft.data != nullptr; }

  // Reads both rows, once.
  int32_t know() {
    if (!known) {
      target_figures = figures(target, 0);
      if (has_draft()) draft_figures = figures(draft, 1);
      known = true;
    }
    return target_figures.status | draft_figures.status;
  }

  RowFigures figures(const Row& row, int scratch_slot) const {
    if (law.space == Space::kLogits) return row_log_sum_exp(row, law.inverse, crew, scratch_slot);
    float* maxima = scratch(scratch_slot, row.tiles());
    const int32_t status = row_maxima(row, law.space, crew, maxima);
    const bool weightless = row_argmax(row, law.space, maxima).token == kNoToken;
    return {maxima, kNoMass, weightless ? status | kStatusNonFinite : status};
  }

  Draw argmax() const {
    float* maxima = scratch(0, target.tiles());
    const int32_t status = row_maxima(target, law.space, crew, maxima);
    return draw_of(row_argmax(target, law.space, maxima), status);
  }

  Draw race(const Noise& noise) const {
    const Draw winner = race_target(noise, [](const auto& law) { return law; });
    return draw_of({0.0f, winner.token}, winner.status);
  }

  // The winner under p as `restricted` gives it, kNoToken if nothing has weight.
  template <class Restricted>
  Draw race_target(const Noise& noise, const Restricted& restricted) const {
    float* maxima = scratch(0, target.tiles());
    const int32_t status = row_maxima(target, law.space, crew, maxima);
    return {law.space == Space::kLogits
                ? race_row(restricted(LogitLaw{target, law.inverse}), target, noise, maxima, crew).token
                : race_row(restricted(ProbLaw{target}), target, noise, maxima, crew).token,
            status};
  }

  // p(token) and q(token), 1 without draft laws.
  int32_t laws(int32_t token, float* p, float* q) {
    const float x = element(target, token);
    const bool drafted = has_draft() && token < draft.vocab;
    const float y = drafted ? element(draft, token) : 0.0f;
    if (law.space == Space::kProbs) {
      *p = clean_probability(x);
      *q = has_draft() ? clean_probability(y) : 1.0f;
      return x >= 0.0f && y >= 0.0f && x < kInfinity && y < kInfinity ? kStatusOk : kStatusNonFinite;
    }
    const int32_t status = know();
    *p = probability(scaled(x, law.inverse), target_figures.lse);
    *q = !has_draft() ? 1.0f : drafted ? probability(scaled(y, law.inverse), draft_figures.lse) : 0.0f;
    return status;
  }

  // A token from norm((p - share q)^+), or with one-hot drafts from p without the tokens in `used`. An empty residual
  // draws from p.
  template <class Set>
  Draw residual(const Noise& noise, float share, const Set& used) {
    const Draw draw = has_draft() ? race_residual(noise, share)
                                  : race_target(noise, [&](const auto& law) { return without(law, used); });
    if (draw.token != kNoToken) return draw;
    const Draw whole = race(noise);
    return {whole.token, draw.status | whole.status | kStatusEmptyResidual};
  }

  Draw race_residual(const Noise& noise, float share) {
    const int32_t status = know();
    const float* maxima = target_figures.tile_max;
    if (law.space == Space::kProbs)
      return {race_row(ResidualProbLaw{target, draft, share}, target, noise, maxima, crew).token, status};
    const ResidualLogitLaw weights{target, draft, law.inverse, target_figures.lse, draft_figures.lse, share};
    return {race_row(weights, target, noise, maxima, crew).token, status};
  }

  // sum (p - share q)^+, and sum q without the tokens that `for_each_used(f)` calls f with.
  template <class ForEach>
  Masses masses(float share, const ForEach& for_each_used) {
    const int32_t status = know(), tiles = target.tiles();
    float* sums = scratch(2, 2 * static_cast<int64_t>(tiles));
    over_parts(tiles, crew, [&](int, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) {
        Mask used[kTile / kLanes] = {};
        for_each_used([&](int32_t token) {
          if (token / kTile == tile) used[token % kTile / kLanes] |= 1u << token % kLanes;
        });
        tile_masses(share, tile, used, sums + 2 * tile);
      }
    });
    Masses m = {0.0f, 0.0f, status};
    for (int32_t tile = 0; tile < tiles; ++tile) {
      m.left = add(m.left, sums[2 * tile]);
      m.untried = add(m.untried, sums[2 * tile + 1]);
    }
    return m;
  }

  void tile_masses(float share, int32_t tile, const Mask* used, float* sums) const {
    const LawRow p_row = {target, law, target_figures.lse, kNobody};
    const LawRow q_row = {draft, law, draft_figures.lse, kNobody};
    const F16 zero(0.0f), taken(share);
    F16 left(0.0f), untried(0.0f);
    const int32_t begin = tile * kTile, end = begin + target.tile_size(tile);
    for (int32_t token = begin; token < end; token += kLanes) {
      const F16 q = q_row.at(token, end), w = sub(p_row.at(token, end), mul(taken, q));
      left = add(left, where(at_least(w, F16(kSmallest)), w, zero));
      untried = add(untried, where(used[(token - begin) / kLanes], zero, q));
    }
    sums[0] = total(left), sums[1] = total(untried);
  }
};

SPECDEC_END
