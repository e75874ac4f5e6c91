// The frame of every C function: it checks the parameters, runs the op, and turns exceptions into error codes.
#pragma once

#include <new>
#include <string>

#include "../cpu/float_mode.h"
#include "specdec/ops.h"

namespace specdec::c_api {

// Thrown inside of a call; its number is what the C function returns.
struct Refusal {
  int error;
  std::string message;
};

// Stores the message for specdec_last_error() and returns the error. With an op of "" the message has no prefix.
int failed(int error, const char* op, const char* message) noexcept;

// Throws a Refusal if the parameters are wrong or do not fit together.
#define SPECDEC_CHECK(op, Params) void check_##op(const Params& params);
SPECDEC_OPS(SPECDEC_CHECK)
#undef SPECDEC_CHECK

// Checks the parameters and runs f(params). Returns SPECDEC_OK, or the error code of an exception.
template <class Params, class F>
int call(const char* op, void (*check)(const Params&), const Params* params, F&& f) noexcept {
  const FloatMode mode;
  try {
    if (!params) throw Refusal{SPECDEC_INVALID_ARGUMENT, "params: expected a struct; got NULL"};
    check(*params);
    f(*params);
    return SPECDEC_OK;
  } catch (const Refusal& refusal) {
    return failed(refusal.error, op, refusal.message.c_str());
  } catch (const std::bad_alloc&) {
    return failed(SPECDEC_OUT_OF_MEMORY, op, "out of memory");
  } catch (const std::exception& error) {
    return failed(SPECDEC_INTERNAL_ERROR, op, error.what());
  }
}

}  // namespace specdec::c_api
