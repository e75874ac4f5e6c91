/* A part of specdec.h. */
#pragma once

#include "parts.h"

/* One tensor [batch, heads, slots, entry] of a cache, or [pages, heads, slots of a page, entry]. Elements are only
 * moved, so strides count bytes. */
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
SPECDEC_DECLARE(specdec_cpu_compact_kv, specdec_cuda_compact_kv, specdec_compact_kv_params, CompactParams)

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
SPECDEC_DECLARE(specdec_cpu_count_tokens, specdec_cuda_count_tokens, specdec_count_tokens_params, CountParams)
