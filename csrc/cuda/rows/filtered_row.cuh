// Rows whose filters may be on: a team loads their laws, races run over their support, and a kernel without teams has
// the last block of a row do both.
#pragma once

#include "cut.cuh"
#include "race_request.cuh"

namespace specdec::cuda {

// A row of logits with its statistics and support.
struct FilteredRow {
  RowStats stats;
  Filtered support;
  int listed;  // as in CutResult, until the next row is looked through
};

// Looks through a row whose law needs a sum. Every thread of the team gets the result.
__device__ __forceinline__ FilteredRow load_filtered_row(Team& team, const EditedRow& row, const Law& law,
                                                         Filter filter, const CutMemory& memory) {
  const Logits space = law.logits();
  if (!filter.on()) filter.order = space;
  CutFinder finder(team, row, filter, memory);
  CutResult cut = finder.scan(!filter.on() || filter.of_row());
  FilteredRow result = {kNoStats, {}, -1};
  result.stats.status = cut.status;
  if (cut.top == -kInfinity) return result;
  if (filter.on()) {
    cut = finder.apply(cut);
    result.support = {cut.cut, filter.order};
    result.listed = cut.listed;
  }
  result.stats.lse = finder.lse(space, cut);
  return result;
}

// Loads the law of a row of entry (n, j), for every thread of the team.
__device__ __forceinline__ void load_law(Team& team, const specdec_law& p, int64_t n, int64_t j,
                                         const CutMemory& memory, LawRowOf<Filtered>* side, int32_t* status) {
  const Law law = side->stats.law;
  const Filter filter = filter_at(p, law, side->row.vocab, n, j, status);
  FilteredRow row = {kNoStats, {}, -1};
  if (law.greedy) row.stats = scan_argmax(team, *side);
  else row = load_filtered_row(team, side->row, law, filter, memory);
  side->stats = with_stats(law, row.stats);
  side->support = row.support;
  *status |= row.stats.status;
}

// The winner among the listed columns. Every block of a team computes it, and reads no other columns.
__device__ __forceinline__ RowPartial race_listed(const RaceRequestOf<EditedRow>& r, const WeightsOf<Filtered>& weights,
                                                  int listed, const CutMemory& memory, int32_t status) {
  const Shared<WideKey> list = dynamic_shared<WideKey>(memory.at, kListWords);
  Candidate mine = kNoCandidate;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < listed; i += kThreads) {
    const int32_t column = column_of(list[i]);
    if (r.map.tokens) {
      mine = best_of(mapped_candidate(r, weights, element(r.row, column), column, mine.score), mine);
      continue;
    }
    const uint32_t token = static_cast<uint32_t>(r.row.vocab_start + column);
    const float log_weight = weights.log_weight(element(r.row, column), column);
    if (log_weight == -kInfinity) continue;
    const Group group = group_at(opaque(r.noise), token / kGroup);
    mine = best_of({race_score(log_weight, arrival(opaque(r.noise), group, token)), column}, mine);
  }
  RowPartial partial = best_of_block(mine, false);
  partial.status |= status;
  return partial;
}

// ---- rows whose last block cuts them alone --------------------------------------------------------------------------

struct CutWorkspace {
  WideKey* tile_words;  // of the rows' tiles; not used if a row has one block
  CutMemory memory;
};

// The result of a row, in its last block. `cut`: of a row that was cut or weighed. `lse`: with `sums`. `best`, in the
// first thread: the winner of a race, or the most probable token.
struct RowEnd {
  CutResult cut;
  LogSumExp lse;
  RowPartial best;
};

