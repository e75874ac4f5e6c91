// Rows that may have edits (specdec/edit.h), which loads apply to each element. Code that looks through a row does not
// depend on its edits, and no edited row is ever written. Edited elements are float32, whatever the row's type. A warp
// therefore reads each row as if it were one of float32, eight bytes a load if it holds 16-bit elements.
//
// A word is 32 tokens. Each lane computes which tokens of one word may change: those seen, by the request's masks, and
// those with a bias, pending or drafted. They are few, and change one by one. The grammar's mask applies to whole
// words.
#pragma once

#include "specdec/count.h"
#include "specdec/edit.h"
#include "specdec/walk.h"
#include "weights.cuh"

namespace specdec::cuda {

// The edits of one row, decoded. Lists without effect are null, or have no entries.
struct DecodedEdits {
  const int32_t* allowed;  // [V / 32], a bit for each token
  const int32_t *output, *prompt, *counts;
  const int32_t* bias_tokens;
  const float* bias_values;
  int32_t biases;
  bool rising;  // tokens of the bias rise and are in range: binary search works
  bool wide;    // pending tokens are int64
  int32_t pendings;
  const void* pending;
  int32_t drafts;     // tokens of drafts before the row
  size_t drafted_at;  // bytes of shared memory: these tokens, [drafts]
  Penalties penalties;
  int32_t node;  // walks: the node of the row

