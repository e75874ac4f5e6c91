// verify_chain with filters or edits, by each method. The rows of a request are cut side by side: a row has some
// blocks, and the last of them cuts it alone (cut_or_draw_row) and publishes a record with the row's statistics, p or q
// of the draft there, and the columns in the row's support. The last block of the request accepts drafts and draws from
// the support of the row where the chain stops. Blocks wait in one case: with edits, all blocks of a request whose
// filters are off wait for the stop, and draw over the whole row together.
//
// Where rows do not fit the device at once, each has one block, and blocks skip rows behind a refused draft if they
// start late enough to see that.
#pragma once

#include "../rows/filtered_row.cuh"
#include "block.cuh"
#include "race.cuh"

namespace specdec::cuda {

// What the last block of a row publishes.
struct RowRecord {
  RowStats stats;
  Cut cut;
  float law;             // p or q of the draft there
  int32_t listed;        // columns of the support in the row's list, -1: not listed
  int32_t draft_status;  // of `law`
  int32_t edit_status;
};
constexpr int kWordsARecord = 4, kWordsAList = (CutFinder::kShort + 1) / 2;

struct FilteredChainArguments {
  ChainParams p;
  Ticket* tickets;   // [B], then [B, rows]
  WideKey* records;  // [B, rows, kWordsARecord]
  WideKey* lists;    // [B, drafts, kWordsAList]: the support of the target's row, two columns a word
  CutWorkspace cut;
  Parts parts;  // of a row
  Quotient requests;
  bool in_order;      // blocks skip rows behind a refused draft
  int sides, rows;    // rows of a node (1 or 2), and of a request
  size_t drafted_at;  // bytes of shared memory: the drafts' tokens
  size_t leaves_at;   // bytes of shared memory, block: Leaf [nodes], then units of sums [nodes]
  bool helps;         // blocks of a request without filters may wait for the stop, and draw together
  Parts draw_parts;   // of a row in such a draw
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
  const int32_t status = r.stats.status | r.draft_status << 8 | r.edit_status << 16;
  put_word(words, packed(r.stats.lse.max, r.stats.lse.log_sum));
  put_word(words + 1, two_words(static_cast<uint32_t>(r.stats.argmax), static_cast<uint32_t>(status)));
  put_word(words + 2, two_words(bits(r.cut.value), static_cast<uint32_t>(r.cut.last)));
  put_word(words + 3, two_words(bits(r.law), static_cast<uint32_t>(r.listed)));
}
__device__ __forceinline__ RowRecord load_record(const WideKey* words) {
  const WideKey lse = load_fresh(words), most = load_fresh(words + 1), cut = load_fresh(words + 2),
                law = load_fresh(words + 3);
  const int32_t status = static_cast<int32_t>(most);
  RowRecord r = {};
  r.stats = {{first_of(lse), second_of(lse)}, static_cast<int32_t>(most >> 32), status & 0xff};
  r.cut = {first_of(cut), static_cast<int32_t>(cut)}, r.law = first_of(law), r.listed = static_cast<int32_t>(law);
  r.draft_status = status >> 8 & 0xff, r.edit_status = status >> 16;
  return r;
}

// The draft of a lane, as LaneDraft, from records.
struct RecordedDraft {
  int32_t first;
  int64_t draft;
  bool tried, in_range;
  RowStats target_stats;
  RowRecord target = {}, draft_row = {};

