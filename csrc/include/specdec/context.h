// Seeds of races from the tokens before them (docs/watermark.md), which carry a text's watermark.
#pragma once

#include "c/noise.h"
#include "noise.h"
#include "request.h"
#include "tree.h"

SPECDEC_BEGIN

constexpr int kWindow = 8;  // tokens at most

SPECDEC_HD int64_t to_int64(const Words<uint32_t>& w) {
  return static_cast<int64_t>(w.word[0] | static_cast<uint64_t>(w.word[1]) << 32);
}

// The last tokens before a position, the latest first; sorted if they are a set.
struct Window {
  int64_t token[kWindow];
  int32_t size;

  SPECDEC_HD bool is(const Window& other) const {
    for (int32_t i = 0; i < size; ++i)
      if (token[i] != other.token[i]) return false;
    return true;
  }
  // A hash of a sum of hashes, one for each token and its index: Bernstein's protected counter sum, with Philox.
  SPECDEC_HD int64_t seed(Key key) const {
    uint32_t sum[3] = {0, 0, 0};
    for (int32_t i = 0; i < size; ++i) {
      const Noise term = {key, static_cast<uint32_t>(i) + 1, static_cast<uint32_t>(size), kStreamContext};
      const Words<uint32_t> w = noise_words(term, static_cast<uint32_t>(token[i]));
      for (int word = 0; word < 3; ++word) sum[word] += w.word[word];
    }
    return to_int64(noise_words({key, sum[1], sum[2], kStreamContext}, sum[0], 1));
  }
};

// A row of a chain or a tree. Its text, up to `end`, is the request's `length` tokens and the drafts on its path.
struct ContextRow {
  const ContextParams& p;
  int64_t request, first_token, length = 0, end = 0;
  int32_t node, slots;
  Entry source;  // the entry whose text the request continues

  SPECDEC_HD ContextRow(const ContextParams& params, int64_t b, int32_t row)
      : p(params), request(b), node(row), source(decode_entry(p.request_index, b)) {
    slots = p.draft_tokens.slots;
    first_token = b * p.draft_tokens.request_stride;
    bool within = source.index < p.text.requests;
    if (p.cu_drafts.data) {
      const int64_t rows = p.tokens_by_row ? 1 : 0;  // a request's rows beyond its drafts
      const int64_t from = p.cu_drafts.data[b], to = p.cu_drafts.data[b + 1] - rows;
      const bool begins = b > 0 ? from >= rows * b : from == 0;
      within = within && begins && to >= from && to + rows <= slots - rows * (p.seeds.rows - b - 1);
      slots = static_cast<int32_t>(to - from);
      first_token = (from + rows) * p.draft_tokens.slot_stride;
    }
    if (!within) source.kind = Entry::kOutside;
    if (!source.live()) return;
    end = length = min(max(position(), int64_t{0}), static_cast<int64_t>(p.text.slots));
    for (int32_t above = node; above > 0; above = parent(above)) ++end;
  }

  // Whether the key may seed the row: its context is whole. `seen`: whether the same context occurred before; each of
  // `callers` compares some of the positions.
  SPECDEC_HD bool is_marked() const { return source.live() && p.key.at(source.index) != 0 && first() <= end; }
  SPECDEC_HD bool seen(int32_t caller, int32_t callers) const {
    if (!is_marked()) return false;
    const Window context = window(end);
    for (int64_t at = first() + caller; at < end; at += callers)
      if ((!p.ordered || token(at - 1) == context.token[0]) && context.is(window(at))) return true;
    return false;
  }
  SPECDEC_HD int64_t seed(bool marked) const {
    if (!source.live()) return 0;
    if (marked) return window(end).seed(key_of(p.key.at(source.index)));
    const Key key = key_of(p.seed.at(request * p.seed.slot_stride));
    return to_int64(noise_words({key, static_cast<uint32_t>(position() + end - length), 0, kStreamContext}, 0u, 2));
  }

 private:
  SPECDEC_HD int64_t position() const { return p.position.at(request * p.position.slot_stride); }
  // The first position with a whole context.
  SPECDEC_HD int64_t first() const { return max(p.start.at(source.index), int64_t{0}) + p.window; }
  SPECDEC_HD int32_t parent(int32_t of) const {
    int32_t status;
    return p.parents.data ? parent_of(p.parents, request * p.parents.request_stride, of, &status) : of - 1;
  }
  // The row's text at an index.
  SPECDEC_HD int64_t token(int64_t index) const {
    if (index < length) return p.text.at(source.index * p.text.request_stride + index * p.text.slot_stride);
    int32_t at = node;
    for (int64_t last = end - 1; last > index; --last) at = parent(at);
    const int32_t slot = p.parents.data ? at : at - 1;
    return slot < slots ? p.draft_tokens.at(first_token + slot * p.draft_tokens.slot_stride) : -1;
  }
  SPECDEC_HD Window window(int64_t before) const {
    Window w = {{}, static_cast<int32_t>(p.window)};
    for (int32_t i = 0; i < w.size; ++i) {
      const int64_t next = token(before - 1 - i);
      int32_t at = i;
      for (; !p.ordered && at > 0 && w.token[at - 1] > next; --at) w.token[at] = w.token[at - 1];
      w.token[at] = next;
    }
    return w;
  }
};

SPECDEC_END
