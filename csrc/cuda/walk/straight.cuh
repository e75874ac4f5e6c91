// Chains of few requests, straight through: no walk, and no work that is asked for. What each warp does is known from
// the launch. All blocks of a request know all of it at the end of each step, and decide alike.
//
//   straight_race_kernel       a draw from each row; the last block of a request compares winners and drafts
//   straight_rejection_kernel  the masses of all rows; every block judges all slots, and draws over its own columns of
//                              the row where the chain ends; the last block writes the verdict
//   straight_turn_kernel       the same for many requests or slots, some slots of all requests after the others: each
//                              block judges the slots before, then weighs its own, or draws
//   straight_block_kernel      as for few, but between judging and drawing the sums of those pairs that a uniform asks
//   for
//
// A block has eight warps, and a part of a request is some tiles of 1,024 columns of all of its rows.
#pragma once

#include "../rows/cut_plan.cuh"  // is_shaped
#include "../rows/draw.cuh"
#include "../rows/pair_sums.cuh"
#include "../rows/staged_tile.cuh"
#include "deferred_ops.cuh"  // finish
#include "specdec/chain.h"

namespace specdec::cuda {

constexpr int32_t kStraightSlots = 31;  // a lane judges a slot, and one is left for the last token
constexpr int64_t kRowsTogether = 80;   // of the target, of all requests, that are weighed between two meetings
constexpr int64_t kProbsTogether = 256;  // of probabilities, which are not weighed but at temperature 0
constexpr int64_t kTilesInOrder = 32;  // of a part, at most
constexpr int kBlocksOfMany = 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kBlocksOfTurns = 2;  // three would spill there
#else
constexpr int kBlocksOfTurns = kBlocksOfMany;
#endif

// What the blocks of a request tell those of its later turns: zero before and after every kernel.
struct alignas(16) Turns {
  unsigned came;    // who has weighed
  unsigned draws;   // the turn whose blocks draw, once it is known
  unsigned status;  // of slots that were accepted
  unsigned left;    // who has ended
};

struct StraightArguments {
  ChainParams p;
  Meeting* meetings;  // one a request; race: and then one a row
  WideKey* words;     // of tiles: [request][set][row][kWordsATile][tile]
  WideKey* sums;      // block, of parts of a pair: [request][node][part]
  Parts parts;        // of a row
  Quotient requests;  // race, turns: blocks of all requests come before those of the next node or turn
  bool in_order;      // race: a row behind a refused draft is left out, if its blocks come that late
  int slots;          // else: that are weighed between two meetings, 31 at most
  int rows, sets;     // of a request that have words, and how many times: for turns beside each other
  Turns* turns;       // one a request
  unsigned* begun;    // of turns: how many blocks have
};

// ---- what all of them do --------------------------------------------------------------------------------------------

// Which block this is. `node`: or turn.
struct Place {
  int part, node;
  int64_t request;
  template <class Arguments>
  __device__ explicit Place(const Arguments& a) : Place(a, opaque(blockIdx.x)) {}
  template <class Arguments>
  __device__ Place(const Arguments& a, unsigned number) {
    const int block = static_cast<int>(number), row = a.parts.count.of(block);
    part = block - row * a.parts.count.by();
    node = a.requests.of(row);
    request = row - node * a.requests.by();
  }
};

// The block has come to a meeting, and what it did before is there for whom it meets.
__device__ __forceinline__ void arrive(unsigned* came) {
  __syncthreads();
  if (threadIdx.x == 0) add_acquire_release(came, 1u);
}
__device__ __forceinline__ void wait_for(const unsigned* came, unsigned blocks) {
  if (threadIdx.x == 0)
    while (load_acquire(came) < blocks) {
    }
  __syncthreads();
}
// `of_probs`: the draft's row was looked through with the draw, and some of it should have weight.
__device__ __forceinline__ int32_t status_of_met(const Found& found, bool of_probs) {
  const bool odd = found.met & kBadValue || (of_probs && !(found.met & kDraftHasWeight));
  return odd ? SPECDEC_STATUS_NON_FINITE : SPECDEC_STATUS_OK;
}
__device__ __forceinline__ Draw draw_of(const Found& found, bool of_probs) {
  return draw_of(found.best, status_of_met(found, of_probs));
}

// By the first warp, behind the tokens. `bits` are of all lanes together.
__device__ __forceinline__ void end_verdict(const ChainRequest& r, const VerdictWriter& verdict, int32_t accepted,
                                            int32_t bits) {
  __syncwarp();  // the first lane reads the path
  finish(verdict, r.idle ? -1 : accepted, static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(bits))));
  if (lane_id() == 0 && r.p.num_passed.data)  // decoded anew, because it would take registers until here
    count_passing(ChainRequest(r.p, r.request), r.request, accepted,
                  [](const Rows& rows, int64_t offset, int32_t token) {
                    return Probs{}.probability(element(row_at(rows, offset), token), {});
                  });
}