  __device__ int32_t draft_at(int32_t i) const {
    return dynamic_shared<int32_t>(drafted_at, static_cast<size_t>(drafts))[i];
  }
  __device__ int64_t pending_at(int32_t i) const {
    return wide ? static_cast<const int64_t*>(pending)[i] : static_cast<const int32_t*>(pending)[i];
  }
};

// A row with edits. Where it is a part of a row, it begins with a group of the race.
struct EditedRow : Row {
  bool edited;  // never for a draft's row
  Shared<DecodedEdits> edits;
  __device__ static constexpr int32_t skipped() { return 0; }
};

// Elements of an edited row are float32, whatever its type.
template <class F>
__device__ __forceinline__ auto with_type(const EditedRow&, F&& f) { return f(Float32{}); }
__device__ __forceinline__ const Row& stored_row(const EditedRow& row) { return row; }
__device__ __forceinline__ EditedRow whole_row(const EditedRow& row) {
  return {whole_row(stored_row(row)), row.edited, row.edits};
}
// A row as it is read where it may have edits.
__device__ __forceinline__ EditedRow with_edits(const Row& row) { return {row, false, {}}; }
__device__ __forceinline__ const EditedRow& with_edits(const EditedRow& row) { return row; }
__device__ __forceinline__ bool forbids(const EditedRow& row, float logit) {
  return row.edited && !(logit > -kInfinity);
}

// The index is opaque: else the compiler keeps edits in registers for longer than their use.
__device__ __forceinline__ DecodedEdits edits_of(const EditedRow& row) { return row.edits[opaque(0u)]; }

// ---- one token ------------------------------------------------------------------------------------------------------

template <class F>
__device__ __forceinline__ void each_pending(const DecodedEdits& e, F&& f) {
#pragma unroll 1
  for (int32_t i = 0; i < e.pendings; ++i) f(e.pending_at(i));
}
template <class F>
__device__ __forceinline__ void each_draft(const DecodedEdits& e, F&& f) {
#pragma unroll 1
  for (int32_t i = 0; i < e.drafts; ++i) f(e.draft_at(i));
}

// Calls f(token, value) for the bias of the tokens [from, end).
template <class F>
__device__ __forceinline__ void each_bias(const DecodedEdits& e, int32_t vocab, int32_t from, int32_t end, F&& f) {
  int32_t entry = 0;
  if (e.rising) {  // the first token of at least `from`
#pragma unroll 1
    for (int32_t above = e.biases; entry < above;) {
      const int32_t middle = entry + (above - entry) / 2;
      if (e.bias_tokens[middle] < from) entry = middle + 1;
      else above = middle;
    }
  }
  int32_t last = -1;
#pragma unroll 1
  for (; entry < e.biases && last < end; ++entry) {
    const int32_t token = e.bias_tokens[entry];
    if (token <= last || token >= vocab) continue;  // ignored: out of order or range
    last = token;
    if (token >= from && token < end) f(token, e.bias_values[entry]);
  }
}

// The count of a token in the output so far, or kUnseen. Each step reads the edits that it needs: registers are few.
__device__ __forceinline__ int32_t count_in(const EditedRow& row, int32_t token) {
  int32_t count = kUnseen;
  {
    const DecodedEdits e = edits_of(row);
    if (e.output && has_bit(e.output, token)) count = specdec::decode_count(e.counts ? e.counts[token] : 1, true);
    else if (e.prompt && has_bit(e.prompt, token)) count = 0;
  }
  each_pending(edits_of(row), [&](int64_t other) {
    if (other == token) count = count_after(count);
  });
  each_draft(edits_of(row), [&](int32_t other) {
    if (other == token) count = count_after(count);
  });
  return count;
}

// The element after all edits but the grammar's.
__device__ __forceinline__ float changed(const EditedRow& row, int32_t token, float raw) {
  const float count = static_cast<float>(count_in(row, token));
  float bias = kNoBias;
  each_bias(edits_of(row), row.vocab, token, token + 1, [&](int32_t, float value) { bias = decode_bias(value); });
  return edited(raw, bias, count, edits_of(row).penalties);
}

__device__ __forceinline__ float element(const EditedRow& row, int32_t token) {
  const float raw = element(stored_row(row), token);
  if (!row.edited) return raw;
  const int32_t* allowed = edits_of(row).allowed;
  return allowed && !has_bit(allowed, token) ? -kInfinity : changed(row, token, raw);
}

// ---- words ----------------------------------------------------------------------------------------------------------

// The tokens of a word that the grammar allows. At least one token of the word lies in the row.
__device__ __forceinline__ uint32_t allowed_word(const EditedRow& row, int32_t word) {
  const int32_t* allowed = edits_of(row).allowed;
  return allowed ? static_cast<uint32_t>(allowed[word]) : 0xffffffffu;
}

// The tokens of a word that may have a penalty or a bias.
__device__ __forceinline__ uint32_t touched_word(const EditedRow& row, int32_t word) {
  uint32_t touched = 0;
  const auto touch = [&](int64_t token) {
    if (token >> 5 == word) touched |= 1u << (token & 31);
  };
  {
    const DecodedEdits e = edits_of(row);
    if (e.output) touched |= static_cast<uint32_t>(e.output[word]);
    if (e.prompt) touched |= static_cast<uint32_t>(e.prompt[word]);
  }
  each_pending(edits_of(row), touch);
  each_draft(edits_of(row), touch);
  each_bias(edits_of(row), row.vocab, 32 * word, 32 * word + 32, [&](int32_t token, float) { touch(token); });
  const int32_t left = row.vocab - 32 * word;
  return left < 32 ? touched & ((1u << left) - 1u) : touched;
}

// A vector of four with one element replaced. It is selected, so that all stay in registers.
__device__ __forceinline__ uint4 with_element(const uint4& v, int at, float x) {
  const uint32_t b = bits(x);
  return {at == 0 ? b : v.x, at == 1 ? b : v.y, at == 2 ? b : v.z, at == 3 ? b : v.w};
}

// A vector with -inf for the elements whose bit is missing in `may`.
__device__ __forceinline__ uint4 permitted(const uint4& v, uint32_t may) {
  constexpr uint32_t kForbidden = Float32::kMinusInfinity;
  return {may & 1u ? v.x : kForbidden, may & 2u ? v.y : kForbidden, may & 4u ? v.z : kForbidden,
          may & 8u ? v.w : kForbidden};
}

// ---- loads ----------------------------------------------------------------------------------------------------------

constexpr uint4 kNoElements = {Float32::kMinusInfinity, Float32::kMinusInfinity, Float32::kMinusInfinity,
                               Float32::kMinusInfinity};

// Four elements of 16 bits as float32: bfloat16, or float16.
__device__ __forceinline__ uint4 widened(bool brain, const uint2& half) {
  const uint4 v = {half.x, half.y, 0, 0};
  const auto as = [&](auto type) -> uint4 {
    using T = decltype(type);
    return {bits(T::at(v, 0)), bits(T::at(v, 1)), bits(T::at(v, 2)), bits(T::at(v, 3))};
  };
  return brain ? as(BFloat16{}) : as(Float16{});
}

// Four elements from `token` on, without edits; past the row's end, -inf.
__device__ __forceinline__ uint4 raw_four(const Row& row, int32_t token) {
  const Four four = four_elements(row, token);
  return {bits(four.value[0]), bits(four.value[1]), bits(four.value[2]), bits(four.value[3])};
}

// Four elements with edits, from `token` on, a multiple of four.
__device__ __forceinline__ uint4 edited_four(const EditedRow& row, int32_t token, uint4 v) {
  if (!row.edited) return v;
  const uint32_t may = allowed_word(row, token / 32) >> token % 32;
#pragma unroll 1
  for (uint32_t left = touched_word(row, token / 32) >> token % 32 & may & 15u; left; left &= left - 1) {
    const int i = __ffs(static_cast<int>(left)) - 1;
    v = with_element(v, i, changed(row, token + i, Float32::at(v, i)));
  }
  return permitted(v, may);
}

__device__ __forceinline__ Four four_elements(const EditedRow& row, int32_t token) {
  const uint4 v = edited_four(row, token, raw_four(stored_row(row), token));
  return {{Float32::at(v, 0), Float32::at(v, 1), Float32::at(v, 2), Float32::at(v, 3)}};
}

__device__ __forceinline__ const char* address_of(const Row& row, int32_t token) {
  return static_cast<const char*>(row.data) + static_cast<int64_t>(token) * (row.dtype == SPECDEC_FLOAT32 ? 4 : 2);
}

// The tokens of eight steps of 128 columns that edits allow and touch: a word a lane, four lanes a step.
struct EditWords {
  uint32_t allowed = 0, touched = 0;
};
__device__ __forceinline__ EditWords edit_words(const EditedRow& row, int32_t first, int steps) {
  const int32_t word = first / 32 + lane_id();
  if (lane_id() >= 4 * steps || word * 32 >= row.vocab) return {};
  const uint32_t allowed = allowed_word(row, word);
  return {allowed, touched_word(row, word) & allowed};
}

// Edits a batch that begins with `first`, a multiple of 32, at step `step_of_words` of the words. All lanes of the warp
// call.
template <int kCount>
__device__ __forceinline__ void edit(const EditedRow& row, const EditWords& words, int step_of_words, int32_t first,
                                     Batch<Float32, kCount>* batch) {
  const int shift = lane_id() % 8 * 4;
  uint32_t mine = 0;  // four bits a vector
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const int owner = 4 * (step_of_words + u) + lane_id() / 8;
    batch->vector[u] = permitted(batch->vector[u], __shfl_sync(kWarp, words.allowed, owner) >> shift);
    mine |= (__shfl_sync(kWarp, words.touched, owner) >> shift & 15u) << 4 * u;
  }
#pragma unroll 1
  for (; mine; mine &= mine - 1) {
    const int at = __ffs(static_cast<int>(mine)) - 1, step = at / 4, i = at % 4;
    const uint4 v = batch->at(step);
    const float z = changed(row, Batch<Float32>::token(first, step) + i, Float32::at(v, i));
#pragma unroll
    for (int u = 0; u < kCount; ++u)
      if (step == u) batch->vector[u] = with_element(batch->vector[u], i, z);
  }
}

