// Picks the copy of the kernels for this machine, and owns their scratch memory.
#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cpu.h"

namespace specdec {

std::atomic<int64_t> weighed_rows{0};

std::byte* scratch_bytes(int scratch_id, int64_t bytes) {
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    int64_t size = 0;
  };
  static thread_local Memory memories[7];
  Memory& memory = memories[scratch_id];
  if (memory.size < bytes) {
    memory = {};  // the old memory first: a thread never has both
    memory = {std::make_unique<std::byte[]>(static_cast<size_t>(bytes)), bytes};
  }
  return memory.bytes.get();
}

#define SPECDEC_CPU_DECLARE(op, Params) void op(const Params& p, int threads);
SPECDEC_OTHER_OPS(SPECDEC_CPU_DECLARE)
namespace scalar {
SPECDEC_ROW_OPS(SPECDEC_CPU_DECLARE)
}
#if defined(SPECDEC_HAS_AVX2)
namespace avx2 {
SPECDEC_ROW_OPS(SPECDEC_CPU_DECLARE)
}
#endif
#if defined(SPECDEC_HAS_AVX512)
namespace avx512 {
SPECDEC_ROW_OPS(SPECDEC_CPU_DECLARE)
}
#endif
#undef SPECDEC_CPU_DECLARE

namespace cpu {

std::vector<std::string> isas() {
  std::vector<std::string> names = {"scalar"};
#if defined(SPECDEC_HAS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    names.push_back("avx2");
#endif
#if defined(SPECDEC_HAS_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    names.push_back("avx512");
#endif
  return names;
}

namespace {

enum Isa { kScalar, kAvx2, kAvx512 };

Isa isa_of(const std::string& name) {
  for (const std::string& supported : isas())
    if (name == supported) return name == "scalar" ? kScalar : name == "avx2" ? kAvx2 : kAvx512;
  std::string message = "instruction set: expected one of";
  for (const std::string& supported : isas()) message += " " + supported;
  throw std::invalid_argument(message + "; got " + name);
}

Isa& chosen() {
  static Isa isa = [] {
    const char* requested = std::getenv("SPECDEC_CPU_ISA");
    return isa_of(requested && *requested ? requested : isas().back());
  }();
  return isa;
}

}  // namespace

std::string isa() { return chosen() == kScalar ? "scalar" : chosen() == kAvx2 ? "avx2" : "avx512"; }
int64_t weighed_rows() { return specdec::weighed_rows; }
void set_isa(const std::string& name) { chosen() = isa_of(name); }

#if defined(SPECDEC_HAS_AVX2)
#define SPECDEC_AVX2(op) \
  case kAvx2: return avx2::op(p, threads);
#else
#define SPECDEC_AVX2(op)
#endif
#if defined(SPECDEC_HAS_AVX512)
#define SPECDEC_AVX512(op) \
  case kAvx512: return avx512::op(p, threads);
#else
#define SPECDEC_AVX512(op)
#endif
#define SPECDEC_DISPATCH(op, Params)          \
  void op(const Params& p, int threads) {     \
    switch (chosen()) {                       \
      SPECDEC_AVX512(op)                      \
      SPECDEC_AVX2(op)                        \
      default: return scalar::op(p, threads); \
    }                                         \
  }
SPECDEC_ROW_OPS(SPECDEC_DISPATCH)
#undef SPECDEC_DISPATCH

#define SPECDEC_CALL(op, Params) \
  void op(const Params& p, int threads) { specdec::op(p, threads); }
SPECDEC_OTHER_OPS(SPECDEC_CALL)
#undef SPECDEC_CALL

}  // namespace cpu
}  // namespace specdec
