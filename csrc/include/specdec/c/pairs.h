/* A part of specdec.h. */
#pragma once

#include "parts.h"

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
SPECDEC_DECLARE(specdec_cpu_residual, specdec_cuda_residual, specdec_residual_params, ResidualParams)

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
SPECDEC_DECLARE(specdec_cpu_overlap, specdec_cuda_overlap, specdec_overlap_params, OverlapParams)
