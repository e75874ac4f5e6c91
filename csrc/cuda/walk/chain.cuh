// Kernels of verify_chain without filters or edits. Chains need no walk: the launch fixes which rows each warp reads.
// At the end of a step every block of a request holds the same values, so all of them take the same decision.
//
//   chain_race_kernel       the blocks race over each row; the last one of a request compares winners and drafts
//   chain_rejection_kernel  the blocks weigh all rows; each accepts drafts on its own and draws over its columns of the
//                           row where the chain stops; the last block writes the verdict
//   chain_chunk_kernel      the same for many requests or drafts, one chunk of drafts after the other: each block
//                           accepts the chunk before, then weighs rows of its own chunk, or draws
//   chain_block_kernel      as for few, but before the draw the blocks sum the pairs on which a uniform depends
//
// A block has eight warps. It reads the same few tiles of 1,024 columns of each row of its request.
#pragma once

#include "../rows/cut_plan.cuh"  // is_shaped
#include "../rows/draw.cuh"
#include "../rows/pair_sums.cuh"
#include "../rows/staged_tile.cuh"
#include "deferred_ops.cuh"  // finish
#include "specdec/chain.h"

namespace specdec::cuda {

constexpr int32_t kLaneDrafts = 31;      // a lane tests a draft, and one lane is left for the last token
constexpr int64_t kRowsTogether = 80;    // rows of the target, over all requests, that are weighed between two barriers
constexpr int64_t kProbsTogether = 256;  // rows of probabilities are not weighed, but at temperature 0
constexpr int64_t kTilesInOrder = 32;    // tiles that a block reads, at most
constexpr int kBlocksOfMany = 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kBlocksOfChunks = 2;  // three would spill
#else
constexpr int kBlocksOfChunks = kBlocksOfMany;
#endif

// Progress of a request's chunks, which its blocks share: zero before and after every kernel.
struct alignas(16) DraftChunks {
  unsigned arrived;  // blocks that have weighed their rows
  unsigned drawing;  // the chunk whose blocks draw, 0 while no chain has stopped
  unsigned status;   // of accepted drafts
  unsigned ended;    // blocks that have ended
};

struct ChainArguments {
  ChainParams p;
  Ticket* tickets;      // [B]; race: [B], then [B, nodes]
  WideKey* tile_words;  // of tiles: [B, sets, rows, kWordsATile, tiles]
  WideKey* sums;        // block: of pairs, [B, nodes, parts]
  Parts parts;          // of a row
  Quotient requests;    // by B; race, chunks: blocks of all requests come before those of the next node or chunk
  bool in_order;        // race: blocks skip rows behind a refused draft, if they start late enough to see that
  int chunk_size;       // else: drafts weighed between two barriers, 1 to kLaneDrafts
  int rows, sets;       // rows of a request in `tile_words`, and how many sets of them: chunks use the sets in turn
  DraftChunks* chunks;  // [B]
  unsigned* started;    // [1], chunks: blocks that have started
};

// ---- shared by all four kernels -------------------------------------------------------------------------------------

// The request, the node (or chunk) and the part of its rows that a block works on.
struct BlockIndex {
  int part, node;
  int64_t request;
  template <class Arguments>
  __device__ explicit BlockIndex(const Arguments& a) : BlockIndex(a, opaque(blockIdx.x)) {}
  template <class Arguments>
  __device__ BlockIndex(const Arguments& a, unsigned number) {
    const int block = static_cast<int>(number), row = a.parts.count.of(block);
    part = block - row * a.parts.count.by();
    node = a.requests.of(row);
    request = row - node * a.requests.by();
  }
};

// Counts the block as arrived at a barrier. Blocks that see the count see all that this block wrote before.
__device__ __forceinline__ void arrive(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) add_acquire_release(arrived, 1u);
}
__device__ __forceinline__ void wait_for(const unsigned* arrived, unsigned blocks) {
  if (threadIdx.x == 0)
    while (load_acquire(arrived) < blocks) {
    }
  __syncthreads();
}
// The status of a row. `of_probs`: the draw read the draft's row, too, some of which must have weight.
__device__ __forceinline__ int32_t status_of_flags(const BlockBest& best, bool of_probs) {
  const bool odd = best.flags & kBadValue || (of_probs && !(best.flags & kDraftHasWeight));
  return odd ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK;
}
__device__ __forceinline__ Draw to_draw(const BlockBest& best, bool of_probs) {
  return to_draw(best.best, status_of_flags(best, of_probs));
}

// Called by warp 0 after the tokens are written; `bits` differs between lanes, and the status is the OR over them.
__device__ __forceinline__ void end_verdict(const ChainRequest& r, const VerdictWriter& verdict, int32_t accepted,
                                            int32_t bits) {
  __syncwarp();  // lane 0 reads the path
  finish(verdict, r.idle ? -1 : accepted, static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(bits))));
  if (lane_id() == 0 && r.p.num_passed.data)  // decodes the request again: it would take registers until here
    count_passing(ChainRequest(r.p, r.request), r.request, accepted,
                  [](const Rows& rows, int64_t offset, int32_t token) {
                    return Probs{}.probability(element(row_at(rows, offset), token), {});
                  });
}

// The token after the last draft, where the call brings it.
__device__ __forceinline__ Draw bonus_token(const ChainRequest& r) {
  const int64_t token = r.bonus_token();
  if (in_vocab(r, token)) return {static_cast<int32_t>(token), SPECDEC_STATUS_OK, false};
  return {0, SPECDEC_STATUS_PARAMETER, false};
}

