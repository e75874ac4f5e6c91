// Chains with filters or edits, straight, by each method and for any number of requests. A row has some blocks. The last
// of them to come cuts it alone (straight_row), and leaves a record: what is known of the row, p or q of the draft
// there, and the columns that are kept. So rows of a request are cut beside each other. The last row's block judges, and
// draws from the columns kept of the row where the chain ends. No block waits for another, but where there are edits: then
// all blocks of a request whose filters are off wait for the judge, and draw over the whole row together.
//
// Where rows do not fit the device at once, each has one block, and rows behind a refused draft are left out if their
// blocks come that late.
#pragma once

#include "../rows/filtered_row.cuh"
#include "straight.cuh"

namespace specdec::cuda {

// What is known of a row.
struct RowRecord {
  RowStats stats;
  Cut cut;
  float law;            // p or q of the draft there
  int32_t listed;       // how many columns are kept, -1 if they are not listed
  int32_t slot_status;  // of that p or q
  int32_t edit_status;
};
constexpr int kWordsARecord = 4, kWordsAList = (CutFinder::kShort + 1) / 2;

struct FilteredChainArguments {
  ChainParams p;
  Meeting* meetings;  // one a request, then one a row
  WideKey* records;   // one a row
  WideKey* lists;     // one a slot, of its row of the target: two columns a word
  StraightCut cut;
  Parts parts;        // of a row
  Quotient requests;
  bool in_order;      // a row behind a refused draft is left out, if its blocks come that late
  int sides, rows;    // of a node: the target's row, the draft's; of a request
  size_t drafted_at;  // the tokens of drafts, in bytes of shared memory
  size_t leaves_at;   // block: Leaf by node, then units of sums by node
  bool helps;         // blocks of a request without filters may wait, and draw together
  Parts shares;       // then, of such a draw
};

// ---- records --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ WideKey* record_of(const FilteredChainArguments& a, int64_t request, int32_t node, int side) {
  return a.records + (request * a.rows + node * a.sides + side) * kWordsARecord;
}
__device__ __forceinline__ WideKey* list_of(const FilteredChainArguments& a, int64_t request, int32_t node) {
  return a.lists + (request * a.p.max_drafts() + node) * kWordsAList;
}
__device__ __forceinline__ int32_t column_in(const WideKey* list, int i) {
  return static_cast<int32_t>(load_fresh(list + i / 2) >> i % 2 * 32);
}
__device__ __forceinline__ WideKey two_words(uint32_t high, uint32_t low) { return static_cast<WideKey>(high) << 32 | low; }

__device__ __forceinline__ void put_record(WideKey* words, const RowRecord& r) {
  const int32_t status = r.stats.status | r.slot_status << 8 | r.edit_status << 16;
  put_word(words, packed(r.stats.lse.max, r.stats.lse.log_sum));
  put_word(words + 1, two_words(static_cast<uint32_t>(r.stats.argmax), static_cast<uint32_t>(status)));
  put_word(words + 2, two_words(bits(r.cut.value), static_cast<uint32_t>(r.cut.last)));
  put_word(words + 3, two_words(bits(r.law), static_cast<uint32_t>(r.listed)));
}
__device__ __forceinline__ RowRecord record_at(const WideKey* words) {
  const WideKey lse = load_fresh(words), most = load_fresh(words + 1), cut = load_fresh(words + 2),
                own = load_fresh(words + 3);
  const int32_t status = static_cast<int32_t>(most);
  return {{{first_of(lse), second_of(lse)}, static_cast<int32_t>(most >> 32), status & 0xff},
          {first_of(cut), static_cast<int32_t>(cut)},
          first_of(own),
          static_cast<int32_t>(own),
          status >> 8 & 0xff,
          status >> 16};
}

// A lane's slot, as Slot of straight.cuh.
struct RecordedSlot {
  int32_t first;
  int64_t draft;
  bool tried, in_range;
  RowStats target_stats;
  RowRecord target = {}, draft_row = {};

