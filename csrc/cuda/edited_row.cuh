// Rows of a target's logits with edits (specdec/edit.h), which are applied as elements are loaded. So nothing that looks
// through a row knows of them, and nothing as long as a row is written. Edited elements are float32, whatever the row's
// type. A warp therefore reads such a row as if it were one of float32, eight bytes a load if it holds 16-bit elements.
//
// A word is 32 tokens. Each lane finds out which tokens of one word may be changed: those seen, by the request's masks,
// and those with a bias, pending or drafted. They are few, and changed one by one. Which tokens a grammar allows comes
// from its mask, for all tokens alike.
#pragma once

#include "rows.cuh"
#include "specdec/count.h"
#include "specdec/edit.h"
#include "specdec/walk.h"

namespace specdec {
namespace cuda {

// The edits of one row, decoded. Lists that do not matter are null, or have no entries.
struct RowEdits {
  const int32_t* allowed;  // a bit for each token
  const int32_t *output, *prompt, *counts;
  const int32_t* bias_tokens;
  const float* bias_values;
  int32_t biases;
  bool rising;    // the tokens of the bias rise and are in range, so that one can be searched for
  bool wide;      // pending tokens are int64
  int32_t pendings;
  const void* pending;
  int32_t drafts;  // how many of the drafts come before the row
  Penalties penalties;