  __device__ RecordedDraft(const FilteredChainArguments& a, const ChainRequest& r, int32_t first_node)
      : first(first_node), draft(draft_of_lane(r, first_node)), tried(draft != -1), in_range(in_vocab(r, draft)) {
    if (r.readable && node() <= r.slots) target = load_record(record_of(a, r.request, node(), 0));
    if (r.readable && node() < r.slots && a.sides == 2) draft_row = load_record(record_of(a, r.request, node(), 1));
    target_stats = target.stats;
    if (r.readable && node() < r.slots && target_stats.is_empty()) draft = -1, tried = in_range = false;
  }
  __device__ int32_t node() const { return first + lane_id(); }
  __device__ float p(const ChainRequest&) const { return in_range ? target.law : 0.0f; }
  __device__ float q(const ChainRequest& r) const { return r.has_draft() ? draft_row.law : 1.0f; }
  __device__ int32_t status(const ChainRequest& r) const {
    if (!tried) return target_stats.is_empty() ? target.edit_status : SPECDEC_STATUS_OK;
    if (!in_range) return SPECDEC_STATUS_TOKEN_RANGE | target.edit_status;
    return target.draft_status | target.edit_status | (r.has_draft() ? draft_row.draft_status : SPECDEC_STATUS_OK);
  }
  __device__ int32_t rows_status(const ChainRequest& r) const {
    return (r.target_law.needs_row() ? target.stats.status : 0) | draft_row.stats.status;
  }
};

// ---- a row ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void store_drafts(const FilteredChainArguments& a, const ChainRequest& r, int32_t count) {
  const Shared<int32_t> drafted = dynamic_shared<int32_t>(a.drafted_at, a.p.width());
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads)
    drafted[i] = static_cast<int32_t>(r.draft_token(i + 1));
}

// The logits that a side's filters compare.
__device__ __forceinline__ Logits filter_order(const FilteredChainArguments& a, const ChainRequest& r, bool of_draft) {
  const int64_t rules = of_draft ? a.p.draft_law.rules : a.p.target_law.rules;
  if (rules & SPECDEC_BEFORE_TEMPERATURE) return {1.0f};
  return of_draft ? r.draft_law.logits() : r.target_law.logits();
}

// The column of the draft after a node, in the target's row there or in the draft's; kNoColumn if that has none.
__device__ __forceinline__ int32_t column_of_draft(const ChainRequest& r, int32_t node, bool of_draft) {
  const int64_t draft = r.draft_token(node + 1);
  if (!in_vocab(r, draft)) return kNoColumn;
  return of_draft ? DraftMap{r.p.draft_map.data, r.p.draft.vocab}.column(static_cast<int32_t>(draft))
                  : static_cast<int32_t>(draft);
}

// The row of a block. Kernels hold it in shared memory, since it would take registers for long.
struct RowOfBlock {
  int64_t request;
  int part, row, node;
  bool of_draft;
  __device__ static RowOfBlock of(const FilteredChainArguments& a) {
    const BlockIndex block(a);
    RowOfBlock at = {};
    at.request = block.request, at.part = block.part, at.row = block.node;
    at.node = a.sides == 2 ? block.node / 2 : block.node, at.of_draft = block.node != at.node * a.sides;
    return at;
  }
  // A token is drawn where no draft can be refused. Elsewhere acceptance needs p or q of the draft.
  __device__ bool draws(const ChainRequest& r) const { return r.p.method == SPECDEC_RACE || node == r.slots; }
  __device__ bool exists(const ChainRequest& r) const {
    if (!r.readable) return false;
    return of_draft ? node < r.slots && !r.target_law.greedy : node <= r.slots && !r.has_bonus(node);
  }
  __device__ Row in(const ChainRequest& r) const {
    return of_draft ? row_at(r.p.draft, r.draft_row(node)) : row_at(r.p.target, r.target_row(node));
  }
  __device__ unsigned before_end(const ChainRequest& r) const { return static_cast<unsigned>(r.p.width() - node); }
};

