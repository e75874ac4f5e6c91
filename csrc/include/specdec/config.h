// Macros that depend on the compiler, beside SPECDEC_HD of specdec.h, and constants of all headers. No header here
// includes torch or Python.
#pragma once

#include "c/parts.h"

namespace specdec {

using Rows = specdec_rows;
using Tokens = specdec_tokens;
using Lists = specdec_lists;

}  // namespace specdec

// Stands before a function that calls its argument, which may be a function for the device only.
#if defined(__CUDACC__)
#define SPECDEC_CALLS_BACK _Pragma("nv_exec_check_disable")
#else
#define SPECDEC_CALLS_BACK
#endif

// The CPU backend compiles the same text once per instruction set. An inline namespace of that name keeps the
// linker from picking the AVX-512 copy of an inline function for a machine without AVX-512.
#if defined(SPECDEC_ISA)
#define SPECDEC_BEGIN namespace specdec { inline namespace SPECDEC_ISA {
#define SPECDEC_END } }
#else
#define SPECDEC_BEGIN namespace specdec {
#define SPECDEC_END }
#endif

SPECDEC_BEGIN

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kLargest = 3.402823466e+38f;   // FLT_MAX: what +inf counts as
constexpr float kSmallest = 1.175494351e-38f;  // FLT_MIN: weights below it are 0, so modes that flush do not matter

SPECDEC_END
