// race_topk on the CPU: the first k arrivals of a row, in order.
#include "mapped_race.h"
#include "race_request.h"

SPECDEC_BEGIN

namespace {

// The k most probable tokens, for temperature 0.
void largest_tokens(const Row& row, const Law& law, const float* tile_maxima, Podium& podium) {
  for (int32_t tile = 0; tile < row.tiles(); ++tile) {
    if (!(law.rank(tile_maxima[tile]) > podium.to_beat())) continue;
    const int32_t begin = tile * kTile, end = begin + row.tile_size(tile);
    for (int32_t token = begin; token < end; token += kLanes) {
      const F16 raw = elements(row, token, end - token, __builtin_nanf(""));
      for (Mask left = at_least(raw, F16(podium.to_beat())); left; left &= left - 1) {
        const int32_t i = token + __builtin_ctz(left);
        const float rank = law.rank(element(row, i));
        if (rank > -kInfinity) podium.offer({rank, i});
      }
    }
  }
}

}  // namespace

void race_topk(const RaceParams& p, int threads) {
  const int32_t k = p.k();
  over_race_requests(p, threads, [&](const RaceRequest& r, const Crew& crew, int64_t* tokens) {
    float* maxima = scratch(0, r.row.tiles());
    const int32_t status = row_maxima(r.row, r.law, crew, maxima);
    static_assert(sizeof(Candidate) == 2 * sizeof(float), "Candidates live in scratch memory");
    Podium podium(reinterpret_cast<Candidate*>(scratch(1, 2 * static_cast<int64_t>(k))), k);
    if (r.law.greedy) {
      largest_tokens(r.row, r.law, maxima, podium);
    } else {
      r.law.in_space([&](auto space) {
        const auto weights = row_weights(space);
        if (r.map.tokens) mapped_race_tiles(weights, r.row, r.map, r.noise, maxima, 0, r.row.tiles(), podium);
        else race_tiles(weights, r.row, r.noise, maxima, 0, RaceTiles(r.row).count, podium);
      });
    }
    for (int32_t i = 0; i < k; ++i) {
      podium.place[i] = r.token_of(podium.place[i]);
      tokens[i] = podium.place[i].token == kNoToken ? -1 : podium.place[i].token;
    }
    return draw_of(podium.place[0], status).status;
  });
}

SPECDEC_END