// Whether a node refuses its draft whatever the others do, as far as one row tells. One thread calls, after its record
// is written.
__device__ __forceinline__ bool refuses(const FilteredChainArguments& a, const ChainRequest& r, Ticket* ticket,
                                        const RowOfBlock& at, const RowRecord& record) {
  const int32_t node = at.node;
  const int64_t draft = r.draft_token(node + 1);
  if (record.stats.is_empty() && !at.of_draft) return true;
  if (a.p.method == SPECDEC_RACE || r.target_law.greedy) return to_draw(record.stats).token != draft;
  if (!in_vocab(r, draft)) return true;
  float q = 1.0f, p = record.law;
  if (a.sides == 2) {
    if (node >= 32) return false;  // the ticket has two bits for each of 32 nodes
    unsigned* const halves = reinterpret_cast<unsigned*>(&ticket->best) + node / 16;
    if ((add_acquire_release(halves, 1u << node % 16 * 2) >> node % 16 * 2 & 3u) == 0) return false;
    const float other = load_record(record_of(a, r.request, node, !at.of_draft)).law;
    p = at.of_draft ? other : record.law, q = at.of_draft ? record.law : other;
  }
  if (a.p.method == SPECDEC_BLOCK) return !(p > 0.0f);
  int32_t reported = SPECDEC_STATUS_OK;
  const AcceptTest test = {r.noise_at_depth(node, 0), static_cast<uint32_t>(node), 0.0f, r.draft_prob_at(node, &reported),
                           r.epsilon()};
  return !test(p, q);
}

// The last block of a row publishes the row's record. Returns true in the last block of the request.
__device__ __forceinline__ bool publish_record(const FilteredChainArguments& a, const Shared<RowOfBlock>& block_row,
                                               const Shared<ChainState>& decoded, bool live, bool sums,
                                               const RowEnd& end, const Shared<RowRecord>& shared_record) {
  const RowOfBlock at = block_row[0];  // all of it again: it would take registers until here
  const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
  Ticket* const ticket = a.tickets + r.request;
  int32_t listed = -1;
  if (live && sums && !at.of_draft && end.cut.listed <= CutFinder::kShort) listed = end.cut.listed;
  const Shared<WideKey> list = dynamic_shared<WideKey>(a.cut.memory.at, kListWords);
  for (int i = static_cast<int>(threadIdx.x); 2 * i < listed; i += kThreads) {
    const WideKey one = list[2 * i], other = list[2 * i + (2 * i + 1 < listed)];
    put_word(list_of(a, r.request, at.node) + i, two_words(~static_cast<uint32_t>(other), ~static_cast<uint32_t>(one)));
  }
  if (threadIdx.x == 0) {
    RowRecord record = shared_record[0];
    record.listed = listed;
    if (live) {
      if (sums) record.stats.lse = end.lse, record.stats.status = end.cut.status, record.cut = end.cut.cut;
      else record.stats = argmax_stats(end.best);
      const Law law = at.of_draft ? Law(r.draft_law) : Law(r.target_law);
      const int32_t column = at.draws(r) ? kNoColumn : column_of_draft(r, at.node, at.of_draft);
      if (column != kNoColumn) {
        const float raw = record.law;
        const bool keeps = !(record.cut.value > -kInfinity) ||
                           record.cut.keeps(filter_order(a, r, at.of_draft).scaled(raw), column);
        record.law = keeps ? with_stats(law, record.stats).probability(column, raw) : 0.0f;
        if (!at.of_draft && (!keeps || (a.p.edits.on() && !(raw > -kInfinity)))) record.law = kNever;
        if (!law.needs_row() && !law.is_element(raw)) record.draft_status = SPECDEC_STATUS_NON_FINITE;
      }
      if (law.needs_row()) record.draft_status = record.stats.status;
    }
    put_record(record_of(a, r.request, at.node, at.of_draft), record);
    if (a.in_order && live && at.node < r.slots && refuses(a, r, ticket, at, record))
      atomicMax(&ticket->flags, at.before_end(r));
  }
  return is_last_block(ticket, static_cast<unsigned>(a.rows));
}

