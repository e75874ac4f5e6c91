// Every op of the CPU backend, one line each. verify_chain(p, threads) and the rest are compiled once per instruction
// set; dispatch.cpp picks.
#pragma once

#include "cpu.h"

#define SPECDEC_CPU_OPS(op)           \
  op(verify_chain, ChainParams)       \
  op(race_sample, RaceParams)         \
  op(race_topk, RaceParams)           \
  op(residual, ResidualParams)        \
  op(overlap, OverlapParams)          \
  op(verify_tree, TreeParams)         \
  op(tree_mask, MaskParams)           \
  op(tree_positions, PositionsParams) \
  op(compact_kv, CompactParams)
