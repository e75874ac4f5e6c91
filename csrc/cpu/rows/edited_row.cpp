// Lists the tokens that edits change, and their edited logits in a row. A .cpp file is compiled once, not in every op.
#include "edits.h"

#include <algorithm>

SPECDEC_BEGIN

namespace {

constexpr int kTokensAtOnce = 2;  // a cell's tokens are written in twos, even if it has fewer

int32_t edit_cells(int32_t vocab) { return (vocab + kCell - 1) / kCell; }

uint32_t word_of(const int32_t* mask, int32_t word) { return static_cast<uint32_t>(mask[word]); }
int32_t bit_of(const int32_t* mask, uint32_t token) { return mask[token / 32] >> token % 32 & 1; }

}  // namespace

// Calls f(token, value) for the entries of a span that are in order.
template <class F>
void Editor::each_bias(const BiasSpan& span, F&& f) {
  int32_t last = -1;
  for (int64_t i = span.begin; i < span.end; ++i) {
    const int32_t token = p.bias_tokens.data[i];
    if (token > last && token < vocab) f(last = token, decode_bias(p.bias_values.data[i]));
    else status |= SPECDEC_STATUS_PARAMETER;
  }
}

int32_t Editor::index_of(int32_t token) const {
  const uint64_t lower = (uint64_t{1} << token % kCell) - 1;
  return before[token / kCell] + __builtin_popcountll(bits[token / kCell] & lower);
}

void Editor::begin(int32_t later) {
  penalties = penalties_at(p, entry.outer, entry.inner, &status);
  seen = seen_list_at(p, entry.outer, entry.inner, &status);
  const int32_t cells = edit_cells(vocab), pending = p.pending.data ? static_cast<int32_t>(p.pending.size) : 0;
  const int64_t listed_tokens = int64_t{pending} + later;
  Arrays arrays(scratch_bytes(3, cells * sizeof(uint64_t) + (cells + 2 * listed_tokens) * sizeof(int32_t)));
  bits = arrays.take<uint64_t>(cells), before = arrays.take<int32_t>(cells);
  extra = arrays.take<int32_t>(listed_tokens), earlier = arrays.take<int32_t>(listed_tokens);
  for (int32_t i = 0; i < pending; ++i) {
    const int64_t token = p.pending.load(p.pending.offset(entry.outer, entry.inner) + i);
    if (token >= 0 && token < vocab) extra[extras++] = static_cast<int32_t>(token);
    else if (token != -1) status |= SPECDEC_STATUS_PARAMETER;
  }
  if (!penalties.on()) extras = later = 0;
  more = later;
  if (!(p.by_row & SPECDEC_BIAS_BY_ROW)) list_tokens(entry);
}

// Lists all tokens with a penalty, and those with a bias for this row.
void Editor::list_tokens(const RowIndex& of_bias) {
  const BiasSpan span = bias_span_at(p, of_bias.outer, of_bias.inner, &status);
  listed = 0;
  if (!penalties.on() && span.begin == span.end) return;
  const int32_t* const output = penalties.on() ? seen.of(p.output_mask) : nullptr;
  const int32_t* const prompt = penalties.of_prompt() ? seen.of(p.prompt_mask) : nullptr;
  mark(output, prompt, span);
  write_tokens();
  write_counts(output, prompt, output ? seen.of(p.output_counts) : nullptr);
  std::fill(bias, bias + listed, kNoBias);
  each_bias(span, [&](int32_t token, float value) { bias[index_of(token)] = value; });
}

// Sets the bits of the tokens to list.
void Editor::mark(const int32_t* output, const int32_t* prompt, const BiasSpan& span) {
  const int32_t cells = edit_cells(vocab), words = (vocab + 31) / 32;
  std::fill(bits, bits + cells, uint64_t{0});
  for (const int32_t* mask : {output, prompt}) {
    if (!mask) continue;
    for (int32_t cell = 0; cell < words / 2; ++cell)
      bits[cell] |= word_of(mask, 2 * cell) | static_cast<uint64_t>(word_of(mask, 2 * cell + 1)) << 32;
    if (words % 2) bits[cells - 1] |= word_of(mask, words - 1);
  }
  if (vocab % kCell) bits[cells - 1] &= (uint64_t{1} << vocab % kCell) - 1;
  const auto set = [&](int32_t token) { bits[token / kCell] |= uint64_t{1} << token % kCell; };
  for (int32_t i = 0; i < extras; ++i) set(extra[i]);
  each_bias(span, [&](int32_t token, float) { set(token); });
}

