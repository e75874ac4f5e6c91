/* A part of specdec.h. */
#pragma once

#include "parts.h"

/* B requests, at most K drafts each. Padded: draft_tokens [B, K], target [B, K+1, V], draft [B, K, V']. Ragged, where
 * cu_drafts is given: the drafts of request b are cu_drafts[b] .. cu_drafts[b+1] - 1 of draft_tokens [1, D] and draft
 * [1, D, V'], its target rows begin at cu_drafts[b] + b of [1, D+B, V]. B and K are those of `tokens`. */
typedef struct specdec_verify_chain_params {
  specdec_tokens draft_tokens;
  specdec_rows target, draft;          /* without draft: its laws are one-hot, or the method is the race */
  specdec_indices cu_drafts;           /* [B+1] from 0, optional */
  bool tokens_by_row;                  /* cu_drafts counts target rows, and draft_tokens are [1, D+B]: the input token
                                        * of each row; that of a request's first row is ignored */
  specdec_indices draft_map;           /* [V'], optional: the target's token for each of the draft's, rising */
  specdec_request_index request_index; /* [B], optional: draft rows are [entries, K or more], also with cu_drafts */
  int32_t method;                      /* SPECDEC_REJECTION, SPECDEC_RACE or SPECDEC_BLOCK */
  specdec_law target_law, draft_law;
  specdec_edits edits; /* of the target's rows */
  specdec_number draft_prob; /* 1.0f unless drafting is randomised. Ragged: `inner` is the draft's index in [0, D). */
  specdec_number epsilon;    /* both only with SPECDEC_REJECTION */
  specdec_noise noise;
  specdec_tokens input_positions;  /* [B, K+1], ragged [1, D+B], optional: the position of each row's input token. Then
                                    * noise.position is one more than that of a request's first row */
  specdec_tokens input_nonces;     /* [1, B], optional: nonces of requests, not entries, which replace noise.nonce. Only
                                    * with input_positions */
  specdec_tokens row_seeds;        /* [B, K+1], ragged, too, optional: with SPECDEC_RACE each row's seed, at position
                                    * and nonce 0, which replaces noise */
  specdec_output_tokens tokens;    /* [B, K+1]: the emitted tokens, then -1 */
  specdec_output_i32 num_accepted; /* [B] */
  specdec_output_i32 status;       /* [B] */
  specdec_output_i32 path;         /* [B, K+1], any row stride, optional: as for trees; node j is draft j - 1 */
  specdec_output_i32 num_passed;   /* [B], optional: drafts that pass their test, also behind the first rejection. With
                                    * SPECDEC_REJECTION of probabilities; SPECDEC_ADDED applies to it */
  /* [B, K+1], optional: `tokens` is then one row [1, any], where index[b, i] is the column of the token after node i;
   * the path holds columns and defines B and K. A column outside of `tokens` is not written: it is -1 in the path, and
   * sets a bit of the status. */
  specdec_tokens index;
  /* [1, B], optional: the token after a request's last draft comes with the call, and `target` has no row for it: it is
   * [B, K, V], ragged [1, D, V] with request b's rows from cu_drafts[b] on. A token out of range becomes 0 and sets a
   * bit of the status. Not with tokens_by_row or input_positions. */
  specdec_tokens bonus;
  int64_t output_format; /* SPECDEC_EMITTED, ... */
  SPECDEC_FIELDS(draft_tokens, target, draft, cu_drafts, tokens_by_row, draft_map, request_index, method, target_law,
                 draft_law, edits, draft_prob, epsilon, noise, input_positions, input_nonces, row_seeds, tokens,
                 num_accepted, status, path, num_passed, index, bonus, output_format)
  SPECDEC_MEMBER(int64_t batch() const { return index.data ? path.rows : tokens.rows; })
  SPECDEC_MEMBER(int32_t width() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); })
  SPECDEC_MEMBER(int32_t max_drafts() const { return width() - 1; })
  /* The drafts of all requests together, where they are packed. */
  SPECDEC_MEMBER(int64_t packed_drafts() const { return draft_tokens.slots - (tokens_by_row ? batch() : 0); })
} specdec_verify_chain_params;
SPECDEC_DECLARE(specdec_cpu_verify_chain, specdec_cuda_verify_chain, specdec_verify_chain_params, ChainParams)