  __device__ RecordedSlot(const FilteredChainArguments& a, const ChainRequest& r, int32_t node)
      : first(node), draft(draft_of_lane(r, node)), tried(draft != -1), in_range(in_vocab(r, draft)) {
    if (r.readable && own() <= r.slots) target = record_at(record_of(a, r.request, own(), 0));
    if (r.readable && own() < r.slots && a.sides == 2) draft_row = record_at(record_of(a, r.request, own(), 1));
    target_stats = target.stats;
    if (r.readable && own() < r.slots && target_stats.is_empty()) draft = -1, tried = in_range = false;  // as Slot::know
  }
  __device__ int32_t own() const { return first + lane_id(); }
  __device__ float p(const ChainRequest&) const { return in_range ? target.law : 0.0f; }
  __device__ float q(const ChainRequest& r) const { return r.has_draft() ? draft_row.law : 1.0f; }
  __device__ int32_t status(const ChainRequest& r) const {
    if (!tried) return target_stats.is_empty() ? target.edit_status : SPECDEC_STATUS_OK;
    if (!in_range) return SPECDEC_STATUS_TOKEN_RANGE | target.edit_status;
    return target.slot_status | target.edit_status | (r.has_draft() ? draft_row.slot_status : SPECDEC_STATUS_OK);
  }
  __device__ int32_t rows_status(const ChainRequest& r) const {
    return (r.target_law.needs_row() ? target.stats.status : 0) | draft_row.stats.status;
  }
};

// ---- a row ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void keep_drafts(const FilteredChainArguments& a, const ChainRequest& r, int32_t count) {
  const Shared<int32_t> drafted = dynamic_shared<int32_t>(a.drafted_at, a.p.places());
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads)
    drafted[i] = static_cast<int32_t>(r.draft_token(i + 1));
}

// What the filters of a side compare.
__device__ __forceinline__ Logits filter_order(const FilteredChainArguments& a, const ChainRequest& r, bool of_draft) {
  const int64_t rules = of_draft ? a.p.draft_law.rules : a.p.target_law.rules;
  if (rules & SPECDEC_BEFORE_TEMPERATURE) return {1.0f};
  return of_draft ? r.draft_law.logits() : r.target_law.logits();
}

// Of the draft behind a node, in the target's row there or in the draft's; kNoColumn if it has none.
__device__ __forceinline__ int32_t column_of_draft(const ChainRequest& r, int32_t node, bool of_draft) {
  const int64_t draft = r.draft_token(node + 1);
  if (!in_vocab(r, draft)) return kNoColumn;
  return of_draft ? DraftMap{r.p.draft_map.data, r.p.draft.vocab}.column(static_cast<int32_t>(draft))
                  : static_cast<int32_t>(draft);
}

// Where a block's row is. In shared memory, because it would take registers for long.
struct RowOfBlock {
  int64_t request;
  int part, row, node;
  bool of_draft;
  __device__ static RowOfBlock of(const FilteredChainArguments& a) {
    const Place place(a);
    const int node = a.sides == 2 ? place.node / 2 : place.node;
    return {place.request, place.part, place.node, node, place.node != node * a.sides};
  }
  // A token is drawn where no draft can be refused. Else it has to be known what p or q of one is.
  __device__ bool draws(const ChainRequest& r) const { return r.p.method == SPECDEC_RACE || node == r.slots; }
  __device__ bool exists(const ChainRequest& r) const {
    if (!r.readable) return false;
    return of_draft ? node < r.slots && !r.target_law.greedy : node <= r.slots && !r.is_given(node);
  }
  __device__ Row in(const ChainRequest& r) const {
    return of_draft ? row_at(r.p.draft, r.draft_row(node)) : row_at(r.p.target, r.target_row(node));
  }
  __device__ unsigned before_end(const ChainRequest& r) const { return static_cast<unsigned>(r.p.places() - node); }
};