// The token after the last draft, where it comes with the call.
__device__ __forceinline__ Draw given_token(const ChainRequest& r) {
  const int64_t token = r.given_token();
  if (in_vocab(r, token)) return {static_cast<int32_t>(token), SPECDEC_STATUS_OK, false};
  return {0, SPECDEC_STATUS_PARAMETER, false};
}

// A lane's draft, the one after its node.
__device__ __forceinline__ int64_t draft_of_lane(const ChainRequest& r, int32_t first = 0) {
  const int32_t node = first + lane_id();
  return node < r.drafts() ? r.draft_token(node + 1) : -1;
}

// Whether a draft of a lane that is none of the vocabulary says so.
__device__ __forceinline__ int32_t status_of_draft(const ChainRequest& r, int64_t draft) {
  return draft == -1 || in_vocab(r, draft) ? SPECDEC_STATUS_OK : SPECDEC_STATUS_TOKEN_RANGE;
}

// ---- race -----------------------------------------------------------------------------------------------------------

// By the first warp of a request's last block: compares winners and drafts, a lane a node. `draft` is of the first lanes.
template <class WinnerAt>
__device__ __forceinline__ void write_race(const ChainRequest& r, int64_t draft, int32_t status, WinnerAt&& winner_at) {
  const VerdictWriter verdict = verdict_at(r.p, r.request);
  int32_t accepted = 0, bits = status;
  bool ended = false;
#pragma unroll 1
  for (int32_t first = 0;;) {
    const int32_t own = first + lane_id();
    Draw draw = {0, SPECDEC_STATUS_OK, false};
    if (r.readable && own <= r.slots) draw = r.is_given(own) ? given_token(r) : winner_at(own);
    if (!ended) {
      if (draw.empty) draft = -1;  // a row without weight ends the chain
      const unsigned refused = __ballot_sync(kWarp, !r.readable || draft != draw.token);
      ended = refused != 0;
      accepted = first + (ended ? __ffs(static_cast<int>(refused)) - 1 : 31);
      if (own <= accepted) bits |= draw.status | status_of_draft(r, draft);
      if (own <= accepted && !r.idle) verdict.put(own, own, draw.token);
    }
    first += 32;
    if (first > r.slots) break;  // winners behind the end are asked for, too
    draft = draft_of_lane(r, first);
  }
  end_verdict(r, verdict, accepted, bits);
}

__global__ void __launch_bounds__(kThreads, kBlocksOfMany) straight_race_kernel(const StraightArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  SPECDEC_SHARED(unsigned, ends, 1);  // how far before the last node the chain is known to end
  begin_draw(sure);
  const Place place(a);
  const int32_t node = place.node;
  const ChainRequest r(a.p, place.request);
  const int64_t draft = draft_of_lane(r);
  const unsigned nodes = static_cast<unsigned>(a.p.places()), before = nodes - static_cast<unsigned>(node);
  Meeting *const meeting = a.meetings + r.request, *const rows = a.meetings + a.requests.by() + r.request * nodes;
  if (threadIdx.x == 0) ends[0] = a.in_order ? atomicOr(&meeting->met, 0u) : 0u;
  __syncthreads();
  if (ends[0] <= before && r.readable && node <= r.slots && !r.is_given(node)) {
    const Tiles tiles = a.parts.tiles_of(place.part);
    draw_tiles<3>(weights_of_row(row_at(a.p.target, r.target_row(node)), r.target_law),
                  r.race_noise(node, node), tiles.begin, tiles.end, sure, rows + node);
    if (a.in_order && node < r.slots && comes_last(rows + node, a.parts.count.by()) && threadIdx.x == 0) {
      const Draw draw = draw_of(candidate_of_key(atomicMax(&rows[node].best, WideKey{0})), SPECDEC_STATUS_OK);
      // A row without weight whose draft is token 0 goes by here: the rows behind it are read in vain, no more.
      if (draw.token != r.draft_token(node + 1)) atomicMax(&meeting->met, before);
    }
  }
  if (!comes_last(meeting, a.parts.count.by() * nodes) || warp_id() != 0) return;
  write_race(r, draft, r.status, [&](int32_t own) {
    rows[own].came = 0;
    return draw_of(taken_from(rows + own), false);
  });
  if (lane_id() == 0) meeting->came = meeting->met = 0;
}

// ---- rows that are looked through -----------------------------------------------------------------------------------

// Whether rows of probabilities are looked through before drafts are judged: for the sums of a block, and since
// over-acceptance may accept a token of probability 0, but none of a row without weight.
template <bool kBlock>
__device__ __forceinline__ bool looks_at_all(const ChainRequest& r) { return kBlock || r.epsilon() > 0.0f; }

