/* A part of specdec.h: the types of the fields of its ops' structs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In C++ the structs have member functions, which the library uses. SPECDEC_MEMBER declares one. SPECDEC_FIELDS
 * declares two: names() of all fields, in the order of the op's arguments in Python, and fields(f), which calls f. */
#if !defined(__cplusplus)
#define SPECDEC_API __attribute__((visibility("default")))
#define SPECDEC_MEMBER(...)
#define SPECDEC_FIELDS(...)
#define SPECDEC_NAME(...)
#else
#define SPECDEC_API extern "C" __attribute__((visibility("default")))
#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ __forceinline__
#else
#define SPECDEC_HD inline __attribute__((always_inline))
#endif
#define SPECDEC_MEMBER(...) SPECDEC_HD __VA_ARGS__
#define SPECDEC_FIELDS(...)                          \
  static const char* names() { return #__VA_ARGS__; } \
  template <class F>                                 \
  void fields(F&& f) const { f(__VA_ARGS__); }
#define SPECDEC_NAME(name, struct_of_op) \
  namespace specdec { using name = struct_of_op; }
#endif

/* Bits of the output `status`, one word a request or row. */
enum {
  SPECDEC_STATUS_OK = 0,
  SPECDEC_STATUS_NON_FINITE = 1,     /* a row has a NaN, +inf or a negative probability, or no positive weight */
  SPECDEC_STATUS_EMPTY_RESIDUAL = 2, /* p and q equal to rounding: drew from p */
  SPECDEC_STATUS_TOKEN_RANGE = 4,    /* a draft token outside of the vocabulary: rejected */
  SPECDEC_STATUS_PARAMETER = 8       /* a number or an index outside of its range */
};

/* ---- parts of parameters ---------------------------------------------------------------------------------------- */

enum { SPECDEC_FLOAT32 = 0, SPECDEC_BFLOAT16 = 1, SPECDEC_FLOAT16 = 2 };
enum { SPECDEC_LOGITS = 0, SPECDEC_PROBS = 1 };
enum { SPECDEC_REJECTION = 0, SPECDEC_RACE = 1, SPECDEC_TRAVERSAL = 2, SPECDEC_BLOCK = SPECDEC_TRAVERSAL, SPECDEC_PATHS = 3 };

/* Rows of logits or probabilities [requests, rows, vocab], with unit stride along the vocabulary. */
typedef struct specdec_rows {
  const void* data; /* NULL: no draft rows, where these are optional */
  int64_t request_stride, row_stride;
  int64_t requests, rows;
  int32_t vocab;
  int32_t dtype;
  int32_t vocab_start; /* races over a part of a vocabulary: column i is token vocab_start + i; else 0 */
  SPECDEC_MEMBER(int64_t offset(int64_t outer, int64_t inner) const {
    return outer * request_stride + inner * row_stride;
  })
  /* `row` counts the rows of all requests. */
  SPECDEC_MEMBER(bool has(int64_t row) const { return row >= 0 && row < requests * rows; })
  SPECDEC_MEMBER(int64_t offset_of(int64_t row) const { return offset(row / rows, row % rows); })
} specdec_rows;

/* Token ids or parents [requests, slots], -1 for none. One [slots] for all requests: requests 1, request_stride 0. */
typedef struct specdec_tokens {
  const void* data;
  int64_t request_stride, slot_stride;
  int64_t requests;
  int32_t slots;
  bool wide; /* int64; else int32 */
  SPECDEC_MEMBER(int64_t at(int64_t offset) const {
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  })
} specdec_tokens;

/* A float32: `value` for all if `data` is NULL, else data[outer * outer_stride + inner * inner_stride]. `outer` is the
 * request, `inner` its slot or row, if it has several. A stride of 0 broadcasts. */
typedef struct specdec_number {
  const void* data;
  int64_t outer_stride, inner_stride;
  float value;
  bool wide; /* not used */
  SPECDEC_MEMBER(float load(int64_t offset) const { return static_cast<const float*>(data)[offset]; })
  SPECDEC_MEMBER(float at(int64_t outer, int64_t inner = 0) const {
    return data ? load(outer * outer_stride + inner * inner_stride) : value;
  })
} specdec_number;

/* An integer, addressed like specdec_number. */
typedef struct specdec_counter {
  const void* data;
  int64_t outer_stride, inner_stride;
  int64_t value;
  bool wide; /* data is int64; else int32 */
  SPECDEC_MEMBER(int64_t load(int64_t offset) const {
    if (!wide) return static_cast<const int32_t*>(data)[offset];
    return static_cast<const int64_t*>(data)[offset];
  })
  SPECDEC_MEMBER(int64_t at(int64_t outer, int64_t inner = 0) const {
    return data ? load(outer * outer_stride + inner * inner_stride) : value;
  })
} specdec_counter;

/* How a row's values become its law. Temperature 0 is the argmax, so a law of zeros is greedy. At any other temperature
 * logits are divided by it, and probabilities are final.
 *
 * Filters (of logits) apply where `rules` has SPECDEC_FILTERED. Then top_k <= 0, top_p >= 1 and min_p <= 0 are off.
 * Python's Sampling documents them; the other rules are its top_p_after, ties and at_temperature. */
typedef struct specdec_law {
  int32_t space; /* SPECDEC_LOGITS or SPECDEC_PROBS */
  specdec_number temperature;
  specdec_counter top_k;
  specdec_number top_p, min_p;
  int64_t rules; /* the sum of some SPECDEC_..., below */
  SPECDEC_FIELDS(space, temperature, top_k, top_p, min_p, rules)
} specdec_law;

enum {
  SPECDEC_TOP_P_AFTER_TOP_K = 1,  /* top_p is a share of the mass that top_k keeps; without this and the next, of all */
  SPECDEC_TOP_P_AFTER_MIN_P = 2,  /* top_p is a share of the mass that min_p keeps; with both, of what both keep */
  SPECDEC_TIES_ALL = 4,           /* tokens of equal value are kept or dropped together */
  SPECDEC_BEFORE_TEMPERATURE = 8, /* filters compare the raw logits, not divided by the temperature */
  SPECDEC_FILTERED = 16,          /* filters may be on; without this top_k, top_p and min_p are not read */
  SPECDEC_DIVIDED = 32 /* logits are divided by the temperature already, which only says whether it is 0 */
};

/* int32 [size], contiguous. */
typedef struct specdec_indices {
  const int32_t* data;
  int64_t size;
} specdec_indices;

/* float32 [size], contiguous. */
typedef struct specdec_values {
  const float* data;
  int64_t size;
} specdec_values;

/* Lists of `size` integers [requests, rows, size], with unit stride along a list. */
typedef struct specdec_lists {
  const void* data; /* NULL: not given */
  int64_t request_stride, row_stride;
  int64_t requests, rows, size;
  bool wide; /* int64; else int32. Only `pending` may be. */
  SPECDEC_MEMBER(int64_t offset(int64_t outer, int64_t inner) const {
    return outer * request_stride + inner * row_stride;
  })
  SPECDEC_MEMBER(const int32_t* at(int64_t outer, int64_t inner) const {
    return static_cast<const int32_t*>(data) + offset(outer, inner);
  })
  SPECDEC_MEMBER(int64_t load(int64_t offset) const {
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  })
} specdec_lists;

/* Edits of the target's logits before its law, as documented with Python's LogitEdits. Zeros change nothing. Not with
 * probabilities, nor with draft_map in races. `rows` of a list is 1, or R in ops on rows [A, R, V]. */
typedef struct specdec_edits {
  specdec_lists allowed;       /* bits: [B, 1, words] (ops on rows: [A, R, words]), or with SPECDEC_ALLOWED_BY_ROW one mask for
                                * each target row */
  specdec_indices bias_tokens; /* [n] */
  specdec_values bias_values;  /* [n] */
  specdec_lists bias_spans;    /* [B, 1, 2]: begin and end in bias_tokens. A vector [B+1] of bounds is such lists with a
                                * request_stride of 1. Or with SPECDEC_BIAS_BY_ROW a span for each target row */
  specdec_number repetition;   /* 0.0f and 1.0f are off */
  specdec_number frequency, presence;
  specdec_lists prompt_mask, output_mask; /* bits, [B, 1, words] */
  specdec_lists output_counts;            /* [B, 1, V] */
  specdec_lists pending;                  /* [B, 1, any]: tokens, -1 for none */
  int64_t by_row;                         /* the sum of some SPECDEC_..., below */
  specdec_lists seen_index;    /* [B, 1, 1] (ops on rows: [A, R, 1]): which of the prompt_mask, output_mask and
                                * output_counts, then [any, 1, ...], an entry has. -1: none of them */
  specdec_lists allowed_index; /* which of the masks of `allowed`, then [any, 1, words], an entry has, or with
                                * SPECDEC_ALLOWED_BY_ROW a target row */
  SPECDEC_FIELDS(allowed, bias_tokens, bias_values, bias_spans, repetition, frequency, presence, prompt_mask,
                 output_mask, output_counts, pending, by_row, seen_index, allowed_index)
  /* Whether anything may change. A repetition of zero without memory is a field that was left out. */
  SPECDEC_MEMBER(bool on() const { return allowed.data || bias_tokens.size > 0 || penalises(); })
  SPECDEC_MEMBER(bool penalises() const {
    return repetition.data || (repetition.value != 0.0f && repetition.value != 1.0f) || frequency.data ||
           frequency.value != 0.0f || presence.data || presence.value != 0.0f;
  })
} specdec_edits;

enum { SPECDEC_ALLOWED_BY_ROW = 1, SPECDEC_BIAS_BY_ROW = 2 };

/* Which random numbers. Requests with the same seed must differ in position or nonce. */
typedef struct specdec_noise {
  specdec_counter seed, position, nonce;
  SPECDEC_FIELDS(seed, position, nonce)
} specdec_noise;

/* int32 [size] (int64 if wide), contiguous: the entry of numbers and draft rows that each request of a batch uses. -1:
 * the request is idle, and nothing is read. Without data request i uses entry i. */
typedef struct specdec_request_index {
  const void* data;
  int64_t size;
  int64_t entries; /* how many numbers and draft rows there are */
  bool wide;       /* int64 */
  SPECDEC_MEMBER(int64_t at(int64_t b) const {
    return wide ? static_cast<const int64_t*>(data)[b] : static_cast<const int32_t*>(data)[b];
  })
} specdec_request_index;

/* Outputs [rows, columns]; vectors have one column. They are contiguous, except where an op says "any row stride". */
#define SPECDEC_OUTPUT(name, type) \
  typedef struct name {            \
    type* data;                    \
    int64_t row_stride;            \
    int64_t rows, columns;         \
  } name;
SPECDEC_OUTPUT(specdec_output_i64, int64_t)
SPECDEC_OUTPUT(specdec_output_i32, int32_t)
SPECDEC_OUTPUT(specdec_output_f32, float)
SPECDEC_OUTPUT(specdec_output_u8, uint8_t)
SPECDEC_OUTPUT(specdec_path, const int32_t) /* an output of verify_tree, as compact_kv takes it */

/* Output tokens, int64 or int32, [rows, columns] of any strides. */
typedef struct specdec_output_tokens {
  void* data;
  int64_t row_stride;
  int64_t rows, columns;
  int64_t column_stride; /* 0: 1 */
  bool narrow;           /* int32; else int64 */
  SPECDEC_MEMBER(int64_t offset(int64_t row, int64_t column) const {
    return row * row_stride + column * (column_stride == 0 ? 1 : column_stride);
  })
} specdec_output_tokens;

/* How a verdict is written, a sum of these. SPECDEC_EMITTED: num_accepted counts the last token, too. SPECDEC_ADDED: it
 * is added to the output's value. SPECDEC_ZEROS: tokens behind the last are 0, not -1; with an index those of all its
 * nodes that are not on the path. */
enum { SPECDEC_EMITTED = 1, SPECDEC_ADDED = 2, SPECDEC_ZEROS = 4 };

/* Declares the two functions of an op, and its struct's name in C++. */
#define SPECDEC_DECLARE(cpu_function, cuda_function, struct_of_op, name_in_cpp)                                    \
  SPECDEC_NAME(name_in_cpp, struct_of_op)                                                                            \
  SPECDEC_API int cpu_function(const struct_of_op* params, int threads);                                           \
  SPECDEC_API int cuda_function(const struct_of_op* params, void* workspace, size_t workspace_bytes, size_t* needed, \
                                void* stream);

#undef SPECDEC_OUTPUT
