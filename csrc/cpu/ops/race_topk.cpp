// race_topk on the CPU: the first k arrivals of a row, in order.
#include <algorithm>

#include "../race/race_request.h"
#include "../race/race_row.h"

SPECDEC_BEGIN

namespace {

constexpr int32_t kMostInserted = 512;  // up to this k a TopK inserts in order; a larger one sorts at the end

// The first k arrivals, in order.
struct TopK final : RaceResult {
  Candidate* best;  // k of them
  TopK(Candidate* memory, int32_t k) : RaceResult(k), best(memory) { std::fill(best, best + k, kNoCandidate); }
  void offer(const Candidate& c, float) override {
    if (!better(c, best[capacity - 1])) return;
    int32_t i = capacity - 1;
    for (; i > 0 && better(c, best[i - 1]); --i) best[i] = best[i - 1];
    best[i] = c;
    to_beat = best[capacity - 1].score;
  }
};

// The first k arrivals for a large k: candidates are gathered, and all but the best k are dropped when they are 2k.
struct TopKBuffer final : RaceResult {
  Candidate* best;  // 2k of them
  int32_t count = 0;
  TopKBuffer(Candidate* memory, int32_t k) : RaceResult(k), best(memory) {}
  void offer(const Candidate& c, float) override {
    if (c.score < to_beat) return;
    best[count++] = c;
    if (count == 2 * capacity) drop();
  }
  // Sorts the best k.
  void sort() {
    if (count > capacity) drop();
    std::sort(best, best + count, better);
    std::fill(best + count, best + capacity, kNoCandidate);
  }

 private:
  void drop() {
    std::nth_element(best, best + capacity - 1, best + count, better);
    to_beat = best[capacity - 1].score;
    count = capacity;
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
    Candidate* best = scratch<Candidate>(1, 2 * static_cast<int64_t>(k));
    if (k <= kMostInserted) {
      TopK top(best, k);
      offer_arrivals(race, team, top);
    } else {
      TopKBuffer buffer(best, k);
      offer_arrivals(race, team, buffer);
      buffer.sort();
    }
    for (int32_t i = 0; i < k; ++i) out.put(i, race.to_target_token(best[i]));
    return out.status_of(best[0], race.r.status);
  });
}

SPECDEC_END