// Which rows of a request, of some slots from one on: those of the target, at temperature 0 to the last; or the pairs of
// target and draft, one after the other. Of rows of probabilities nothing needs to be known but for the argmax.
struct Sides {
  int count;    // sides of a node
  int32_t first, rows;
  __device__ Sides(const ChainRequest& r, int32_t first_slot, int32_t slots)
      : count(r.target_law.greedy || !r.has_draft() ? 1 : 2), first(first_slot), rows(0) {
    const int32_t left = r.slots - first;
    if (!r.readable) return;
    if (left > slots) rows = slots * count;
    else rows = r.target_law.greedy ? left + (r.is_given(r.slots) ? 0 : 1) : left * count;
  }
  // Whether there is a row to look through; `all`: those of probabilities, too, for their status.
  __device__ bool looks(const ChainRequest& r, bool all) const {
    return rows > 0 && (all || r.target_law.needs_row() || (r.has_draft() && r.draft_law.needs_row()));
  }
  __device__ int32_t node(int32_t row) const { return first + (count == 2 ? row / 2 : row); }
  __device__ bool is_draft(int32_t row) const { return count == 2 && row % 2 != 0; }
};

__device__ __forceinline__ LawRow side_of(const ChainRequest& r, int32_t node, bool of_draft) {
  if (of_draft) return {row_at(r.p.draft, r.draft_row(node)), without_stats(r.draft_law), r.p.draft_map.data};
  return {row_at(r.p.target, r.target_row(node)), without_stats(r.target_law), nullptr};
}
__device__ __forceinline__ WideKey* words_of_row(const StraightArguments& a, const ChainRequest& r, int set, int32_t row) {
  return a.words + ((r.request * a.sets + set) * a.rows + row) * kWordsATile * a.parts.tiles;
}

// How many rows a block knows at the same time.
__host__ __device__ __forceinline__ int known_rows(const StraightArguments& a) {
  return a.p.method == SPECDEC_BLOCK ? 2 * a.p.places() : a.rows;
}
__device__ __forceinline__ WideKey* sums_of_node(const StraightArguments& a, const ChainRequest& r, int32_t node) {
  return a.sums + (r.request * a.p.places() + node) * a.parts.count.by();
}

// The block's tiles of all rows: a warp takes one at a time, of one row if there are as many as warps or half of them.
// `all`: rows of probabilities, too.
__device__ __forceinline__ void weigh_tiles(const StraightArguments& a, const ChainRequest& r, const Sides& sides,
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

// What comes of the words, from place `at` on: a warp takes a row. The block needs a barrier behind it.
__device__ __forceinline__ void know_rows(const StraightArguments& a, const ChainRequest& r, const Sides& sides, int set,
                                          int32_t at, const Shared<RowStats>& known, bool all) {
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
    if (lane_id() == 0) known[at + row] = whole;
  }
}

// ---- judging --------------------------------------------------------------------------------------------------------

// What a lane knows of its slot, and of the draft there, if it is one of the vocabulary.
struct Slot {
  int32_t first;  // the first lane's node
  int64_t draft;
  bool tried, in_range;
  int32_t column;     // of the draft's row, kNoColumn if it has none
  float raw, from;    // the draft token's own elements of the target's row and of the draft's
  RowStats target_stats, draft_stats;

  // By every warp. What it loads is on its way while the block waits for others.
  __device__ Slot(const ChainRequest& r, int32_t node)
      : first(node), draft(draft_of_lane(r, node)), tried(draft != -1), in_range(in_vocab(r, draft)),
        column(kNoColumn), raw(0.0f), from(0.0f) {
    if (!in_range) return;
    raw = element(row_at(r.p.target, r.target_row(own())), static_cast<int32_t>(draft));
    if (!r.has_draft()) return;
    const LawRow side = side_of(r, own(), true);
    column = side.columns().column(static_cast<int32_t>(draft));
    if (column != kNoColumn) from = element(side.row, column);
  }
  // Of `rows` that are known, those of the node `from` come first. `all`: see looks_at_all. A target row without weight
  // ends the chain: the lane's draft counts as absent.
  __device__ void know(const ChainRequest& r, const Shared<RowStats>& known, int sides, int32_t from, int32_t rows,
                       bool all) {
    const int32_t row = (own() - from) * sides;
    target_stats = draft_stats = kNoStats;
    if (row >= rows) return;
    target_stats = known[row];
    if (sides == 2) draft_stats = known[row + 1];
    if ((all || r.target_law.needs_row()) && target_stats.is_empty()) draft = -1, tried = in_range = false;
  }
  __device__ int32_t own() const { return first + lane_id(); }
  __device__ float p(const ChainRequest& r) const {
    return in_range ? with_stats(r.target_law, target_stats).probability(static_cast<int32_t>(draft), raw) : 0.0f;
  }
  __device__ float q(const ChainRequest& r) const {
    if (!r.has_draft()) return 1.0f;
    return column == kNoColumn ? 0.0f : with_stats(r.draft_law, draft_stats).probability(column, from);
  }
  // The status of p and q, and of a draft that is none.
  __device__ int32_t status(const ChainRequest& r) const {
    if (!tried) return SPECDEC_STATUS_OK;
    if (!in_range) return SPECDEC_STATUS_TOKEN_RANGE;
    int32_t bits = SPECDEC_STATUS_OK;
    if (r.target_law.needs_row()) bits |= target_stats.status;
    else if (!r.target_law.is_element(raw)) bits |= SPECDEC_STATUS_NON_FINITE;
    if (!r.has_draft()) return bits;
    if (r.draft_law.needs_row()) bits |= draft_stats.status;
    else if (column != kNoColumn && !r.draft_law.is_element(from)) bits |= SPECDEC_STATUS_NON_FINITE;
    return bits;
  }
  // Of the rows that a residual is drawn from.
  __device__ int32_t rows_status(const ChainRequest& r) const {
    return (r.target_law.needs_row() ? target_stats.status : 0) | (r.draft_law.needs_row() ? draft_stats.status : 0);
  }
};

