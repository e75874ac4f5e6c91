/* specdec-kernels for engines in C and C++: every op, on rows in the memory of the host or of a GPU, without Python or
 * torch.
 *
 * Each op has a struct of parameters and two functions:
 *
 *   int specdec_cpu_<op>(params, threads)
 *   int specdec_cuda_<op>(params, workspace, workspace_bytes, needed, stream)
 *
 * They write into the outputs that the struct points to. Both return SPECDEC_OK or an error; specdec_last_error() then
 * says what was wrong. The parameters are checked first: a null pointer, an unknown dtype or sizes that do not fit
 * together are an error, and nothing runs. What a pointer points to cannot be checked. It must be memory of the right
 * size and kind, aligned as its elements are, and no output may overlap anything else.
 *
 * What the ops compute, and from which random numbers, is documented with the Python functions of the same names. The
 * bits are the same as theirs.
 *
 * Structs. Write them with designated initialisers, or zero them first: zero means "off" or "not given" in each field
 * that may be left out. Code written so compiles with newer headers, too: new fields come at the end of the parts below
 * (laws, noise, ...), and zero turns them off. Strides count elements. The last dimension of rows and outputs has a
 * stride of 1.
 *
 * CUDA. A function enqueues its kernel on `stream` (a cudaStream_t; NULL is the default stream) of the current device
 * and returns. It never waits for the device, so a graph can capture it. Its workspace is device memory that
 *
 *   - is aligned to 16 bytes, and zeroed once before its first use. Every kernel leaves it ready for the next.
 *   - serves one stream at a time. Kernels that may run at the same time need a workspace each, and so do graphs that
 *     are replayed on several streams.
 *   - keeps its size: pass the same `workspace_bytes` with the same memory, or zero it again.
 *   - is large enough. If it is not, SPECDEC_WORKSPACE_TOO_SMALL is returned, nothing is launched, and *needed is the
 *     number of bytes the call takes. Otherwise *needed is 0. `needed` may be NULL. Few calls take more than 256 KiB;
 *     some take none and run with NULL and 0.
 *
 * Threads may call all functions at the same time. Header and library must be of one version: compare specdec_version()
 * with SPECDEC_VERSION.
 */
#ifndef SPECDEC_H
#define SPECDEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPECDEC_VERSION 100 /* 10,000 * major + 100 * minor + patch */

/* In C++ the structs have functions, too, which the library uses. SPECDEC_MEMBER is one of them. SPECDEC_FIELDS makes
 * two: names() of all fields, in the order of the op's arguments in Python, and fields(f), which calls f with them. */
