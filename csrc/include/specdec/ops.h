// Every op, one line each, with C++'s name of its struct of specdec.h or specdec_sharded.h. From these lists come the
// functions of the C++ backends, the C functions and the bindings.
#pragma once

#include "../specdec_sharded.h"
#include "config.h"

// These look through rows. The CPU backend compiles them for each instruction set, the others once.
#define SPECDEC_ROW_OPS(op)              \
  op(verify_chain, ChainParams)          \
  op(verify_tree, TreeParams)            \
  op(verify_links, LinkedParams)         \
  op(race_sample, RaceParams)            \
  op(race_topk, RaceParams)              \
  op(residual, ResidualParams)           \
  op(count_at_least, CountAtLeastParams) \
  op(token_logits, TokenLogitsParams)    \
  op(mass_tiles, MassTilesParams)        \
  op(tile_laws, TileLawsParams)          \
  op(residual_race, ResidualRaceParams)  \
  op(residual_sums, ResidualSumsParams)  \
  op(overlap, OverlapParams)             \
  op(cutoff, CutoffParams)               \
  op(logprobs, LogprobsParams)           \
  op(mask_logits, MaskLogitsParams)

#define SPECDEC_OTHER_OPS(op)             \
  op(first_arrivals, FirstArrivalsParams) \
  op(walk_tables, WalkTablesParams)       \
  op(store_rows, StoreRowsParams)         \
  op(tree_mask, MaskParams)               \
  op(tree_positions, PositionsParams)     \
  op(tree_parents, LinksParams)           \
  op(build_tree, BuildParams)             \
  op(compact_kv, CompactParams)           \
  op(count_tokens, CountParams)           \
  op(coin, CoinParams)

#define SPECDEC_CUDA_OPS(op) SPECDEC_ROW_OPS(op) SPECDEC_OTHER_OPS(op)

#define SPECDEC_CPU_ONLY_OPS(op)

#define SPECDEC_OPS(op) SPECDEC_CUDA_OPS(op) SPECDEC_CPU_ONLY_OPS(op)

namespace specdec {

using Rows = specdec_rows;
using Tokens = specdec_tokens;
using Lists = specdec_lists;
#define SPECDEC_NAME(op, Params) using Params = specdec_##op##_params;
SPECDEC_OPS(SPECDEC_NAME)
#undef SPECDEC_NAME

}  // namespace specdec