  __device__ int64_t pending_at(int32_t i) const {
    return wide ? static_cast<const int64_t*>(pending)[i] : static_cast<const int32_t*>(pending)[i];
  }
};

// Where a block keeps them, and the drafts' tokens.
struct EditRoom {
  Shared<RowEdits> edits;
  Shared<int32_t> drafted;
};

struct EditedRow {
  Row raw;
  int32_t vocab;
  bool edited;  // the draft's rows are not
  EditRoom room;
  static constexpr int32_t first_token = 0;
  __device__ static constexpr int32_t skipped() { return 0; }
};

// How rows are loaded: a type of elements.
__device__ __forceinline__ DType loaded_type(const EditedRow&) { return DType::kFloat32; }
template <class F>
__device__ __forceinline__ auto with_type(const EditedRow&, F&& f) { return f(Float32{}); }
__device__ __forceinline__ const Row& as_it_came(const EditedRow& row) { return row.raw; }
__device__ __forceinline__ EditedRow whole_row(const EditedRow& row) { return row; }
__device__ __forceinline__ bool forbids(const EditedRow& row, float logit) { return row.edited && !(logit > -kInfinity); }

// ---- one token ------------------------------------------------------------------------------------------------------

// Calls f(token, entry) for the bias of the tokens [from, end).
template <class F>
__device__ __forceinline__ void each_bias(const RowEdits& e, int32_t vocab, int32_t from, int32_t end, F&& f) {
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
    if (token >= from && token < end) f(token, entry);
  }
}

__device__ __forceinline__ int32_t count_in(const EditedRow& row, const RowEdits& e, int32_t token) {
  const bool seen = e.output && has_bit(e.output, token);
  int32_t count = seen ? specdec::count_of(e.counts ? e.counts[token] : 1, true)
                       : e.prompt && has_bit(e.prompt, token) ? 0 : kUnseen;
#pragma unroll 1
  for (int32_t i = 0; i < e.pendings; ++i)
    if (e.pending_at(i) == token) count = count_after(count);
#pragma unroll 1
  for (int32_t i = 0; i < e.drafts; ++i)
    if (row.room.drafted[i] == token) count = count_after(count);
  return count;
}

// An element after all edits but the grammar's.
__device__ __forceinline__ float changed(const EditedRow& row, const RowEdits& e, int32_t token, float raw) {
  float bias = kNoBias;
  each_bias(e, row.vocab, token, token + 1, [&](int32_t, int32_t entry) { bias = bias_of(e.bias_values[entry]); });
  return edited(raw, bias, static_cast<float>(count_in(row, e, token)), e.penalties);
}

__device__ __forceinline__ float element(const EditedRow& row, int32_t token) {
  const float raw = element(row.raw, token);
  if (!row.edited) return raw;
  const RowEdits e = row.room.edits[0];
  return e.allowed && !has_bit(e.allowed, token) ? -kInfinity : changed(row, e, token, raw);
}

// ---- words ----------------------------------------------------------------------------------------------------------

// Which tokens of a word may stay. A word lies inside of the row at least in part.
__device__ __forceinline__ uint32_t allowed_word(const RowEdits& e, int32_t word) {
  return e.allowed ? static_cast<uint32_t>(e.allowed[word]) : 0xffffffffu;
}

// Which of its tokens may have a penalty or a bias.
__device__ __forceinline__ uint32_t touched_word(const EditedRow& row, const RowEdits& e, int32_t word) {
  uint32_t touched = 0;
  if (e.output) touched |= static_cast<uint32_t>(e.output[word]);
  if (e.prompt) touched |= static_cast<uint32_t>(e.prompt[word]);
#pragma unroll 1
  for (int32_t i = 0; i < e.pendings; ++i) {
    const int64_t token = e.pending_at(i);
    if (token >> 5 == word) touched |= 1u << (token & 31);
  }
#pragma unroll 1
  for (int32_t i = 0; i < e.drafts; ++i) {
    const int32_t token = row.room.drafted[i];
    if (token >> 5 == word) touched |= 1u << (token & 31);
  }
  const int32_t first = 32 * word;
  each_bias(e, row.vocab, first, first + 32, [&](int32_t token, int32_t) { touched |= 1u << (token & 31); });
  return row.vocab - first < 32 ? touched & ((1u << (row.vocab - first)) - 1u) : touched;
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

// Four elements of 16 bits as float32.
template <class T>
__device__ __forceinline__ uint4 widened(const uint2& half) {
  const uint4 v = {half.x, half.y, 0, 0};
  return {bits(T::at(v, 0)), bits(T::at(v, 1)), bits(T::at(v, 2)), bits(T::at(v, 3))};
}

// Four elements from `token` on, as they came; past the row's end, -inf.
__device__ __forceinline__ uint4 raw_four(const Row& row, int32_t token) {
  const Four four = four_elements(row, token);
  return {bits(four.value[0]), bits(four.value[1]), bits(four.value[2]), bits(four.value[3])};
}

// Four elements from `token` on, a multiple of four.
__device__ __forceinline__ uint4 edited_four(const EditedRow& row, int32_t token) {
  uint4 v = raw_four(row.raw, token);
  if (!row.edited) return v;
  const RowEdits e = row.room.edits[0];
  const uint32_t may = allowed_word(e, token / 32) >> token % 32;
#pragma unroll 1
  for (uint32_t left = touched_word(row, e, token / 32) >> token % 32 & may & 15u; left; left &= left - 1) {
    const int i = __ffs(static_cast<int>(left)) - 1;
    v = with_element(v, i, changed(row, e, token + i, Float32::at(v, i)));
  }
  return permitted(v, may);
}

__device__ __forceinline__ Four four_elements(const EditedRow& row, int32_t token) {
  const uint4 v = edited_four(row, token);
  return {{Float32::at(v, 0), Float32::at(v, 1), Float32::at(v, 2), Float32::at(v, 3)}};
}

__device__ __forceinline__ const char* address_of(const Row& row, int32_t token) {
  return static_cast<const char*>(row.data) + static_cast<int64_t>(token) * (row.dtype == DType::kFloat32 ? 4 : 2);
}

// Edits a batch that begins with `first`, a multiple of 32. All lanes of the warp call.
__device__ __forceinline__ void edit(const EditedRow& row, int32_t first, Batch<Float32>* batch) {
  const RowEdits e = row.room.edits[0];
  const int32_t word = first / 32 + lane_id();  // of this lane; each step of a batch has four words
  const int shift = lane_id() % 8 * 4;
  const bool inside = word * 32 < row.vocab;
  const uint32_t allowed = inside ? allowed_word(e, word) : 0u;
  const uint32_t touched = inside ? touched_word(row, e, word) & allowed : 0u;
  if (e.allowed) {
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      batch->vector[u] = permitted(batch->vector[u], __shfl_sync(kWarp, allowed, 4 * u + lane_id() / 8) >> shift);
  }
  if (!__any_sync(kWarp, touched != 0)) return;
  uint32_t mine = 0;  // four bits a vector
#pragma unroll
  for (int u = 0; u < kVectors; ++u)
    mine |= (__shfl_sync(kWarp, touched, 4 * u + lane_id() / 8) >> shift & 15u) << 4 * u;
#pragma unroll 1
  for (; mine; mine &= mine - 1) {
    const int at = __ffs(static_cast<int>(mine)) - 1, step = at / 4, i = at % 4;
    const uint4 v = batch->at(step);
    const uint4 after =
        with_element(v, i, changed(row, e, Batch<Float32>::token(first, step) + i, Float32::at(v, i)));
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      if (step == u) batch->vector[u] = after;
  }
}

template <class T>
__device__ __forceinline__ void Batch<T>::load(const EditedRow& row, int32_t first, int count) {
  const bool aligned = reinterpret_cast<uintptr_t>(row.raw.data) % (row.raw.dtype == DType::kFloat32 ? 16 : 8) == 0;
  if (!aligned || row.vocab - first < count * kPerStep) {
    uint4 staged[kVectors];  // as Batch::load of a row as it came
#pragma unroll 1
    for (int u = 0; u < kVectors; ++u) {
      const int32_t at = token(first, u);
      staged[u] = u < count && at < row.vocab ? raw_four(row.raw, at) : kNoElements;
    }
#pragma unroll
    for (int u = 0; u < kVectors; ++u) vector[u] = staged[u];
  } else if (row.raw.dtype == DType::kFloat32) {
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      vector[u] = u < count ? load_stream(address_of(row.raw, token(first, u))) : kNoElements;
  } else {
    uint2 half[kVectors] = {};
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      if (u < count) half[u] = load_stream_half(address_of(row.raw, token(first, u)));
    const bool brain = row.raw.dtype == DType::kBFloat16;
#pragma unroll
    for (int u = 0; u < kVectors; ++u)
      vector[u] = u >= count ? kNoElements : brain ? widened<BFloat16>(half[u]) : widened<Float16>(half[u]);
  }
  if (row.edited) edit(row, first, this);
}

template <class T>
__device__ __forceinline__ uint4 Batch<T>::load_again(const EditedRow& row, int32_t at) {
  return edited_four(row, at);
}

template <class T>
__device__ __forceinline__ void prefetch(const EditedRow& row, int32_t first, int count) {
#pragma unroll 1
  for (int u = 0; u < count; ++u) {
    const int32_t token = Batch<T>::token(first, u);
    if (token < row.vocab) prefetch_line(address_of(row.raw, token));
  }
}

// ---- decoding -------------------------------------------------------------------------------------------------------

// The rows of a request in kernels without edits, which do not pay for them.
struct NoEdits {
  using RowType = Row;
  static constexpr bool kEdited = false;
  __device__ Row row(bool, const Rows& rows, int64_t offset) const { return row_at(rows, offset); }
};

// Those of the target are edited.
struct BlockEdits {
  using RowType = EditedRow;
  static constexpr bool kEdited = true;
  EditRoom room;
  __device__ EditedRow row(bool of_target, const Rows& rows, int64_t offset) const {
    return {row_at(rows, offset), rows.vocab, of_target, room};
  }
};

// For a whole block: decodes the edits of a row with `drafts` drafts before it. `entry` is the place of its request's
// lists, `target` its own. Returns the status, the same to every thread.
__device__ __forceinline__ int32_t decode_edits(const EditParams& p, int32_t vocab, const RowPlace& entry,
                                                const RowPlace& target, int32_t drafts, const EditRoom& room) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  int32_t status = kStatusOk;
  RowEdits e = {};
  e.penalties = penalties_at(p, entry.outer, entry.inner, &status);
  const auto list = [&](const Lists& lists, const RowPlace& place) {
    return lists.data ? lists.at(place.outer, place.inner) : nullptr;
  };
  e.allowed = list(p.allowed, p.by_row & kAllowedByRow ? target : entry);
  e.wide = p.pending.wide;
  bool bad = false;
  if (p.pending.data) {
    const int64_t first = p.pending.offset(entry.outer, entry.inner);
    e.pending = static_cast<const char*>(p.pending.data) + first * (e.wide ? 8 : 4);
    e.pendings = static_cast<int32_t>(p.pending.size);
  }
#pragma unroll 1
  for (int32_t i = thread; i < e.pendings; i += threads) {
    const int64_t token = e.pending_at(i);
    bad |= token < -1 || token >= vocab;
  }
  if (__syncthreads_or(bad)) status |= kStatusParameter;
  if (e.penalties.on()) {
    e.output = list(p.output_mask, entry);
    if (e.output) e.counts = list(p.output_counts, entry);
    if (e.penalties.of_prompt()) e.prompt = list(p.prompt_mask, entry);
    e.drafts = drafts;
  } else {
    e.pendings = 0;
  }
  const RowPlace& of_bias = p.by_row & kBiasByRow ? target : entry;
  const BiasSpan span = bias_span_at(p, of_bias.outer, of_bias.inner, &status);
  e.bias_tokens = p.bias_tokens.data + span.begin;
  e.bias_values = p.bias_values.data + span.begin;
  e.biases = static_cast<int32_t>(span.end - span.begin);
  bad = false;
#pragma unroll 1
  for (int32_t i = thread; i < e.biases; i += threads) {
    const int32_t token = e.bias_tokens[i];
    bad |= token < 0 || token >= vocab || (i > 0 && token <= e.bias_tokens[i - 1]);
  }
  e.rising = !__syncthreads_or(bad);
  if (!e.rising) status |= kStatusParameter;
  if (thread == 0) room.edits[0] = e;
  __syncthreads();
  return status;
}

}  // namespace cuda
}  // namespace specdec