#if !defined(__cplusplus)
#define SPECDEC_API __attribute__((visibility("default")))
#define SPECDEC_MEMBER(...)
#define SPECDEC_FIELDS(...)
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
extern "C++" { /* where this is included in a block of extern "C", no template may stand without it */
#endif

/* ---- errors ----------------------------------------------------------------------------------------------------- */

enum {
  SPECDEC_OK = 0,
  SPECDEC_INVALID_ARGUMENT = 1,
  SPECDEC_WORKSPACE_TOO_SMALL = 2, /* CUDA functions: see above */
  SPECDEC_NO_CUDA = 3,             /* built without CUDA, or no device */
  SPECDEC_CUDA_ERROR = 4,
  SPECDEC_OUT_OF_MEMORY = 5, /* of the host */
  SPECDEC_INTERNAL_ERROR = 6
};

SPECDEC_API int specdec_version(void);
/* What an error number means. */
SPECDEC_API const char* specdec_error_string(int error);
/* The last failure in this thread: the op, the argument, what was expected and what was given. Empty before the first
 * failure. The text is valid until the thread's next failure. */
SPECDEC_API const char* specdec_last_error(void);
/* SPECDEC_OK if the CUDA functions have a device to run on. */
SPECDEC_API int specdec_cuda_available(void);
/* Writes into `capture` which capture the stream is in, 0 if none. Whoever keeps workspaces gives each capture one of its
 * own, because a graph keeps it. */
SPECDEC_API int specdec_cuda_capture(void* stream, uint64_t* capture);
/* Waits until the stream, which is in no capture, has done what was put into it. Other threads may capture meanwhile. */
SPECDEC_API int specdec_cuda_wait(void* stream);

/* Bits of the output `status`, one word a request or row. */
enum {
  SPECDEC_STATUS_OK = 0,
  SPECDEC_STATUS_NON_FINITE = 1,     /* a NaN, +inf or a negative probability was met, or a row without positive weight */
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
  const void* data; /* NULL: no draft laws, where these are optional */
  int64_t request_stride, row_stride;
  int64_t requests, rows;
  int32_t vocab;
  int32_t dtype;
  int32_t vocab_start; /* races: column i is token vocab_start + i, where rows are a part of a vocabulary; else 0 */
  SPECDEC_MEMBER(int64_t offset(int64_t outer, int64_t inner) const {
    return outer * request_stride + inner * row_stride;
  })
  /* A place counts the rows of all requests. */
  SPECDEC_MEMBER(bool has(int64_t place) const { return place >= 0 && place < requests * rows; })
  SPECDEC_MEMBER(int64_t offset_of(int64_t place) const { return offset(place / rows, place % rows); })
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
 * request, `inner` its slot or row, if it has several. With a stride of 0 all of them share a number. */
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

/* An integer, in the same way. */
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

/* From a row's values to its law. Temperature 0 is the argmax, so a law of zeros is greedy. At any other temperature
 * logits are divided by it, and probabilities are final.
 *
 * Filters (of logits) are looked at where `rules` has SPECDEC_FILTERED. Then top_k <= 0, top_p >= 1 and
 * min_p <= 0 are off. What they keep is said with Python's Sampling; the other rules are its top_p_after, ties and
 * at_temperature. */
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
  SPECDEC_BEFORE_TEMPERATURE = 8, /* filters compare the logits as they came, not divided by the temperature */
  SPECDEC_FILTERED = 16,          /* filters may be on; without this top_k, top_p and min_p are not looked at */
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

/* What becomes of the target's logits before its law sees them, as said with Python's Edits. Zeros change nothing. Not
 * with probabilities, with draft_map in races, with vocab_start. `rows` of a list is 1, or in ops on rows [A, R, V] it
 * is R. */
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
  /* Whether anything may change. A repetition of zero that is not in memory was not given. */
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

/* int32 [size] (int64 if wide), contiguous: the index of the numbers and draft rows that each request of a batch uses.
 * -1: the request is idle, and nothing is read. Not given: each request uses its own. */
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

/* Tokens that are written, int64 or int32, [rows, columns] of any strides. */
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
 * is added to what is there. SPECDEC_ZEROS: tokens behind the last are 0, not -1; with an index those at the places of
 * all its nodes that are not on the path. */
enum { SPECDEC_EMITTED = 1, SPECDEC_ADDED = 2, SPECDEC_ZEROS = 4 };

/* The two functions of an op. */
#define SPECDEC_DECLARE(cpu_function, cuda_function, struct_of_op)                                                 \
  SPECDEC_API int cpu_function(const struct_of_op* params, int threads);                                           \
  SPECDEC_API int cuda_function(const struct_of_op* params, void* workspace, size_t workspace_bytes, size_t* needed, \
                                void* stream);

/* ---- ops -------------------------------------------------------------------------------------------------------- */

/* B requests, at most K drafts each. Padded: draft_tokens [B, K], target [B, K+1, V], draft [B, K, V']. Ragged, where
 * cu_drafts is given: the drafts of request b are cu_drafts[b] .. cu_drafts[b+1] - 1 of draft_tokens [1, D] and draft
 * [1, D, V'], its target rows begin at cu_drafts[b] + b of [1, D+B, V]. B and K are those of `tokens`. */
typedef struct specdec_verify_chain_params {
  specdec_tokens draft_tokens;
  specdec_rows target, draft;          /* without draft: its laws are one-hot, or the method is the race */
  specdec_indices cu_drafts;           /* [B+1], optional */
  bool tokens_by_row;                  /* cu_drafts counts target rows, and draft_tokens are [1, D+B]: row r has the
                                        * token that enters it, a request's first row one that is not looked at */
  specdec_indices draft_map;           /* [V'], optional: the target's token for each of the draft's, rising */
  specdec_request_index request_index; /* [B], optional: draft rows are [entries, K or more], also with cu_drafts */
  int32_t method;                      /* SPECDEC_REJECTION, SPECDEC_RACE or SPECDEC_BLOCK */
  specdec_law target_law, draft_law;
  specdec_edits edits; /* of the target's rows */
  specdec_number draft_prob; /* 1.0f unless drafting is randomised. Ragged: `inner` is the draft's index in [0, D). */
  specdec_number epsilon;    /* both only with SPECDEC_REJECTION */
  specdec_noise noise;
  specdec_tokens input_positions;  /* [B, K+1], ragged [1, D+B], optional: where the token that enters a row stands. Then
                                    * noise.position is one more than that of a request's first row */
  specdec_tokens input_nonces;     /* [1, B], optional: the nonces in the place of noise.nonce, of requests and not of
                                    * entries. Only with input_positions */
  specdec_tokens row_seeds;        /* [B, K+1], ragged, too, optional: with SPECDEC_RACE the seed of each row, at position
                                    * and nonce 0, in the place of noise */
  specdec_output_tokens tokens;    /* [B, K+1]: what is emitted, then -1 */
  specdec_output_i32 num_accepted; /* [B] */
  specdec_output_i32 status;       /* [B] */
  specdec_output_i32 path;         /* [B, K+1], any row stride, optional: as for trees; node j is draft j - 1 */
  specdec_output_i32 num_passed;   /* [B], optional: drafts that pass their own test, behind the first rejection, too. With
                                    * SPECDEC_REJECTION of probabilities; SPECDEC_ADDED holds for it */
  /* [B, K+1], optional: `tokens` is then one row [1, any], where index[b, i] is the place of the token after node i;
   * the path is of places, and B and K are its. A place outside of `tokens` is not written: -1 in the path, and a bit
   * of the status. */
  specdec_tokens index;
  /* [1, B], optional: the token after a request's last draft comes with the call, and `target` has no row for it: it is
   * [B, K, V], ragged [1, D, V] with request b's rows from cu_drafts[b] on. A token out of range gives token 0 and a
   * bit of the status. Not with tokens_by_row or input_positions. */
  specdec_tokens bonus;
  int64_t form; /* SPECDEC_EMITTED, ... */
  SPECDEC_FIELDS(draft_tokens, target, draft, cu_drafts, tokens_by_row, draft_map, request_index, method, target_law,
                 draft_law, edits, draft_prob, epsilon, noise, input_positions, input_nonces, row_seeds, tokens,
                 num_accepted, status, path, num_passed, index, bonus, form)
  SPECDEC_MEMBER(int64_t batch() const { return index.data ? path.rows : tokens.rows; })
  SPECDEC_MEMBER(int32_t places() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); })
  SPECDEC_MEMBER(int32_t max_drafts() const { return places() - 1; })
  /* Of all requests together, where they are packed. */
  SPECDEC_MEMBER(int64_t packed_drafts() const { return draft_tokens.slots - (tokens_by_row ? batch() : 0); })
} specdec_verify_chain_params;
SPECDEC_DECLARE(specdec_cpu_verify_chain, specdec_cuda_verify_chain, specdec_verify_chain_params)

