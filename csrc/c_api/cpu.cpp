// The C functions of the CPU's ops.
#include "../cpu/dispatch.h"
#include "call.h"

using namespace specdec;

namespace {

template <class Params>
int run(const char* op, void (*check)(const Params&), void (*kernel)(const Params&, int), const Params* params,
        int threads) {
  return c_api::call(op, check, params, [&](const Params& checked) {
    if (threads < 1)
      throw c_api::Refusal{SPECDEC_INVALID_ARGUMENT, "threads: expected 1 or more; got " + std::to_string(threads)};
    kernel(checked, threads);
  });
}

}  // namespace

#define SPECDEC_DEFINE(op, Params)                                 \
  int specdec_cpu_##op(const Params* params, int threads) {        \
    return run(#op, c_api::check_##op, cpu::op, params, threads); \
  }
SPECDEC_OPS(SPECDEC_DEFINE)