// The block's part of a row. With `sums` the row's mass and support are computed; else a token is drawn. Returns true
// in the last block. A barrier after begin_draw comes before. A lane loads `kSteps` fours together.
template <int kSteps>
__device__ __forceinline__ bool cut_or_draw_row(const RaceRequestOf<EditedRow>& r, bool live, bool sums,
                                                const Filter& filter, const CutWorkspace& cut, const Parts& parts,
                                                int64_t row, int part, const Shared<unsigned>& block_bound,
                                                Ticket* ticket, RowEnd* end) {
  const bool cuts = live && (filter.on() || sums), weighs = filter.of_row() || (sums && !filter.on());
  Team alone(TeamLayout{TeamKind::kBlock, 1});
  CutFinder finder(alone, r.row, filter, cut.memory);
  // The words of a row with one block stay in its shared memory.
  WideKey* const words =
      parts.count.by() == 1 ? nullptr : cut.tile_words + row * words_a_tile(cut.memory.wide) * parts.tiles;
  auto weights = weights_of_row<Filtered>(r.row, r.law);
  SPECDEC_SHARED(Noise, noise_of_row, 1);  // would take registers during a cut
  RaceRequestOf<EditedRow> race = r;
  if (threadIdx.x == 0) noise_of_row[0] = r.noise;
  Tiles tiles = parts.tiles_of(part);
  if (tiles.end > finder.tiles) tiles.end = finder.tiles;
  if (cuts) {
    unsigned flags = finder.template put_tiles<kSteps>(weighs, tiles, [&](int i, WideKey word) {
      if (words) put_word(words + i, word);
      else finder.pairs[i] = word;
    });
    if (__any_sync(kWarp, flags != 0)) {
      flags = __reduce_or_sync(kWarp, flags);
      if (lane_id() == 0) atomicOr(&ticket->flags, flags);
    }
  }
  end->lse = kNoMass, end->best = kNoPartial;
  bool draws = live && !cuts;
  Part piece = {part, parts.count.by()};
#pragma unroll 1
  for (bool last = false;; last = true) {
    if (draws && race.map.tokens && !race.law.greedy) {
      const RowPartial partial = mapped_race_part(race, piece, weights.target.support);
      if (threadIdx.x == 0) atomicMax(&ticket->best, key_of_candidate(partial.best));
      if (threadIdx.x == 0 && partial.status) atomicOr(&ticket->flags, kBadValue);
    } else if (draws) {
      draw_tiles<kSteps>(weights, race.noise, tiles.begin, tiles.end, block_bound, ticket);
    }
    if (last) break;
    if (!is_last_block(ticket, parts.count.by())) return false;
    if (!cuts) break;
    const unsigned flags = threadIdx.x == 0 ? atomicExch(&ticket->flags, 0u) : 0u;
    end->cut = finder.take_tiles(weighs, flags, [&](int i) {
      return words ? load_fresh(words + i) : static_cast<WideKey>(finder.pairs[i]);
    });
    if (filter.on() && end->cut.listed < 0) end->cut = finder.apply(end->cut);
    if (sums && end->cut.top > -kInfinity) end->lse = finder.lse(r.law.logits(), end->cut);
    race.noise = noise_of_row[0];
    if (sums || end->cut.listed >= 0) break;
    weights.target.support = {end->cut.cut, filter.order};
    tiles = {0, finder.tiles}, piece = {0, 1}, draws = true;
  }
  if (draws) {
    __syncthreads();
    if (threadIdx.x == 0) end->best = partial_of(take_block_best(ticket));
  } else if (cuts && !sums) {
    weights.target.support = {end->cut.cut, filter.order};
    end->best = race_listed(race, weights, end->cut.listed, cut.memory, end->cut.status);
  }
  if (threadIdx.x == 0) ticket->arrived = 0;
  return true;
}

// ---- launching ------------------------------------------------------------------------------------------------------

// The layout that fits `shared` bytes of dynamic shared memory.
inline CutMemory cut_memory(int32_t vocab, size_t shared) {
  CutMemory memory = {0, 0};
  while (memory.wide < 2 && bytes_of_cut(vocab, memory.wide) > shared) ++memory.wide;
  return memory;
}

// The arguments of an op on rows, whose last blocks finish them alone.
template <class Params>
struct RowsArguments {
  Params p;
  Ticket* tickets;  // [rows]
  Parts parts;      // of a row, a block each
  CutWorkspace cut;
};

// `cuts`: the kernel may cut rows.
template <class Params>
cudaError_t launch_rows(void (*kernel)(RowsArguments<Params>), const Params& p, bool cuts, const Device& device) {
  const int64_t rows = p.count();
  const Parts parts = parts_of_rows(p.rows.vocab, blocks_at_once(device) / rows);
  const CutWorkspace cut = {device.workspace.partials, cut_memory(p.rows.vocab, device.dynamic_shared)};
  const int64_t words = cuts && parts.count.by() > 1 ? rows * words_a_tile(cut.memory.wide) * parts.tiles : 0;
  if (device.workspace.lacks(kTicketSize * rows, words)) return cudaSuccess;
  Shape shape = {rows * parts.count.by(), kThreads};
  shape.overlaps = true;
  if (cuts) shape.dynamic_shared = bytes_of_cut(p.rows.vocab, cut.memory.wide);
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  RowsArguments<Params> a = {};
  a.p = p, a.parts = parts, a.cut = cut;
  a.tickets = reinterpret_cast<Ticket*>(device.workspace.tickets);
  return launch(kernel, shape, a, device.stream);
}

}  // namespace specdec::cuda