// Two -inf of 16 bits.
__device__ __forceinline__ uint32_t nothing_of(bool brain) {
  return (brain ? BFloat16::kMinusInfinity : Float16::kMinusInfinity) * 0x10001u;
}

// A lane's fours of a row, on their way: 16-bit elements as they are in memory. floats() turns them into float32, so
// one code serves all types. Fours that are not whole are loaded there.
template <int kCount>
struct Fetched {
  using Floats = Batch<Float32, kCount>;
  uint4 raw[kCount] = {};
  bool whole = false;

  __device__ __forceinline__ void fetch(const Row& row, int32_t first, int count) {
    const bool wide = row.dtype == SPECDEC_FLOAT32;
    constexpr int kStep = Floats::kPerStep;
    const char* const at = address_of(row, Floats::token(first, 0));
    const int32_t left = row.vocab - Floats::token(first, 0);
    whole = reinterpret_cast<uintptr_t>(row.data) % (wide ? 16 : 8) == 0 &&
            (row.vocab % 4 == 0 || first + count * kStep < row.vocab);
    if (!whole) return;
    if (wide) {
#pragma unroll
      for (int u = 0; u < kCount; ++u)
        raw[u] = u < count && left - u * kStep >= 4 ? load_stream(at + u * kStep * 4) : kNoElements;
      return;
    }
    const uint32_t nothing = nothing_of(row.dtype == SPECDEC_BFLOAT16);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      uint2 half = {nothing, nothing};
      if (u < count && left - u * kStep >= 4) half = load_stream_half(at + u * kStep * 2);
      raw[u] = {half.x, half.y, 0, 0};
    }
  }

  __device__ __forceinline__ Floats floats(const Row& row, int32_t first, int count) const {
    Floats batch;
    if (!whole) {
#pragma unroll
      for (int u = 0; u < kCount; ++u)
        batch.vector[u] = u < count ? raw_four(row, Floats::token(first, u)) : kNoElements;
      return batch;
    }
#pragma unroll
    for (int u = 0; u < kCount; ++u) batch.vector[u] = raw[u];
    if (row.dtype == SPECDEC_BFLOAT16) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) batch.vector[u] = widened(true, {raw[u].x, raw[u].y});
    } else if (row.dtype == SPECDEC_FLOAT16) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) batch.vector[u] = widened(false, {raw[u].x, raw[u].y});
    }
    return batch;
  }
};

