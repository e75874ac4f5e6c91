/* A part of specdec.h. */
#pragma once

#include "parts.h"

typedef struct specdec_uniform_params {
  specdec_noise noise;
  specdec_counter index;    /* which uniform of this seed, position and nonce */
  int64_t stream;           /* in [0, 2^32): the purpose of the uniforms; 6: a policy of the engine */
  specdec_output_f32 uniforms; /* [outer, inner] */
  SPECDEC_FIELDS(noise, index, stream, uniforms)
} specdec_uniform_params;
SPECDEC_DECLARE(specdec_cpu_uniform, specdec_cuda_uniform, specdec_uniform_params, UniformParams)

/* The seed of the race of each row of chains or trees, from a key and the last tokens before the row: those of the text
 * from `start` on, and the drafts on its path. If there are fewer, or the same tokens occurred before, or the key is 0,
 * the seed comes from the request's `seed` and the position. Rows of idle requests, and of those outside, have 0. */
typedef struct specdec_context_seeds_params {
  specdec_tokens text;         /* [entries, any] */
  specdec_tokens draft_tokens; /* [B, K], ragged [1, D], as for verify_chain; with parents [B, N] */
  specdec_indices cu_drafts;
  bool tokens_by_row;
  specdec_tokens parents; /* [B, N], optional: of trees */
  specdec_request_index request_index;
  specdec_counter key, start;    /* start: how long the prompt is */
  specdec_tokens seed, position; /* [1, B], of requests and not of entries; position: how long the text is */
  int64_t window; /* 1 to 8 tokens */
  bool ordered;   /* else they are a set */
  specdec_output_i64 seeds; /* [B, K+1] or [B, N] */
  SPECDEC_FIELDS(text, draft_tokens, cu_drafts, tokens_by_row, parents, request_index, key, start, seed, position, window,
                 ordered, seeds)
} specdec_context_seeds_params;
SPECDEC_DECLARE(specdec_cpu_context_seeds, specdec_cuda_context_seeds, specdec_context_seeds_params, ContextParams)
