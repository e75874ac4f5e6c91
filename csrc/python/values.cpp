#include <algorithm>
#include <cmath>
#include <limits>

#include "reading.h"

namespace specdec::python {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The parts of a LogitEdits.
enum { kAllowed, kBias, kRepetition, kFrequency, kPresence, kPrompt, kOutputMask, kCounts, kPending, kSeen, kIndex };

// Whether a number is a tensor, or not the one that means off: as a double, since a float could round to it.
bool other_than(PyObject* object, double off) {
  double value;
  return !real(object, &value) || value != off;
}

int32_t space_of(PyObject* object) {
  const bool probs = is_text(object, "probs");
  need(probs || is_text(object, "logits"));
  return probs ? SPECDEC_PROBS : SPECDEC_LOGITS;
}

}  // namespace

// ---- laws and noise -----------------------------------------------------------------------------------------------

void Reading::read_laws(const Item& item) {
  auto& law = field<specdec_law>(item.parts[0].field);
  read_law(law, raw(item), raw(item, 1), raw(item, 2), item.parts[0]);
  if (item.parts.size() == 1) return;
  auto& draft_law = field<specdec_law>(item.parts[1].field);
  PyObject* const space = draft_ ? item_of(draft_, 1) : Py_None;
  PyObject* const sampling = draft_ ? item_of(draft_, 2) : Py_None;
  PyObject* const of_both = space == Py_None ? raw(item) : space;
  if (sampling != Py_None) return read_law(draft_law, of_both, Py_None, sampling, item.parts[1]);
  draft_law.space = space_of(of_both), draft_law.temperature = law.temperature, draft_law.top_p.value = 1.0f;
  draft_law.rules = draft_law.space == SPECDEC_LOGITS ? law.rules & SPECDEC_DIVIDED : 0;
}

void Reading::read_law(specdec_law& law, PyObject* space, PyObject* temperature, PyObject* sampling, const Part& part) {
  law.top_p.value = law.temperature.value = 1.0f;
  law.space = space_of(space);
  const bool probs = law.space == SPECDEC_PROBS;
  if (sampling != Py_None) {
    need(temperature == Py_None && is_a(sampling, types.sampling));
    temperature = item_of(sampling, 0);
    need(temperature != Py_None);
  }
  if (temperature != Py_None) read_float(law.temperature, temperature, part, 0.0, kInfinity);
  // Probabilities are final. A double that is neither 0 nor 1 could become one of them as a float.
  double plain;
  need(!probs || !real(temperature, &plain) || plain == 0.0 || plain == 1.0);
  if (sampling != Py_None) read_filters(law, sampling, part);
}

// Reads the filters of a Sampling.
void Reading::read_filters(specdec_law& law, PyObject* tuple, const Part& part) {
  PyObject* const top_k = item_of(tuple, 1);
  if (whole(top_k, &law.top_k.value)) law.top_k.value = std::max<int64_t>(law.top_k.value, 0);
  else read_numbers(Kind::kCounter, &law.top_k, top_k, part);
  read_float(law.top_p, item_of(tuple, 2), part, 0.0, 1.0);
  read_float(law.min_p, item_of(tuple, 3), part, 0.0, 1.0);
  PyObject* const after = item_of(tuple, 4);
  need(PyTuple_Check(after) || PyList_Check(after));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(after); ++i) {
    PyObject* const cut = PySequence_Fast_ITEMS(after)[i];
    const bool top_k_first = is_text(cut, "top_k");
    need(top_k_first || is_text(cut, "min_p"));
    law.rules |= top_k_first ? SPECDEC_TOP_P_AFTER_TOP_K : SPECDEC_TOP_P_AFTER_MIN_P;
  }
  const bool all = is_text(item_of(tuple, 5), "all");
  need(all || is_text(item_of(tuple, 5), "first"));
  if (all) law.rules |= SPECDEC_TIES_ALL;
  if (!flag(item_of(tuple, 6))) law.rules |= SPECDEC_BEFORE_TEMPERATURE;
  if (flag(item_of(tuple, 7)) && law.space != SPECDEC_PROBS) law.rules |= SPECDEC_DIVIDED;
  // The C function refuses filters of probabilities.
  const bool has_top_k = law.top_k.data || law.top_k.value != 0;
  if (has_top_k || other_than(item_of(tuple, 2), 1.0) || other_than(item_of(tuple, 3), 0.0))
    law.rules |= SPECDEC_FILTERED;
}

