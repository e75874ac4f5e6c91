// Every op: its name, and C++'s name of its struct (c/). The C functions specdec_cpu_NAME and specdec_cuda_NAME call
// cpu::NAME and cuda::NAME. These lists generate the declarations of both, the dispatch, and the bindings.
#pragma once

#include "../specdec_sharded.h"
#include "config.h"

// These ops scan rows, so the CPU backend compiles them for each instruction set, and the others once.
#define SPECDEC_ROW_OPS(op)                   \
  op(verify_chain, ChainParams)               \
  op(verify_tree, TreeParams)                 \
  op(verify_linked_tree, LinkedParams)        \
  op(race_sample, RaceParams)                 \
  op(race_topk, RaceParams)                   \
  op(residual, ResidualParams)                \
  op(count_at_least, CountAtLeastParams)      \
  op(token_logits, TokenLogitsParams)         \
  op(mass_tiles, MassTilesParams)             \
  op(tile_laws, TileLawsParams)               \
  op(residual_race, ResidualRaceParams)       \
  op(residual_sums, ResidualSumsParams)       \
  op(overlap, OverlapParams)                  \
  op(cutoff, CutoffParams)                    \
  op(logprobs, LogprobsParams)                \
  op(mask_logits, MaskLogitsParams)

#define SPECDEC_OTHER_OPS(op)                 \
  op(first_arrivals, FirstArrivalsParams)     \
  op(walk_tables, WalkTablesParams)           \
  op(store_rows, StoreRowsParams)             \
  op(tree_mask, MaskParams)                   \
  op(tree_positions, PositionsParams)         \
  op(tree_parents, LinksParams)               \
  op(build_tree, BuildParams)                 \
  op(merge_chains, MergeParams)               \
  op(compact_kv, CompactParams)               \
  op(count_tokens, CountParams)               \
  op(uniform, UniformParams)                  \
  op(context_seeds, ContextParams)

#define SPECDEC_OPS(op) SPECDEC_ROW_OPS(op) SPECDEC_OTHER_OPS(op)