// Where a chain ends, if it does in these slots, and what comes after it: a token that is known, or a draw from p,
// without `excluded`, or from (p - subtracted q)^+.
struct Ending {
  int32_t node;    // kNoNode if it goes on
  int32_t status;  // each lane's own
  bool known, residual;
  int32_t token;   // if it is known
  float subtracted;
  int32_t excluded;
};

// The ending at a node, of which its lane knows whether there is a residual, and what it subtracts.
template <class SlotOf>
__device__ __forceinline__ Ending ending_at(const ChainRequest& r, const SlotOf& slot, int32_t node, bool residual,
                                            float subtracted, int32_t status) {
  Ending e = {node, status, false, false, 0, 1.0f, kNoToken};
  const bool mine = residual && slot.in_range && !r.has_draft();
  const int lane = node - slot.first;
  e.residual = __shfl_sync(kWarp, residual, lane);
  e.subtracted = __shfl_sync(kWarp, subtracted, lane);
  e.excluded = __shfl_sync(kWarp, mine ? static_cast<int32_t>(slot.draft) : kNoToken, lane);
  if (e.residual && r.has_draft() && slot.own() == node) e.status |= slot.rows_status(r);
  if (!r.is_given(node)) return e;
  const Draw given = given_token(r);
  e.known = true, e.residual = false, e.token = given.token;
  if (slot.own() == node) e.status |= given.status;
  return e;
}

// The first lane of those that stop, or none if all of `slots` lanes are through and there are more.
template <class SlotOf>
__device__ __forceinline__ int32_t end_by_lanes(const ChainRequest& r, const SlotOf& slot, bool goes_on, int32_t slots) {
  const unsigned ends = __ballot_sync(kWarp, !goes_on || lane_id() >= slots);
  const int32_t node = slot.first + __ffs(static_cast<int>(ends)) - 1;
  return node == slot.first + slots && node < r.drafts() ? kNoNode : node;
}

// At temperature 0 the target's most probable tokens decide.
template <class SlotOf>
__device__ __forceinline__ Ending end_of_greedy(const ChainRequest& r, const SlotOf& slot, int32_t slots) {
  if (!r.readable) return {0, 0, true, false, 0, 1.0f, kNoToken};
  const Draw most = r.is_given(slot.own()) ? given_token(r) : draw_of(slot.target_stats);
  const int32_t node = end_by_lanes(r, slot, slot.draft == most.token, slots);
  const int32_t last = node == kNoNode ? slot.first + slots - 1 : node;
  const int32_t status = slot.tried && !slot.in_range ? most.status | SPECDEC_STATUS_TOKEN_RANGE : most.status;
  return {node, slot.own() <= last ? status : 0, true, false, __shfl_sync(kWarp, most.token, last - slot.first), 1.0f,
          kNoToken};
}

// A lane tests its draft, as if all before it were accepted.
template <class SlotOf>
__device__ __forceinline__ Ending judge_slots(const ChainRequest& r, const SlotOf& slot, int32_t slots) {
  int32_t status = SPECDEC_STATUS_OK;
  const float share = r.draft_share(slot.own(), &status);
  const AcceptTest test = {r.noise_at_depth(slot.own(), 0), static_cast<uint32_t>(slot.own()), 0.0f, share, r.epsilon()};
  const int32_t node = end_by_lanes(r, slot, slot.in_range && test(slot.p(r), slot.q(r)), slots);
  status |= slot.status(r);
  if (node == kNoNode) return {node, lane_id() < slots ? status : 0, false, false, 0, 1.0f, kNoToken};
  // A slot that could have been drafted but was not is decided like a rejected draft.
  return ending_at(r, slot, node, slot.own() < r.slots && (slot.tried || share < 1.0f), share,
                   slot.own() <= node ? status : 0);
}

// ---- the draw, and the end ------------------------------------------------------------------------------------------