// The token of the lane's draft, the one after its node; -1 if there is none.
__device__ __forceinline__ int64_t draft_of_lane(const ChainRequest& r, int32_t first = 0) {
  const int32_t node = first + lane_id();
  return node < r.drafts() ? r.draft_token(node + 1) : -1;
}

// TOKEN_RANGE if the lane's draft lies outside of the vocabulary.
__device__ __forceinline__ int32_t status_of_draft(const ChainRequest& r, int64_t draft) {
  return draft == -1 || in_vocab(r, draft) ? SPECDEC_STATUS_OK : SPECDEC_STATUS_TOKEN_RANGE;
}

// ---- race -----------------------------------------------------------------------------------------------------------

// Called by warp 0 of a request's last block: compares winners and drafts, a lane a node. `draft` is of nodes 0 to 31.
template <class WinnerAt>
__device__ __forceinline__ void write_race(const ChainRequest& r, int64_t draft, int32_t status, WinnerAt&& winner_at) {
  const VerdictWriter verdict = verdict_at(r.p, r.request);
  int32_t accepted = 0, bits = status;
  bool ended = false;
#pragma unroll 1
  for (int32_t first = 0;;) {
    const int32_t node = first + lane_id();
    Draw draw = {0, SPECDEC_STATUS_OK, false};
    if (r.readable && node <= r.slots) draw = r.has_bonus(node) ? bonus_token(r) : winner_at(node);
    if (!ended) {
      if (draw.empty) draft = -1;  // a row without weight ends the chain
      const unsigned refused = __ballot_sync(kWarp, !r.readable || draft != draw.token);
      ended = refused != 0;
      accepted = first + (ended ? __ffs(static_cast<int>(refused)) - 1 : 31);
      if (node <= accepted) bits |= draw.status | status_of_draft(r, draft);
      if (node <= accepted && !r.idle) verdict.put(node, node, draw.token);
    }
    first += 32;
    if (first > r.slots) break;  // winners behind the end count, too: winner_at resets their tickets
    draft = draft_of_lane(r, first);
  }
  end_verdict(r, verdict, accepted, bits);
}

__global__ void __launch_bounds__(kThreads, kBlocksOfMany) chain_race_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(unsigned, ends, 1);  // nodes - the node where the chain is seen to end, or 0
  begin_draw(block_bound);
  const BlockIndex block(a);
  const int32_t node = block.node;
  const ChainRequest r(a.p, block.request);
  const int64_t draft = draft_of_lane(r);
  const unsigned nodes = static_cast<unsigned>(a.p.width()), before = nodes - static_cast<unsigned>(node);
  Ticket *const ticket = a.tickets + r.request, *const rows = a.tickets + a.requests.by() + r.request * nodes;
  if (threadIdx.x == 0) ends[0] = a.in_order ? atomicOr(&ticket->flags, 0u) : 0u;
  __syncthreads();
  if (ends[0] <= before && r.readable && node <= r.slots && !r.has_bonus(node)) {
    const Tiles tiles = a.parts.tiles_of(block.part);
    draw_tiles<3>(weights_of_row(row_at(a.p.target, r.target_row(node)), r.target_law),
                  r.race_noise(node, node), tiles.begin, tiles.end, block_bound, rows + node);
    if (a.in_order && node < r.slots && is_last_block(rows + node, a.parts.count.by()) && threadIdx.x == 0) {
      const Draw draw = to_draw(candidate_of_key(atomicMax(&rows[node].best, WideKey{0})), SPECDEC_STATUS_OK);
      // A row without weight draws token 0. If that is the draft, the rows behind it are read in vain, no more.
      if (draw.token != r.draft_token(node + 1)) atomicMax(&ticket->flags, before);
    }
  }
  if (!is_last_block(ticket, a.parts.count.by() * nodes) || warp_id() != 0) return;
  write_race(r, draft, r.status, [&](int32_t other) {
    rows[other].arrived = 0;
    return to_draw(take_block_best(rows + other), false);
  });
  if (lane_id() == 0) ticket->arrived = ticket->flags = 0;
}

// ---- rows that are looked through -----------------------------------------------------------------------------------

// Whether blocks look through rows of probabilities before drafts are accepted: a block needs their sums, and with
// over-acceptance a token of probability 0 may be accepted, but none of a row without weight.
template <bool kBlock>
__device__ __forceinline__ bool scans_all(const ChainRequest& r) { return kBlock || r.epsilon() > 0.0f; }

// Which rows of a request a chunk has, from node `first` on. At temperature 0 those are the target's, up to the last;
// else pairs, target and draft in turn. Rows of probabilities matter for an argmax alone.
struct ChunkRows {
  int count;  // rows of a node: 1 or 2
  int32_t first, rows;
  __device__ ChunkRows(const ChainRequest& r, int32_t first_node, int32_t chunk_size)
      : count(r.target_law.greedy || !r.has_draft() ? 1 : 2), first(first_node), rows(0) {
    const int32_t left = r.slots - first;
    if (!r.readable) return;
    if (left > chunk_size) rows = chunk_size * count;
    else rows = r.target_law.greedy ? left + (r.has_bonus(r.slots) ? 0 : 1) : left * count;
  }
  // Whether there is a row to look through. `all`: rows of probabilities count, too, because of their status.
  __device__ bool scans(const ChainRequest& r, bool all) const {
    return rows > 0 && (all || r.target_law.needs_row() || (r.has_draft() && r.draft_law.needs_row()));
  }
  __device__ int32_t node(int32_t row) const { return first + (count == 2 ? row / 2 : row); }
  __device__ bool is_draft(int32_t row) const { return count == 2 && row % 2 != 0; }
};

