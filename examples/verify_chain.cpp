// Verifies one request's drafts with nothing but the headers of specdec-kernels: no torch, no Python, no library.
//   g++ -std=c++17 -O2 -ffp-contract=off -I csrc/include examples/verify_chain.cpp -o verify_chain && ./verify_chain
#include <cstdio>
#include <vector>

#include "specdec/chain.h"
#include "specdec/residual.h"

using Law = std::vector<float>;

// The row operations that specdec::walk_chain asks for, over rows of probabilities.
struct Rows {
  const specdec::ChainRequest& request;
  std::vector<Law> target, draft;
  std::vector<int> drafts;
  std::vector<int> emitted;

  int64_t draft_token(int slot) const { return drafts[slot]; }
  float draft_prob(int) const { return 1.0f; }
  void emit(int, int token) { emitted.push_back(token); }

  bool laws(int slot, int token, float* p, float* q, int32_t*) const {
    *p = target[slot][token];
    *q = draft[slot][token];
    return true;  // this is known; a walk that meets false is left, and can be gone on with
  }

  template <class Weight>
  specdec::Draw race_over(int slot, uint32_t stream, Weight weight) const {
    const specdec::Noise noise = specdec::chain_noise(request, slot, stream);
    specdec::Candidate winner = specdec::kNobody;
    for (int token = 0; token < static_cast<int>(target[slot].size()); ++token) {
      const float score = specdec::race_score(specdec::log_weight(weight(token)), specdec::arrival(noise, token));
      if (score > -specdec::kInfinity) winner = specdec::best_of(winner, {score, token});
    }
    return specdec::draw_of(winner, specdec::kStatusOk);
  }

  bool race(int slot, uint32_t stream, specdec::Draw* draw) const {
    *draw = race_over(slot, stream, [&](int token) { return target[slot][token]; });
    return true;
  }
  bool residual(int slot, int, float h, specdec::Draw* draw) const {
    *draw = race_over(slot, specdec::kStreamResidual, [&](int token) {
      return specdec::residual_weight(target[slot][token], h * draft[slot][token]);
    });
    return true;
  }
  bool argmax(int slot, specdec::Draw* draw) const { return race(slot, specdec::kStreamRace, draw); }  // temperature 1
};

int main() {
  const Law p = {0.4f, 0.3f, 0.2f, 0.1f}, q = {0.1f, 0.2f, 0.3f, 0.4f};
  const int rounds = 200000;
  int accepted = 0;
  std::vector<int> first(p.size());
  for (int seed = 0; seed < rounds; ++seed) {
    specdec::ChainRequest request = {};
    request.slots = 2;
    request.noise.key = specdec::key_of(seed);
    request.target_law = {specdec::Space::kProbs, 1.0f, false};
    Rows rows = {request, {p, p, p}, {q, q}, {}, {}};
    for (int slot = 0; slot < request.slots; ++slot) {  // the draft model samples by the race of stream 0
      specdec::Draw drafted;
      Rows{request, {q, q}, {}, {}, {}}.race(slot, specdec::kStreamRace, &drafted);
      rows.drafts.push_back(drafted.token);
    }
    int32_t slot = 0, status = specdec::kStatusOk;
    specdec::walk_chain(request, specdec::Method::kRejection, 4, rows, &slot, &status);
    accepted += slot;
    ++first[rows.emitted[0]];
  }
  std::printf("accepted %.4f of 0.9600 drafts a round; first token", accepted / static_cast<double>(rounds));
  for (int count : first) std::printf(" %.4f", count / static_cast<double>(rounds));
  std::printf("\n");
}
