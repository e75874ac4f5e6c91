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

// What an exact check reads besides the struct.
struct Exact {
  static constexpr int kMost = 24;
  struct Number {
    const void* field;
    int64_t outer, inner;
  };

  Number numbers[kMost];  // the sizes of tensors of numbers, which their fields do not have
  int count = 0;
  int64_t columns = -1;   // of tokens and paths, or of the best tokens: as the call says, if it does
  int64_t longest = -1;   // the most drafts of a request, if the host can read them

  const Number* find(const void* field) const {
    for (const Number* number = numbers; number < numbers + count; ++number)
      if (number->field == field) return number;
    return nullptr;
  }
};

// The check of a call whose outputs need not exist yet: sets the sizes of those without memory by the inputs. Returns
// false where an input has any other size than it must have, or is left to Python's checks.
#define SPECDEC_CHECK(op, Params) bool exact_##op(Params& params, const Exact& exact);
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