__device__ __forceinline__ LawRow side_of(const ChainRequest& r, int32_t node, bool of_draft) {
  if (of_draft) return {row_at(r.p.draft, r.draft_row(node)), without_stats(r.draft_law), r.p.draft_map.data};
  return {row_at(r.p.target, r.target_row(node)), without_stats(r.target_law), nullptr};
}
__device__ __forceinline__ WideKey* words_of_row(const ChainArguments& a, const ChainRequest& r, int set, int32_t row) {
  return a.tile_words + ((r.request * a.sets + set) * a.rows + row) * kWordsATile * a.parts.tiles;
}

// Rows whose RowStats a block holds at the same time.
__host__ __device__ __forceinline__ int rows_in_shared(const ChainArguments& a) {
  return a.p.method == SPECDEC_BLOCK ? 2 * a.p.width() : a.rows;
}
__device__ __forceinline__ WideKey* sums_of_node(const ChainArguments& a, const ChainRequest& r, int32_t node) {
  return a.sums + (r.request * a.p.width() + node) * a.parts.count.by();
}

// Weighs the block's tiles of all rows. A warp takes one tile at a time: all of one row, if there are as many rows as
// warps, or half as many. `all`: weighs rows of probabilities, too.
__device__ __forceinline__ void weigh_tiles(const ChainArguments& a, const ChainRequest& r, const ChunkRows& sides,
                                            int set, const Tiles& tiles, const Shared<uint4>& fours, bool all) {
  int tile = tiles.begin, decoded = -1;
  LawRow side = {};
#pragma unroll 1
  for (int row = warp_id();; row += warps_in_block()) {
    for (; row >= sides.rows && tile < tiles.end; row -= sides.rows) ++tile;
    if (tile >= tiles.end) return;
    if (row != decoded) side = side_of(r, sides.node(row), sides.is_draft(row)), decoded = row;
    if (!all && !side.stats.law.needs_row()) continue;
    StagedTile staged = {fours};
    staged.load(side.row, tile * kMassTile);
    put_tile(words_of_row(a, r, set, row), a.parts.tiles, tile, side, staged);
  }
}

// Combines the tiles of each row into stats[at ...], a warp a row. The block needs a barrier behind it.
__device__ __forceinline__ void load_row_stats(const ChainArguments& a, const ChainRequest& r, const ChunkRows& sides,
                                               int set, int32_t at, const Shared<RowStats>& stats, bool all) {
#pragma unroll 1
  for (int row = warp_id(); row < sides.rows; row += warps_in_block()) {
    const WideKey* const words = words_of_row(a, r, set, row);
    const auto word = [&](int tile, int which) { return load_fresh(words + which * a.parts.tiles + tile); };
    const Law law = sides.is_draft(row) ? Law(r.draft_law) : Law(r.target_law);
    RowStats whole = kNoStats;
    if (law.greedy || (all && !law.needs_sum())) {
      whole = argmax_stats(best_of_parts(a.parts.tiles, word));
    } else if (law.needs_sum()) {
      TileWords held;
      held.load(a.parts.tiles, word);
      whole = row_of_tiles(a.parts.tiles, held, word);
    }
    if (lane_id() == 0) stats[at + row] = whole;
  }
}

// ---- acceptance -----------------------------------------------------------------------------------------------------

// The draft of a lane: its token, the token's elements of both rows, and the RowStats of these rows.
struct LaneDraft {
  int32_t first;  // node of lane 0
  int64_t draft;
  bool tried, in_range;
  int32_t column;        // in the draft's row, kNoColumn if that has none
  float raw, draft_raw;  // elements of the target's row and of the draft's
  RowStats target_stats, draft_stats;