/* B trees of N nodes, node 0 the root. Row i of a request is the law of the token after node i. B and the depth D are
 * those of `tokens`. */
typedef struct specdec_verify_tree_params {
  specdec_tokens draft_tokens, parents; /* [B, N] */
  specdec_rows target, draft;           /* [B, N, V], [B, N, V'], the draft optional as for chains */
  specdec_indices draft_map;
  specdec_request_index request_index;
  int32_t method; /* SPECDEC_REJECTION, SPECDEC_RACE, SPECDEC_TRAVERSAL or SPECDEC_PATHS */
  bool replacement;
  specdec_law target_law, draft_law;
  specdec_edits edits; /* of the target's rows */
  specdec_noise noise;
  specdec_tokens input_positions;  /* [B, N], optional, as for chains: noise.position is one more than the root's */
  specdec_tokens row_seeds;        /* [B, N], optional, as for chains */
  specdec_tokens leaves;           /* [B, n] with SPECDEC_PATHS: the nodes where the chains end, -1 for none */
  specdec_output_tokens tokens;    /* [B, D+1]; deeper nodes count as absent */
  specdec_output_i32 path;         /* [B, D+1], any row stride: the accepted nodes from the root, then -1 */
  specdec_output_i32 num_accepted; /* [B] */
  specdec_output_i32 status;       /* [B] */
  specdec_tokens index;            /* [B, N], optional, as for chains */
  int64_t form;
  SPECDEC_FIELDS(draft_tokens, parents, target, draft, draft_map, request_index, method, replacement, target_law,
                 draft_law, edits, noise, input_positions, row_seeds, leaves, tokens, path, num_accepted,
                 status, index, form)
  SPECDEC_MEMBER(int64_t batch() const { return index.data ? path.rows : tokens.rows; })
  SPECDEC_MEMBER(int32_t places() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); })
  SPECDEC_MEMBER(int32_t nodes() const { return static_cast<int32_t>(target.rows); })
  SPECDEC_MEMBER(int32_t max_depth() const { return places() - 1; })
} specdec_verify_tree_params;
SPECDEC_DECLARE(specdec_cpu_verify_tree, specdec_cuda_verify_tree, specdec_verify_tree_params)

