// Macros that depend on the compiler, and constants of all headers. Nothing in this folder knows torch or Python.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ __forceinline__
// Stands before a function that calls its argument, which may be a function for the device only.
#define SPECDEC_CALLS_BACK _Pragma("nv_exec_check_disable")
#else
#define SPECDEC_HD inline __attribute__((always_inline))
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

// Bits of `status`, as in the public Verdict.
enum Status : int32_t {
  kStatusOk = 0,
  kStatusNonFinite = 1,      // a NaN or +inf was met, or a row without positive weight
  kStatusEmptyResidual = 2,  // p and q equal to rounding: drew from p
  kStatusTokenRange = 4,     // a draft token outside [0, V): rejected. In logprobs any but -1
  kStatusParameter = 8,      // a number, an index or an entry of cu_drafts, parents or path outside its range
};

SPECDEC_END