// The block's part of a row. Returns true in the last block of the request.
__device__ __forceinline__ bool process_row(const FilteredChainArguments& a, const ShapedRows& reader,
                                            const Shared<RowOfBlock>& block_row, const Shared<ChainState>& decoded,
                                            const Shared<Filter>& filters, const Shared<unsigned>& block_bound) {
  SPECDEC_SHARED(unsigned, ends, 1);  // nodes - the node where the chain is seen to end, or 0
  SPECDEC_SHARED(RowRecord, shared_record, 1);
  RaceRequestOf<EditedRow> request;
  Filter filter;
  bool live, sums;
  {
    const RowOfBlock at = block_row[0];
    if (threadIdx.x == 0) ends[0] = a.in_order ? atomicOr(&a.tickets[at.request].flags, 0u) : 0u;
    const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
    if (reader.edited && !at.of_draft) store_drafts(a, r, at.node < r.slots ? at.node : r.slots);
    __syncthreads();
    live = at.exists(r) && ends[0] <= at.before_end(r);
    const Law law = at.of_draft ? Law(r.draft_law) : Law(r.target_law);
    const bool draws = at.draws(r);
    sums = !draws && law.needs_sum();
    Law looked = law;
    looked.greedy |= !draws && !sums;  // the row is read through for its status
    const Noise noise = a.p.method == SPECDEC_RACE ? r.race_noise(at.node, at.node)
                                                   : r.noise_at_depth(at.node, kStreamResidual);
    request = race_of(reader.of(at.in(r), !at.of_draft), looked, noise);
    RowRecord record = {};
    record.stats = kNoStats, record.cut = {-kInfinity, kNoToken}, record.listed = -1;
    if (live) {
      if (!at.of_draft)
        record.edit_status = reader.decode(a.p.edits, request.row.vocab, {r.entry, 0},
                                           r.target_index(r.request, at.node), at.node);
      filter = filters[at.of_draft];
      if (!filter.on()) filter.order = law.logits();
      const int32_t column = draws ? kNoColumn : column_of_draft(r, at.node, at.of_draft);
      if (column != kNoColumn) record.law = element(request.row, column);  // publish_record makes p or q of it
    }
    if (threadIdx.x == 0) shared_record[0] = record;
  }
  RowEnd end;
  const RowOfBlock at = block_row[0];
  const int64_t number = at.request * a.rows + at.row;
  if (!cut_or_draw_row<3>(request, live, sums, filter, a.cut, a.parts, number, at.part, block_bound,
                          a.tickets + a.requests.by() + number, &end))
    return false;
  return publish_record(a, block_row, decoded, live, sums, end, shared_record);
}
// ---- the stop, and the draw -----------------------------------------------------------------------------------------

struct FilteredPair {
  LawRowOf<Filtered> target, draft;
  int32_t listed;  // columns of the target's support in its list
};

// The rows of a node. All threads call, and all get the pair.
__device__ __forceinline__ FilteredPair pair_at(const FilteredChainArguments& a, const ChainRequest& r,
                                                const ShapedRows& reader, int32_t node) {
  const RowRecord target = load_record(record_of(a, r.request, node, 0));
  const Row row = row_at(a.p.target, r.target_row(node));
  reader.decode(a.p.edits, row.vocab, {r.entry, 0}, r.target_index(r.request, node), node);
  FilteredPair pair = {};
  pair.target.row = reader.of(row), pair.target.stats = with_stats(r.target_law, target.stats);
  pair.target.support = {target.cut, filter_order(a, r, false)}, pair.listed = target.listed;
  if (a.sides == 1 || node >= r.slots) return pair;
  const RowRecord draft = load_record(record_of(a, r.request, node, 1));
  pair.draft.row = reader.of(row_at(a.p.draft, r.draft_row(node)), false);
  pair.draft.stats = with_stats(r.draft_law, draft.stats), pair.draft.map = a.p.draft_map.data;
  pair.draft.support = {draft.cut, filter_order(a, r, true)};
  return pair;
}

// The sum of (p - subtracted q)^+ of a node, in units, over the listed columns or all. Every thread gets it.
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

// The block's part of the draw. Kernels hold it in shared memory, since it would take registers until there.
struct DrawTask {
  Tiles tiles;
  unsigned helpers;  // blocks that wait for the stop; 0: the draw is not shared
  bool decides;
};