// The same for a row off 16 or 8 bytes, or at its end: by aligned words, with all loads in flight together.
template <int kCount>
__device__ __forceinline__ Batch<Float32, kCount> floats_by_words(const Row& row, int32_t first, int count) {
  using Floats = Batch<Float32, kCount>;
  constexpr int kStep = Floats::kPerStep;
  const bool brain = row.dtype == SPECDEC_BFLOAT16;
  const int32_t column = Floats::token(first, 0), stop = first + count * kStep, last = (row.vocab - 1) / 4 * 4;
  Floats batch;
  if (row.dtype == SPECDEC_FLOAT32) {
    uint32_t words[kCount][4];
    load_words<4, kStep>(static_cast<const uint32_t*>(row.data), row.vocab, column, stop, Floats::kNothing, words);
#pragma unroll
    for (int u = 0; u < kCount; ++u) batch.vector[u] = {words[u][0], words[u][1], words[u][2], words[u][3]};
  } else {
    uint32_t words[kCount][2];
    load_words<2, kStep>(static_cast<const uint16_t*>(row.data), row.vocab, column, stop, nothing_of(brain), words);
#pragma unroll
    for (int u = 0; u < kCount; ++u) batch.vector[u] = widened(brain, {words[u][0], words[u][1]});
  }
  // The fours in which the row begins and ends, if they are in this batch.
#pragma unroll 1
  for (int32_t edge = first > 0 ? last : first; edge >= first && edge < stop; edge = last) {
    batch.put(raw_four(row, edge), edge - first);
    if (edge == last) break;
  }
  return batch;
}

template <class T, int kCount>
__device__ __forceinline__ void Batch<T, kCount>::load(const EditedRow& row, int32_t first, int count) {
  const Row& stored = stored_row(row);
  Fetched<kCount> fetched;
  fetched.fetch(stored, first, count);
  *this = fetched.whole ? fetched.floats(stored, first, count) : floats_by_words<kCount>(stored, first, count);
  if (row.edited) edit(row, edit_words(row, first, count), 0, first, this);
}

template <class T, int kCount>
__device__ __forceinline__ uint4 Batch<T, kCount>::load_again(const EditedRow& row, int32_t at) {
  uint32_t raw[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) raw[i] = bits(at + i < row.vocab ? element(stored_row(row), at + i) : -kInfinity);
  return edited_four(row, at, {raw[0], raw[1], raw[2], raw[3]});
}

template <class T>
__device__ __forceinline__ void prefetch(const EditedRow& row, int32_t first, int count) {
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const int32_t token = Batch<T>::token(first, u);
    if (token < row.vocab) prefetch_line(address_of(row, token));
  }
}

