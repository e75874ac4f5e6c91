/* A part of specdec.h. */
#pragma once

#include "parts.h"

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
  int64_t output_format;
  SPECDEC_FIELDS(draft_tokens, parents, target, draft, draft_map, request_index, method, replacement, target_law,
                 draft_law, edits, noise, input_positions, row_seeds, leaves, tokens, path, num_accepted,
                 status, index, output_format)
  SPECDEC_MEMBER(int64_t batch() const { return index.data ? path.rows : tokens.rows; })
  SPECDEC_MEMBER(int32_t width() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); })
  SPECDEC_MEMBER(int32_t nodes() const { return static_cast<int32_t>(target.rows); })
  SPECDEC_MEMBER(int32_t max_depth() const { return width() - 1; })
} specdec_verify_tree_params;
SPECDEC_DECLARE(specdec_cpu_verify_tree, specdec_cuda_verify_tree, specdec_verify_tree_params, TreeParams)