  // All warps construct one. Its loads are on their way while the block waits for others.
  __device__ LaneDraft(const ChainRequest& r, int32_t first_node)
      : first(first_node), draft(draft_of_lane(r, first_node)), tried(draft != -1), in_range(in_vocab(r, draft)),
        column(kNoColumn), raw(0.0f), draft_raw(0.0f) {
    if (!in_range) return;
    raw = element(row_at(r.p.target, r.target_row(node())), static_cast<int32_t>(draft));
    if (!r.has_draft()) return;
    const LawRow side = side_of(r, node(), true);
    column = side.columns().column(static_cast<int32_t>(draft));
    if (column != kNoColumn) draft_raw = element(side.row, column);
  }
  // Takes the lane's RowStats out of `rows` that begin with those of the node `from`. `all`: see scans_all. A target
  // row without weight ends the chain, so the lane's draft then counts as absent.
  __device__ void set_stats(const ChainRequest& r, const Shared<RowStats>& stats, int sides, int32_t from, int32_t rows,
                            bool all) {
    const int32_t row = (node() - from) * sides;
    target_stats = draft_stats = kNoStats;
    if (row >= rows) return;
    target_stats = stats[row];
    if (sides == 2) draft_stats = stats[row + 1];
    if ((all || r.target_law.needs_row()) && target_stats.is_empty()) draft = -1, tried = in_range = false;
  }
  __device__ int32_t node() const { return first + lane_id(); }
  __device__ float p(const ChainRequest& r) const {
    return in_range ? with_stats(r.target_law, target_stats).probability(static_cast<int32_t>(draft), raw) : 0.0f;
  }
  __device__ float q(const ChainRequest& r) const {
    if (!r.has_draft()) return 1.0f;
    return column == kNoColumn ? 0.0f : with_stats(r.draft_law, draft_stats).probability(column, draft_raw);
  }
  // The status of p and q; TOKEN_RANGE for a draft outside of the vocabulary.
  __device__ int32_t status(const ChainRequest& r) const {
    if (!tried) return SPECDEC_STATUS_OK;
    if (!in_range) return SPECDEC_STATUS_TOKEN_RANGE;
    int32_t bits = SPECDEC_STATUS_OK;
    if (r.target_law.needs_row()) bits |= target_stats.status;
    else if (!r.target_law.is_element(raw)) bits |= SPECDEC_STATUS_NON_FINITE;
    if (!r.has_draft()) return bits;
    if (r.draft_law.needs_row()) bits |= draft_stats.status;
    else if (column != kNoColumn && !r.draft_law.is_element(draft_raw)) bits |= SPECDEC_STATUS_NON_FINITE;
    return bits;
  }
  // The status of the rows that a residual is drawn from.
  __device__ int32_t rows_status(const ChainRequest& r) const {
    return (r.target_law.needs_row() ? target_stats.status : 0) | (r.draft_law.needs_row() ? draft_stats.status : 0);
  }
};

// Where a chain stops within a chunk, and the token that follows: one that is decided, or a draw from p without
// `excluded`, or a draw from (p - subtracted q)^+.
struct StopPoint {
  int32_t node;    // kNoNode: the chain goes on in the next chunk
  int32_t status;  // differs between lanes
  bool decided, residual;
  int32_t token;  // if it is decided
  float subtracted;
  int32_t excluded;
};

// The stop at a node. The lane of that node has `residual` and `subtracted`; the others' do not count.
template <class Lane>
__device__ __forceinline__ StopPoint stop_at(const ChainRequest& r, const Lane& lane, int32_t node, bool residual,
                                             float subtracted, int32_t status) {
  StopPoint e = {node, status, false, false, 0, 1.0f, kNoToken};
  const bool mine = residual && lane.in_range && !r.has_draft();
  const int index = node - lane.first;
  e.residual = __shfl_sync(kWarp, residual, index);
  e.subtracted = __shfl_sync(kWarp, subtracted, index);
  e.excluded = __shfl_sync(kWarp, mine ? static_cast<int32_t>(lane.draft) : kNoToken, index);
  if (e.residual && r.has_draft() && lane.node() == node) e.status |= lane.rows_status(r);
  if (!r.has_bonus(node)) return e;
  const Draw bonus = bonus_token(r);
  e.decided = true, e.residual = false, e.token = bonus.token;
  if (lane.node() == node) e.status |= bonus.status;
  return e;
}

// The node of the first lane that stops; kNoNode if none of `count` lanes does and more drafts follow.
template <class Lane>
__device__ __forceinline__ int32_t find_stop(const ChainRequest& r, const Lane& lane, bool goes_on, int32_t count) {
  const unsigned ends = __ballot_sync(kWarp, !goes_on || lane_id() >= count);
  const int32_t node = lane.first + __ffs(static_cast<int>(ends)) - 1;
  return node == lane.first + count && node < r.drafts() ? kNoNode : node;
}

// Temperature 0: a draft is accepted if it is the target's most probable token.
template <class Lane>
__device__ __forceinline__ StopPoint accept_greedy(const ChainRequest& r, const Lane& lane, int32_t count) {
  if (!r.readable) return {0, 0, true, false, 0, 1.0f, kNoToken};
  const Draw most = r.has_bonus(lane.node()) ? bonus_token(r) : to_draw(lane.target_stats);
  const int32_t node = find_stop(r, lane, lane.draft == most.token, count);
  const int32_t last = node == kNoNode ? lane.first + count - 1 : node;
  const int32_t status = lane.tried && !lane.in_range ? most.status | SPECDEC_STATUS_TOKEN_RANGE : most.status;
  return {node, lane.node() <= last ? status : 0, true, false, __shfl_sync(kWarp, most.token, last - lane.first), 1.0f,
          kNoToken};
}

// Each lane tests its draft as if all before it were accepted; the first lane that fails is the stop.
template <class Lane>
__device__ __forceinline__ StopPoint accept_by_rejection(const ChainRequest& r, const Lane& lane, int32_t count) {
  int32_t status = SPECDEC_STATUS_OK;
  const float draft_prob = r.draft_prob_at(lane.node(), &status);
  const AcceptTest test = {r.noise_at_depth(lane.node(), 0), static_cast<uint32_t>(lane.node()), 0.0f, draft_prob,
                           r.epsilon()};
  const int32_t node = find_stop(r, lane, lane.in_range && test(lane.p(r), lane.q(r)), count);
  status |= lane.status(r);
  if (node == kNoNode) return {node, lane_id() < count ? status : 0, false, false, 0, 1.0f, kNoToken};
  // A node without a draft, where one could have been, is decided like a rejected draft.
  return stop_at(r, lane, node, lane.node() < r.slots && (lane.tried || draft_prob < 1.0f), draft_prob,
                 lane.node() <= node ? status : 0);
}

// ---- the draw, and the verdict --------------------------------------------------------------------------------------

