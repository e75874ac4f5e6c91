// Seeds of races from the tokens before them (docs/watermark.md): what a text's own watermark is drawn by. A row of a
// chain or a tree has the committed text and the drafts on its path before it.
#pragma once

#include "noise.h"
#include "request.h"
#include "tree.h"

SPECDEC_BEGIN

constexpr int kWindow = 8;  // tokens at most

// The last tokens before a row, the latest first. -1 stands before the beginning of a text.
struct Window {
  int64_t token[kWindow];
  int32_t size;

  SPECDEC_HD int32_t count(int64_t of) const {
    int32_t found = 0;
    for (int32_t i = 0; i < size; ++i) found += token[i] == of;
    return found;
  }
};

// Whether two windows are one context: token for token, or as sets that may hold a token several times.
SPECDEC_HD bool is_same(const Window& a, const Window& b, bool ordered) {
  for (int32_t i = 0; i < a.size; ++i)
    if (ordered ? a.token[i] != b.token[i] : a.count(a.token[i]) != b.count(a.token[i])) return false;
  return true;
}

// A sum of a word for each token and its place, and a word of that: Bernstein's protected counter sum, with Philox.
SPECDEC_HD int64_t seed_of(const Window& window, Key key, bool ordered) {
  uint32_t sum[3] = {0, 0, 0};
  for (int32_t i = 0; i < window.size; ++i) {
    const uint32_t place = ordered ? static_cast<uint32_t>(i) + 1 : 0;
    const Noise term = {key, place, static_cast<uint32_t>(window.size), kStreamContext};
    const Words<uint32_t> w = noise_words(term, static_cast<uint32_t>(window.token[i]));
    for (int word = 0; word < 3; ++word) sum[word] += w.word[word];
  }
  const Words<uint32_t> w = noise_words({key, sum[1], sum[2], kStreamContext}, sum[0], 1);
  return static_cast<int64_t>(w.word[0] | static_cast<uint64_t>(w.word[1]) << 32);
}

// One request, decoded.
struct ContextRequest {
  const ContextParams& p;
  int64_t request, first_text = 0, first_token = 0;
  int64_t length = 0, start = 0;  // tokens of the text; the position from which on contexts count as seen
  int64_t key = 0, seed = 0;
  int32_t slots = 0;
  bool readable;

  SPECDEC_HD ContextRequest(const ContextParams& params, int64_t b) : p(params), request(b) {
    const Entry who = entry_of(p.request_index, b);
    readable = who.live() && who.index < p.text.requests;
    if (!readable) return;
    first_text = who.index * p.text.request_stride;
    first_token = b * p.draft_tokens.request_stride;
    slots = p.draft_tokens.slots;
    int64_t row = 0;
    if (p.cu_drafts.data) {
      const int64_t rows = p.tokens_by_row ? 1 : 0;  // that count beside drafts
      const int64_t from = p.cu_drafts.data[b] - rows * b, to = p.cu_drafts.data[b + 1] - rows * (b + 1);
      readable = from >= 0 && to >= from && to <= p.draft_tokens.slots - rows * p.seeds.rows;
      if (!readable) return;
      slots = static_cast<int32_t>(to - from);
      row = from + b;
      first_token = (from + rows * (b + 1)) * p.draft_tokens.slot_stride;
    }
    key = p.key.at(who.index);
    seed = p.noise.seed.at(who.index);
    start = p.start.at(who.index);
    const Tokens& x = p.input_positions;
    length = x.data ? x.at(b * x.request_stride + row * x.slot_stride) + 1 : p.noise.position.at(who.index);
  }

  SPECDEC_HD int32_t parent(int32_t node) const {
    int32_t status;
    return p.parents.data ? parent_of(p.parents, request * p.parents.request_stride, node, &status) : node - 1;
  }
  SPECDEC_HD int64_t draft_token(int32_t node) const {
    const int32_t slot = p.parents.data ? node : node - 1;
    return slot < slots ? p.draft_tokens.at(first_token + slot * p.draft_tokens.slot_stride) : -1;
  }
  SPECDEC_HD int64_t text(int64_t place) const {
    return place >= 0 && place < p.text.slots ? p.text.at(first_text + place * p.text.slot_stride) : -1;
  }
  SPECDEC_HD int32_t depth(int32_t node) const {
    int32_t found = 0;
    for (; node > 0; node = parent(node)) ++found;
    return found;
  }

  SPECDEC_HD Window window_of(int32_t node) const {
    Window window = {{}, static_cast<int32_t>(p.window)};
    int64_t place = length;
    for (int32_t i = 0; i < window.size; ++i) {
      window.token[i] = node > 0 ? draft_token(node) : text(--place);
      if (node > 0) node = parent(node);
    }
    return window;
  }
  SPECDEC_HD Window window_before(int64_t place) const {
    Window window = {{}, static_cast<int32_t>(p.window)};
    for (int32_t i = 0; i < window.size; ++i) window.token[i] = text(--place);
    return window;
  }

  // Whether a position from `start` on, before the node's, has the node's context. Of so many callers each looks at some.
  SPECDEC_HD bool seen(int32_t node, const Window& window, int32_t caller, int32_t callers) const {
    const int64_t end = length < p.text.slots ? length : p.text.slots;
    for (int64_t place = max(start, int64_t{0}) + caller; place < end; place += callers) {
      const int64_t latest = text(place - 1);
      if (p.ordered ? latest != window.token[0] : window.count(latest) == 0) continue;
      if (is_same(window, window_before(place), p.ordered)) return true;
    }
    int64_t place = length + depth(node);
    for (int32_t above = node; above > 0;) {
      above = parent(above);
      if (--place % callers == caller && place >= start && is_same(window, window_of(above), p.ordered)) return true;
    }
    return false;
  }

  SPECDEC_HD void write(int32_t node, bool marked) const {
    const int64_t at = request * p.seeds.columns + node;
    p.seeds.data[at] = !readable ? 0 : marked ? seed_of(window_of(node), key_of(key), p.ordered) : seed;
    p.positions.data[at] = !readable || marked ? 0 : length + depth(node);
  }
};

SPECDEC_END
