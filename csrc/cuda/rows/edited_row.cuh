// Rows that may have edits (specdec/edit.h), applied as elements are loaded: how the kernels read that know filters and
// edits. Nothing that looks through a row knows of its edits, and nothing as long as a row is written. Edited elements
// are float32, whatever the row's type. A warp therefore reads each row as if it were one of float32, eight bytes a load
// if it holds 16-bit elements.
//
// A word is 32 tokens. Each lane finds out which tokens of one word may be changed: those seen, by the request's masks,
// and those with a bias, pending or drafted. They are few, and changed one by one. Which tokens a grammar allows comes
// from its mask, for all tokens alike.
#pragma once

#include "specdec/count.h"
#include "specdec/edit.h"
#include "specdec/walk.h"
#include "weights.cuh"

namespace specdec::cuda {

// The edits of one row, decoded. Lists that do not matter are null, or have no entries.
struct DecodedEdits {
  const int32_t* allowed;  // a bit for each token
  const int32_t *output, *prompt, *counts;
  const int32_t* bias_tokens;
  const float* bias_values;
  int32_t biases;
  bool rising;    // the tokens of the bias rise and are in range, so that one can be searched for
  bool wide;      // pending tokens are int64
  int32_t pendings;
  const void* pending;
  int32_t drafts;     // how many come before the row
  size_t drafted_at;  // their tokens, in dynamic shared memory
  Penalties penalties;
  int32_t node;  // in a walk: whose row it is

  __device__ int32_t draft_at(int32_t i) const {
    return dynamic_shared<int32_t>(drafted_at, static_cast<size_t>(drafts))[i];
  }
  __device__ int64_t pending_at(int32_t i) const {
    return wide ? static_cast<const int64_t*>(pending)[i] : static_cast<const int32_t*>(pending)[i];
  }
};

// A part of a row begins with a group of the race.
struct EditedRow : Row {
  bool edited;  // the draft's rows are not
  Shared<DecodedEdits> edits;
  __device__ static constexpr int32_t skipped() { return 0; }
};

// How rows are loaded: a type of elements.
template <class F>
__device__ __forceinline__ auto with_type(const EditedRow&, F&& f) { return f(Float32{}); }
__device__ __forceinline__ const Row& as_it_came(const EditedRow& row) { return row; }
__device__ __forceinline__ EditedRow whole_row(const EditedRow& row) {
  return {whole_row(as_it_came(row)), row.edited, row.edits};
}
// A row as it is read where it may have edits.
__device__ __forceinline__ EditedRow with_edits(const Row& row) { return {row, false, {}}; }
__device__ __forceinline__ const EditedRow& with_edits(const EditedRow& row) { return row; }
__device__ __forceinline__ bool forbids(const EditedRow& row, float logit) {
  return row.edited && !(logit > -kInfinity);
}

// The index is opaque, so that nothing of the edits stays in registers for longer than it is used.
__device__ __forceinline__ DecodedEdits edits_of(const EditedRow& row) { return row.edits[opaque(0u)]; }

// ---- one token ------------------------------------------------------------------------------------------------------

// Calls f(token).
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
  if (e.rising) {  // the first one of at least `from`
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
    if (token <= last || token >= vocab) continue;  // ignored: not in order, or out of range
    last = token;
    if (token >= from && token < end) f(token, e.bias_values[entry]);
  }
}