// Whether a slot refuses its draft whatever others do, as far as one row's block can tell. By one thread, behind its
// record.
__device__ __forceinline__ bool refuses(const FilteredChainArguments& a, const ChainRequest& r, Meeting* meeting,
                                        const RowOfBlock& at, const RowRecord& own) {
  const int32_t node = at.node;
  const int64_t draft = r.draft_token(node + 1);
  if (own.stats.is_empty() && !at.of_draft) return true;
  if (a.p.method == SPECDEC_RACE || r.target_law.greedy) return draw_of(own.stats).token != draft;
  if (!in_vocab(r, draft)) return true;
  float q = 1.0f, p = own.law;
  if (a.sides == 2) {
    if (node >= 32) return false;  // room for two bits of so many slots
    unsigned* const came = reinterpret_cast<unsigned*>(&meeting->best) + node / 16;
    if ((add_acquire_release(came, 1u << node % 16 * 2) >> node % 16 * 2 & 3u) == 0) return false;
    const float other = record_at(record_of(a, r.request, node, !at.of_draft)).law;
    p = at.of_draft ? other : own.law, q = at.of_draft ? own.law : other;
  }
  if (a.p.method == SPECDEC_BLOCK) return !(p > 0.0f);
  int32_t reported = SPECDEC_STATUS_OK;
  const AcceptTest test = {r.noise_at_depth(node, 0), static_cast<uint32_t>(node), 0.0f, r.draft_share(node, &reported),
                           r.epsilon()};
  return !test(p, q);
}

// By the last block of a row: what it knows, for the last of its request. True for that one.
__device__ __forceinline__ bool leave_record(const FilteredChainArguments& a, const Shared<RowOfBlock>& place,
                                             const Shared<ChainState>& decoded, bool live, bool sums,
                                             const RowEnd& end, const Shared<RowRecord>& shared_record) {
  const RowOfBlock at = place[0];  // all of it anew, because it would take registers until here
  const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
  Meeting* const meeting = a.meetings + r.request;
  int32_t listed = -1;
  if (live && sums && !at.of_draft && end.kept.listed <= CutFinder::kShort) listed = end.kept.listed;
  const Shared<WideKey> list = dynamic_shared<WideKey>(a.cut.room.at, kListWords);
  for (int i = static_cast<int>(threadIdx.x); 2 * i < listed; i += kThreads) {
    const WideKey one = list[2 * i], other = list[2 * i + (2 * i + 1 < listed)];
    put_word(list_of(a, r.request, at.node) + i,
             two_words(~static_cast<uint32_t>(other), ~static_cast<uint32_t>(one)));
  }
  if (threadIdx.x == 0) {
    RowRecord record = shared_record[0];
    record.listed = listed;
    if (live) {
      if (sums) record.stats.lse = end.lse, record.stats.status = end.kept.status, record.cut = end.kept.cut;
      else record.stats = argmax_stats(end.best);
      const Law law = at.of_draft ? Law(r.draft_law) : Law(r.target_law);
      const int32_t column = at.draws(r) ? kNoColumn : column_of_draft(r, at.node, at.of_draft);
      if (column != kNoColumn) {
        const float raw = record.law;
        const bool keeps = !(record.cut.value > -kInfinity) ||
                           record.cut.keeps(filter_order(a, r, at.of_draft).scaled(raw), column);
        record.law = keeps ? with_stats(law, record.stats).probability(column, raw) : 0.0f;
        if (!at.of_draft && (!keeps || (a.p.edits.on() && !(raw > -kInfinity)))) record.law = kNever;
        if (!law.needs_row() && !law.is_element(raw)) record.slot_status = SPECDEC_STATUS_NON_FINITE;
      }
      if (law.needs_row()) record.slot_status = record.stats.status;
    }
    put_record(record_of(a, r.request, at.node, at.of_draft), record);
    if (a.in_order && live && at.node < r.slots && refuses(a, r, meeting, at, record))
      atomicMax(&meeting->met, at.before_end(r));
  }
  return comes_last(meeting, static_cast<unsigned>(a.rows));
}