/* R = requests * rows rows. race_sample has one column of tokens, race_topk k of them. */
typedef struct specdec_race_params {
  specdec_rows rows;
  specdec_indices draft_map;
  specdec_request_index request_index;
  specdec_law law;
  specdec_edits edits;
  specdec_noise noise;
  specdec_output_i64 tokens; /* [R, k] */
  specdec_output_i32 status; /* [R], optional */
  specdec_output_f32 scores; /* [R, k] for parts of rows, whose candidates are compared later; else NULL */
  SPECDEC_FIELDS(rows, draft_map, request_index, law, edits, noise, tokens, status, scores)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
  SPECDEC_MEMBER(int32_t k() const { return static_cast<int32_t>(tokens.columns); })
} specdec_race_params;
typedef specdec_race_params specdec_race_sample_params;
typedef specdec_race_params specdec_race_topk_params;
SPECDEC_DECLARE(specdec_cpu_race_sample, specdec_cuda_race_sample, specdec_race_sample_params)
SPECDEC_DECLARE(specdec_cpu_race_topk, specdec_cuda_race_topk, specdec_race_topk_params)

/* R = requests * rows pairs of rows. A draft row may have a smaller vocabulary than its target row. */
typedef struct specdec_residual_params {
  specdec_rows target, draft;
  specdec_indices draft_map;
  specdec_request_index request_index;
  specdec_law target_law, draft_law;
  specdec_edits edits; /* of the target's rows */
  specdec_number draft_prob;
  specdec_output_f32 probs;  /* [R, V] */
  specdec_output_f32 mass;   /* [R] */
  specdec_output_i32 status; /* [R], optional */
  SPECDEC_FIELDS(target, draft, draft_map, request_index, target_law, draft_law, edits, draft_prob, probs, mass,
                 status)
  SPECDEC_MEMBER(int64_t count() const { return target.requests * target.rows; })
} specdec_residual_params;
SPECDEC_DECLARE(specdec_cpu_residual, specdec_cuda_residual, specdec_residual_params)