template <class Lane>
__device__ __forceinline__ void write_verdict(const ChainRequest& r, const Lane& lane, int32_t accepted, int32_t last,
                                              int32_t bits) {
  const VerdictWriter verdict = verdict_at(r.p, r.request);
  for (int32_t node = lane_id(); node < lane.first; node += 32) verdict.put(node, node, r.draft_token(node + 1));
  if (!r.idle && lane.node() <= accepted)
    verdict.put(lane.node(), lane.node(), lane.node() == accepted ? last : lane.draft);
  end_verdict(r, verdict, accepted, bits);
}

// The block draws over its part of the row. The last of `blocks` writes the verdict: lane() may load the drafts again.
template <class LaneAtStop>
__device__ __forceinline__ void draw_and_write(const ChainArguments& a, const ChainRequest& r,
                                               const Shared<RowStats>& stats, int32_t first_node,
                                               const Shared<unsigned>& block_bound, LaneAtStop&& lane, StopPoint e,
                                               int part, unsigned blocks) {
  Ticket* const ticket = a.tickets + r.request;
  Tiles tiles = a.parts.tiles_of(part);
  const bool residual = e.residual && r.has_draft();
  RowStats target_stats = kNoStats, draft_stats = kNoStats;
  const int32_t row = 2 * (e.node - first_node);
  if (residual) target_stats = stats[row], draft_stats = stats[row + 1];
  Weights weights = weights_of_residual(
      LawRow{row_at(a.p.target, r.target_row(e.node)), with_stats(r.target_law, target_stats)},
      LawRow{row_at(a.p.draft, r.draft_row(e.node)), with_stats(r.draft_law, draft_stats), a.p.draft_map.data},
      e.subtracted);
  weights.residual = residual, weights.excluded = e.excluded;
  const Noise noise = r.noise_at_depth(e.node, kStreamResidual);
  int32_t status = r.status, token = e.token;
#pragma unroll 1
  for (bool alone = false;; alone = true) {
    if (!e.decided) draw_tiles<1>(weights, noise, tiles.begin, tiles.end, block_bound, ticket);
    if (alone) __syncthreads();
    else if (!is_last_block(ticket, blocks)) return;
    bool again = false;
    if (threadIdx.x == 0 && !e.decided) {
      const BlockBest best = take_block_best(ticket);
      token = best.best.token;
      again = token == kNoToken && e.residual && !alone;
      // Nothing is left of p - q after rounding: this block alone draws from p.
      status |= again ? status_of_flags(best, reads_probs_of_draft(weights)) | SPECDEC_STATUS_EMPTY_RESIDUAL
                      : to_draw(best, reads_probs_of_draft(weights)).status;
    }
    if (!__syncthreads_or(again)) break;
    weights.residual = false, weights.excluded = kNoToken;
    tiles = {0, a.parts.tiles};
    begin_draw(block_bound);
    __syncthreads();
  }
  if (warp_id() == 0) {
    // The draw is the first to see that a row of probabilities has no weight, and its token is then kNoToken. The draft
    // refused at that row counts as absent, so its status bits go.
    token = __shfl_sync(kWarp, token, 0);
    if (token == kNoToken && e.residual) status = (status & SPECDEC_STATUS_PARAMETER) | SPECDEC_STATUS_NON_FINITE;
    write_verdict(r, lane(), e.node, token == kNoToken ? 0 : token, status);
  }
  if (threadIdx.x == 0) ticket->arrived = 0;
}

// ---- block ----------------------------------------------------------------------------------------------------------

// walk_traversal (specdec/walk.h) on a chain, with a node for each lane.
struct Leaf {
  float weight, uniform;     // weight: the acceptance weight on the way down
  int32_t status;            // of the node's draft
  bool tried;                // the draft after the node was rejected or removed
  bool accepted, needs_sum;  // needs_sum: the uniform lies between bounds, and the residual's sum decides
  __device__ float subtracted() const { return subtracted_after(0.0f, 1.0f, weight); }
};

// `weight` is that of lane 0's node; on return that of the node after the last lane. `lanes`: nodes that were visited.
template <class Lane>
__device__ __forceinline__ Leaf leaf_of_lane(const ChainRequest& r, const Lane& lane, float* weight, int* lanes) {
  const int32_t self = lane_id();
  const float p = lane.p(r), q = lane.in_range ? lane.q(r) : 0.0f;
  Leaf leaf = {*weight, 0.0f, lane.status(r), false, false, false};
#pragma unroll 1
  for (*lanes = 1;; ++*lanes) {
    const int index = *lanes - 1;
    if (index == 32 || lane.first + index >= r.drafts() || !__shfl_sync(kWarp, lane.tried, index)) break;
    *weight = child_weight(*weight, __shfl_sync(kWarp, p, index), __shfl_sync(kWarp, q, index), 0.0f, 1.0f);
    if (self == index) leaf.tried = true;
    if (!(*weight >= kSmallest)) break;
    if (self == index + 1) leaf.weight = *weight;
  }
  if (lane.node() == 0) leaf.accepted = true;
  if (lane.node() == 0 || self >= *lanes) return leaf;
  leaf.uniform = leaf_uniform(r.noise_at_depth(lane.node() - 1, 0), lane.node());
  float sum = leaf.weight;
  if (leaf.tried && !r.has_draft()) sum = weight_after(leaf.weight, 1.0f, untried_after(1.0f, p));
  leaf.accepted = leaf.uniform < sum;
  leaf.needs_sum = leaf.accepted && leaf.tried && r.has_draft() && sum < 1.0f;
  leaf.accepted &= !leaf.needs_sum;
  return leaf;
}