// The block's part of a row. True for the request's last block to come.
__device__ __forceinline__ bool take_row(const FilteredChainArguments& a, const ShapedRows& reader,
                                         const Shared<RowOfBlock>& place, const Shared<ChainState>& decoded,
                                         const Shared<Filter>& filters,
                                         const Shared<unsigned>& sure) {
  SPECDEC_SHARED(unsigned, ends, 1);  // how far before the last node the chain is known to end
  SPECDEC_SHARED(RowRecord, shared_record, 1);
  RaceRequestOf<EditedRow> request;
  Filter filter;
  bool live, sums;
  {
    const RowOfBlock at = place[0];
    if (threadIdx.x == 0) ends[0] = a.in_order ? atomicOr(&a.meetings[at.request].met, 0u) : 0u;
    const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
    if (reader.edited && !at.of_draft) keep_drafts(a, r, at.node < r.slots ? at.node : r.slots);
    __syncthreads();
    live = at.exists(r) && ends[0] <= at.before_end(r);
    const Law law = at.of_draft ? Law(r.draft_law) : Law(r.target_law);
    const bool draws = at.draws(r);
    sums = !draws && law.needs_sum();
    Law looked = law;
    looked.greedy |= !draws && !sums;  // for its status
    const Noise noise = a.p.method == SPECDEC_RACE ? r.race_noise(at.node, at.node)
                                                   : r.noise_at_depth(at.node, kStreamResidual);
    request = race_of(reader.of(at.in(r), !at.of_draft), looked, noise);
    RowRecord record = {kNoStats, {-kInfinity, kNoToken}, 0.0f, -1, SPECDEC_STATUS_OK, SPECDEC_STATUS_OK};
    if (live) {
      if (!at.of_draft)
        record.edit_status = reader.decode(a.p.edits, request.row.vocab, {r.entry, 0},
                                           r.target_place(r.request, at.node), at.node);
      filter = filters[at.of_draft];
      if (!filter.on()) filter.order = law.logits();
      const int32_t column = draws ? kNoColumn : column_of_draft(r, at.node, at.of_draft);
      if (column != kNoColumn) record.law = element(request.row, column);  // until it is known what that means
    }
    if (threadIdx.x == 0) shared_record[0] = record;
  }
  RowEnd end;
  const RowOfBlock at = place[0];
  const int64_t number = at.request * a.rows + at.row;
  if (!straight_row<3>(request, live, sums, filter, a.cut, a.parts, number, at.part, sure,
                       a.meetings + a.requests.by() + number, &end))
    return false;
  return leave_record(a, place, decoded, live, sums, end, shared_record);
}
// ---- the end --------------------------------------------------------------------------------------------------------

struct FilteredPair {
  LawRowOf<Filtered> target, draft;
  int32_t listed;  // of the target's columns
};

// The rows of a node, for the whole block.
__device__ __forceinline__ FilteredPair pair_at(const FilteredChainArguments& a, const ChainRequest& r,
                                              const ShapedRows& reader, int32_t node) {
  const RowRecord target = record_at(record_of(a, r.request, node, 0));
  const Row row = row_at(a.p.target, r.target_row(node));
  reader.decode(a.p.edits, row.vocab, {r.entry, 0}, r.target_place(r.request, node), node);
  FilteredPair pair = {{reader.of(row), with_stats(r.target_law, target.stats), nullptr,
                      {target.cut, filter_order(a, r, false)}},
                     {},
                     target.listed};
  if (a.sides == 1 || node >= r.slots) return pair;
  const RowRecord draft = record_at(record_of(a, r.request, node, 1));
  pair.draft = {reader.of(row_at(a.p.draft, r.draft_row(node)), false), with_stats(r.draft_law, draft.stats),
                a.p.draft_map.data, {draft.cut, filter_order(a, r, true)}};
  return pair;
}

// The sum of (p - subtracted q)^+ of a node, in units, for the whole block: over the columns that are kept, or all.
__device__ __forceinline__ uint64_t units_of_pair(const FilteredPair& pair, const WideKey* list, float subtracted) {
  const int32_t count = pair.listed < 0 ? pair.target.row.vocab : pair.listed;
  uint64_t units[1] = {0};
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    const int32_t token = pair.listed < 0 ? i : column_in(list, i), column = pair.draft.columns().column(token);
    const float p = pair.target.probability(token, element(pair.target.row, token));
    const float q = column == kNoColumn ? 0.0f : pair.draft.probability(column, element(pair.draft.row, column));
    UnitSum<float> sum;
    sum.take(residual_weight(p, mul(subtracted, q)));
    units[0] += units_of(sum.high, sum.low);
  }
  block_sums(units);
  return units[0];
}

// ---- a draw that all blocks of a request share ----------------------------------------------------------------------

// What this block has of it; in shared memory, because it would take registers until there.
struct OwnShare {
  Tiles tiles;
  unsigned helpers;  // who wait for the judge: 0 if the draw is not shared
  bool judges;
};