// ---- decoding -------------------------------------------------------------------------------------------------------

// Decodes the edits of a row with `drafts` drafts before it. `entry` indexes the lists of its request, `target` those
// of the row. All threads of the block call, and all get the same status.
__device__ __forceinline__ int32_t decode_edits(const specdec_edits& p, int32_t vocab, const RowIndex& entry,
                                                const RowIndex& target, int32_t drafts,
                                                const Shared<DecodedEdits>& edits,
                                                size_t drafted_at) {
  int32_t status = SPECDEC_STATUS_OK;
  DecodedEdits e = {};
  e.penalties = penalties_at(p, entry.outer, entry.inner, &status);
  const auto index_for = [&](int64_t by_row) -> RowIndex {
    const bool by_this_row = (p.by_row & by_row) != 0;
    return {by_this_row ? target.outer : entry.outer, by_this_row ? target.inner : entry.inner};
  };
  const RowIndex of_mask = index_for(SPECDEC_ALLOWED_BY_ROW);
  e.allowed = allowed_list_at(p, of_mask.outer, of_mask.inner, &status).of(p.allowed);
  e.wide = p.pending.wide;
  bool bad = false;
  if (p.pending.data) {
    const int64_t first = p.pending.offset(entry.outer, entry.inner);
    e.pending = static_cast<const char*>(p.pending.data) + first * (e.wide ? 8 : 4);
    e.pendings = static_cast<int32_t>(p.pending.size);
  }
  over_block(e.pendings, [&](int32_t i) {
    const int64_t token = e.pending_at(i);
    bad |= token < -1 || token >= vocab;
  });
  if (__syncthreads_or(bad)) status |= SPECDEC_STATUS_PARAMETER;
  const ListIndex seen = seen_list_at(p, entry.outer, entry.inner, &status);
  if (e.penalties.on()) {
    e.output = seen.of(p.output_mask);
    if (e.output) e.counts = seen.of(p.output_counts);
    if (e.penalties.of_prompt()) e.prompt = seen.of(p.prompt_mask);
    e.drafts = drafts, e.drafted_at = drafted_at;
  } else {
    e.pendings = 0;
  }
  const RowIndex of_bias = index_for(SPECDEC_BIAS_BY_ROW);
  const BiasSpan span = bias_span_at(p, of_bias.outer, of_bias.inner, &status);
  e.bias_tokens = p.bias_tokens.data + span.begin;
  e.bias_values = p.bias_values.data + span.begin;
  e.biases = static_cast<int32_t>(span.end - span.begin);
  bad = false;
  over_block(e.biases, [&](int32_t i) {
    const int32_t token = e.bias_tokens[i];
    bad |= token < 0 || token >= vocab || (i > 0 && token <= e.bias_tokens[i - 1]);
  });
  e.rising = !__syncthreads_or(bad);
  if (!e.rising) status |= SPECDEC_STATUS_PARAMETER;
  if (threadIdx.x == 0) edits[0] = e;
  __syncthreads();
  return status;
}

// How a kernel reads rows: without filters and edits.
struct PlainRows {
  using Support = Unfiltered;
  __device__ Row of(const Row& row, bool = true) const { return row; }
  __device__ int32_t decode(const specdec_edits&, int32_t, const RowIndex&, const RowIndex&) const {
    return SPECDEC_STATUS_OK;
  }
};

// How a kernel reads rows with filters and edits. The target's rows alone have edits; `edits` are those of one row.
struct ShapedRows {
  using Support = Filtered;
  Shared<DecodedEdits> edits;
  bool edited;
  size_t drafted_at = 0;  // bytes of shared memory: tokens of drafts
  __device__ EditedRow of(const Row& row, bool of_target = true) const { return {row, of_target && edited, edits}; }
  __device__ int32_t decode(const specdec_edits& p, int32_t vocab, const RowIndex& entry, const RowIndex& target,
                            int32_t drafts = 0) const {
    return edited ? decode_edits(p, vocab, entry, target, drafts, edits, drafted_at) : SPECDEC_STATUS_OK;
  }
};

}  // namespace specdec::cuda
