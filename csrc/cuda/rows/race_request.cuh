// The rows of race_sample and race_topk, decoded.
#pragma once

#include "edited_row.cuh"
#include "race.cuh"
#include "specdec/request.h"

namespace specdec::cuda {

template <class R>
struct RaceRequestOf {
  R row;
  Law law;
  Noise noise;
  DraftMap map;  // the tokens of its columns
  Entry entry;   // if it is not live, only `status` is set
  int32_t status;

  // Turns a candidate's column into the target's token.
  __device__ Candidate token_of(const Candidate& c) const {
    const Candidate mapped = map.to_target(c);
    return mapped.token == kNoToken ? mapped : Candidate{mapped.score, row.vocab_start + mapped.token};
  }
};

using RaceRequest = RaceRequestOf<Row>;

// The race over a target row.
template <class R>
__device__ __forceinline__ RaceRequestOf<R> race_of(const R& row, const Law& law, const Noise& noise) {
  RaceRequestOf<R> r = {};
  r.row = row;
  r.law = law;
  r.noise = noise;
  return r;
}

// `Params` are RaceParams, here and below: other ops that include this do not compile again with each of its fields.
template <class Params>
__device__ __forceinline__ RaceRequest race_request(const Params& p, int64_t index) {
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  RaceRequest r = {};
  r.entry = decode_entry(p.request_index, i);
  r.status = r.entry.status();
  if (!r.entry.live()) return r;
  r.row = part_at(p.rows, p.rows.offset(i, j));
  r.law = law_at(p.law, r.entry.index, j, &r.status);
  r.noise = noise_at(p.noise, r.entry.index, j, kStreamRace);
  r.map = draft_map_of(p.draft_map, p.rows);
  return r;
}

// The same where rows may have filters and edits. All threads of the block call.
template <class Params>
__device__ __forceinline__ RaceRequestOf<EditedRow> shaped_request(const Params& p, int64_t index,
                                                                   const ShapedRows& reader) {
  const RaceRequest r = race_request(p, index);
  RaceRequestOf<EditedRow> shaped = {};
  shaped.row = reader.of(r.row), shaped.law = r.law, shaped.noise = r.noise;
  shaped.map = r.map, shaped.entry = r.entry, shaped.status = r.status;
  const RowIndex row = {index / p.rows.rows, index % p.rows.rows};
  if (r.entry.live()) shaped.status |= reader.decode(p.edits, r.row.vocab, {r.entry.index, row.inner}, row);
  return shaped;
}

// The filters of a live request.
template <class Params>
__device__ __forceinline__ Filter race_filter(const Params& p, int64_t index, RaceRequestOf<EditedRow>* r) {
  return filter_at(p.law, r->law, r->row.vocab, r->entry.index, index % p.rows.rows, &r->status);
}

// ---- rows of another vocabulary than the target's: candidates are columns, and each has the noise of its token ------------------

// A column with the raw element `raw` as a candidate; kNobody if it cannot beat `to_beat`.
template <class Support>
__device__ __forceinline__ Candidate mapped_candidate(const RaceRequestOf<typename Support::RowType>& r,
                                                      const WeightsOf<Support>& weights, float raw, int32_t column,
                                                      float to_beat) {
  const int32_t token = r.map.tokens[column];
  if (token < 0) return kNoCandidate;  // not a valid map
  const uint32_t index = static_cast<uint32_t>(token) / kGroup;
  const Words<uint32_t> w = noise_words(opaque(r.noise), index >> 1);
  const uint32_t a = index & 1 ? w.word[1] : w.word[0], b = index & 1 ? w.word[3] : w.word[2];
  if (!weights.reach(raw, key_to_win(weights, a, to_beat))) return kNoCandidate;
  const float log_weight = weights.log_weight(raw, column);
  if (log_weight == -kInfinity) return kNoCandidate;
  const Group group = group_of(index, a, b);
  return {race_score(log_weight, arrival(opaque(r.noise), group, static_cast<uint32_t>(token))), column};
}

// The best column of this block's part of a row. Every thread gets it.
template <class Support>
__device__ __forceinline__ RowPartial mapped_race_part(const RaceRequestOf<typename Support::RowType>& r, Part part,
                                                       const Support& support) {
  const WeightsOf<Support> weights = weights_of_row(r.row, r.law, support);
  Candidate mine = kNoCandidate;
  bool bad = false;
  with_type(r.row, [&](auto type) {
    using T = decltype(type);
    over_chunks<T>(r.row, part, [](int32_t, int, bool) {},
                   [&](const Batch<T>& batch, int32_t first, int steps) {
                     const float needed = weights.needed_key(-kInfinity);
                     unsigned open = vectors_to_open<T>(largest_of(r.law, batch, steps), weights, first, steps, needed, &bad);
#pragma unroll 1
                     for (; open; open &= open - 1) {
                       const int32_t column = Batch<T>::token(first, __ffs(static_cast<int>(open)) - 1);
                       const uint4 values = Batch<T>::load_again(r.row, column);
#pragma unroll 1
                       for (unsigned left = elements_to_open<T>(r.law, values, needed); left; left &= left - 1) {
                         const int i = __ffs(static_cast<int>(left)) - 1;
                         mine = best_of(mapped_candidate(r, weights, T::at(values, i), column + i, mine.score), mine);
                       }
                     }
                   });
  });
  return best_of_block(mine, bad);
}

// The winner of this block's part of a row without filters.
__device__ __forceinline__ RowPartial find_winner(const RaceRequest& r, Part part) {
  if (r.law.greedy) return argmax_part(r.row, r.law, part);
  return r.map.tokens ? mapped_race_part(r, part, Unfiltered{})
                      : race_part<true>(weights_of_row(r.row, r.law), r.noise, part);
}

}  // namespace specdec::cuda