// Where it ends is told by the request's meeting, as 1 if nobody draws; blocks draw into that of its first row, which nobody
// uses any more, and come to it when they have.
__device__ __forceinline__ Meeting* shared_draw(const FilteredChainArguments& a, int64_t request) {
  return a.meetings + a.requests.by() + request * a.rows;
}
__device__ __forceinline__ void tell_ending(Meeting* meeting, const Ending& e, bool draws) {
  if (threadIdx.x != 0) return;
  put_word(&meeting->best, two_words(bits(e.subtracted), static_cast<uint32_t>(e.excluded)));
  add_acquire_release(&meeting->met, draws ? static_cast<unsigned>(e.node) << 2 | 2u | e.residual : 1u);
}
// False if nobody draws.
__device__ __forceinline__ bool hear_ending(Meeting* meeting, const Shared<Ending>& shared_end) {
  if (threadIdx.x == 0) {
    unsigned told;
    while ((told = load_acquire(&meeting->met)) == 0) {
    }
    const WideKey what = load_fresh(&meeting->best);
    shared_end[0] = {told & 2u ? static_cast<int32_t>(told >> 2) : kNoNode, 0, false, (told & 1u) != 0, 0, first_of(what),
                     static_cast<int32_t>(what)};
  }
  __syncthreads();
  return static_cast<Ending>(shared_end[0]).node != kNoNode;
}

// The token after the last draft, if it is not known, for the first thread; statuses for all. Behind the last slot it was
// drawn before; else it is drawn from what is kept of the row where the chain ends. Of blocks
// that share the draw the judge alone gets the token.
__device__ __forceinline__ Draw draw_at_end(const FilteredChainArguments& a, const ChainRequest& r,
                                            const ShapedRows& reader, const Shared<Ending>& shared_end,
                                            const Shared<unsigned>& sure, const Shared<OwnShare>& share) {
  const Ending e = shared_end[0];
  if (e.known) return {e.token, SPECDEC_STATUS_OK, false};
  int32_t status;
  {
    const RowRecord row = record_at(record_of(a, r.request, e.node, 0));
    status = row.edit_status | row.stats.status;
    if (e.node == r.slots) {
      const Draw draw = draw_of(row.stats);
      return {draw.token, draw.status | status, draw.empty};
    }
  }
  const FilteredPair pair = pair_at(a, r, reader, e.node);
  auto weights = weights_of_residual(pair.target, pair.draft, e.subtracted);
  weights.residual = e.residual && r.has_draft(), weights.excluded = e.excluded;
  const auto request = race_of(pair.target.row, r.target_law, r.noise_at_depth(e.node, kStreamResidual));
  const Shared<WideKey> list = dynamic_shared<WideKey>(a.cut.room.at, kListWords);
  for (int i = static_cast<int>(threadIdx.x); i < pair.listed; i += kThreads)
    list[i] = ~static_cast<uint32_t>(column_in(list_of(a, r.request, e.node), i));
#pragma unroll 1
  for (bool again = false;; again = true) {
    begin_draw(sure);
    __syncthreads();
    RowPartial found = kNoPart;
    if (pair.listed >= 0) {
      found = race_listed(request, weights, pair.listed, a.cut.room, SPECDEC_STATUS_OK);
    } else {
      Meeting* const meeting = shared_draw(a, r.request);
      const Tiles mine = static_cast<OwnShare>(share[0]).tiles;
      if (mine.begin < mine.end) draw_tiles<1>(weights, request.noise, mine.begin, mine.end, sure, meeting);
      if (!static_cast<OwnShare>(share[0]).judges) return {};
      __syncthreads();
      wait_for(&meeting->came, static_cast<OwnShare>(share[0]).helpers);
      if (threadIdx.x == 0) found = partial_of(taken_from(meeting));
    }
    const bool empty = threadIdx.x == 0 && found.best.token == kNoToken && !again &&
                       static_cast<Ending>(shared_end[0]).residual;
    if (!__syncthreads_or(empty)) {
      const Draw draw = threadIdx.x == 0 ? draw_of(found) : Draw{0, SPECDEC_STATUS_OK, false};
      if (draw.empty) status &= ~SPECDEC_STATUS_EMPTY_RESIDUAL;  // p is empty, too
      return {draw.token, draw.status | status, draw.empty};
    }
    // p and q are equal up to rounding: the judge draws from p alone.
    if (threadIdx.x == 0) share[0] = {{0, sum_tiles_of(a.p.target.vocab)}, static_cast<OwnShare>(share[0]).helpers, true};
    status |= found.status | SPECDEC_STATUS_EMPTY_RESIDUAL;
    weights.residual = false, weights.excluded = kNoToken;
  }
}

