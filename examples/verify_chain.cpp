// Verifies one request's drafts with nothing but the headers of specdec-kernels: no torch, no Python, no library.
//   g++ -std=c++17 -O2 -ffp-contract=off -I csrc/include examples/verify_chain.cpp -o verify_chain && ./verify_chain
#include <cstdio>
#include <vector>

#include "specdec/chain.h"
#include "specdec/residual.h"

using Law = std::vector<float>;

// The row operations that specdec::walk_rejection asks for, over rows of probabilities. Each returns true: its answer is
// known at once. Row 0 is the law of the first token, row j that of the token after draft j.
struct Rows {
  std::vector<Law> target, draft;
  std::vector<int> emitted;

  bool laws(int row, int token, float* p, float* q, int32_t*) const {
    *p = target[row][token];
    *q = draft[row][token];
    return true;
  }

  template <class Weight>
  static specdec::Draw race_over(size_t vocab, const specdec::Noise& noise, Weight weight) {
    specdec::Candidate winner = specdec::kNoCandidate;
    for (int token = 0; token < static_cast<int>(vocab); ++token) {
      const float score = specdec::race_score(specdec::log_weight(weight(token)), specdec::arrival(noise, token));
      if (score > -specdec::kInfinity) winner = specdec::best_of(winner, {score, token});
    }
    return specdec::to_draw(winner, SPECDEC_STATUS_OK);
  }

  bool is_empty(int row, bool* empty) const {
    *empty = true;
    for (float p : target[row]) *empty = *empty && !(p > 0.0f);
    return true;
  }
  bool race(int row, const specdec::Noise& noise, specdec::Draw* draw) const {
    *draw = race_over(target[row].size(), noise, [&](int token) { return target[row][token]; });
    return true;
  }
  bool residual(int row, const specdec::Noise& noise, float subtracted, specdec::Draw* draw) const {
    *draw = race_over(target[row].size(), noise, [&](int token) {
      return specdec::residual_weight(target[row][token], subtracted * draft[row][token]);
    });
    return true;
  }
  void emit(int, int, int token) { emitted.push_back(token); }
  void enter(int, int, int) {}  // goes on to an accepted draft: a chain in memory has nothing to do
};

int main() {
  const Law p = {0.4f, 0.3f, 0.2f, 0.1f}, q = {0.1f, 0.2f, 0.3f, 0.4f};
  const int rounds = 200000, slots = 2;
  int64_t drafts[slots], tokens[slots + 1];
  specdec::ChainParams params = {};
  params.draft_tokens = {drafts, 0, 1, 1, slots, true};
  params.target.vocab = params.draft.vocab = 4;
  params.draft.data = q.data();  // there are draft laws; the rows themselves are read by `Rows` alone
  params.target_law.space = params.draft_law.space = SPECDEC_PROBS;
  params.target_law.temperature.value = params.draft_law.temperature.value = params.draft_prob.value = 1.0f;
  params.tokens = {tokens, slots + 1, 1, slots + 1, 1, false};

  int accepted = 0;
  std::vector<int> first(p.size());
  for (int seed = 0; seed < rounds; ++seed) {
    params.noise.seed.value = seed;
    const specdec::ChainRequest request(params, 0);
    for (int slot = 0; slot < slots; ++slot) {  // the draft model samples by the race of stream 0
      const specdec::Noise noise = request.noise_at_depth(slot, specdec::kStreamRace);
      drafts[slot] = Rows::race_over(q.size(), noise, [&](int token) { return q[token]; }).token;
    }
    Rows rows = {{p, p, p}, {q, q}, {}};
    specdec::Walk at = specdec::walk_from(0, 0);
    int32_t status = SPECDEC_STATUS_OK;
    specdec::walk_rejection(request, rows, &at, &status);
    accepted += at.depth;
    ++first[rows.emitted[0]];
  }
  std::printf("accepted %.4f of 0.9600 drafts a round; first token", accepted / static_cast<double>(rounds));
  for (int count : first) std::printf(" %.4f", count / static_cast<double>(rounds));
  std::printf("\n");
}