void Reading::read_noise(const Item& item) {
  enum { kNoise, kPositions, kNonces, kRowSeeds };
  auto& noise = field<specdec_noise>(item.parts[kNoise].field);
  PyObject *const seed = raw(item), *const position = raw(item, 1), *const nonce = raw(item, 2);
  const auto is_zero = [](PyObject* object) {
    int64_t value;
    return whole(object, &value) && value == 0;
  };
  Tensor t;
  // A race may have a seed for each row, at position and nonce 0 alone.
  if (item.parts[kRowSeeds].field && is_zero(position) && is_zero(nonce) && view(seed, &t) && t.ndim == 2)
    return read_tensor(item.parts[kRowSeeds], seed);
  const auto counter = [&](specdec_counter& out, PyObject* object) {
    if (!whole(object, &out.value)) read_numbers(Kind::kCounter, &out, object, item.parts[kNoise]);
  };
  counter(noise.seed, seed);
  counter(noise.nonce, nonce);
  if (!is_a(position, types.input_positions)) return counter(noise.position, position);
  need(item.parts[kPositions].field != nullptr && item_of(position, 0) != Py_None);
  read_tensor(item.parts[kPositions], item_of(position, 0));
  if (item_of(position, 1) == Py_None) return;
  need(item.parts[kNonces].field != nullptr && is_zero(nonce));  // trees have none
  read_tensor(item.parts[kNonces], item_of(position, 1));
}

// ---- edits --------------------------------------------------------------------------------------------------------

void Reading::put_lists(Tensor t, Lists& out, bool rows) {
  need(t.ndim > 0 && t.has_unit_stride() && t.data);
  if (rows && lead_ < 0 && t.ndim == 2) need(t.merge(0, 0));
  else lead_by_two(&t, t.ndim - 1);
  need(t.ndim == 3 && put(Kind::kLists, t, &out, -1));
}

void Reading::read_lists(PyObject* object, int32_t lead, bool indexed, Lists& out, bool rows) {
  if (object == Py_None) return;
  Tensor t;
  tensor(object, &t);
  need(t.ndim == (indexed ? 1 : lead) + 1);
  put_lists(t, out, rows && !indexed);
  if (!rows && !indexed) has_entries(out.requests);
}

void Reading::read_index(PyObject* object, int32_t lead, Lists& out, bool rows) {
  if (object == Py_None) return;
  Tensor t;
  tensor(object, &t);
  need(t.element == Element::kInt32 && t.ndim == lead && t.merge(t.ndim, t.ndim));
  put_lists(t, out, rows);
  if (!rows) has_entries(out.requests);
}

// (tokens, values, spans); a span for each row is a pair, those of entries are the bounds between them.
void Reading::read_bias(PyObject* bias, specdec_edits& edits) {
  need(PyTuple_Check(bias) && PyTuple_GET_SIZE(bias) == 3);
  Tensor tokens, values, spans;
  tensor(item_of(bias, 0), &tokens), tensor(item_of(bias, 1), &values), tensor(item_of(bias, 2), &spans);
  need(put(Kind::kIndices, tokens, &edits.bias_tokens, -1));
  need(put(Kind::kValues, values, &edits.bias_values, -1));
  need(spans.ndim > 0 && spans.has_unit_stride());
  if (spans.ndim > 1) {
    need(spans.ndim == rows_dims_ && spans.shape[spans.ndim - 1] == 2);
    edits.by_row |= SPECDEC_BIAS_BY_ROW;
    return put_lists(spans, edits.bias_spans, true);
  }
  const int64_t count = spans.shape[0] - 1, inner = lead_ == 2 ? leading_[1] : 1;
  need(count > 0 && count % inner == 0);
  spans.ndim = 3, spans.shape[0] = count / inner, spans.shape[1] = inner, spans.shape[2] = 2;
  spans.strides[0] = inner, spans.strides[1] = 1;
  need(put(Kind::kLists, spans, &edits.bias_spans, -1));
  edits.bias_spans.request_stride = inner;
  if (edits.bias_tokens.size > 0) has_entries(count / inner);
}