// What a verdict needs of a slot.
struct LaneDraft {
  int32_t first;
  int64_t draft;
  __device__ int32_t own() const { return first + lane_id(); }
};

__device__ __forceinline__ Ending judge(const FilteredChainArguments& a, const ChainRequest& r,
                                               const ShapedRows& reader, int32_t first) {
  RecordedSlot slot(a, r, first);
  if (r.target_law.greedy || !r.readable) return end_of_greedy(r, slot, kStraightSlots);
  if (a.p.method != SPECDEC_BLOCK) return judge_slots(r, slot, kStraightSlots);
  const Shared<Leaf> leaves = dynamic_shared<Leaf>(a.leaves_at, a.p.places());
  const Shared<WideKey> units = dynamic_shared<WideKey>(a.leaves_at + a.p.places() * sizeof(Leaf), a.p.places());
  const auto take_sums = [&](int32_t from, int32_t end) {
#pragma unroll 1
    for (int32_t node = from; node < end; ++node) {
      const Leaf leaf = leaves[node];
      if (!leaf.asks) continue;
      const uint64_t sum = units_of_pair(pair_at(a, r, reader, node), list_of(a, r.request, node), leaf.subtracted());
      if (threadIdx.x == 0) units[node] = sum;
    }
    __syncthreads();
  };
  const auto rows_status = [&](int32_t node) {
    return record_at(record_of(a, r.request, node, 0)).stats.status |
           record_at(record_of(a, r.request, node, 1)).stats.status;
  };
  return judge_blocks(r, leaves, slot, [&](int32_t node) { return RecordedSlot(a, r, node); }, take_sums,
                      [&](int32_t node) { return static_cast<uint64_t>(units[node]); }, rows_status);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) filtered_chain_kernel(const FilteredChainArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, sure, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(sure);
  const ShapedRows reader = {edits, a.p.edits.on(), a.drafted_at};
  SPECDEC_SHARED(ChainState, decoded, 1);
  SPECDEC_SHARED(Filter, filters, 2);
  SPECDEC_SHARED(RowOfBlock, place, 1);
  if (threadIdx.x == 0) {
    const RowOfBlock at = RowOfBlock::of(a);
    ChainRequest r(a.p, at.request);
    const RequestFilters both(r);
    r.status |= both.status;
    place[0] = at, decoded[0] = r, filters[0] = both.target, filters[1] = both.draft;
  }
  __syncthreads();
  SPECDEC_SHARED(OwnShare, share, 1);
  {
    const bool judges = take_row(a, reader, place, decoded, filters, sure);
    const bool shares = a.helps && !static_cast<Filter>(filters[0]).on() && static_cast<ChainState>(decoded[0]).readable;
    if (!judges && !shares) return;
    if (threadIdx.x == 0) {
      const RowOfBlock at = place[0];
      OwnShare own = {{0, sum_tiles_of(a.p.target.vocab)}, 0, judges};
      if (shares) {
        own.tiles = a.shares.tiles_of(at.row * a.parts.count.by() + at.part);
        own.helpers = static_cast<unsigned>(a.rows * a.parts.count.by() - 1);
      }
      share[0] = own;
    }
    __syncthreads();
  }
  if (a.p.method == SPECDEC_RACE) {
    const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
    if (warp_id() == 0)
      write_race(r, draft_of_lane(r), r.status, [&](int32_t own) {
        const RowRecord row = record_at(record_of(a, r.request, own, 0));
        const Draw draw = draw_of(row.stats);
        return Draw{draw.token, draw.status | row.edit_status, draw.empty};
      });
  } else {
    SPECDEC_SHARED(Ending, shared_end, 1);
    bool draws = true;
    if (!static_cast<OwnShare>(share[0]).judges) {
      draws = hear_ending(a.meetings + static_cast<RowOfBlock>(place[0]).request, shared_end);
    }
    if (reader.edited) {
      const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
      keep_drafts(a, r, r.drafts());
    }
    if (static_cast<OwnShare>(share[0]).judges) {
      const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
      int32_t status = r.status;
      Ending e;
#pragma unroll 1
      for (int32_t first = 0;; first += kStraightSlots) {
        e = judge(a, r, reader, first);
        status |= e.status;  // each lane's own
        if (e.node != kNoNode) break;
      }
      e.status = static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(status)));
      if (threadIdx.x == 0) shared_end[0] = e;
      if (static_cast<OwnShare>(share[0]).helpers > 0)
        tell_ending(a.meetings + r.request, e, !e.known && e.node != r.slots);
    }
    __syncthreads();
    Draw last = {};
    if (draws)
      last = draw_at_end(a, decoded_request<ChainRequest>(a.p, decoded), reader, shared_end, sure, share);
    Meeting* const drawn = shared_draw(a, static_cast<RowOfBlock>(place[0]).request);
    if (!static_cast<OwnShare>(share[0]).judges) return arrive(&drawn->came);
    const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);  // anew, as before
    const Ending e = shared_end[0];
    const int32_t first = e.node / 32 * 32;
    if (warp_id() == 0)
      write_verdict(r, LaneDraft{first, draft_of_lane(r, first)}, e.node, __shfl_sync(kWarp, last.token, 0),
                    e.status | last.status);
    wait_for(&drawn->came, static_cast<OwnShare>(share[0]).helpers);  // all have heard
    if (threadIdx.x == 0) drawn->came = 0;
  }
  if (threadIdx.x == 0) a.meetings[static_cast<RowOfBlock>(place[0]).request] = {};
}