typedef struct specdec_overlap_params {
  specdec_rows target, draft;
  specdec_indices draft_map;
  specdec_request_index request_index;
  specdec_law target_law, draft_law;
  specdec_edits edits; /* of the target's rows */
  specdec_output_f32 accept, tv, kl, harmonic; /* [R] */
  specdec_output_i32 status;                   /* [R], optional */
  SPECDEC_FIELDS(target, draft, draft_map, request_index, target_law, draft_law, edits, accept, tv, kl, harmonic,
                 status)
  SPECDEC_MEMBER(int64_t count() const { return target.requests * target.rows; })
} specdec_overlap_params;
SPECDEC_DECLARE(specdec_cpu_overlap, specdec_cuda_overlap, specdec_overlap_params)

/* SPECDEC_MASK_BITS: int32 words, bit j of word w is column 32 w + j. */
enum { SPECDEC_MASK_BOOL = 0, SPECDEC_MASK_ADDITIVE32 = 1, SPECDEC_MASK_ADDITIVE16 = 2, SPECDEC_MASK_BITS = 3 };

/* [batch, nodes, columns], contiguous; of bits: int32 [batch, nodes, ceil(columns / 32)]. */
typedef struct specdec_mask {
  void* data;
  int64_t batch;
  int32_t nodes;
  int32_t layout;
  uint32_t minus_infinity; /* additive: the bits of -inf, 0xff800000 in float32, 0xff80 bfloat16, 0xfc00 float16 */
} specdec_mask;

/* Row i of a request says which cache slots node i attends to. The slots before prefix_len hold what was accepted. */
typedef struct specdec_tree_mask_params {
  specdec_tokens parents; /* [batch, nodes] */
  specdec_counter prefix_len;
  int64_t columns; /* cache slots covered; node j is in slot prefix_len + j */
  specdec_mask mask;
  specdec_output_i32 status; /* [batch] */
  SPECDEC_FIELDS(parents, prefix_len, columns, mask, status)
} specdec_tree_mask_params;
SPECDEC_DECLARE(specdec_cpu_tree_mask, specdec_cuda_tree_mask, specdec_tree_mask_params)

typedef struct specdec_tree_positions_params {
  specdec_tokens parents; /* [B, N] */
  specdec_counter prefix_len;
  specdec_output_i64 positions; /* [B, N] */
  specdec_output_i32 status;    /* [B] */
  SPECDEC_FIELDS(parents, prefix_len, positions, status)
} specdec_tree_positions_params;
SPECDEC_DECLARE(specdec_cpu_tree_positions, specdec_cuda_tree_positions, specdec_tree_positions_params)

typedef struct specdec_flags {
  const bool* data;
  int64_t size;
} specdec_flags;

/* Trees from links: of each node its first child and its next sibling, -1 for none. */
typedef struct specdec_tree_parents_params {
  specdec_tokens first_child, next_sibling; /* [B, N] */
  specdec_output_i32 parents;               /* [B, N]: -1 for the root and for nodes in no tree */
  specdec_output_i32 ranks;                 /* [B, N]: place among the siblings from 0; -1 in no tree */
  specdec_output_i32 status;                /* [B] */
  SPECDEC_FIELDS(first_child, next_sibling, parents, ranks, status)
} specdec_tree_parents_params;
SPECDEC_DECLARE(specdec_cpu_tree_parents, specdec_cuda_tree_parents, specdec_tree_parents_params)

/* Layouts of build_tree's mask. Full: rows of prefix_len[b] + N bytes, request after request; the last N are written, 0
 * or 1. Nodes: bytes [B, N, N]. Bits: a little-endian word of 1, 2 or 4 bytes a node, for at most 8, 16 or 32 nodes. */
enum { SPECDEC_TREE_FULL = 0, SPECDEC_TREE_NODES = 1, SPECDEC_TREE_BITS = 2 };

/* Trees of N nodes from candidates that were selected by their numbers, as EAGLE makes them. Candidate c is one of group
 * c / topk. Group 0 follows the root, group g the candidate parent_list[b, g]. A node whose parent is not a node before
 * it has none; the status is 8 then, and where the mask is too short. */
