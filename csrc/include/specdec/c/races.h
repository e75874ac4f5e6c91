/* A part of specdec.h. */
#pragma once

#include "parts.h"

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
SPECDEC_DECLARE(specdec_cpu_race_sample, specdec_cuda_race_sample, specdec_race_sample_params, RaceParams)
SPECDEC_DECLARE(specdec_cpu_race_topk, specdec_cuda_race_topk, specdec_race_topk_params, RaceParams)
