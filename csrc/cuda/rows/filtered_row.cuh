// Rows whose filters may be on: their laws, found by a team; the races over what is kept; and both by the last block to
// come to a row.
#pragma once

#include "cut.cuh"
#include "race_request.cuh"

namespace specdec::cuda {

// What is known of a row of logits, and what its filters keep.
struct FilteredRow {
  RowStats stats;
  Filtered kept;
  int listed;  // as in KeptRow, until the next row is looked through
};

// For every thread of the team. The law needs a sum.
__device__ __forceinline__ FilteredRow know_filtered(Team& team, const EditedRow& row, const Law& law, Filter filter,
                                                     const CutRoom& room) {
  const Logits space = law.logits();
  if (!filter.on()) filter.order = space;
  CutFinder finder(team, row, filter, room);
  KeptRow kept = finder.scan(!filter.on() || filter.of_row());
  FilteredRow found = {kNoStats, {}, -1};
  found.stats.status = kept.status;
  if (kept.top == -kInfinity) return found;
  if (filter.on()) {
    kept = finder.kept(kept);
    found.kept = {kept.cut, filter.order};
    found.listed = kept.listed;
  }
  found.stats.lse = finder.lse(space, kept);
  return found;
}

// What is known of a row's law, that of entry (n, j), for every thread of the team.
__device__ __forceinline__ void know_law(Team& team, const specdec_law& p, int64_t n, int64_t j, const CutRoom& room,
                                         LawRowOf<Filtered>* side, int32_t* status) {
  const Law law = side->stats.law;
  const Filter filter = filter_at(p, law, side->row.vocab, n, j, status);
  FilteredRow row = {kNoStats, {}, -1};
  if (law.greedy) row.stats = scan_argmax(team, *side);
  else row = know_filtered(team, side->row, law, filter, room);
  side->stats = with_stats(law, row.stats);
  side->kept = row.kept;
  *status |= row.stats.status;
}

// The winner among the tokens that are listed, as a column. Every block of a team finds it, without the row's others.
__device__ __forceinline__ RowPartial race_listed(const RaceRequestOf<EditedRow>& r, const WeightsOf<Filtered>& weights,
                                                  int listed, const CutRoom& room, int32_t status) {
  const Shared<WideKey> list = dynamic_shared<WideKey>(room.at, kListWords);
  Candidate mine = kNobody;
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
  RowPartial found = best_of_block(mine, false);
  found.status |= status;
  return found;
}

// ---- straight: the last block to come to a row goes on alone --------------------------------------------------------

struct StraightCut {
  WideKey* words;  // of the rows' tiles, if a row has more than one block
  CutRoom room;
};

// What the last block of a row knows of it. `kept`: if it was cut, or weighed; `lse`: if that was asked for. `best`: the
// winner of a race, or the most probable token, known to the first thread.
struct RowEnd {
  KeptRow kept;
  LogSumExp lse;
  RowPartial best;
};

// The block's part of a row: `sums` asks for its mass and what is kept of it, else a token is drawn. True for the last
// block to come. Behind begin_draw and a barrier. A lane loads `kSteps` fours together.
template <int kSteps>
__device__ __forceinline__ bool straight_row(const RaceRequestOf<EditedRow>& r, bool live, bool sums,
                                             const Filter& filter, const StraightCut& cut, const Parts& parts,
                                             int64_t row, int part, const Shared<unsigned>& sure, Meeting* meeting,
                                             RowEnd* end) {
  const bool cuts = live && (filter.on() || sums), weighs = filter.of_row() || (sums && !filter.on());
  Team alone(TeamRoom{TeamKind::kBlock, 1});
  CutFinder finder(alone, r.row, filter, cut.room);
  // Those of a row with one block stay in its shared memory.
  WideKey* const words =
      parts.count.by() == 1 ? nullptr : cut.words + row * words_a_tile(cut.room.wide) * parts.tiles;
  auto weights = weights_of_row<Filtered>(r.row, r.law);
  SPECDEC_SHARED(Noise, noise_of_row, 1);  // over a cut it would take registers
  RaceRequestOf<EditedRow> race = r;
  if (threadIdx.x == 0) noise_of_row[0] = r.noise;
  Tiles tiles = parts.tiles_of(part);
  if (tiles.end > finder.tiles) tiles.end = finder.tiles;
  if (cuts) {
    unsigned met = finder.template put_tiles<kSteps>(weighs, tiles, [&](int i, WideKey word) {
      if (words) put_word(words + i, word);
      else finder.pairs[i] = word;
    });
    if (__any_sync(kWarp, met != 0)) {
      met = __reduce_or_sync(kWarp, met);
      if (lane_id() == 0) atomicOr(&meeting->met, met);
    }
  }
  end->lse = kNoMass, end->best = kNoPart;
  bool draws = live && !cuts;
  Part piece = {part, parts.count.by()};
#pragma unroll 1
  for (bool last = false;; last = true) {
    if (draws && race.map.tokens && !race.law.greedy) {
      const RowPartial found = mapped_race_part(race, piece, weights.target.kept);
      if (threadIdx.x == 0) atomicMax(&meeting->best, key_of_candidate(found.best));
      if (threadIdx.x == 0 && found.status) atomicOr(&meeting->met, kBadValue);
    } else if (draws) {
      draw_tiles<kSteps>(weights, race.noise, tiles.begin, tiles.end, sure, meeting);
    }
    if (last) break;
    if (!comes_last(meeting, parts.count.by())) return false;
    if (!cuts) break;
    const unsigned met = threadIdx.x == 0 ? atomicExch(&meeting->met, 0u) : 0u;
    end->kept = finder.take_tiles(weighs, met, [&](int i) {
      return words ? load_fresh(words + i) : static_cast<WideKey>(finder.pairs[i]);
    });
    if (filter.on() && end->kept.listed < 0) end->kept = finder.kept(end->kept);
    if (sums && end->kept.top > -kInfinity) end->lse = finder.lse(r.law.logits(), end->kept);
    race.noise = noise_of_row[0];
    if (sums || end->kept.listed >= 0) break;
    weights.target.kept = {end->kept.cut, filter.order};
    tiles = {0, finder.tiles}, piece = {0, 1}, draws = true;
  }
  if (draws) {
    __syncthreads();
    if (threadIdx.x == 0) end->best = partial_of(taken_from(meeting));
  } else if (cuts && !sums) {
    weights.target.kept = {end->kept.cut, filter.order};
    end->best = race_listed(race, weights, end->kept.listed, cut.room, end->kept.status);
  }
  if (threadIdx.x == 0) meeting->came = 0;
  return true;
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Of a block that has so many bytes of dynamic shared memory for it.
inline CutRoom straight_room(int32_t vocab, size_t shared) {
  CutRoom room = {0, 0};
  while (room.wide < 2 && bytes_of_cut(vocab, room.wide) > shared) ++room.wide;
  return room;
}

// What an op on rows goes with straight.
template <class Params>
struct StraightRows {
  Params p;
  Meeting* meetings;  // one a row
  Parts parts;        // of a row, a block each
  StraightCut cut;
};

// `cuts`: if rows may be cut.
template <class Params>
cudaError_t launch_straight(void (*kernel)(StraightRows<Params>), const Params& p, bool cuts, const Device& device) {
  const int64_t rows = p.count();
  const Parts parts = parts_of_rows(p.rows.vocab, blocks_at_once(device) / rows);
  const StraightCut cut = {device.room.words, straight_room(p.rows.vocab, device.dynamic_shared)};
  const int64_t words = cuts && parts.count.by() > 1 ? rows * words_a_tile(cut.room.wide) * parts.tiles : 0;
  if (device.room.lacks(kTicketsAMeeting * rows, words)) return cudaSuccess;
  Shape shape = {rows * parts.count.by(), kThreads};
  shape.overlaps = true;
  if (cuts) shape.dynamic_shared = bytes_of_cut(p.rows.vocab, cut.room.wide);
  if (shape.dynamic_shared > device.dynamic_shared) return cudaErrorLaunchOutOfResources;
  return launch(kernel, shape, {p, reinterpret_cast<Meeting*>(device.room.tickets), parts, cut}, device.stream);
}

}  // namespace specdec::cuda