// The sum of (p - subtracted q)^+ of a node's pair over the block's tiles, into `sums`.
__device__ __forceinline__ void sum_tiles(const ChainArguments& a, const ChainRequest& r, const Shared<RowStats>& stats,
                                          int32_t node, float subtracted) {
  SPECDEC_SHARED(WideKey, of_warps, kMaxWarps);
  LawRow target = side_of(r, node, false), draft = side_of(r, node, true);
  target.stats = with_stats(r.target_law, stats[2 * node]), draft.stats = with_stats(r.draft_law, stats[2 * node + 1]);
  const BlockIndex block(a);
  const Tiles tiles = a.parts.tiles_of(block.part);
  uint64_t units = 0;
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int32_t column = tile * kMassTile + static_cast<int32_t>(threadIdx.x) * 4, vocab = target.row.vocab;
    if (column >= vocab) break;
    const Four p = probabilities(target, column, vocab), q = probabilities(draft, column, vocab);
    UnitSum<float> sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.take(residual_weight(p.value[i], mul(subtracted, q.value[i])));
    units += units_of(sum.high, sum.low);
  }
  units = warp_sum(units);
  if (lane_id() == 0) of_warps[warp_id()] = units;
  __syncthreads();
  if (threadIdx.x == 0) {
    units = 0;
    for (int warp = 0; warp < warps_in_block(); ++warp) units += static_cast<WideKey>(of_warps[warp]);
    put_word(sums_of_node(a, r, node) + block.part, WideKey{units});
  }
  __syncthreads();
}

// Accepts drafts as a block: the deepest node whose uniform allows it is the stop. take_sums(from, end) is called once
// if a uniform there needs a sum, and units(node) then returns the sum of a node. lane_at(node) loads the drafts
// from a node on, rows_status(node) returns the status of a node's rows.
template <class Lane, class LaneAt, class TakeSums, class Units, class RowsStatus>
__device__ __forceinline__ StopPoint accept_as_block(const ChainRequest& r, const Shared<Leaf>& leaves, Lane& lane,
                                                     LaneAt&& lane_at, TakeSums&& take_sums, Units&& units,
                                                     RowsStatus&& rows_status) {
  int32_t visited = 0, settled = 0;
  float weight = 1.0f;
#pragma unroll 1
  for (;;) {
    int lanes;
    const Leaf leaf = leaf_of_lane(r, lane, &weight, &lanes);
    if (warp_id() == 0 && lane_id() < lanes && lane_id() < 32) leaves[lane.node()] = leaf;
    const unsigned accepted = __ballot_sync(kWarp, leaf.accepted);
    if (accepted) settled = lane.first + 31 - __clz(static_cast<int>(accepted));
    visited += lanes < 32 ? lanes : 32;
    if (lanes <= 32) break;
    lane = lane_at(lane.first + 32);
  }
  __syncthreads();
  bool unsure = false;
  for (int32_t node = settled + 1 + lane_id(); node < visited; node += 32)
    unsure |= static_cast<Leaf>(leaves[node]).needs_sum;
  int32_t node = settled;
  if (__any_sync(kWarp, unsure)) {
    take_sums(settled + 1, visited);
#pragma unroll 1
    for (int32_t deeper = settled + 1; deeper < visited; ++deeper) {
      const Leaf leaf = leaves[deeper];
      if (leaf.needs_sum && leaf.uniform < weight_after(leaf.weight, 1.0f, sum_of_units(units(deeper)))) node = deeper;
    }
  }
  int32_t status = SPECDEC_STATUS_OK;
#pragma unroll 1
  for (int32_t leaf_node = lane_id(); leaf_node < visited; leaf_node += 32) {
    const Leaf leaf = leaves[leaf_node];
    status |= leaf.status;
    if (leaf.needs_sum && leaf_node > settled && leaf_node >= node) status |= rows_status(leaf_node);
  }
  if (node < lane.first) lane = lane_at(node / 32 * 32);
  Leaf leaf = {};
  if (lane.node() < visited) leaf = leaves[lane.node()];
  return stop_at(r, lane, node, leaf.tried, r.has_draft() ? leaf.subtracted() : 1.0f, status);
}

// All rows are in shared memory. For sums the blocks of the request wait at one more barrier.
__device__ __forceinline__ StopPoint accept_block_chain(const ChainArguments& a, const ChainRequest& r, LaneDraft& lane,
                                                        const Shared<RowStats>& stats, int sides, int32_t rows,
                                                        unsigned* blocks) {
  const Shared<Leaf> leaves =
      dynamic_shared<Leaf>(kStagedBytes + rows_in_shared(a) * sizeof(RowStats), a.p.width());
  const auto lane_at = [&](int32_t node) {
    LaneDraft next(r, node);
    next.set_stats(r, stats, sides, 0, rows, true);
    return next;
  };
  const auto take_sums = [&](int32_t from, int32_t end) {
#pragma unroll 1
    for (int32_t node = from; node < end; ++node)
      if (const Leaf leaf = leaves[node]; leaf.needs_sum) sum_tiles(a, r, stats, node, leaf.subtracted());
    arrive(&a.tickets[r.request].arrived);
    wait_for(&a.tickets[r.request].arrived, *blocks);
    *blocks += a.parts.count.by();
  };
  const auto units = [&](int32_t node) {
    uint64_t sum = 0;
    for (int part = lane_id(); part < a.parts.count.by(); part += 32) sum += load_fresh(sums_of_node(a, r, node) + part);
    return warp_sum(sum);
  };
  const auto rows_status = [&](int32_t node) {
    return static_cast<RowStats>(stats[2 * node]).status | static_cast<RowStats>(stats[2 * node + 1]).status;
  };
  return accept_as_block(r, leaves, lane, lane_at, take_sums, units, rows_status);
}