template <class SlotOf>
__device__ __forceinline__ void write_verdict(const ChainRequest& r, const SlotOf& slot, int32_t accepted, int32_t last,
                                              int32_t bits) {
  const VerdictWriter verdict = verdict_at(r.p, r.request);
  for (int32_t node = lane_id(); node < slot.first; node += 32) verdict.put(node, node, r.draft_token(node + 1));
  if (!r.idle && slot.own() <= accepted) verdict.put(slot.own(), slot.own(), slot.own() == accepted ? last : slot.draft);
  end_verdict(r, verdict, accepted, bits);
}

// The block's part of the draw. The last block to come, when `blocks` have, writes the verdict, by slot().
template <class SlotAtEnd>
__device__ __forceinline__ void draw_and_write(const StraightArguments& a, const ChainRequest& r, const Shared<RowStats>& known,
                                               int32_t known_from, const Shared<unsigned>& sure, SlotAtEnd&& slot,
                                               Ending e, int part, unsigned blocks) {
  Meeting* const meeting = a.meetings + r.request;
  Tiles tiles = a.parts.tiles_of(part);
  const bool residual = e.residual && r.has_draft();
  RowStats target_stats = kNoStats, draft_stats = kNoStats;
  const int32_t row = 2 * (e.node - known_from);
  if (residual) target_stats = known[row], draft_stats = known[row + 1];
  Weights weights = weights_of_residual(
      LawRow{row_at(a.p.target, r.target_row(e.node)), with_stats(r.target_law, target_stats)},
      LawRow{row_at(a.p.draft, r.draft_row(e.node)), with_stats(r.draft_law, draft_stats), a.p.draft_map.data},
      e.subtracted);
  weights.residual = residual, weights.excluded = e.excluded;
  const Noise noise = r.noise_at_depth(e.node, kStreamResidual);
  int32_t status = r.status;
  Draw last = {e.token, SPECDEC_STATUS_OK, false};
#pragma unroll 1
  for (bool alone = false;; alone = true) {
    if (!e.known) draw_tiles<1>(weights, noise, tiles.begin, tiles.end, sure, meeting);
    if (alone) __syncthreads();
    else if (!comes_last(meeting, blocks)) return;
    bool again = false;
    if (threadIdx.x == 0 && !e.known) {
      const Found found = taken_from(meeting);
      again = found.best.token == kNoToken && e.residual && !alone;
      last = {found.best.token, draw_of(found, reads_probs_of_draft(weights)).status, false};
      // p and q are equal up to rounding. This block alone draws from p.
      if (again) status |= status_of_met(found, reads_probs_of_draft(weights)) | SPECDEC_STATUS_EMPTY_RESIDUAL;
    }
    if (!__syncthreads_or(again)) break;
    weights.residual = false, weights.excluded = kNoToken;
    tiles = {0, a.parts.tiles};
    begin_draw(sure);
    __syncthreads();
  }
  if (warp_id() == 0) {
    // A row of probabilities without weight is found by the draw alone: the token is kNoToken until here. The draft
    // refused there counts as absent.
    const int32_t token = __shfl_sync(kWarp, last.token, 0);
    if (token == kNoToken && e.residual) status &= SPECDEC_STATUS_PARAMETER;
    write_verdict(r, slot(), e.node, token == kNoToken ? 0 : token, status | last.status);
  }
  if (threadIdx.x == 0) meeting->came = 0;
}

// ---- block ----------------------------------------------------------------------------------------------------------

// The walk of walk_traversal (specdec/walk.h) on a chain, by lanes: a lane has a node.
struct Leaf {
  float weight, uniform;  // a, of the walk down
  int32_t status;      // of its slot
  bool tried;          // whether the draft after it was refused, or taken off
  bool accepted, asks;  // asks: its uniform decides once its sum is known
  __device__ float subtracted() const { return subtracted_after(0.0f, 1.0f, weight); }
};

// The weight of the first lane's node. Afterwards it is that of the node behind the last lane, and `lanes` is how many
// nodes were visited.
template <class SlotOf>
__device__ __forceinline__ Leaf leaf_of_lane(const ChainRequest& r, const SlotOf& slot, float* weight, int* lanes) {
  const int32_t own = lane_id();
  const float p = slot.p(r), q = slot.in_range ? slot.q(r) : 0.0f;
  Leaf leaf = {*weight, 0.0f, slot.status(r), false, false, false};
#pragma unroll 1
  for (*lanes = 1;; ++*lanes) {
    const int lane = *lanes - 1;
    if (lane == 32 || slot.first + lane >= r.drafts() || !__shfl_sync(kWarp, slot.tried, lane)) break;
    *weight = child_weight(*weight, __shfl_sync(kWarp, p, lane), __shfl_sync(kWarp, q, lane), 0.0f, 1.0f);
    if (own == lane) leaf.tried = true;
    if (!(*weight >= kSmallest)) break;
    if (own == lane + 1) leaf.weight = *weight;
  }
  if (slot.own() == 0) leaf.accepted = true;
  if (slot.own() == 0 || own >= *lanes) return leaf;
  leaf.uniform = leaf_uniform(r.noise_at_depth(slot.own() - 1, 0), slot.own());
  float sum_known = leaf.weight;
  if (leaf.tried && !r.has_draft()) sum_known = weight_after(leaf.weight, 1.0f, untried_after(1.0f, p));
  leaf.accepted = leaf.uniform < sum_known;
  leaf.asks = leaf.accepted && leaf.tried && r.has_draft() && sum_known < 1.0f;
  leaf.accepted &= !leaf.asks;
  return leaf;
}

