// residual on the CPU: the normalised law norm((p - h q)^+) and the probability that a token is drawn from it.
#include "pair_rows.h"
#include "specdec/chain.h"
#include "specdec/residual.h"
#include "threads.h"

SPECDEC_BEGIN

namespace {

struct TileSums {
  float weight, rejected;
};

// Writes the weights of one tile, not yet normalised.
TileSums weigh_tile(const LawRow& target, const LawRow& draft, float h, float epsilon, int32_t tile, float* weights) {
  F16 weight(0.0f), rejected(0.0f);
  const F16 share(h), slope(epsilon), zero(0.0f);
  const int32_t begin = tile * kTile, end = begin + target.row.tile_size(tile);
  for (int32_t token = begin; token < end; token += kLanes) {
    const F16 p = target.at(token, end), drafted = mul(share, draft.at(token, end));
    const F16 left = sub(p, drafted), w = where(at_least(left, F16(kSmallest)), left, zero);
    weight = add(weight, w);
    rejected = add(rejected, max(sub(sub(drafted, p), slope), zero));
    float lane[kLanes];
    store(lane, w);
    const int32_t count = end - token < kLanes ? end - token : kLanes;
    for (int32_t i = 0; i < count; ++i) weights[token + i] = lane[i];
  }
  return {total(weight), total(rejected)};
}

template <class F>
void over_tokens(const Row& row, const Crew& crew, F&& f) {
  over_parts(row.tiles(), crew, [&](int, int32_t from, int32_t to) {
    const int32_t end = to * static_cast<int64_t>(kTile) < row.vocab ? to * kTile : row.vocab;
    for (int32_t token = from * kTile; token < end; ++token) f(token);
  });
}

void write_law(const LawRow& law, const Crew& crew, float* probs) {
  const int32_t vocab = law.row.vocab;
  over_parts(law.row.tiles(), crew, [&](int, int32_t from, int32_t to) {
    for (int32_t token = from * kTile; token < to * static_cast<int64_t>(kTile) && token < vocab; token += kLanes) {
      float lane[kLanes];
      store(lane, law.at(token, vocab));
      for (int32_t k = 0; k < kLanes && token + k < vocab; ++k) probs[token + k] = lane[k];
    }
  });
}

void residual_row(const ResidualParams& p, int64_t index, const Crew& crew) {
  const int64_t i = index / p.target.rows, j = index % p.target.rows;
  float* probs = p.probs.data + index * p.target.vocab;
  int32_t status = kStatusOk, *wanted = p.status.data ? &status : nullptr;
  const Law law = law_at(p.target_law, i, j, &status);
  const float h = draft_prob_of(p.draft_prob.at(i, j), &status), epsilon = epsilon_of(p.epsilon.at(i, j), &status);
  const Row row = row_at(p.target, p.target.offset(i, j)), draft_row = row_at(p.draft, p.draft.offset(i, j));
  const LawRow target = law_row(row, law, crew, 0, wanted), draft = law_row(draft_row, law, crew, 1, wanted);
  float* sums = scratch(2, 2 * static_cast<int64_t>(row.tiles()));
  over_parts(row.tiles(), crew, [&](int, int32_t from, int32_t to) {
    for (int32_t tile = from; tile < to; ++tile) {
      const TileSums t = weigh_tile(target, draft, h, epsilon, tile, probs);
      sums[2 * tile] = t.weight, sums[2 * tile + 1] = t.rejected;
    }
  });
  float weight = 0.0f, rejected = 0.0f;
  for (int32_t tile = 0; tile < row.tiles(); ++tile) {
    weight = add(weight, sums[2 * tile]);
    rejected = add(rejected, sums[2 * tile + 1]);
  }
  const bool empty = !(weight > 0.0f);
  if (empty) {
    status |= kStatusEmptyResidual;
    write_law(target, crew, probs);
  } else {
    over_tokens(row, crew, [&](int32_t token) { probs[token] = probs[token] / weight; });
  }
  p.mass.data[index] = empty ? 0.0f : epsilon == 0.0f ? weight : add(sub(1.0f, h), rejected);
  if (p.status.data) p.status.data[index] = status;
}

}  // namespace

void residual(const ResidualParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.target.vocab), threads,
                [&](int64_t index, const Crew& crew) { residual_row(p, index, crew); });
}

SPECDEC_END
