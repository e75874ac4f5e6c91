// A race over a part of a vocabulary, as an engine in C++ asks for it: by the CPU kernels or, without SPECDEC_ISA, by
// the CUDA kernels on the played machine.
#if defined(SPECDEC_ISA)
#include <vector>

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
