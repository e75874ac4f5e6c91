// Errors, and the library's version.
#include "call.h"

namespace specdec::c_api {

namespace {

std::string& last_error() {
  static thread_local std::string message;
  return message;
}

}  // namespace

int failed(int error, const char* op, const char* message) noexcept {
  try {
    last_error() = *op ? std::string(op) + ": " + message : message;
  } catch (const std::bad_alloc&) {
    last_error().clear();
  }
  return error;
}

}  // namespace specdec::c_api

int specdec_version(void) { return SPECDEC_VERSION; }

const char* specdec_last_error(void) { return specdec::c_api::last_error().c_str(); }

const char* specdec_error_string(int error) {
  switch (error) {
    case SPECDEC_OK: return "no error";
    case SPECDEC_INVALID_ARGUMENT: return "invalid argument";
    case SPECDEC_WORKSPACE_TOO_SMALL: return "workspace too small";
    case SPECDEC_NO_CUDA: return "built without CUDA, or no device";
    case SPECDEC_CUDA_ERROR: return "CUDA error";
    case SPECDEC_OUT_OF_MEMORY: return "out of memory";
    case SPECDEC_INTERNAL_ERROR: return "internal error";
    default: return "unknown error";
  }
}
