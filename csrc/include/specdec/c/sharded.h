/* A part of specdec_sharded.h. */
#pragma once

#include "parts.h"

/* Counts the tokens of rows [A, R, n] that are at least as large as a number per row. The parts' sum is a rank. */
typedef struct specdec_count_at_least_params {
  specdec_rows rows; /* logits */
  specdec_request_index request_index;
  specdec_law law; /* no filters */
  specdec_edits edits;
  specdec_values least;      /* [A R]: a logit / temperature; rows where it is -inf or NaN are not read and count 0 */
  specdec_output_i32 counts; /* [A R] */
  SPECDEC_FIELDS(rows, request_index, law, edits, least, counts)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
} specdec_count_at_least_params;
SPECDEC_DECLARE(specdec_cpu_count_at_least, specdec_cuda_count_at_least, specdec_count_at_least_params, CountAtLeastParams)

/* The logits of some tokens in parts of rows, after edits; 0 if the part lacks the token or the row is invalid. */
typedef struct specdec_token_logits_params {
  specdec_rows rows;         /* [A, R, n] */
  specdec_tokens row_indices; /* [P], optional: the index of each row among all; without it the rows in order */
  specdec_tokens tokens;     /* [P, m], of the whole vocabulary */
  specdec_edits edits;       /* of the part's tokens */
  specdec_output_f32 logits; /* [P, m] */
  SPECDEC_FIELDS(rows, row_indices, tokens, edits, logits)
  SPECDEC_MEMBER(int64_t batch() const { return logits.rows; })
  SPECDEC_MEMBER(int64_t row(int64_t index) const {
    return row_indices.data ? row_indices.at(index * row_indices.slot_stride) : index;
  })
  SPECDEC_MEMBER(int64_t token(int64_t index, int64_t i) const {
    return tokens.at(index * tokens.request_stride + i * tokens.slot_stride);
  })
} specdec_token_logits_params;
SPECDEC_DECLARE(specdec_cpu_token_logits, specdec_cuda_token_logits, specdec_token_logits_params, TokenLogitsParams)

/* The masses of a part's tiles. A tile is 1,024 tokens; the ranks' tiles together are those of the row. */
typedef struct specdec_mass_tiles_params {
  specdec_rows rows; /* [A, R, n], logits */
  specdec_request_index request_index;
  specdec_law law;           /* no filters */
  specdec_edits edits;       /* of the part's tokens */
  specdec_output_i32 tiles;  /* [A R, 3 tiles]: maxima as bits of float32, low words of units, high words of units */
  specdec_output_i32 status; /* [A R] */
  SPECDEC_FIELDS(rows, request_index, law, edits, tiles, status)
  SPECDEC_MEMBER(int64_t count() const { return rows.requests * rows.rows; })
} specdec_mass_tiles_params;
SPECDEC_DECLARE(specdec_cpu_mass_tiles, specdec_cuda_mass_tiles, specdec_mass_tiles_params, MassTilesParams)

/* The log-sum-exp of n rows from all of their tiles, and the probabilities of some of their logits. */
typedef struct specdec_tile_laws_params {
  specdec_path tiles;          /* [n, 3 tiles], contiguous, as from mass_tiles; in any order of the tiles */
  specdec_rows raw;            /* [1, n, k] */
  specdec_number temperature;  /* (0, row) */
  specdec_output_f32 row_stats; /* [n, 2]: the maximum, and the log of the sum in units of it */
  specdec_output_f32 probs;    /* [n, k] */
  SPECDEC_FIELDS(tiles, raw, temperature, row_stats, probs)
  SPECDEC_MEMBER(int64_t batch() const { return raw.rows; })
  SPECDEC_MEMBER(int32_t tiles_a_row() const { return static_cast<int32_t>(tiles.columns / 3); })
} specdec_tile_laws_params;
SPECDEC_DECLARE(specdec_cpu_tile_laws, specdec_cuda_tile_laws, specdec_tile_laws_params, TileLawsParams)

/* The first arrival in a part of one row of each request, in the race over (p - subtracted q)^+ after a rejection. */
typedef struct specdec_residual_race_params {
  specdec_rows target, draft;     /* [A, R, n] */
  specdec_indices row, draft_row; /* [B]: among all rows; row -1: idle; draft_row -1 or none: over p */
  specdec_path excluded;          /* [B, k], optional: tokens without weight in p; -1: none */
  specdec_path cuts;              /* [B, 6], optional, contiguous: the cut of the target's row, then of the draft's. A
                                     value (bits of a float32; -inf: no cut), the last column of the part that the
                                     cut includes at this value, and the factor of logits to compare (bits of a
                                     float32) */
  specdec_rows row_stats;         /* float32 [1, B, 4]: as from tile_laws, of the target's row and of the draft's */
  specdec_law target_law, draft_law; /* no filters */
  specdec_edits edits;            /* of the target's rows [A, R]; of the part's tokens */
  specdec_number subtracted;
  specdec_noise noise; /* of the position that the row decides */
  specdec_output_i64 tokens; /* [B] */
  specdec_output_i32 status; /* [B] */
  specdec_output_f32 scores; /* [B] */
  SPECDEC_FIELDS(target, draft, row, draft_row, excluded, cuts, row_stats, target_law, draft_law, edits, subtracted,
                 noise, tokens, status, scores)
  SPECDEC_MEMBER(int64_t batch() const { return row.size; })
} specdec_residual_race_params;
SPECDEC_DECLARE(specdec_cpu_residual_race, specdec_cuda_residual_race, specdec_residual_race_params, ResidualRaceParams)