// ---- launching ------------------------------------------------------------------------------------------------------

inline cudaError_t launch_filtered(const ChainParams& p, const Device& device) {
  const bool race = p.method == SPECDEC_RACE;
  const int64_t requests = p.batch();
  FilteredChainArguments a = {};
  a.p = p;
  a.sides = !race && p.draft.data ? 2 : 1;
  a.rows = a.sides * p.max_drafts() + 1;
  const int64_t rows = requests * a.rows, at_once = blocks_at_once(device);
  a.in_order = rows > at_once;
  a.parts = parts_of_rows(longest(p), a.in_order ? 1 : at_once / rows);
  a.requests = quotient(requests);
  const int64_t blocks = int64_t{a.rows} * a.parts.count.by();  // of a request
  a.helps = !race && !a.in_order && p.edits.on() && device.teams && blocks > 1;
  a.shares = parts_of_rows(p.target.vocab, blocks);
  const size_t drafts = (p.places() + 3) / 4 * size_t{16};
  const size_t leaves = p.method == SPECDEC_BLOCK ? p.places() * (sizeof(Leaf) + sizeof(WideKey)) : 0;
  a.cut.room = straight_room(longest(p), device.dynamic_shared - drafts - leaves);
  const int64_t cells = a.parts.count.by() > 1 ? rows * words_a_tile(a.cut.room.wide) * a.parts.tiles : 0;
  const int64_t lists = race ? 0 : requests * p.max_drafts() * kWordsAList;
  const int64_t tickets = kTicketsAMeeting * (requests + rows), words = cells + lists + rows * kWordsARecord;
  const Room& room = device.room;
  if (room.lacks(tickets, words)) return cudaSuccess;
  a.meetings = reinterpret_cast<Meeting*>(room.tickets);
  a.cut.words = room.words;
  a.lists = room.words + cells, a.records = a.lists + lists;
  a.drafted_at = bytes_of_cut(longest(p), a.cut.room.wide);
  a.leaves_at = a.drafted_at + drafts;
  Shape shape = {rows * a.parts.count.by(), kThreads};
  shape.overlaps = true;
  shape.cooperative = a.helps, shape.multiprocessors = device.multiprocessors;
  shape.dynamic_shared = a.leaves_at + leaves;
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(filtered_chain_kernel, shape, a, device.stream);
}

}  // namespace specdec::cuda
