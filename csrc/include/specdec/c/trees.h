/* A part of specdec.h. */
#pragma once

#include "parts.h"

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

/* Row i of a request marks the cache slots that node i attends to. Slots before prefix_len hold accepted tokens. */
typedef struct specdec_tree_mask_params {
  specdec_tokens parents; /* [batch, nodes] */
  specdec_counter prefix_len;
  int64_t columns; /* cache slots covered; node j is in slot prefix_len + j */
  specdec_mask mask;
  specdec_output_i32 status; /* [batch] */
  SPECDEC_FIELDS(parents, prefix_len, columns, mask, status)
} specdec_tree_mask_params;
SPECDEC_DECLARE(specdec_cpu_tree_mask, specdec_cuda_tree_mask, specdec_tree_mask_params, MaskParams)

typedef struct specdec_tree_positions_params {
  specdec_tokens parents; /* [B, N] */
  specdec_counter prefix_len;
  specdec_output_i64 positions; /* [B, N] */
  specdec_output_i32 status;    /* [B] */
  SPECDEC_FIELDS(parents, prefix_len, positions, status)
} specdec_tree_positions_params;
SPECDEC_DECLARE(specdec_cpu_tree_positions, specdec_cuda_tree_positions, specdec_tree_positions_params, PositionsParams)

/* Trees from links: of each node its first child and its next sibling, -1 for none. */
typedef struct specdec_tree_parents_params {
  specdec_tokens first_child, next_sibling; /* [B, N] */
  specdec_output_i32 parents;               /* [B, N]: -1 for the root and for nodes in no tree */
  specdec_output_i32 ranks;                 /* [B, N]: index among the siblings; -1 in no tree */
  specdec_output_i32 status;                /* [B] */
  SPECDEC_FIELDS(first_child, next_sibling, parents, ranks, status)
} specdec_tree_parents_params;
SPECDEC_DECLARE(specdec_cpu_tree_parents, specdec_cuda_tree_parents, specdec_tree_parents_params, LinksParams)

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
  specdec_output_u8 mask; /* [bytes]: each node attends to itself and its ancestors */
  specdec_output_i64 positions;                 /* [B, N] */
  specdec_output_i64 index;                     /* [B, N]: the node's index in the batch, b N + i */
  specdec_output_i64 first_child, next_sibling; /* [B, N], -1 for none */
  specdec_output_i32 status;                    /* [B] */
  SPECDEC_FIELDS(parent_list, selected, prefix_len, topk, layout, mask, positions, index, first_child, next_sibling,
                 status)
  SPECDEC_MEMBER(int32_t nodes() const { return static_cast<int32_t>(index.columns); })
  /* The bytes written of a node's mask row. A row of bits is one word. */
  SPECDEC_MEMBER(int32_t row_bytes() const {
    if (layout != SPECDEC_TREE_BITS) return nodes();
    return nodes() > 16 ? 4 : nodes() > 8 ? 2 : 1;
  })
} specdec_build_tree_params;
SPECDEC_DECLARE(specdec_cpu_build_tree, specdec_cuda_build_tree, specdec_build_tree_params, BuildParams)

/* Trees of chains: equal beginnings become one node. Node 0 is the root, the others follow chain by chain. A chain ends
 * before its first -1. */
typedef struct specdec_merge_chains_params {
  specdec_tokens paths;            /* [B, n K]: K tokens of each of n chains */
  specdec_output_i64 draft_tokens; /* [B, n K + 1], -1 for the root and behind the last node */
  specdec_output_i32 parents;      /* [B, n K + 1], -1 there, too */
  specdec_output_i32 leaves;       /* [B, n]: the nodes where chains end, -1 for one without tokens */
  SPECDEC_FIELDS(paths, draft_tokens, parents, leaves)
  SPECDEC_MEMBER(int32_t chains() const { return static_cast<int32_t>(leaves.columns); })
  SPECDEC_MEMBER(int32_t length() const { return chains() > 0 ? paths.slots / chains() : 0; })
} specdec_merge_chains_params;
SPECDEC_DECLARE(specdec_cpu_merge_chains, specdec_cuda_merge_chains, specdec_merge_chains_params, MergeParams)