// How often a token stands in the output so far, or kUnseen. Of the edits each step reads what it needs.
__device__ __forceinline__ int32_t count_in(const EditedRow& row, int32_t token) {
  int32_t count = kUnseen;
  {
    const DecodedEdits e = edits_of(row);
    if (e.output && has_bit(e.output, token)) count = specdec::count_of(e.counts ? e.counts[token] : 1, true);
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

// An element after all edits but the grammar's.
__device__ __forceinline__ float changed(const EditedRow& row, int32_t token, float raw) {
  const float count = static_cast<float>(count_in(row, token));
  float bias = kNoBias;
  each_bias(edits_of(row), row.vocab, token, token + 1, [&](int32_t, float value) { bias = bias_of(value); });
  return edited(raw, bias, count, edits_of(row).penalties);
}

__device__ __forceinline__ float element(const EditedRow& row, int32_t token) {
  const float raw = element(as_it_came(row), token);
  if (!row.edited) return raw;
  const int32_t* allowed = edits_of(row).allowed;
  return allowed && !has_bit(allowed, token) ? -kInfinity : changed(row, token, raw);
}

// ---- words ----------------------------------------------------------------------------------------------------------

// Which tokens of a word may stay. A word lies inside of the row at least in part.
__device__ __forceinline__ uint32_t allowed_word(const EditedRow& row, int32_t word) {
  const int32_t* allowed = edits_of(row).allowed;
  return allowed ? static_cast<uint32_t>(allowed[word]) : 0xffffffffu;
}

// Which of its tokens may have a penalty or a bias.
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

// A vector of four with one element replaced: it is selected, so that all stay in registers.
__device__ __forceinline__ uint4 with_element(const uint4& v, int at, float x) {
  const uint32_t b = bits(x);
  return {at == 0 ? b : v.x, at == 1 ? b : v.y, at == 2 ? b : v.z, at == 3 ? b : v.w};
}

// A vector without the elements whose bit is missing in `may`.
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

// Four elements from `token` on, as they came; past the row's end, -inf.
__device__ __forceinline__ uint4 raw_four(const Row& row, int32_t token) {
  const Four four = four_elements(row, token);
  return {bits(four.value[0]), bits(four.value[1]), bits(four.value[2]), bits(four.value[3])};
}

// Four elements from `token` on, a multiple of four, after edits.
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
  const uint4 v = edited_four(row, token, raw_four(as_it_came(row), token));
  return {{Float32::at(v, 0), Float32::at(v, 1), Float32::at(v, 2), Float32::at(v, 3)}};
}

__device__ __forceinline__ const char* address_of(const Row& row, int32_t token) {
  return static_cast<const char*>(row.data) + static_cast<int64_t>(token) * (row.dtype == SPECDEC_FLOAT32 ? 4 : 2);
}

// What edits allow and touch of up to eight steps of 128 columns: a word of a lane, four a step.
struct EditWords {
  uint32_t allowed = 0, touched = 0;
};
__device__ __forceinline__ EditWords edit_words(const EditedRow& row, int32_t first, int steps) {
  const int32_t word = first / 32 + lane_id();
  if (lane_id() >= 4 * steps || word * 32 >= row.vocab) return {};
  const uint32_t allowed = allowed_word(row, word);
  return {allowed, touched_word(row, word) & allowed};
}

// LogitEdits a batch that begins with `first`, a multiple of 32, step `step_of_words` of the words. All lanes of the
// warp call.
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

// Two elements of 16 bits without weight.
__device__ __forceinline__ uint32_t nothing_of(bool brain) {
  return (brain ? BFloat16::kMinusInfinity : Float16::kMinusInfinity) * 0x10001u;
}

// A lane's fours of a row, on their way: 16-bit elements as they came. In registers they are float32, so one code does
// for all types. What is not whole fours comes when it is asked for.
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

// The same of a row off 16 or 8 bytes, or at its end: by aligned words, all of them on their way together.
template <int kCount>
__device__ __forceinline__ Batch<Float32, kCount> floats_by_words(const Row& row, int32_t first, int count) {
  using Floats = Batch<Float32, kCount>;
  constexpr int kStep = Floats::kPerStep;
  const bool brain = row.dtype == SPECDEC_BFLOAT16;
  const int32_t own = Floats::token(first, 0), stop = first + count * kStep, last = (row.vocab - 1) / 4 * 4;
  Floats batch;
  if (row.dtype == SPECDEC_FLOAT32) {
    uint32_t words[kCount][4];
    load_words<4, kStep>(static_cast<const uint32_t*>(row.data), row.vocab, own, stop, Floats::kNothing, words);
#pragma unroll
    for (int u = 0; u < kCount; ++u) batch.vector[u] = {words[u][0], words[u][1], words[u][2], words[u][3]};
  } else {
    uint32_t words[kCount][2];
    load_words<2, kStep>(static_cast<const uint16_t*>(row.data), row.vocab, own, stop, nothing_of(brain), words);
#pragma unroll
    for (int u = 0; u < kCount; ++u) batch.vector[u] = widened(brain, {words[u][0], words[u][1]});
  }
  // The fours that the row begins and ends in, if they are here.
#pragma unroll 1
  for (int32_t edge = first > 0 ? last : first; edge >= first && edge < stop; edge = last) {
    batch.put(raw_four(row, edge), edge - first);
    if (edge == last) break;
  }
  return batch;
}

template <class T, int kCount>
__device__ __forceinline__ void Batch<T, kCount>::load(const EditedRow& row, int32_t first, int count) {
  const Row& own = as_it_came(row);
  Fetched<kCount> fetched;
  fetched.fetch(own, first, count);
  *this = fetched.whole ? fetched.floats(own, first, count) : floats_by_words<kCount>(own, first, count);
  if (row.edited) edit(row, edit_words(row, first, count), 0, first, this);
}

template <class T, int kCount>
__device__ __forceinline__ uint4 Batch<T, kCount>::load_again(const EditedRow& row, int32_t at) {
  uint32_t raw[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) raw[i] = bits(at + i < row.vocab ? element(as_it_came(row), at + i) : -kInfinity);
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

// For a whole block: decodes the edits of a row with `drafts` drafts before it. `entry` is the place of its request's
// lists, `target` its own. Returns the status, the same to every thread.
__device__ __forceinline__ int32_t decode_edits(const specdec_edits& p, int32_t vocab, const RowPlace& entry,
                                                const RowPlace& target, int32_t drafts,
                                                const Shared<DecodedEdits>& edits,
                                                size_t drafted_at) {
  int32_t status = SPECDEC_STATUS_OK;
  DecodedEdits e = {};
  e.penalties = penalties_at(p, entry.outer, entry.inner, &status);
  const auto place = [&](int64_t by_row) -> RowPlace {
    const bool own = (p.by_row & by_row) != 0;
    return {own ? target.outer : entry.outer, own ? target.inner : entry.inner};
  };
  const RowPlace of_mask = place(SPECDEC_ALLOWED_BY_ROW);
  e.allowed = allowed_place(p, of_mask.outer, of_mask.inner, &status).of(p.allowed);
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
  const ListPlace seen = seen_place(p, entry.outer, entry.inner, &status);
  if (e.penalties.on()) {
    e.output = seen.of(p.output_mask);
    if (e.output) e.counts = seen.of(p.output_counts);
    if (e.penalties.of_prompt()) e.prompt = seen.of(p.prompt_mask);
    e.drafts = drafts, e.drafted_at = drafted_at;
  } else {
    e.pendings = 0;
  }
  const RowPlace of_bias = place(SPECDEC_BIAS_BY_ROW);
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

// How a kernel reads rows, and what is kept of them: as they came, all tokens.
struct PlainRows {
  using Kept = Unfiltered;
  __device__ Row of(const Row& row, bool = true) const { return row; }
  __device__ int32_t decode(const specdec_edits&, int32_t, const RowPlace&, const RowPlace&) const {
    return SPECDEC_STATUS_OK;
  }
};

// With filters, and with edits of the target's rows, if there are any. The edits are those of one row at a time.
struct ShapedRows {
  using Kept = Filtered;
  Shared<DecodedEdits> edits;
  bool edited;
  size_t drafted_at = 0;  // where the tokens of drafts are kept
  __device__ EditedRow of(const Row& row, bool of_target = true) const { return {row, of_target && edited, edits}; }
  __device__ int32_t decode(const specdec_edits& p, int32_t vocab, const RowPlace& entry, const RowPlace& target,
                            int32_t drafts = 0) const {
    return edited ? decode_edits(p, vocab, entry, target, drafts, edits, drafted_at) : SPECDEC_STATUS_OK;
  }
};

}  // namespace specdec::cuda
