// Parts of a vocabulary, as an engine in C++ uses them: by the CPU kernels or, without SPECDEC_ISA, by the CUDA kernels
// on the played machine.
#if defined(SPECDEC_ISA)
#include <vector>

#include "../../csrc/cpu/filtered_row.cpp"
#include "../../csrc/cpu/race_sample.cpp"
#include "../../csrc/cpu/race_topk.cpp"

namespace specdec {
float* scratch(int slot, int64_t floats) {
  static std::vector<float> memory[3];
  memory[slot].resize(static_cast<size_t>(floats));
  return memory[slot].data();
}
}  // namespace specdec
#else
#include "../../csrc/cuda/race_sample.cu"
#include "../../csrc/cuda/race_topk.cu"
#endif
#include "specdec/partial.h"

namespace {

int run(const specdec::RaceParams& p) {
  const bool one = p.k() == 1;
#if defined(SPECDEC_ISA)
  one ? specdec::race_sample(p, 1) : specdec::race_topk(p, 1);
  return 0;
#else
  static unsigned long long memory[1 << 15];
  const specdec::cuda::Workspace workspace = {memory, sizeof memory};
  int64_t needed = 0;
  const cudaError_t e = one ? specdec::cuda::race_sample(p, workspace, nullptr, &needed)
                            : specdec::cuda::race_topk(p, workspace, nullptr, &needed);
  return e != cudaSuccess || needed;
#endif
}

}  // namespace

// The first `k` arrivals of `vocab` logits, of which the first one is that of token `first_token`.
extern "C" int race_part(const void* logits, int dtype, int32_t vocab, int32_t first_token, float temperature,
                         int64_t seed, int64_t k, int64_t* tokens) {
  specdec::RaceParams p = {};
  p.rows = {logits, 0, vocab, 1, 1, vocab, static_cast<specdec::DType>(dtype), first_token};
  p.law.temperature.value = temperature;
  p.noise.seed.value = seed;
  p.tokens = {tokens, k, 1, k};
  return run(p);
}

// What is known of a row of logits, from parts of it: part i ends where part i + 1 begins, at begin[i + 1].
extern "C" void known_of_parts(const float* logits, const int32_t* begin, int parts, int backwards,
                               specdec::RowPartial* row) {
  using namespace specdec;
  const Logits space = {1.0f};
  *row = kNoPart;
  for (int i = 0; i < parts; ++i) {
    const int at = backwards ? parts - 1 - i : i;
    RowPartial part = kNoPart;
    for (int32_t token = begin[at]; token < begin[at + 1]; ++token) {
      part.max = max(part.max, space.scaled(logits[token]));
      const float rank = space.rank(logits[token]);
      if (rank > -kInfinity) part.best = best_of(part.best, {rank, token});
      if (!space.is_element(logits[token])) part.status |= kStatusNonFinite;
    }
    for (int32_t token = begin[at]; token < begin[at + 1]; ++token)
      part.sum = add(part.sum, exp_or_zero(sub(space.scaled(logits[token]), part.max)));
    *row = together(*row, part);
  }
}

#if !defined(SPECDEC_ISA)
namespace specdec {
namespace cuda {

// A matrix product, [vocab, depth] by [depth], whose epilogue races: its logits are never in memory.
struct Product {
  const float *weights, *hidden;
  int32_t depth, vocab, first_token;
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
  SPECDEC_SHARED(unsigned, best, 1);
  if (threadIdx.x == 0) best[0] = ordered(-kInfinity);
  __syncthreads();
  LawParams law = {};
  law.temperature.value = p.temperature;
  NoiseParams noise = {};
  noise.seed.value = p.seed;
  int32_t status = kStatusOk;
  const Row row = {nullptr, p.vocab, DType::kFloat32, p.first_token};
  const Weights weights = weights_of_row(row, law_at(law, 0, 0, &status));
  Candidate mine = kNobody;
  bool bad = false;
  using Chunk = Batch<Float32>;
  for (int32_t first = warp_id() * Chunk::kTokens - row.skipped(); first < p.vocab;
       first += warps_in_block() * Chunk::kTokens) {
    Chunk logits;
    for (int step = 0; step < kVectors; ++step) {
      const int32_t column = Chunk::token(first, step);
      logits.vector[step] = {product_at(p, column), product_at(p, column + 1), product_at(p, column + 2),
                             product_at(p, column + 3)};
    }
    race_chunk(logits, weights, noise_at(noise, 0, 0, kStreamRace), first, kVectors, best, &mine, &bad,
               [&](int step) { return logits.at(step); });
  }
  const RowPartial found = best_of_block(mine, bad);
  if (threadIdx.x == 0) *p.token = draw_of(found).token;
}

}  // namespace cuda
}  // namespace specdec

extern "C" int race_product(const float* weights, const float* hidden, int32_t depth, int32_t vocab,
                            int32_t first_token, float temperature, int64_t seed, int64_t* token) {
  using namespace specdec::cuda;
  return launch(product_kernel, {1, kThreads}, {weights, hidden, depth, vocab, first_token, temperature, seed, token},
                nullptr);
}
#endif
