// race_topk on the CPU: the first k arrivals of a row, in order.
#include <algorithm>

#include "../race/race_request.h"
#include "../race/race_row.h"

SPECDEC_BEGIN

namespace {

constexpr int32_t kPlaces = 512;  // of a TopK, where each candidate is put in its place; more are sorted in the end

// The first k arrivals, in order.
struct TopK final : RaceResult {
  Candidate* place;  // k of them
  TopK(Candidate* memory, int32_t k) : RaceResult(k), place(memory) { std::fill(place, place + k, kNobody); }
  void offer(const Candidate& c, float) override {
    if (!better(c, place[places - 1])) return;
    int32_t i = places - 1;
    for (; i > 0 && better(c, place[i - 1]); --i) place[i] = place[i - 1];
    place[i] = c;
    to_beat = place[places - 1].score;
  }
};

// Many first arrivals: candidates are gathered, and all but the best k dropped when they are 2k.
struct TopKBuffer final : RaceResult {
  Candidate* place;  // 2k of them
  int32_t count = 0;
  TopKBuffer(Candidate* memory, int32_t k) : RaceResult(k), place(memory) {}
  void offer(const Candidate& c, float) override {
    if (c.score < to_beat) return;
    place[count++] = c;
    if (count == 2 * places) drop();
  }
  // The k places, in order.
  void sort() {
    if (count > places) drop();
    std::sort(place, place + count, better);
    std::fill(place + count, place + places, kNobody);
  }

 private:
  void drop() {
    std::nth_element(place, place + places - 1, place + count, better);
    to_beat = place[places - 1].score;
    count = places;
  }
};

// The k most probable tokens, for temperature 0.
void largest_tokens(const Row& row, const Law& law, const float* cells, RaceResult& result) {
  for (int32_t tile = 0; tile < row.tiles(); ++tile) {
    if (!(law.rank(tile_max(cells, tile)) > result.to_beat)) continue;
    const int32_t begin = tile * kTile, end = begin + row.tile_size(tile);
    for (int32_t token = begin; token < end; token += kLanes) {
      const F32x16 raw = elements(row, token, end - token, __builtin_nanf(""));
      for (Mask left = at_least(raw, F32x16(result.to_beat)); left; left &= left - 1) {
        const int32_t i = token + __builtin_ctz(left);
        const float rank = law.rank(element(row, i));
        if (rank > -kInfinity) result.offer({rank, i}, rank);
      }
    }
  }
}

// Offers the row's tokens.
void offer_arrivals(const RaceRequest& race, const ThreadTeam& team, RaceResult& result) {
  const LawRow& r = race.r;
  if (r.stats.law.greedy) largest_tokens(r.row, r.stats.law, r.cells, result);
  else race_row(r, race.noise, team, result);
}

}  // namespace

void race_topk(const RaceParams& p, int threads) {
  const int32_t k = p.k();
  over_race_requests(p, ScanFor::kCut, threads,
                     [&](const RaceRequest& race, const ThreadTeam& team, const Arrivals& out) {
    static_assert(sizeof(Candidate) == 2 * sizeof(float), "Candidates live in scratch memory");
    Candidate* place = reinterpret_cast<Candidate*>(scratch(1, 4 * static_cast<int64_t>(k)));
    if (k <= kPlaces) {
      TopK top(place, k);
      offer_arrivals(race, team, top);
    } else {
      TopKBuffer buffer(place, k);
      offer_arrivals(race, team, buffer);
      buffer.sort();
    }
    for (int32_t i = 0; i < k; ++i) out.put(i, race.token_of(place[i]));
    return out.status_of(place[0], race.r.status);
  });
}

SPECDEC_END
