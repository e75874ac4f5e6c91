// The work on rows that a walk requests from its block and team, and what they share. Shared memory is planned here.
#pragma once

#include "../rows/bucket_sums.cuh"
#include "../rows/cut_plan.cuh"
#include "../rows/edited_row.cuh"
#include "../rows/mass_row.cuh"
#include "../rows/weights.cuh"
#include "../team/team.cuh"
#include "specdec/tree.h"

namespace specdec::cuda {

// A tree that the lanes of a warp search together, 32 nodes at a time. `bits` differ between lanes.
struct WarpTree : TreeRequest {
  using TreeRequest::TreeRequest;

  __device__ int32_t next_child(int32_t node, int32_t after, int32_t* bits) const {
#pragma unroll 1
    for (int32_t first = after + 1; first < nodes(); first += 32) {
      const int32_t child = first + lane_id();
      const unsigned children = __ballot_sync(kWarp, child < nodes() && parent(child, bits) == node);
      if (children) return first + __ffs(static_cast<int>(children)) - 1;
    }
    return kNoNode;
  }

  __device__ bool has_elder(int32_t node, int32_t child, int64_t token, int32_t* bits) const {
    bool match = false;
#pragma unroll 1
    for (int32_t elder = node + 1 + lane_id(); elder < child; elder += 32)
      match |= parent(elder, bits) == node && draft_token(elder) == token;
    return __any_sync(kWarp, match);
  }
};

// Rows of a node, as bits.
constexpr unsigned kTarget = 1, kDraft = 2;

// A row of a node: its first element, counted in elements, and its index in `row_stats`.
struct NodeRow {
  int64_t at;
  Law law;
  int32_t stats_index;
};

// The work that a walk requests from its block and team.
struct RowWork {
  // kEdit: only decodes the row's edits
  enum Kind : int32_t { kDone, kSums, kArgmax, kEdit, kMasses, kBuckets, kDraw };
  Kind kind;
  int32_t node;
  NodeRow target, draft;
  unsigned sides;  // kSums, kArgmax: which rows; kDraw: which rows to look through before the draw
  int32_t end;     // kMasses, kDraw: leave out the tokens of the node's children with an index below this; 0: none.
                   // kBuckets: how many chains go on from the node
  bool fresh;        // kMasses, kBuckets: the first work for this node
  bool residual;     // kDraw: from (p - subtracted q)^+, or from p without the tokens left out
  float subtracted;  // the multiple of q that is subtracted; kBuckets: the node's weight
  int32_t scales;    // the depth whose scales multiply q by bucket; -1: q is not scaled
  Noise noise;
  __device__ NodeRow row(bool of_target) const { return of_target ? target : draft; }
};

// The state of the walking warp between two pieces of work. kNoNode: no node, no child.
struct WalkState {
  Walk walk;
  int32_t status;
  int32_t target_from, target_to, draft_from, draft_to;  // depths with row_stats: [from, to)
  int32_t masses_node, masses_child, drawn_node;         // the nodes of the latest answers
};

// The latest results of work. The walk reads each only after it requested it.
struct WalkAnswers {
  Masses masses;
  Draw drawn;
  bool writes;  // this member writes its team's verdict
};

// The shared memory of a walk.
struct WalkMemory {
  Shared<WarpTree::State> decoded;  // the request
  Shared<VerdictWriter> verdict;
  Shared<RowStats> row_stats;     // by stats_index_of
  Shared<PathNode<float>> nodes;  // walk_traversal: the path, [depth]
  Shared<float> chosen;           // walk_paths: [depth, kSharesADepth]
  Shared<unsigned> tried;         // a bit for each token
  Shared<WalkState> state;
  Shared<RowWork> work;
  Shared<WalkAnswers> answers;
};

__device__ __forceinline__ WalkState fresh_state() {
  WalkState state = {};
  state.walk = walk_from(0, 0);
  state.masses_node = state.masses_child = state.drawn_node = kNoNode;
  return state;
}

struct WalkArguments {
  TreeParams p;
  TeamLayout team;
  Splits draws;          // partial results of a team's blocks; the last one writes
  int tiles;             // of the longest row of logits
  size_t nodes_at;       // bytes of shared memory: PathNode [nodes], RowStats [row_count], Cut [row_count]
  int row_count, nodes;  // nodes: of the path if the walk goes back, else 0
  // The rest are bytes of shared memory. If nodes have siblings:
  size_t tried_at;  // a bit for each token tried
  size_t held_at;   // p and q of a node; tiles are weighed there, too
  int held_fours;   // vectors of each; 0: they do not fit
  size_t paths_at;  // walk_paths: `chosen`, then BucketMemory
};

// WalkMemory::chosen, which walk_paths fills by depth.
__host__ __device__ __forceinline__ size_t bytes_of_chosen(int depths) {
  return (sizeof(float) * kSharesADepth * depths + 15) / 16 * 16;
}

// Shared memory for a row, and for a node of the path.
constexpr size_t kBytesARow = sizeof(RowStats) + sizeof(Cut), kBytesANode = sizeof(PathNode<float>);

struct ShapedWalkArguments : WalkArguments {
  CutMemory cut;
  bool edited;        // the target's rows have edits
  size_t drafted_at;  // bytes of shared memory: the tokens of the path so far
};

}  // namespace specdec::cuda