typedef struct specdec_build_tree_params {
  specdec_tokens parent_list; /* [B, any] */
  specdec_tokens selected;    /* [B, N - 1]: the candidates that are nodes 1, 2, ... */
  specdec_counter prefix_len; /* (B, 0) */
  int64_t topk;
  int32_t layout;         /* SPECDEC_TREE_FULL, ... */
  specdec_output_u8 mask; /* [bytes]: what each node attends to, itself and its ancestors */
  specdec_output_i64 positions;                 /* [B, N] */
  specdec_output_i64 index;                     /* [B, N]: where a node stands in the batch, b N + i */
  specdec_output_i64 first_child, next_sibling; /* [B, N], -1 for none */
  specdec_output_i32 status;                    /* [B] */
  SPECDEC_FIELDS(parent_list, selected, prefix_len, topk, layout, mask, positions, index, first_child, next_sibling,
                 status)
  SPECDEC_MEMBER(int32_t nodes() const { return static_cast<int32_t>(index.columns); })
  /* What is written of a node's row of the mask. A row of bits is one word. */
  SPECDEC_MEMBER(int32_t row_bytes() const {
    if (layout != SPECDEC_TREE_BITS) return nodes();
    return nodes() > 16 ? 4 : nodes() > 8 ? 2 : 1;
  })
} specdec_build_tree_params;
SPECDEC_DECLARE(specdec_cpu_build_tree, specdec_cuda_build_tree, specdec_build_tree_params)

/* Trees of chains: equal beginnings become one node. Node 0 is the root, the others follow chain by chain. A chain ends
 * before its first -1. */
typedef struct specdec_merge_paths_params {
  specdec_tokens paths;            /* [B, n K]: K tokens of each of n chains */
  specdec_output_i64 draft_tokens; /* [B, n K + 1], -1 for the root and behind the last node */
  specdec_output_i32 parents;      /* [B, n K + 1], -1 there, too */
  specdec_output_i32 leaves;       /* [B, n]: the nodes where chains end, -1 for one without tokens */
  SPECDEC_FIELDS(paths, draft_tokens, parents, leaves)
  SPECDEC_MEMBER(int32_t chains() const { return static_cast<int32_t>(leaves.columns); })
  SPECDEC_MEMBER(int32_t length() const { return chains() > 0 ? paths.slots / chains() : 0; })
} specdec_merge_paths_params;
SPECDEC_DECLARE(specdec_cpu_merge_paths, specdec_cuda_merge_paths, specdec_merge_paths_params)

/* A walk through trees of build_tree. One coin decides among a node's children: the m-th is accepted iff its probability is above
 * 0, and coin * threshold_total is below the sum of the first m or it is threshold_single itself. If none is, a token is
 * drawn from the row without theirs. With target_tokens a child is accepted iff it has its parent's, and that of the last
 * node follows. */
typedef struct specdec_verify_links_params {
  specdec_tokens draft_tokens, first_child, next_sibling; /* [B, N] */
  specdec_flags tree_valid; /* [B], optional: false makes a tree its root alone */
  specdec_rows target;                                    /* [B, N, V]: probabilities; none beside target_tokens */
  specdec_tokens target_tokens;                           /* [B, N], optional */
  specdec_number coins;                                   /* [B, N], in [0, 1). Without data they are the noise's */
  specdec_number threshold_single, threshold_total;       /* 1.0f: the law is the target's */
  specdec_noise noise;                                    /* of the token after the root */
  specdec_output_tokens tokens;                           /* this and the rest as of verify_tree */
  specdec_output_i32 path;
  specdec_output_i32 num_accepted;
  specdec_output_i32 status;
  specdec_tokens index;
  int64_t form;
  SPECDEC_FIELDS(draft_tokens, first_child, next_sibling, tree_valid, target, target_tokens, coins, threshold_single,
                 threshold_total, noise, tokens, path, num_accepted, status, index, form)
  SPECDEC_MEMBER(int64_t batch() const { return index.data ? path.rows : tokens.rows; })
  SPECDEC_MEMBER(int32_t places() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); })
} specdec_verify_links_params;
SPECDEC_DECLARE(specdec_cpu_verify_links, specdec_cuda_verify_links, specdec_verify_links_params)

