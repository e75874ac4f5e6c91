// Every op, one line each: what the CPU and the CUDA backends have, and what Python sees of them.
#pragma once

#include "params.h"

#define SPECDEC_OPS(op)               \
  op(verify_chain, ChainParams)       \
  op(verify_tree, TreeParams)         \
  op(race_sample, RaceParams)         \
  op(race_topk, RaceParams)           \
  op(residual, ResidualParams)        \
  op(overlap, OverlapParams)          \
  op(tree_mask, MaskParams)           \
  op(tree_positions, PositionsParams) \
  op(compact_kv, CompactParams)       \
  op(coin, CoinParams)
