// The target row that decides a token and, where there is one, the draft row beside it: what verify_chain and
// verify_tree ask of them.
#pragma once

#include "race_row.h"
#include "specdec/residual.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

// Weights without those of a set of tokens, which one-hot drafts used up.
template <class Weights, class Set>
struct Without : Weights {
  const Set& used;
  SPECDEC_HD Without(const Weights& weights, const Set& set) : Weights(weights), used(set) {}
  SPECDEC_HD float log_weight(int32_t token) const {
    return used.has(token) ? -kInfinity : Weights::log_weight(token);
  }
};

template <class Weights, class Set>
SPECDEC_HD Without<Weights, Set> without(const Weights& weights, const Set& used) { return {weights, used}; }

struct RowPair {
  LawRow target, draft;  // the draft's without data where there is none
  Crew crew;

  bool has_draft() const { return draft.row.data != nullptr; }

  // Looks through both rows, once.
  int32_t know() {
    look_through(target, crew, 0);
    if (!has_draft()) return target.status;
    look_through(draft, crew, 1);
    return target.status | draft.status;
  }

  Draw argmax() {
    look_through(target, crew, 0);
    return target.known.argmax == kNoToken ? Draw{0, target.status} : Draw{target.known.argmax, target.status};
  }

  Draw race(const Noise& noise) {
    const Draw winner = race_target(noise, [](const auto& weights) { return weights; });
    return draw_of({0.0f, winner.token}, winner.status);
  }

  // The winner under p as `restricted` gives it, kNoToken if nothing has weight.
  template <class Restricted>
  Draw race_target(const Noise& noise, const Restricted& restricted) {
    const Row& row = target.row;
    int32_t status = target.status;
    float* maxima = target.tile_max;
    if (!target.looked) {
      maxima = scratch(0, row.tiles());
      status = row_maxima(row, target.known.law, crew, maxima);
    }
    return target.known.law.in_space([&](auto space) -> Draw {
      return {race_row(restricted(row_weights(row, space)), row, noise, maxima, crew).token, status};
    });
  }

  // p(token) and q(token), 1 without draft laws.
  int32_t laws(int32_t token, float* p, float* q) {
    *q = 1.0f;
    const int32_t status = law_of(target, 0, token, p);
    return has_draft() ? status | law_of(draft, 1, token, q) : status;
  }

  // A row is looked through where its law asks for that; else only the one element is.
  int32_t law_of(LawRow& side, int scratch_slot, int32_t token, float* p) {
    const bool inside = token < side.row.vocab;
    look_if_needed(side, false, crew, scratch_slot);
    *p = inside ? side.probability(token) : 0.0f;
    if (side.looked) return side.status;
    return inside && !side.known.law.is_element(element(side.row, token)) ? kStatusNonFinite : kStatusOk;
  }

  // A token from norm((p - share q)^+), or with one-hot drafts from p without the tokens in `used`. An empty residual
  // draws from p.
  template <class Set>
  Draw residual(const Noise& noise, float share, const Set& used) {
    const Draw draw = has_draft() ? race_residual(noise, share)
                                  : race_target(noise, [&](const auto& weights) { return without(weights, used); });
    if (draw.token != kNoToken) return draw;
    const Draw whole = race(noise);
    return {whole.token, draw.status | whole.status | kStatusEmptyResidual};
  }

  Draw race_residual(const Noise& noise, float share) {
    const int32_t status = know();
    return target.known.law.in_space([&](auto space) -> Draw {
      const ResidualWeights<decltype(space)> weights = {target, draft, space, share};
      return {race_row(weights, target.row, noise, target.tile_max, crew).token, status};
    });
  }

  // sum (p - share q)^+, and sum q without the tokens that `for_each_used(f)` calls f with.
  template <class ForEach>
  Masses masses(float share, const ForEach& for_each_used) {
    const int32_t status = know(), tiles = target.row.tiles();
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
    const F16 zero(0.0f);
    F16 left = zero, untried = zero;
    const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
    for (int32_t token = begin; token < end; token += kLanes) {
      const F16 p = target.probabilities(token, end), q = draft.probabilities(token, end);
      left = add(left, residual_weight(p, mul(F16(share), q)));
      untried = add(untried, where(used[(token - begin) / kLanes], zero, q));
    }
    sums[0] = total(left), sums[1] = total(untried);
  }
};

SPECDEC_END