/* One tensor [batch, heads, slots, entry] of a cache, or [pages, heads, slots of a page, entry]. Its elements are only
 * moved, so here strides count bytes. */
typedef struct specdec_cache_layer {
  char* data;
  int64_t batch_stride, head_stride, slot_stride;
  int32_t heads, slots, entry_bytes, batch;
} specdec_cache_layer;

typedef struct specdec_cache_layers {
  const specdec_cache_layer* data; /* in the host's memory */
  int64_t size;
} specdec_cache_layers;

typedef struct specdec_compact_kv_params {
  specdec_cache_layers layers;
  specdec_path path; /* [B, D+1], any row stride */
  specdec_counter prefix_len;
  specdec_path block_table;  /* [B, pages of a request], optional: where pages are in the layers */
  specdec_output_i32 status; /* [B] */
  SPECDEC_FIELDS(layers, path, prefix_len, block_table, status)
} specdec_compact_kv_params;
SPECDEC_DECLARE(specdec_cpu_compact_kv, specdec_cuda_compact_kv, specdec_compact_kv_params)

/* Adds the first `num` tokens of each request to its record. Tokens outside of the vocabulary are left out. */
typedef struct specdec_count_tokens_params {
  specdec_tokens tokens; /* [B, any] */
  specdec_counter num;
  specdec_output_i32 mask;   /* [B, words], any row stride: bits, as in specdec_edits */
  specdec_output_i32 counts; /* [B, V], any row stride, optional */
  specdec_output_i32 status; /* [B] */
  SPECDEC_FIELDS(tokens, num, mask, counts, status)
  SPECDEC_MEMBER(int64_t vocab() const { return counts.data ? counts.columns : 32 * mask.columns; })
} specdec_count_tokens_params;
SPECDEC_DECLARE(specdec_cpu_count_tokens, specdec_cuda_count_tokens, specdec_count_tokens_params)

typedef struct specdec_coin_params {
  specdec_noise noise;
  specdec_counter index;    /* which coin of this seed, position and nonce */
  int64_t stream;           /* in [0, 2^32): what the coins are for; 6: a policy of the engine */
  specdec_output_f32 coins; /* [outer, inner] */
  SPECDEC_FIELDS(noise, index, stream, coins)
} specdec_coin_params;
SPECDEC_DECLARE(specdec_cpu_coin, specdec_cuda_coin, specdec_coin_params)

/* The seed of the race of each row of chains or trees, from a key and the last tokens before the row: those of the text
 * from `start` on, and the drafts on its path. Where there are not so many, the same were there before, or the key is 0,
 * it is the request's own for that place. Rows of idle requests, and of those outside, have 0. */
typedef struct specdec_context_seeds_params {
  specdec_tokens text;         /* [entries, any] */
  specdec_tokens draft_tokens; /* [B, K], ragged [1, D], as for verify_chain; with parents [B, N] */
  specdec_indices cu_drafts;
  bool tokens_by_row;
  specdec_tokens parents; /* [B, N], optional: of trees */
  specdec_request_index request_index;
  specdec_counter key, start;    /* start: how long the prompt is */
  specdec_tokens seed, position; /* [1, B], of requests and not of entries; position: how long the text is */
  int64_t window; /* 1 to 8: how many tokens */
  bool ordered;   /* else they are a set */
  specdec_output_i64 seeds; /* [B, K+1] or [B, N] */
  SPECDEC_FIELDS(text, draft_tokens, cu_drafts, tokens_by_row, parents, request_index, key, start, seed, position, window,
                 ordered, seeds)
} specdec_context_seeds_params;
SPECDEC_DECLARE(specdec_cpu_context_seeds, specdec_cuda_context_seeds, specdec_context_seeds_params)