// ---- rejection and block --------------------------------------------------------------------------------------------

// Rejection runs the loop once, over all drafts. A block runs it chunk by chunk until all rows are in shared memory.
template <bool kBlock>
__device__ __forceinline__ void verify_chain_request(const ChainArguments& a) {
  SPECDEC_SHARED(unsigned, block_bound, 1);
  const Shared<RowStats> stats = dynamic_shared<RowStats>(kStagedBytes, rows_in_shared(a));
  begin_draw(block_bound);
  ChainRequest r(a.p, BlockIndex(a).request);
  unsigned blocks = a.parts.count.by();
  const bool as_block = kBlock && r.readable && !r.target_law.greedy;  // no draft is accepted before the last chunk
#pragma unroll 1
  for (int32_t first = 0, set = 0;; first += a.chunk_size, set ^= a.sets - 1) {
    const ChunkRows sides(r, first, a.chunk_size);
    const bool all = scans_all<kBlock>(r), scans = sides.scans(r, all);
    if (scans) {
      weigh_tiles(a, r, sides, set, a.parts.tiles_of(BlockIndex(a).part), dynamic_shared<uint4>(0, kVectors * kThreads),
                  all);
      arrive(&a.tickets[r.request].arrived);
    }
    const int32_t from = as_block ? 0 : first;
    LaneDraft lane(r, from);
    if (scans) {
      wait_for(&a.tickets[r.request].arrived, blocks);
      blocks += a.parts.count.by();
    }
    load_row_stats(a, r, sides, set, (first - from) * sides.count, stats, all);
    __syncthreads();
    if (as_block && first + a.chunk_size < r.slots) continue;
    const int32_t rows = (first - from) * sides.count + sides.rows;
    lane.set_stats(r, stats, sides.count, from, rows, all);
    StopPoint e;
    if (r.target_law.greedy || !r.readable) e = accept_greedy(r, lane, a.chunk_size);
    else if constexpr (kBlock) e = accept_block_chain(a, r, lane, stats, sides.count, rows, &blocks);
    else e = accept_by_rejection(r, lane, a.chunk_size);
    r.status |= e.status;              // differs between lanes
    if (!kBlock || e.node != kNoNode)  // BlockIndex again: it would take a register until here
      return draw_and_write(a, r, stats, kBlock ? 0 : lane.first, block_bound, [&] { return lane; }, e,
                            BlockIndex(a).part, blocks);
    __syncthreads();  // stats may be overwritten
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_rejection_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  verify_chain_request<false>(a);
}

// ---- rejection in chunks --------------------------------------------------------------------------------------------

// A block's index is the order in which it started. So a block waits only for blocks of the chunk before, which have
// all started: no launch has to fit the device, and requests that end early make room at once.
__global__ void __launch_bounds__(kThreads, kBlocksOfChunks) chain_chunk_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(unsigned, number, 1);
  const Shared<RowStats> stats = dynamic_shared<RowStats>(kStagedBytes, rows_in_shared(a));
  begin_draw(block_bound);
  if (threadIdx.x == 0) {
    number[0] = atomicAdd(a.started, 1u);
    if (number[0] == gridDim.x - 1) atomicExch(a.started, 0u);
  }
  __syncthreads();
  const auto index_of_block = [&] { return BlockIndex(a, number[0]); };  // again where registers are few
  const BlockIndex block = index_of_block();
  const unsigned chunk = static_cast<unsigned>(block.node), parts = a.parts.count.by();
  const int32_t first = block.node * a.chunk_size;
  DraftChunks* const chunks = a.chunks + block.request;
  ChainRequest r(a.p, block.request);
  bool over = false, draws = false;
  if (chunk > 0) {
    const int32_t before = first - a.chunk_size;
    const ChunkRows sides(r, before, a.chunk_size);
    if (threadIdx.x == 0)
      for (unsigned drawn = 0; !over && load_acquire(&chunks->arrived) < chunk * parts;
           over = drawn != 0 && drawn < chunk)
        drawn = load_acquire(&chunks->drawing);
    over = __syncthreads_or(over);
    if (!over) {
      LaneDraft lane(r, before);
      load_row_stats(a, r, sides, (chunk - 1) % 2, 0, stats, scans_all<false>(r));
      __syncthreads();
      lane.set_stats(r, stats, sides.count, before, sides.rows, scans_all<false>(r));
      const StopPoint e = r.target_law.greedy || !r.readable ? accept_greedy(r, lane, a.chunk_size)
                                                             : accept_by_rejection(r, lane, a.chunk_size);
      draws = e.node != kNoNode;
      if (draws) {
        r.status |= e.status;
        if (threadIdx.x == 0) {
          atomicMax(&chunks->drawing, chunk);
          r.status |= static_cast<int32_t>(load_acquire(&chunks->status));
        }
        // The request is decoded again for its drafts: it would take registers until there.
        const auto lane_at_stop = [&] {
          const BlockIndex again = index_of_block();
          return LaneDraft(ChainRequest(a.p, again.request), (again.node - 1) * a.chunk_size);
        };
        draw_and_write(a, r, stats, before, block_bound, lane_at_stop, e, index_of_block().part, parts);
      } else if (block.part == 0 && warp_id() == 0) {
        const unsigned status = __reduce_or_sync(kWarp, static_cast<unsigned>(e.status));
        if (status != 0 && lane_id() == 0) atomicOr(&chunks->status, status);
      }
    }
  }
  if (!over && !draws) {
    weigh_tiles(a, r, ChunkRows(r, first, a.chunk_size), chunk % 2, a.parts.tiles_of(block.part),
                dynamic_shared<uint4>(0, kVectors * kThreads), scans_all<false>(r));
    arrive(&chunks->arrived);
  }
  if (threadIdx.x != 0) return;
  DraftChunks& progress = a.chunks[index_of_block().request];
  if (add_acquire_release(&progress.ended, 1u) == gridDim.x / static_cast<unsigned>(a.requests.by()) - 1) progress = {};
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) chain_block_kernel(const ChainArguments a) {
  wait_for_kernel_before();
  verify_chain_request<true>(a);
}

