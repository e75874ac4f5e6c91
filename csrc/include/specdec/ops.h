// Every op: its name, C++'s name of its struct (c/), and which C function calls which function of a C++ backend. From
// these lists come the declarations of both, what is between them, and the bindings.
#pragma once

#include "../specdec_sharded.h"
#include "config.h"

// These look through rows. The CPU backend compiles them for each instruction set, the others once.
#define SPECDEC_ROW_OPS(op)                                                                              \
  op(verify_chain, ChainParams,                                                                          \
     specdec_cpu_verify_chain, cpu::verify_chain, specdec_cuda_verify_chain, cuda::verify_chain)         \
  op(verify_tree, TreeParams,                                                                            \
     specdec_cpu_verify_tree, cpu::verify_tree, specdec_cuda_verify_tree, cuda::verify_tree)             \
  op(verify_links, LinkedParams,                                                                         \
     specdec_cpu_verify_links, cpu::verify_links, specdec_cuda_verify_links, cuda::verify_links)         \
  op(race_sample, RaceParams,                                                                            \
     specdec_cpu_race_sample, cpu::race_sample, specdec_cuda_race_sample, cuda::race_sample)             \
  op(race_topk, RaceParams,                                                                              \
     specdec_cpu_race_topk, cpu::race_topk, specdec_cuda_race_topk, cuda::race_topk)                     \
  op(residual, ResidualParams,                                                                           \
     specdec_cpu_residual, cpu::residual, specdec_cuda_residual, cuda::residual)                         \
  op(count_at_least, CountAtLeastParams,                                                                 \
     specdec_cpu_count_at_least, cpu::count_at_least, specdec_cuda_count_at_least, cuda::count_at_least) \
  op(token_logits, TokenLogitsParams,                                                                    \
     specdec_cpu_token_logits, cpu::token_logits, specdec_cuda_token_logits, cuda::token_logits)         \
  op(mass_tiles, MassTilesParams,                                                                        \
     specdec_cpu_mass_tiles, cpu::mass_tiles, specdec_cuda_mass_tiles, cuda::mass_tiles)                 \
  op(tile_laws, TileLawsParams,                                                                          \
     specdec_cpu_tile_laws, cpu::tile_laws, specdec_cuda_tile_laws, cuda::tile_laws)                     \
  op(residual_race, ResidualRaceParams,                                                                  \
     specdec_cpu_residual_race, cpu::residual_race, specdec_cuda_residual_race, cuda::residual_race)     \
  op(residual_sums, ResidualSumsParams,                                                                  \
     specdec_cpu_residual_sums, cpu::residual_sums, specdec_cuda_residual_sums, cuda::residual_sums)     \
  op(overlap, OverlapParams,                                                                             \
     specdec_cpu_overlap, cpu::overlap, specdec_cuda_overlap, cuda::overlap)                             \
  op(cutoff, CutoffParams,                                                                               \
     specdec_cpu_cutoff, cpu::cutoff, specdec_cuda_cutoff, cuda::cutoff)                                 \
  op(logprobs, LogprobsParams,                                                                           \
     specdec_cpu_logprobs, cpu::logprobs, specdec_cuda_logprobs, cuda::logprobs)                         \
  op(mask_logits, MaskLogitsParams,                                                                      \
     specdec_cpu_mask_logits, cpu::mask_logits, specdec_cuda_mask_logits, cuda::mask_logits)

#define SPECDEC_OTHER_OPS(op)                                                                            \
  op(first_arrivals, FirstArrivalsParams,                                                                \
     specdec_cpu_first_arrivals, cpu::first_arrivals, specdec_cuda_first_arrivals, cuda::first_arrivals) \
  op(walk_tables, WalkTablesParams,                                                                      \
     specdec_cpu_walk_tables, cpu::walk_tables, specdec_cuda_walk_tables, cuda::walk_tables)             \
  op(store_rows, StoreRowsParams,                                                                        \
     specdec_cpu_store_rows, cpu::store_rows, specdec_cuda_store_rows, cuda::store_rows)                 \
  op(tree_mask, MaskParams,                                                                              \
     specdec_cpu_tree_mask, cpu::tree_mask, specdec_cuda_tree_mask, cuda::tree_mask)                     \
  op(tree_positions, PositionsParams,                                                                    \
     specdec_cpu_tree_positions, cpu::tree_positions, specdec_cuda_tree_positions, cuda::tree_positions) \
  op(tree_parents, LinksParams,                                                                          \
     specdec_cpu_tree_parents, cpu::tree_parents, specdec_cuda_tree_parents, cuda::tree_parents)         \
  op(build_tree, BuildParams,                                                                            \
     specdec_cpu_build_tree, cpu::build_tree, specdec_cuda_build_tree, cuda::build_tree)                 \
  op(merge_paths, MergeParams,                                                                           \
     specdec_cpu_merge_paths, cpu::merge_paths, specdec_cuda_merge_paths, cuda::merge_paths)             \
  op(compact_kv, CompactParams,                                                                          \
     specdec_cpu_compact_kv, cpu::compact_kv, specdec_cuda_compact_kv, cuda::compact_kv)                 \
  op(count_tokens, CountParams,                                                                          \
     specdec_cpu_count_tokens, cpu::count_tokens, specdec_cuda_count_tokens, cuda::count_tokens)         \
  op(coin, CoinParams,                                                                                   \
     specdec_cpu_coin, cpu::coin, specdec_cuda_coin, cuda::coin)                                         \
  op(context_seeds, ContextParams,                                                                       \
     specdec_cpu_context_seeds, cpu::context_seeds, specdec_cuda_context_seeds, cuda::context_seeds)

#define SPECDEC_OPS(op) SPECDEC_ROW_OPS(op) SPECDEC_OTHER_OPS(op)