/* The masses of (p - subtracted q)^+ and q in parts of pairs of rows, as integers, which add up over the parts. */
typedef struct specdec_residual_sums_params {
  specdec_rows target, draft;        /* [A, R, n], logits */
  specdec_indices row, draft_row;    /* [P]: among all rows; -1: idle, nothing weighs */
  specdec_path cuts;                 /* [P, 6], optional, as for residual_race */
  specdec_rows row_stats;            /* float32 [1, P, 4]: as from tile_laws, of the target's row and of the draft's */
  specdec_law target_law, draft_law; /* no filters */
  specdec_edits edits;               /* of the target's rows, as for residual_race */
  specdec_number subtracted;
  specdec_output_i64 sums;   /* [P, 2], in units of 2^-42 */
  specdec_output_i32 status; /* [P] */
  SPECDEC_FIELDS(target, draft, row, draft_row, cuts, row_stats, target_law, draft_law, edits, subtracted, sums, status)
  SPECDEC_MEMBER(int64_t pairs() const { return row.size; })
} specdec_residual_sums_params;
SPECDEC_DECLARE(specdec_cpu_residual_sums, specdec_cuda_residual_sums, specdec_residual_sums_params, ResidualSumsParams)

/* The winners of n rows, from the candidates of each row's parts: -1 with a score of -inf is no candidate. */
typedef struct specdec_first_arrivals_params {
  specdec_path packed;       /* [parts, 3 n], contiguous: of each row a token, the bits of its score, a status */
  specdec_output_i64 tokens; /* [n]; 0 where no part has a candidate */
  specdec_output_i32 status; /* [n]: the bits of all parts; SPECDEC_NON_FINITE where no part has a candidate */
  specdec_output_i32 empty;  /* [n]: 1 there */
  SPECDEC_FIELDS(packed, tokens, status, empty)
} specdec_first_arrivals_params;
SPECDEC_DECLARE(specdec_cpu_first_arrivals, specdec_cuda_first_arrivals, specdec_first_arrivals_params, FirstArrivalsParams)

/* The walks of chains or trees whose rows lie in parts elsewhere: verdicts from tables about the rows. A walk that
 * needs the sums of a pair of rows writes a request for them; the op is then called again with the answers. Rows are
 * counted over all requests. */
typedef struct specdec_walk_tables_params {
  specdec_tokens draft_tokens; /* [B, K], or [D] with cu_drafts; of trees [B, N] */
  specdec_indices cu_drafts;   /* [B + 1], optional */
  specdec_tokens parents;      /* [B, N]; none: chains */
  int64_t vocab;
  specdec_request_index request_index; /* [B], optional */
  int32_t method; /* SPECDEC_REJECTION, SPECDEC_RACE or SPECDEC_TRAVERSAL */
  bool replacement;
  specdec_number temperature, draft_prob, epsilon; /* a temperature of 0: winners decide */
  specdec_noise noise;
  specdec_indices row_status;  /* [target rows]: statuses */
  specdec_tokens winners;      /* [target rows], optional: of the race, or the argmax of requests of temperature 0;
                                  -1: no token of the row has weight */
  specdec_values p_of_drafts;  /* [target rows]: of the draft after a row; in trees of a node's token after its parent */
  specdec_values row_stats;    /* [2 target rows]: as from tile_laws */
  specdec_values q_of_drafts;  /* [drafts], of trees [B N]; none: no draft laws */
  specdec_indices draft_row_status; /* [drafts], [B N]: statuses of their rows, of each tree node's row */
  specdec_values draft_row_stats;   /* [2 draft rows] */
  specdec_tokens draft_row_indices; /* [drafts], [B N], optional: their rows among all draft rows */
  specdec_tokens answers;      /* int64 [B, 2 n], n = K + 1 or N: as from residual_sums, added up; -1: none yet. Trees,
                                  and traversal with draft laws, need it */
  specdec_output_tokens tokens; /* [B, K + 1], of trees [B, max_depth + 1]: 0 for the token that is still to be drawn */
  specdec_output_i32 path;      /* [B, K + 1], of trees [B, max_depth + 1], optional */
  specdec_output_i32 num_accepted, status; /* [B] */
  specdec_output_i32 row;       /* [B]: the row that the last token is drawn from; -1: none. Optional with the race */
  specdec_output_i32 draft_row; /* [B]: the row whose law is subtracted, or any without draft laws; -1: none */
  specdec_output_f32 subtracted; /* [B]: how much of the draft's law is subtracted */
  specdec_output_i64 slot;      /* [B]: the depth of the last token */
  specdec_output_f32 laws;      /* [B, 4]: of `row_stats`, then of `draft_row_stats` */
  specdec_output_i32 excluded;  /* [B, 1], of trees [B, N]; without draft laws: tokens without weight, -1: none */
  specdec_output_i32 requested_rows; /* [B, 2 n], with answers: target row and draft row of a requested sum; -1: none */
  specdec_output_f32 requested_subtracted; /* [B, n] */
  specdec_output_i32 memory;               /* [B, 8 columns of tokens], needed for traversal */
  SPECDEC_FIELDS(draft_tokens, cu_drafts, parents, vocab, request_index, method, replacement, temperature, draft_prob,
                 epsilon, noise, row_status, winners, p_of_drafts, row_stats, q_of_drafts, draft_row_status,
                 draft_row_stats, draft_row_indices, answers, tokens, path, num_accepted, status, row, draft_row,
                 subtracted, slot, laws, excluded, requested_rows, requested_subtracted, memory)
  SPECDEC_MEMBER(int64_t batch() const { return tokens.rows; })
  SPECDEC_MEMBER(int64_t width() const { return tokens.columns; })
} specdec_walk_tables_params;
SPECDEC_DECLARE(specdec_cpu_walk_tables, specdec_cuda_walk_tables, specdec_walk_tables_params, WalkTablesParams)