// ---- launching ------------------------------------------------------------------------------------------------------

inline cudaError_t launch_chain_race(const ChainParams& p, const Device& device) {
  const int64_t requests = p.batch(), rows = requests * p.width(), resident_blocks = blocks_at_once(device);
  if (device.workspace.lacks(kTicketSize * (requests + rows), 0)) return cudaSuccess;
  ChainArguments a = {};
  a.p = p;
  a.tickets = reinterpret_cast<Ticket*>(device.workspace.tickets);
  a.requests = quotient(requests);
  // Rows that do not fit the device at once come in order. A node has two blocks for each resident one, so most winners
  // are there when the blocks of the next node start.
  a.in_order = rows > resident_blocks;
  const int64_t least = p.target.vocab / (kTilesInOrder * kMassTile) + 1;
  const int64_t wanted = a.in_order ? (2 * resident_blocks + requests - 1) / requests : resident_blocks / rows;
  a.parts = parts_of_rows(p.target.vocab, a.in_order && wanted < least ? least : wanted);
  Shape shape = {rows * a.parts.count.by(), kThreads};
  shape.overlaps = true;
  return launch(chain_race_kernel, shape, a, device.stream);
}

inline cudaError_t launch_chain(const ChainParams& p, const Device& device) {
  if (p.method == SPECDEC_RACE) return launch_chain_race(p, device);
  const bool block = p.method == SPECDEC_BLOCK;
  const int64_t requests = p.batch(), drafts = p.max_drafts();
  ChainArguments a = {};
  a.p = p;
  const bool weighs =
      block || p.target_law.space == SPECDEC_LOGITS || (p.draft.data && p.draft_law.space == SPECDEC_LOGITS);
  const int64_t together = (weighs ? kRowsTogether : kProbsTogether) / requests, at_once = blocks_at_once(device);
  a.chunk_size = static_cast<int>(together < 1 ? 1 : together < kLaneDrafts ? together : kLaneDrafts);
  if (a.chunk_size > drafts) a.chunk_size = drafts < 1 ? 1 : static_cast<int>(drafts);
  const bool in_chunks = !block && a.chunk_size < drafts;
  const int64_t chunks = in_chunks ? (drafts + a.chunk_size - 1) / a.chunk_size + 1 : 1;
  // A chunk has two blocks for each resident one, so most of the chunk before have ended when its own start.
  const int64_t wanted = in_chunks ? (2 * at_once + requests - 1) / requests : device.teams ? at_once / requests : 1;
  a.parts = parts_of_rows(p.target.vocab, wanted);
  a.rows = p.draft.data ? 2 * a.chunk_size : a.chunk_size + 1;
  const int parts = a.parts.count.by(), tiles = a.parts.tiles;
  // Double-buffered: a fast block weighs the next chunk while others still read the words of this one.
  a.sets = (in_chunks || parts > 1) && a.chunk_size < drafts ? 2 : 1;
  const int64_t words = a.sets * requests * a.rows * kWordsATile * tiles, sums = block ? requests * p.width() * parts : 0;
  const int64_t tickets = kTicketSize * (in_chunks ? 2 * requests + 1 : requests);
  const Workspace& workspace = device.workspace;
  if (workspace.lacks(tickets, words + sums)) return cudaSuccess;
  a.tickets = reinterpret_cast<Ticket*>(workspace.tickets);
  a.chunks = reinterpret_cast<DraftChunks*>(a.tickets + requests);
  a.started = reinterpret_cast<unsigned*>(a.chunks + requests);
  a.tile_words = workspace.partials, a.sums = workspace.partials + words;
  a.requests = quotient(requests);
  Shape shape = {requests * parts * chunks, kThreads};
  shape.overlaps = true;
  shape.cooperative = !in_chunks && parts > 1, shape.multiprocessors = device.multiprocessors;
  shape.dynamic_shared = kStagedBytes + rows_in_shared(a) * sizeof(RowStats) + (block ? p.width() * sizeof(Leaf) : 0);
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(block ? chain_block_kernel : in_chunks ? chain_chunk_kernel : chain_rejection_kernel, shape, a,
                device.stream);
}

}  // namespace specdec::cuda
