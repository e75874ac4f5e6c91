// What the kernels of verify_chain share. Chains need no walk: the launch fixes which rows each warp reads. At the end
// of a step every block of a request holds the same values, so all of them take the same decision.
//
//   race.cuh       the blocks race over each row; the last one of a request compares winners and drafts
//   rejection.cuh  the blocks weigh all rows; each accepts all drafts and draws over its columns of the row where
//                  the chain stops; the last block writes the verdict
//   chunks.cuh     the same for many requests or drafts, one chunk of drafts after the other: each block accepts the
//                  chunk before, then weighs rows of this chunk, or draws
//   block.cuh      as rejection, but before the draw the blocks sum the pairs on which a uniform depends
//   filtered.cuh   all methods with filters or edits
//
// A block has eight warps. It reads the same few tiles of 1,024 columns of each row of its request.
#pragma once

#include "../rows/cut_plan.cuh"  // is_shaped
#include "../rows/draw.cuh"
#include "../rows/pair_sums.cuh"
#include "../rows/request.cuh"
#include "../rows/staged_tile.cuh"
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

// ---- requests, drafts, statuses -------------------------------------------------------------------------------------

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

__device__ __forceinline__ StopPoint draw_from_p(int32_t node, int32_t status) {
  StopPoint e = {};
  e.node = node, e.status = status;
  e.subtracted = 1.0f, e.excluded = kNoToken;
  return e;
}
__device__ __forceinline__ StopPoint decided_token(int32_t node, int32_t status, int32_t token) {
  StopPoint e = draw_from_p(node, status);
  e.decided = true, e.token = token;
  return e;
}

// The stop at a node. The lane of that node has `residual` and `subtracted`; the others' do not count.
template <class Lane>
__device__ __forceinline__ StopPoint stop_at(const ChainRequest& r, const Lane& lane, int32_t node, bool residual,
                                             float subtracted, int32_t status) {
  StopPoint e = draw_from_p(node, status);
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
  if (!r.readable) return decided_token(0, 0, 0);
  const Draw most = r.has_bonus(lane.node()) ? bonus_token(r) : to_draw(lane.target_stats);
  const int32_t node = find_stop(r, lane, lane.draft == most.token, count);
  const int32_t last = node == kNoNode ? lane.first + count - 1 : node;
  const int32_t status = lane.tried && !lane.in_range ? most.status | SPECDEC_STATUS_TOKEN_RANGE : most.status;
  return decided_token(node, lane.node() <= last ? status : 0, __shfl_sync(kWarp, most.token, last - lane.first));
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
  if (node == kNoNode) return draw_from_p(node, lane_id() < count ? status : 0);
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

}  // namespace specdec::cuda