void Reading::read_edits(const Item& item) {
  PyObject* const object = raw(item);
  auto& edits = field<specdec_edits>(item.parts[0].field);
  edits.repetition.value = 1.0f;
  if (object == Py_None) return;
  need(is_a(object, types.edits));
  edits_ = object, edited_ = &edits;
  const auto part = [&](int i) { return item_of(object, i); };
  const auto has = [&](int i) { return part(i) != Py_None; };
  const int32_t of_entries = lead_ < 0 ? 1 : lead_, of_rows = rows_dims_ - 1;
  Tensor t;
  const bool by_row = lead_ >= 0 || (has(kIndex) ? view(part(kIndex), &t) && t.ndim == of_rows
                                                 : view(part(kAllowed), &t) && t.ndim == rows_dims_);
  // Beside packed rows [L, V] masks of entries are [S, 1, words].
  const int32_t of_allowed = by_row ? of_rows : rows_dims_ == 2 ? 2 : 1;
  need(!has(kIndex) || has(kAllowed));
  read_index(part(kIndex), of_allowed, edits.allowed_index, by_row);
  read_lists(part(kAllowed), of_allowed, has(kIndex), edits.allowed, by_row);
  if (by_row && has(kAllowed)) edits.by_row |= SPECDEC_ALLOWED_BY_ROW;
  if (has(kBias)) read_bias(part(kBias), edits);
  double plain;
  need(!real(part(kRepetition), &plain) || plain != 0.0);
  read_float(edits.repetition, part(kRepetition), item.parts[0], 0.0, kInfinity);
  read_float(edits.frequency, part(kFrequency), item.parts[0], -kInfinity, kInfinity);
  read_float(edits.presence, part(kPresence), item.parts[0], -kInfinity, kInfinity);
  need(!has(kSeen) || has(kPrompt) || has(kOutputMask));
  read_index(part(kSeen), of_entries, edits.seen_index);
  read_lists(part(kPrompt), of_entries, has(kSeen), edits.prompt_mask);
  read_lists(part(kOutputMask), of_entries, has(kSeen), edits.output_mask);
  read_lists(part(kCounts), of_entries, has(kSeen), edits.output_counts);
  read_lists(part(kPending), of_entries, false, edits.pending);
  need(!other_than(part(kFrequency), 0.0) || !has(kOutputMask) || has(kCounts));
}

void Reading::drop_unread_edits() {
  specdec_edits& edits = *edited_;
  const bool counting = other_than(item_of(edits_, kFrequency), 0.0);
  const bool repeating = other_than(item_of(edits_, kRepetition), 1.0);
  const bool penalised = counting || repeating || other_than(item_of(edits_, kPresence), 0.0);
  need(penalised == edits.penalises());  // a double that is off as a float
  if (!((penalised && edits.output_mask.data) || (repeating && edits.prompt_mask.data))) edits.seen_index = {};
  if (edits.bias_tokens.size == 0) edits.bias_spans = {}, edits.by_row &= ~int64_t{SPECDEC_BIAS_BY_ROW};
  if (!repeating) edits.prompt_mask = {};
  if (!penalised) edits.output_mask = {}, edits.pending = {};
  if (!counting) edits.output_counts = {};
}

}  // namespace specdec::python