/* What the filters of rows [A, R, V] keep: values above `value`, and `value` itself up to the token `last`. */
typedef struct specdec_cutoff_params {
  specdec_rows rows;
  specdec_request_index request_index;
  specdec_law law;
  specdec_edits edits;
  specdec_output_f32 value;  /* [A R] */
  specdec_output_i64 last;   /* [A R] */
  specdec_output_i32 kept;   /* [A R]: how many */
  specdec_output_i64 mass;   /* [A R]: their weights, in units of 2^-42 of the largest */
  specdec_output_f32 max;    /* [A R] */
  specdec_output_i32 status; /* [A R], optional */
  SPECDEC_FIELDS(rows, request_index, law, edits, value, last, kept, mass, max, status)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
} specdec_cutoff_params;
SPECDEC_DECLARE(specdec_cpu_cutoff, specdec_cuda_cutoff, specdec_cutoff_params)

/* Log-probability and rank of one token of each of the rows [A, R, V], and the `top` most probable tokens. */
typedef struct specdec_logprobs_params {
  specdec_rows rows;
  specdec_tokens tokens; /* [A, R], -1 for none */
  specdec_request_index request_index;
  specdec_law law;
  specdec_edits edits;
  specdec_output_f32 logprob;      /* [A R] */
  specdec_output_i32 rank;         /* [A R]: how many are at least as probable; 0 if the token is not kept */
  specdec_output_i64 top_tokens;   /* [A R, top], top may be 0; -1 where there are not so many */
  specdec_output_f32 top_logprobs; /* [A R, top] */
  specdec_output_i32 kept_bits;    /* [A R, ceil(V / 32)], optional: bit i % 32 of word i / 32 says that token i is kept */
  specdec_output_i32 kept_count;   /* [A R], beside it: how many are */
  specdec_output_i32 status;       /* [A R], optional */
  SPECDEC_FIELDS(rows, tokens, request_index, law, edits, logprob, rank, top_tokens, top_logprobs, kept_bits,
                 kept_count, status)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
  SPECDEC_MEMBER(int32_t top() const { return static_cast<int32_t>(top_tokens.columns); })
  SPECDEC_MEMBER(int32_t words() const { return static_cast<int32_t>(kept_bits.columns); })
} specdec_logprobs_params;
SPECDEC_DECLARE(specdec_cpu_logprobs, specdec_cuda_logprobs, specdec_logprobs_params)

/* Rows [A, R, V] with -inf in the place of the logits that cuts drop. */
typedef struct specdec_mask_logits_params {
  specdec_rows rows;
  specdec_number temperature; /* (A, R): that of the cuts; 1 with SPECDEC_BEFORE_TEMPERATURE */
  specdec_values value;       /* [A R], as from cutoff */
  specdec_tokens last;        /* int64 [A R], as from cutoff */
  specdec_rows out;           /* [A, R, V] of the same type; written. It may be `rows` */
  SPECDEC_FIELDS(rows, temperature, value, last, out)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
} specdec_mask_logits_params;
SPECDEC_DECLARE(specdec_cpu_mask_logits, specdec_cuda_mask_logits, specdec_mask_logits_params)

/* Rows [N, 1, V] put to cache[slots[n], column[n]]. Those of a slot or a column that is out of range, -1 for instance, go
 * nowhere. */
typedef struct specdec_store_rows_params {
  specdec_rows rows;
  specdec_tokens slots;   /* [N] */
  specdec_counter column; /* (N, 0) */
  specdec_rows cache;     /* [any, any, V or more] of the same type; written */
  SPECDEC_FIELDS(rows, slots, column, cache)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests; })
  /* Where in `cache` a row goes, in elements; -1: nowhere. */
  SPECDEC_MEMBER(int64_t place(int64_t index) const {
    const int64_t slot = slots.at(index * slots.slot_stride), at = column.at(index);
    const bool inside = slot >= 0 && slot < cache.requests && at >= 0 && at < cache.rows;
    return inside ? cache.offset(slot, at) : -1;
  })
} specdec_store_rows_params;
SPECDEC_DECLARE(specdec_cpu_store_rows, specdec_cuda_store_rows, specdec_store_rows_params)

#undef SPECDEC_OUTPUT

#if defined(__cplusplus)
}
#endif

#endif
