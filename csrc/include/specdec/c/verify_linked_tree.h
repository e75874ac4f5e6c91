/* A part of specdec.h. */
#pragma once

#include "parts.h"

typedef struct specdec_flags {
  const bool* data;
  int64_t size;
} specdec_flags;

/* A walk through trees of build_tree. One uniform decides among a node's children: the m-th is accepted iff its
 * probability is above 0, and uniform * threshold_total is below the sum of the first m or it is threshold_single
 * itself. If none is, a token is drawn from the row without theirs. With target_tokens a child is accepted iff it has
 * its parent's, and that of the last node follows. */
typedef struct specdec_verify_linked_tree_params {
  specdec_tokens draft_tokens, first_child, next_sibling; /* [B, N] */
  specdec_flags tree_valid; /* [B], optional: false makes a tree its root alone */
  specdec_rows target;                                    /* [B, N, V]: probabilities; none beside target_tokens */
  specdec_tokens target_tokens;                           /* [B, N], optional */
  specdec_number uniforms;                                /* [B, N], in [0, 1). Without data they come from the noise */
  specdec_number threshold_single, threshold_total;       /* 1.0f: the law is the target's */
  specdec_noise noise;                                    /* of the token after the root */
  specdec_output_tokens tokens;                           /* this and all below as for verify_tree */
  specdec_output_i32 path;
  specdec_output_i32 num_accepted;
  specdec_output_i32 status;
  specdec_tokens index;
  int64_t output_format;
  SPECDEC_FIELDS(draft_tokens, first_child, next_sibling, tree_valid, target, target_tokens, uniforms, threshold_single,
                 threshold_total, noise, tokens, path, num_accepted, status, index, output_format)
  SPECDEC_MEMBER(int64_t batch() const { return index.data ? path.rows : tokens.rows; })
  SPECDEC_MEMBER(int32_t width() const { return static_cast<int32_t>(index.data ? path.columns : tokens.columns); })
} specdec_verify_linked_tree_params;
SPECDEC_DECLARE(specdec_cpu_verify_linked_tree, specdec_cuda_verify_linked_tree, specdec_verify_linked_tree_params, LinkedParams)