void Editor::write_tokens() {
  const int32_t cells = edit_cells(vocab);
  int32_t count = 0;
  for (int32_t cell = 0; cell < cells; ++cell) {
    before[cell] = count;
    count += __builtin_popcountll(bits[cell]);
  }
  listed = count;
  const int32_t capacity = listed + more + kTokensAtOnce;
  Arrays arrays(scratch_bytes(4, (int64_t{4} * capacity + kLanes) * sizeof(int32_t)));
  tokens = arrays.take<int32_t>(capacity), counts = arrays.take<int32_t>(capacity);
  bias = arrays.take<float>(capacity), values = arrays.take<float>(capacity + kLanes);
  // A cell's tokens are written in twos, which saves a branch; the next cell overwrites one too many.
  for (int32_t cell = 0; cell < cells; ++cell) {
    int32_t* at = tokens + before[cell];
    uint64_t left = bits[cell];
    const auto next = [&] {
      *at++ = cell * kCell + __builtin_ctzll(left | uint64_t{1} << (kCell - 1));
      left &= left - 1;
    };
    do next(), next();
    while (left);
  }
}

void Editor::write_counts(const int32_t* output, const int32_t* prompt, const int32_t* output_counts) {
  for (int32_t i = 0; i < listed; ++i) {  // without branches, which would be mispredicted
    const uint32_t token = static_cast<uint32_t>(tokens[i]);
    const int32_t in_output = output ? bit_of(output, token) : 0, in_prompt = prompt ? bit_of(prompt, token) : 0;
    const int32_t output_count = output_counts ? std::max(output_counts[token & -in_output], 1) : 1;
    static_assert(kUnseen == -1);
    counts[i] = (output_count & -in_output) | ((in_prompt - 1) & (in_output - 1));
  }
  for (int32_t i = 0; i < extras; ++i) {
    int32_t& count = counts[index_of(extra[i])];
    count = count_after(count);
  }
}

void Editor::count_token(int32_t token) {
  extra[extras++] = token;
  if (p.by_row & SPECDEC_BIAS_BY_ROW) return;  // list_tokens runs for each row and reads `extra`
  const int32_t i = index_of(token), cell = token / kCell;
  const uint64_t bit = uint64_t{1} << token % kCell;
  if (!(bits[cell] & bit)) {
    bits[cell] |= bit;
    for (int32_t later = cell + 1; later < edit_cells(vocab); ++later) ++before[later];
    std::copy_backward(tokens + i, tokens + listed, tokens + listed + 1);
    std::copy_backward(counts + i, counts + listed, counts + listed + 1);
    std::copy_backward(bias + i, bias + listed, bias + listed + 1);
    tokens[i] = token, counts[i] = kUnseen, bias[i] = kNoBias;
    ++listed;
  }
  earlier[extras - 1] = counts[i];
  counts[i] = count_after(counts[i]);
}

void Editor::uncount_token() {
  const int32_t token = extra[--extras];
  if (!(p.by_row & SPECDEC_BIAS_BY_ROW)) counts[index_of(token)] = earlier[extras];
}

void Editor::edit_row(Row* row, const RowIndex& target) {
  if (p.by_row & SPECDEC_BIAS_BY_ROW) list_tokens(target);
  const RowIndex& of_mask = p.by_row & SPECDEC_ALLOWED_BY_ROW ? target : entry;
  edits = {};
  const ListIndex allowed = allowed_list_at(p, of_mask.outer, of_mask.inner, &status);
  edits.allowed = reinterpret_cast<const uint32_t*>(allowed.of(p.allowed));
  if (listed > 0) {
    with_data(*row, [&](auto data) {
      for (int32_t i = 0; i < listed; ++i) values[i] = to_float(data[tokens[i]]);
    });
    for (int32_t i = 0; i < listed; i += kLanes) {
      const F32x16 count = signed_float(load(reinterpret_cast<const uint32_t*>(counts + i)));
      store(values + i, edited(load(values + i), load(bias + i), count, penalties));
    }
    edits.listed = bits, edits.before = before, edits.values = values;
  }
  row->edits = &edits;
}

SPECDEC_END