// The sum of (p - subtracted q)^+ over the block's tiles, of a node's pair, for those who ask.
__device__ __forceinline__ void sum_tiles(const StraightArguments& a, const ChainRequest& r,
                                          const Shared<RowStats>& known, int32_t node, float subtracted) {
  SPECDEC_SHARED(WideKey, of_warps, kMaxWarps);
  LawRow target = side_of(r, node, false), draft = side_of(r, node, true);
  target.stats = with_stats(r.target_law, known[2 * node]), draft.stats = with_stats(r.draft_law, known[2 * node + 1]);
  const Place place(a);
  const Tiles tiles = a.parts.tiles_of(place.part);
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
    put_word(sums_of_node(a, r, node) + place.part, WideKey{units});
  }
  __syncthreads();
}

// Accepts drafts as a block: the deepest node whose uniform allows it. Sums are taken of those nodes alone whose
// uniforms ask for them: take_sums(from, end) is called if there are such, and units(node) is one of them.
// slot_at(node) is a slot, rows_status(node) that of a node's rows.
template <class SlotOf, class SlotAt, class TakeSums, class Units, class RowsStatus>
__device__ __forceinline__ Ending judge_blocks(const ChainRequest& r, const Shared<Leaf>& leaves, SlotOf& slot,
                                               SlotAt&& slot_at, TakeSums&& take_sums, Units&& units,
                                               RowsStatus&& rows_status) {
  int32_t visited = 0, sure = 0;
  float weight = 1.0f;
#pragma unroll 1
  for (;;) {
    int lanes;
    const Leaf leaf = leaf_of_lane(r, slot, &weight, &lanes);
    if (warp_id() == 0 && lane_id() < lanes && lane_id() < 32) leaves[slot.own()] = leaf;
    const unsigned accepted = __ballot_sync(kWarp, leaf.accepted);
    if (accepted) sure = slot.first + 31 - __clz(static_cast<int>(accepted));
    visited += lanes < 32 ? lanes : 32;
    if (lanes <= 32) break;
    slot = slot_at(slot.first + 32);
  }
  __syncthreads();
  bool asking = false;
  for (int32_t node = sure + 1 + lane_id(); node < visited; node += 32) asking |= static_cast<Leaf>(leaves[node]).asks;
  int32_t node = sure;
  if (__any_sync(kWarp, asking)) {
    take_sums(sure + 1, visited);
#pragma unroll 1
    for (int32_t asks = sure + 1; asks < visited; ++asks) {
      const Leaf leaf = leaves[asks];
      if (leaf.asks && leaf.uniform < weight_after(leaf.weight, 1.0f, sum_of_units(units(asks)))) node = asks;
    }
  }
  int32_t status = SPECDEC_STATUS_OK;
#pragma unroll 1
  for (int32_t own = lane_id(); own < visited; own += 32) {
    const Leaf leaf = leaves[own];
    status |= leaf.status;
    if (leaf.asks && own > sure && own >= node) status |= rows_status(own);
  }
  if (node < slot.first) slot = slot_at(node / 32 * 32);
  Leaf leaf = {};
  if (slot.own() < visited) leaf = leaves[slot.own()];
  return ending_at(r, slot, node, leaf.tried, r.has_draft() ? leaf.subtracted() : 1.0f, status);
}

// All rows are known. For sums all blocks of the request meet once more.
__device__ __forceinline__ Ending judge_blocks_straight(const StraightArguments& a, const ChainRequest& r, Slot& slot,
                                                        const Shared<RowStats>& known, int sides, int32_t rows,
                                                        unsigned* blocks) {
  const Shared<Leaf> leaves =
      dynamic_shared<Leaf>(kStagedBytes + known_rows(a) * sizeof(RowStats), a.p.places());
  const auto slot_at = [&](int32_t node) {
    Slot next(r, node);
    next.know(r, known, sides, 0, rows, true);
    return next;
  };
  const auto take_sums = [&](int32_t from, int32_t end) {
#pragma unroll 1
    for (int32_t asks = from; asks < end; ++asks)
      if (const Leaf leaf = leaves[asks]; leaf.asks) sum_tiles(a, r, known, asks, leaf.subtracted());
    arrive(&a.meetings[r.request].came);
    wait_for(&a.meetings[r.request].came, *blocks);
    *blocks += a.parts.count.by();
  };
  const auto units = [&](int32_t node) {
    uint64_t sum = 0;
    for (int part = lane_id(); part < a.parts.count.by(); part += 32) sum += load_fresh(sums_of_node(a, r, node) + part);
    return warp_sum(sum);
  };
  const auto rows_status = [&](int32_t node) {
    return static_cast<RowStats>(known[2 * node]).status | static_cast<RowStats>(known[2 * node + 1]).status;
  };
  return judge_blocks(r, leaves, slot, slot_at, take_sums, units, rows_status);
}