// The stop is published in the request's ticket: flags are 1 if no block draws. The blocks draw into the ticket of the
// request's first row, which is free by then, and arrive there.
__device__ __forceinline__ Ticket* draw_ticket(const FilteredChainArguments& a, int64_t request) {
  return a.tickets + a.requests.by() + request * a.rows;
}
__device__ __forceinline__ void publish_stop(Ticket* ticket, const StopPoint& e, bool draws) {
  if (threadIdx.x != 0) return;
  put_word(&ticket->best, two_words(bits(e.subtracted), static_cast<uint32_t>(e.excluded)));
  add_acquire_release(&ticket->flags, draws ? static_cast<unsigned>(e.node) << 2 | 2u | e.residual : 1u);
}
// Returns false if no block draws.
__device__ __forceinline__ bool wait_stop(Ticket* ticket, const Shared<StopPoint>& shared_stop) {
  if (threadIdx.x == 0) {
    unsigned message;
    while ((message = load_acquire(&ticket->flags)) == 0) {
    }
    const WideKey parameters = load_fresh(&ticket->best);
    StopPoint e = draw_from_p(message & 2u ? static_cast<int32_t>(message >> 2) : kNoNode, 0);
    e.residual = message & 1u, e.subtracted = first_of(parameters), e.excluded = static_cast<int32_t>(parameters);
    shared_stop[0] = e;
  }
  __syncthreads();
  return static_cast<StopPoint>(shared_stop[0]).node != kNoNode;
}

// The token after the last accepted draft, in the first thread; the status in all. After the last draft the row's
// record has it; elsewhere the block draws from the support of the row where the chain stops. If blocks share the draw,
// only the deciding block gets the token.
__device__ __forceinline__ Draw draw_at_end(const FilteredChainArguments& a, const ChainRequest& r,
                                            const ShapedRows& reader, const Shared<StopPoint>& shared_stop,
                                            const Shared<unsigned>& block_bound, const Shared<DrawTask>& shared_task) {
  const StopPoint e = shared_stop[0];
  if (e.decided) return {e.token, SPECDEC_STATUS_OK, false};
  int32_t status;
  {
    const RowRecord row = load_record(record_of(a, r.request, e.node, 0));
    status = row.edit_status | row.stats.status;
    if (e.node == r.slots) {
      const Draw draw = to_draw(row.stats);
      return {draw.token, draw.status | status, draw.empty};
    }
  }
  const FilteredPair pair = pair_at(a, r, reader, e.node);
  auto weights = weights_of_residual(pair.target, pair.draft, e.subtracted);
  weights.residual = e.residual && r.has_draft(), weights.excluded = e.excluded;
  const auto request = race_of(pair.target.row, r.target_law, r.noise_at_depth(e.node, kStreamResidual));
  const Shared<WideKey> list = dynamic_shared<WideKey>(a.cut.memory.at, kListWords);
  for (int i = static_cast<int>(threadIdx.x); i < pair.listed; i += kThreads)
    list[i] = ~static_cast<uint32_t>(column_in(list_of(a, r.request, e.node), i));
#pragma unroll 1
  for (bool again = false;; again = true) {
    begin_draw(block_bound);
    __syncthreads();
    RowPartial partial = kNoPartial;
    if (pair.listed >= 0) {
      partial = race_listed(request, weights, pair.listed, a.cut.memory, SPECDEC_STATUS_OK);
    } else {
      Ticket* const ticket = draw_ticket(a, r.request);
      const Tiles mine = static_cast<DrawTask>(shared_task[0]).tiles;
      if (mine.begin < mine.end) draw_tiles<1>(weights, request.noise, mine.begin, mine.end, block_bound, ticket);
      if (!static_cast<DrawTask>(shared_task[0]).decides) return {};
      __syncthreads();
      wait_for(&ticket->arrived, static_cast<DrawTask>(shared_task[0]).helpers);
      if (threadIdx.x == 0) partial = partial_of(take_block_best(ticket));
    }
    const bool empty = threadIdx.x == 0 && partial.best.token == kNoToken && !again &&
                       static_cast<StopPoint>(shared_stop[0]).residual;
    if (!__syncthreads_or(empty)) {
      const Draw draw = threadIdx.x == 0 ? to_draw(partial) : Draw{0, SPECDEC_STATUS_OK, false};
      if (draw.empty) status &= ~SPECDEC_STATUS_EMPTY_RESIDUAL;  // p is empty, too
      return {draw.token, draw.status | status, draw.empty};
    }
    // Nothing is left of p - q after rounding: the deciding block draws from p alone.
    if (threadIdx.x == 0)
      shared_task[0] = {{0, sum_tiles_of(a.p.target.vocab)}, static_cast<DrawTask>(shared_task[0]).helpers, true};
    status |= partial.status | SPECDEC_STATUS_EMPTY_RESIDUAL;
    weights.residual = false, weights.excluded = kNoToken;
  }
}

