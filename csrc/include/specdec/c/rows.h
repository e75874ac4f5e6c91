/* A part of specdec.h. */
#pragma once

#include "parts.h"

/* The cuts of rows [A, R, V]: their filters keep values above `value`, and `value` itself up to the token `last`. */
typedef struct specdec_cutoff_params {
  specdec_rows rows;
  specdec_request_index request_index;
  specdec_law law;
  specdec_edits edits;
  specdec_output_f32 value;        /* [A R] */
  specdec_output_i64 last;         /* [A R] */
  specdec_output_i32 support_size; /* [A R]: how many tokens the filters keep */
  specdec_output_i64 mass;         /* [A R]: the sum of their weights, in units of 2^-42 of the largest */
  specdec_output_f32 max;          /* [A R] */
  specdec_output_i32 status;       /* [A R], optional */
  SPECDEC_FIELDS(rows, request_index, law, edits, value, last, support_size, mass, max, status)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
} specdec_cutoff_params;
SPECDEC_DECLARE(specdec_cpu_cutoff, specdec_cuda_cutoff, specdec_cutoff_params, CutoffParams)

/* Log-probability and rank of one token of each of the rows [A, R, V], and the `top` most probable tokens. */
typedef struct specdec_logprobs_params {
  specdec_rows rows;
  specdec_tokens tokens; /* [A, R], -1 for none */
  specdec_request_index request_index;
  specdec_law law;
  specdec_edits edits;
  specdec_output_f32 logprob;      /* [A R] */
  specdec_output_i32 rank;         /* [A R]: how many are at least as probable; 0 if the filters drop the token */
  specdec_output_i64 top_tokens;   /* [A R, top], top may be 0; -1 where there are not so many */
  specdec_output_f32 top_logprobs; /* [A R, top] */
  specdec_output_i32 support_bits; /* [A R, ceil(V / 32)], optional: bit i % 32 of word i / 32: token i has weight */
  specdec_output_i32 support_size; /* [A R], with support_bits: how many bits are set */
  specdec_output_i32 status;       /* [A R], optional */
  SPECDEC_FIELDS(rows, tokens, request_index, law, edits, logprob, rank, top_tokens, top_logprobs, support_bits,
                 support_size, status)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
  SPECDEC_MEMBER(int32_t top() const { return static_cast<int32_t>(top_tokens.columns); })
  SPECDEC_MEMBER(int32_t words() const { return static_cast<int32_t>(support_bits.columns); })
} specdec_logprobs_params;
SPECDEC_DECLARE(specdec_cpu_logprobs, specdec_cuda_logprobs, specdec_logprobs_params, LogprobsParams)

/* Writes rows [A, R, V] with -inf for the logits that cuts drop. */
typedef struct specdec_mask_logits_params {
  specdec_rows rows;
  specdec_number temperature; /* (A, R): that of the cuts; 1 with SPECDEC_BEFORE_TEMPERATURE */
  specdec_values value;       /* [A R], as from cutoff */
  specdec_tokens last;        /* int64 [A R], as from cutoff */
  specdec_rows out;           /* [A, R, V] of the same type; written. It may be `rows` */
  SPECDEC_FIELDS(rows, temperature, value, last, out)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
} specdec_mask_logits_params;
SPECDEC_DECLARE(specdec_cpu_mask_logits, specdec_cuda_mask_logits, specdec_mask_logits_params, MaskLogitsParams)

/* Copies rows [N, 1, V] to cache[slots[n], column[n]]. A slot or a column out of range, such as -1, skips the row. */
typedef struct specdec_store_rows_params {
  specdec_rows rows;
  specdec_tokens slots;   /* [N] */
  specdec_counter column; /* (N, 0) */
  specdec_rows cache;     /* [any, any, V or more] of the same type; written */
  SPECDEC_FIELDS(rows, slots, column, cache)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests; })
  /* The row's offset in `cache`, in elements; -1: it is skipped. */
  SPECDEC_MEMBER(int64_t cache_offset(int64_t index) const {
    const int64_t slot = slots.at(index * slots.slot_stride), at = column.at(index);
    const bool inside = slot >= 0 && slot < cache.requests && at >= 0 && at < cache.rows;
    return inside ? cache.offset(slot, at) : -1;
  })
} specdec_store_rows_params;
SPECDEC_DECLARE(specdec_cpu_store_rows, specdec_cuda_store_rows, specdec_store_rows_params, StoreRowsParams)
