// Parts of a vocabulary, as an engine in C++ uses them: by the CPU kernels or, without SPECDEC_ISA, by the CUDA kernels
// on the played machine.
#include <vector>

#if defined(SPECDEC_ISA)
#include "../../csrc/cpu/race/race_row.h"
#include "specdec/c/races.h"

SPECDEC_BEGIN
void race_sample(const RaceParams& p, int threads);
void race_topk(const RaceParams& p, int threads);
SPECDEC_END
#else
#include "../../csrc/cuda/ops/race_sample.cu"
#include "../../csrc/cuda/ops/race_topk.cu"
#endif
#include "specdec/mass.h"
#include "specdec/partial.h"

namespace {

int run(const specdec::RaceParams& p) {
  const bool one = p.k() == 1;
#if defined(SPECDEC_ISA)
  one ? specdec::race_sample(p, 1) : specdec::race_topk(p, 1);
  return 0;
#else
  static unsigned long long memory[1 << 15];
  int64_t needed = 0;
  const specdec::cuda::Call call = {memory, sizeof memory, nullptr, &needed};
  const cudaError_t e = one ? specdec::cuda::race_sample(p, call) : specdec::cuda::race_topk(p, call);
  return e != cudaSuccess || needed;
#endif
}

}  // namespace

// The first `k` arrivals of `vocab` logits, of which the first one is that of token `vocab_start`.
extern "C" int race_part(const void* logits, int dtype, int32_t vocab, int32_t vocab_start, float temperature,
                         int64_t seed, int64_t k, int64_t* tokens) {
  specdec::RaceParams p = {};
  p.rows = {logits, 0, vocab, 1, 1, vocab, dtype, vocab_start};
  p.law.temperature.value = temperature;
  p.noise.seed.value = seed;
  p.tokens = {tokens, k, 1, k};
  return run(p);
}

// What is known of a row of logits, from parts of it: part i ends where part i + 1 begins, at begin[i + 1], and is cut
// into mass tiles from its begin on.
extern "C" void known_of_parts(const float* logits, const int32_t* begin, int parts, int backwards,
                               specdec::RowPartial* row, specdec::LogSumExp* lse, uint64_t* mass) {
  using namespace specdec;
  const Logits space = {1.0f};
  std::vector<MassTile> tiles;
  *row = kNoPartial;
  for (int i = 0; i < parts; ++i) {
    const int at = backwards ? parts - 1 - i : i;
    RowPartial part = kNoPartial;
    for (int32_t first = begin[at]; first < begin[at + 1]; first += kMassTile) {
      const int32_t end = begin[at + 1] - first < kMassTile ? begin[at + 1] : first + kMassTile;
      MassTile tile = kNoTile;
      for (int32_t token = first; token < end; ++token) {
        tile.max = max(space.scaled(logits[token]), tile.max);
        const float rank = space.rank(logits[token]);
        if (rank > -kInfinity) part.best = best_of(part.best, {rank, token});
        if (!space.is_element(logits[token])) part.status |= SPECDEC_STATUS_NON_FINITE;
      }
      for (int32_t token = first; token < end; ++token)
        tile.units += unit_weight(min(0.0f, space.below(logits[token], tile.max)));
      tiles.push_back(tile);
    }
    *row = together(*row, part);
  }
  const int32_t count = static_cast<int32_t>(tiles.size());
  *lse = log_sum_exp(tiles.data(), count);
  *mass = mass_of(tiles.data(), count, lse->max);
}

#if !defined(SPECDEC_ISA)
namespace specdec {
namespace cuda {

// A matrix product, [vocab, depth] by [depth], whose epilogue races: its logits are never in memory.
struct Product {
  const float *weights, *hidden;
  int32_t depth, vocab, vocab_start;
  float temperature;
  int64_t seed;
  int64_t* token;
};

__device__ uint32_t product_at(const Product& p, int32_t column) {
  if (column < 0 || column >= p.vocab) return Float32::kMinusInfinity;
  float sum = 0.0f;
  for (int32_t i = 0; i < p.depth; ++i) sum = add(sum, mul(p.weights[int64_t{column} * p.depth + i], p.hidden[i]));
  return bits(sum);
}

__global__ void __launch_bounds__(kThreads) product_kernel(const Product p) {
  SPECDEC_SHARED(unsigned, words, kRaceWords);
  SPECDEC_SHARED(Element, list, kElements);
  BlockRace race = {words, list};
  race.begin();
  __syncthreads();
  specdec_law law = {};
  law.temperature.value = p.temperature;
  specdec_noise noise = {};
  noise.seed.value = p.seed;
  int32_t status = SPECDEC_STATUS_OK;
  const Row row = {nullptr, p.vocab, SPECDEC_FLOAT32, p.vocab_start};
  const Weights weights = weights_of_row(row, law_at(law, 0, 0, &status));
  using Chunk = Batch<Float32>;
  for (int32_t turn = -row.skipped(); turn < p.vocab; turn += warps_in_block() * Chunk::kTokens) {
    const int32_t first = turn + warp_id() * Chunk::kTokens;
    Chunk logits;
    for (int step = 0; step < kVectors; ++step) {
      const int32_t column = Chunk::token(first, step);
      logits.vector[step] = {product_at(p, column), product_at(p, column + 1), product_at(p, column + 2),
                             product_at(p, column + 3)};
    }
    const Noise own = noise_at(noise, 0, 0, kStreamRace);
    race_turn<Float32>(largest_of(weights.target.stats.law, logits, kVectors), weights, own, first, kVectors,
                       lane_noise(own, row, first), &race, [&](int step) { return logits.at(step); });
  }
  const RowPartial found = best_of_block(race.mine, race.bad);
  if (threadIdx.x == 0) *p.token = to_draw(found).token;
}

}  // namespace cuda
}  // namespace specdec

extern "C" int race_product(const float* weights, const float* hidden, int32_t depth, int32_t vocab,
                            int32_t vocab_start, float temperature, int64_t seed, int64_t* token) {
  using namespace specdec::cuda;
  return launch(product_kernel, {1, kThreads}, {weights, hidden, depth, vocab, vocab_start, temperature, seed, token},
                nullptr);
}
#endif