// ---- rejection and block --------------------------------------------------------------------------------------------

// A block is verified by some slots after the others; a rejection has all of them at once.
template <bool kBlock>
__device__ __forceinline__ void verify_straight(const StraightArguments& a) {
  SPECDEC_SHARED(unsigned, sure, 1);
  const Shared<RowStats> known = dynamic_shared<RowStats>(kStagedBytes, known_rows(a));
  begin_draw(sure);
  ChainRequest r(a.p, Place(a).request);
  unsigned blocks = a.parts.count.by();
  const bool as_block = kBlock && r.readable && !r.target_law.greedy;  // all rows are known before a draft is judged
#pragma unroll 1
  for (int32_t first = 0, set = 0;; first += a.slots, set ^= a.sets - 1) {
    const Sides sides(r, first, a.slots);
    const bool all = looks_at_all<kBlock>(r), looks = sides.looks(r, all);
    if (looks) {
      weigh_tiles(a, r, sides, set, a.parts.tiles_of(Place(a).part), dynamic_shared<uint4>(0, kVectors * kThreads), all);
      arrive(&a.meetings[r.request].came);
    }
    const int32_t from = as_block ? 0 : first;
    Slot slot(r, from);
    if (looks) {
      wait_for(&a.meetings[r.request].came, blocks);
      blocks += a.parts.count.by();
    }
    know_rows(a, r, sides, set, (first - from) * sides.count, known, all);
    __syncthreads();
    if (as_block && first + a.slots < r.slots) continue;
    const int32_t rows = (first - from) * sides.count + sides.rows;
    slot.know(r, known, sides.count, from, rows, all);
    Ending e;
    if (r.target_law.greedy || !r.readable) e = end_of_greedy(r, slot, a.slots);
    else if constexpr (kBlock) e = judge_blocks_straight(a, r, slot, known, sides.count, rows, &blocks);
    else e = judge_slots(r, slot, a.slots);
    r.status |= e.status;  // each lane's own
    if (!kBlock || e.node != kNoNode)  // the part anew, because it would take a register until here
      return draw_and_write(a, r, known, kBlock ? 0 : slot.first, sure, [&] { return slot; }, e, Place(a).part, blocks);
    __syncthreads();  // all have read what is known
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    straight_rejection_kernel(const StraightArguments a) {
  wait_for_kernel_before();
  verify_straight<false>(a);
}

// ---- rejection in turns ---------------------------------------------------------------------------------------------

// Blocks wait for those of the turn before alone, which have begun: a block's number is its place in the order in which
// blocks begin. So no launch has to fit the device, and requests that end early make room at once.
__global__ void __launch_bounds__(kThreads, kBlocksOfTurns) straight_turn_kernel(const StraightArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  SPECDEC_SHARED(unsigned, number, 1);
  const Shared<RowStats> known = dynamic_shared<RowStats>(kStagedBytes, known_rows(a));
  begin_draw(sure);
  if (threadIdx.x == 0) {
    number[0] = atomicAdd(a.begun, 1u);
    if (number[0] == gridDim.x - 1) atomicExch(a.begun, 0u);
  }
  __syncthreads();
  const auto place_of_block = [&] { return Place(a, number[0]); };  // anew where it would take registers until there
  const Place place = place_of_block();
  const unsigned turn = static_cast<unsigned>(place.node), parts = a.parts.count.by();
  const int32_t first = place.node * a.slots;
  Turns* const turns = a.turns + place.request;
  ChainRequest r(a.p, place.request);
  bool over = false, draws = false;
  if (turn > 0) {
    const int32_t before = first - a.slots;
    const Sides sides(r, before, a.slots);
    if (threadIdx.x == 0)
      for (unsigned drawn = 0; !over && load_acquire(&turns->came) < turn * parts; over = drawn != 0 && drawn < turn)
        drawn = load_acquire(&turns->draws);
    over = __syncthreads_or(over);
    if (!over) {
      Slot slot(r, before);
      know_rows(a, r, sides, (turn - 1) % 2, 0, known, looks_at_all<false>(r));
      __syncthreads();
      slot.know(r, known, sides.count, before, sides.rows, looks_at_all<false>(r));
      const Ending e = r.target_law.greedy || !r.readable ? end_of_greedy(r, slot, a.slots) : judge_slots(r, slot, a.slots);
      draws = e.node != kNoNode;
      if (draws) {
        r.status |= e.status;
        if (threadIdx.x == 0) {
          atomicMax(&turns->draws, turn);
          r.status |= static_cast<int32_t>(load_acquire(&turns->status));
        }
        draw_and_write(a, r, known, before, sure, [&] { return Slot(r, (place_of_block().node - 1) * a.slots); }, e,
                       place_of_block().part, parts);
      } else if (place.part == 0 && warp_id() == 0) {
        const unsigned status = __reduce_or_sync(kWarp, static_cast<unsigned>(e.status));
        if (status != 0 && lane_id() == 0) atomicOr(&turns->status, status);
      }
    }
  }
  if (!over && !draws) {
    weigh_tiles(a, r, Sides(r, first, a.slots), turn % 2, a.parts.tiles_of(place.part),
                dynamic_shared<uint4>(0, kVectors * kThreads), looks_at_all<false>(r));
    arrive(&turns->came);
  }
  if (threadIdx.x != 0) return;
  Turns& left = a.turns[place_of_block().request];
  if (add_acquire_release(&left.left, 1u) == gridDim.x / static_cast<unsigned>(a.requests.by()) - 1) left = {};
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) straight_block_kernel(const StraightArguments a) {
  wait_for_kernel_before();
  verify_straight<true>(a);
}

// ---- launching ------------------------------------------------------------------------------------------------------

inline cudaError_t launch_straight_race(const ChainParams& p, const Device& device) {
  const int64_t requests = p.batch(), rows = requests * p.places(), slots = blocks_at_once(device);
  if (device.room.lacks(kTicketsAMeeting * (requests + rows), 0)) return cudaSuccess;
  StraightArguments a = {};
  a.p = p;
  a.meetings = reinterpret_cast<Meeting*>(device.room.tickets);
  a.requests = quotient(requests);
  // Rows that do not fit the device at once come in order. Of one node there are two blocks for each that runs: so most
  // winners are known when the blocks of the next node begin.
  a.in_order = rows > slots;
  const int64_t least = p.target.vocab / (kTilesInOrder * kMassTile) + 1;
  const int64_t share = a.in_order ? (2 * slots + requests - 1) / requests : slots / rows;
  a.parts = parts_of_rows(p.target.vocab, a.in_order && share < least ? least : share);
  Shape shape = {rows * a.parts.count.by(), kThreads};
  shape.overlaps = true;
  return launch(straight_race_kernel, shape, a, device.stream);
}

inline cudaError_t launch_straight(const ChainParams& p, const Device& device) {
  if (p.method == SPECDEC_RACE) return launch_straight_race(p, device);
  const bool block = p.method == SPECDEC_BLOCK;
  const int64_t requests = p.batch(), drafts = p.max_drafts();
  StraightArguments a = {};
  a.p = p;
  const bool weighs =
      block || p.target_law.space == SPECDEC_LOGITS || (p.draft.data && p.draft_law.space == SPECDEC_LOGITS);
  const int64_t together = (weighs ? kRowsTogether : kProbsTogether) / requests, at_once = blocks_at_once(device);
  a.slots = static_cast<int>(together < 1 ? 1 : together < kStraightSlots ? together : kStraightSlots);
  if (a.slots > drafts) a.slots = drafts < 1 ? 1 : static_cast<int>(drafts);
  const bool in_turns = !block && a.slots < drafts;
  const int64_t turns = in_turns ? (drafts + a.slots - 1) / a.slots + 1 : 1;
  // A turn has two blocks for each that runs, so that most of the turn before have ended when its own begin.
  const int64_t share = in_turns ? (2 * at_once + requests - 1) / requests : device.teams ? at_once / requests : 1;
  a.parts = parts_of_rows(p.target.vocab, share);
  a.rows = p.draft.data ? 2 * a.slots : a.slots + 1;
  const int parts = a.parts.count.by(), tiles = a.parts.tiles;
  // Who is quick weighs the next slots while others read the words of these.
  a.sets = (in_turns || parts > 1) && a.slots < drafts ? 2 : 1;
  const int64_t words = a.sets * requests * a.rows * kWordsATile * tiles, sums = block ? requests * p.places() * parts : 0;
  const int64_t tickets = kTicketsAMeeting * (in_turns ? 2 * requests + 1 : requests);
  const Room& room = device.room;
  if (room.lacks(tickets, words + sums)) return cudaSuccess;
  a.meetings = reinterpret_cast<Meeting*>(room.tickets);
  a.turns = reinterpret_cast<Turns*>(a.meetings + requests);
  a.begun = reinterpret_cast<unsigned*>(a.turns + requests);
  a.words = room.words, a.sums = room.words + words;
  a.requests = quotient(requests);
  Shape shape = {requests * parts * turns, kThreads};
  shape.overlaps = true;
  shape.cooperative = !in_turns && parts > 1, shape.multiprocessors = device.multiprocessors;
  shape.dynamic_shared = kStagedBytes + known_rows(a) * sizeof(RowStats) + (block ? p.places() * sizeof(Leaf) : 0);
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(block ? straight_block_kernel : in_turns ? straight_turn_kernel : straight_rejection_kernel, shape, a,
                device.stream);
}

}  // namespace specdec::cuda