// The drafts that a verdict writes.
struct LaneToken {
  int32_t first;
  int64_t draft;
  __device__ int32_t node() const { return first + lane_id(); }
};

__device__ __forceinline__ StopPoint accept_drafts(const FilteredChainArguments& a, const ChainRequest& r,
                                                   const ShapedRows& reader, int32_t first) {
  RecordedDraft lane(a, r, first);
  if (r.target_law.greedy || !r.readable) {
    StopPoint e = accept_greedy(r, lane, kLaneDrafts);
    if (e.node == kNoNode || lane.node() <= e.node) e.status |= lane.target.edit_status;
    return e;
  }
  if (a.p.method != SPECDEC_BLOCK) return accept_by_rejection(r, lane, kLaneDrafts);
  const Shared<Leaf> leaves = dynamic_shared<Leaf>(a.leaves_at, a.p.width());
  const Shared<WideKey> units = dynamic_shared<WideKey>(a.leaves_at + a.p.width() * sizeof(Leaf), a.p.width());
  const auto take_sums = [&](int32_t from, int32_t end) {
#pragma unroll 1
    for (int32_t node = from; node < end; ++node) {
      const Leaf leaf = leaves[node];
      if (!leaf.needs_sum) continue;
      const uint64_t sum = units_of_pair(pair_at(a, r, reader, node), list_of(a, r.request, node), leaf.subtracted());
      if (threadIdx.x == 0) units[node] = sum;
    }
    __syncthreads();
  };
  const auto rows_status = [&](int32_t node) {
    return load_record(record_of(a, r.request, node, 0)).stats.status |
           load_record(record_of(a, r.request, node, 1)).stats.status;
  };
  return accept_as_block(r, leaves, lane, [&](int32_t node) { return RecordedDraft(a, r, node); }, take_sums,
                         [&](int32_t node) { return static_cast<uint64_t>(units[node]); }, rows_status);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) filtered_chain_kernel(const FilteredChainArguments a) {
  wait_for_kernel_before();
  SPECDEC_SHARED(unsigned, block_bound, 1);
  SPECDEC_SHARED(DecodedEdits, edits, 1);
  begin_draw(block_bound);
  const ShapedRows reader = {edits, a.p.edits.on(), a.drafted_at};
  SPECDEC_SHARED(ChainState, decoded, 1);
  SPECDEC_SHARED(Filter, filters, 2);
  SPECDEC_SHARED(RowOfBlock, block_row, 1);
  if (threadIdx.x == 0) {
    const RowOfBlock at = RowOfBlock::of(a);
    ChainRequest r(a.p, at.request);
    const RequestFilters both(r);
    r.status |= both.status;
    block_row[0] = at, decoded[0] = r, filters[0] = both.target, filters[1] = both.draft;
  }
  __syncthreads();
  SPECDEC_SHARED(DrawTask, shared_task, 1);
  {
    const bool decides = process_row(a, reader, block_row, decoded, filters, block_bound);
    const bool joins = a.helps && !static_cast<Filter>(filters[0]).on() && static_cast<ChainState>(decoded[0]).readable;
    if (!decides && !joins) return;
    if (threadIdx.x == 0) {
      const RowOfBlock at = block_row[0];
      DrawTask task = {{0, sum_tiles_of(a.p.target.vocab)}, 0, decides};
      if (joins) {
        task.tiles = a.draw_parts.tiles_of(at.row * a.parts.count.by() + at.part);
        task.helpers = static_cast<unsigned>(a.rows * a.parts.count.by() - 1);
      }
      shared_task[0] = task;
    }
    __syncthreads();
  }
  if (a.p.method == SPECDEC_RACE) {
    const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
    if (warp_id() == 0)
      write_race(r, draft_of_lane(r), r.status, [&](int32_t node) {
        const RowRecord row = load_record(record_of(a, r.request, node, 0));
        const Draw draw = to_draw(row.stats);
        return Draw{draw.token, draw.status | row.edit_status, draw.empty};
      });
  } else {
    SPECDEC_SHARED(StopPoint, shared_stop, 1);
    bool draws = true;
    if (!static_cast<DrawTask>(shared_task[0]).decides)
      draws = wait_stop(a.tickets + static_cast<RowOfBlock>(block_row[0]).request, shared_stop);
    if (reader.edited) {
      const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
      store_drafts(a, r, r.drafts());
    }
    if (static_cast<DrawTask>(shared_task[0]).decides) {
      const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);
      int32_t status = r.status;
      StopPoint e;
#pragma unroll 1
      for (int32_t first = 0;; first += kLaneDrafts) {
        e = accept_drafts(a, r, reader, first);
        status |= e.status;  // differs between lanes
        if (e.node != kNoNode) break;
      }
      e.status = static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(status)));
      if (threadIdx.x == 0) shared_stop[0] = e;
      if (static_cast<DrawTask>(shared_task[0]).helpers > 0)
        publish_stop(a.tickets + r.request, e, !e.decided && e.node != r.slots);
    }
    __syncthreads();
    Draw last = {};
    if (draws)
      last = draw_at_end(a, decoded_request<ChainRequest>(a.p, decoded), reader, shared_stop, block_bound, shared_task);
    Ticket* const drawn = draw_ticket(a, static_cast<RowOfBlock>(block_row[0]).request);
    if (!static_cast<DrawTask>(shared_task[0]).decides) return arrive(&drawn->arrived);
    const ChainRequest r = decoded_request<ChainRequest>(a.p, decoded);  // again: registers
    const StopPoint e = shared_stop[0];
    const int32_t first = e.node / 32 * 32;
    if (warp_id() == 0)
      write_verdict(r, LaneToken{first, draft_of_lane(r, first)}, e.node, __shfl_sync(kWarp, last.token, 0),
                    e.status | last.status);
    wait_for(&drawn->arrived, static_cast<DrawTask>(shared_task[0]).helpers);  // all blocks have read the stop
    if (threadIdx.x == 0) drawn->arrived = 0;
  }
  if (threadIdx.x == 0) a.tickets[static_cast<RowOfBlock>(block_row[0]).request] = {};
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
  a.draw_parts = parts_of_rows(p.target.vocab, blocks);
  const size_t drafts = (p.width() + 3) / 4 * size_t{16};
  const size_t leaves = p.method == SPECDEC_BLOCK ? p.width() * (sizeof(Leaf) + sizeof(WideKey)) : 0;
  a.cut.memory = cut_memory(longest(p), device.dynamic_shared - drafts - leaves);
  const int64_t cells = a.parts.count.by() > 1 ? rows * words_a_tile(a.cut.memory.wide) * a.parts.tiles : 0;
  const int64_t lists = race ? 0 : requests * p.max_drafts() * kWordsAList;
  const int64_t tickets = kTicketSize * (requests + rows), words = cells + lists + rows * kWordsARecord;
  const Workspace& workspace = device.workspace;
  if (workspace.lacks(tickets, words)) return cudaSuccess;
  a.tickets = reinterpret_cast<Ticket*>(workspace.tickets);
  a.cut.tile_words = workspace.partials;
  a.lists = workspace.partials + cells, a.records = a.lists + lists;
  a.drafted_at = bytes_of_cut(longest(p), a.cut.memory.wide);
  a.leaves_at = a.drafted_at + drafts;
  Shape shape = {rows * a.parts.count.by(), kThreads};
  shape.overlaps = true;
  shape.cooperative = a.helps, shape.multiprocessors = device.multiprocessors;
  shape.dynamic_shared = a.leaves_at + leaves;
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(filtered_chain_kernel, shape, a, device.stream);
}

}  // namespace specdec::cuda
