// race_topk on the CPU: the first k arrivals of a row, in order.
#include <algorithm>

#include "race_request.h"

SPECDEC_BEGIN

namespace {

constexpr int32_t kPlaces = 512;  // of a podium, where each candidate is put in its place; more are sorted in the end

// The first k arrivals, for many of them: candidates are gathered, and all but the best k dropped when they are 2k.
struct Crowd {
  Candidate* place;  // 2k of them
  int32_t k, count = 0;
  float beaten = -kInfinity;  // the score of the last of the best k, when they were last looked for

  int32_t places() const { return k; }
  float to_beat() const { return beaten; }
  void offer(const Candidate& c) {
    if (c.score < beaten) return;
    place[count++] = c;
    if (count == 2 * k) drop();
  }
  // The k places, in order.
  void sort() {
    if (count > k) drop();
    std::sort(place, place + count, better);
    std::fill(place + count, place + k, kNobody);
  }

 private:
  void drop() {
    std::nth_element(place, place + k - 1, place + count, better);
    beaten = place[k - 1].score;
    count = k;
  }
};

// The k most probable tokens, for temperature 0.
template <class Result>
void largest_tokens(const Row& row, const Law& law, const float* cells, Result& podium) {
  for (int32_t tile = 0; tile < row.tiles(); ++tile) {
    if (!(law.rank(tile_max(cells, tile)) > podium.to_beat())) continue;
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

// Offers the row's tokens.
template <class Result>
void offer_arrivals(const RaceRequest& race, const Crew& crew, Result& result) {
  const LawRow& r = race.r;
  if (r.known.law.greedy) return largest_tokens(r.row, r.known.law, r.cells, result);
  r.known.law.in_space([&](auto space) { race_row(row_weights(space), r, race.noise, crew, result); });
}

}  // namespace

void race_topk(const RaceParams& p, int threads) {
  const int32_t k = p.k();
  over_race_requests(p, Look::kForCut, threads, [&](const RaceRequest& race, const Crew& crew, const Arrivals& out) {
    static_assert(sizeof(Candidate) == 2 * sizeof(float), "Candidates live in scratch memory");
    Candidate* place = reinterpret_cast<Candidate*>(scratch(1, 4 * static_cast<int64_t>(k)));
    if (k <= kPlaces) {
      Podium podium(place, k);
      offer_arrivals(race, crew, podium);
    } else {
      Crowd crowd = {place, k};
      offer_arrivals(race, crew, crowd);
      crowd.sort();
    }
    for (int32_t i = 0; i < k; ++i) out.put(i, race.token_of(place[i]));
    return out.status_of(place[0], race.r.status);
  });
}

SPECDEC_END
