#include "direct.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "check_parents.h"
#include "specdec/c/trees.h"
#include "specdec/mass.h"

namespace specdec::python {

namespace {

// ---- set once by use_functions --------------------------------------------------------------------------------------

// Types that group several arguments.
struct Types {
  PyObject *sampling, *edits, *draft, *packing, *input_positions, *output_format;
} types = {};

std::vector<PyObject*> watchers;  // functions without arguments

constexpr Element kFloats[] = {Element::kFloat32, Element::kBFloat16, Element::kFloat16};
PyObject* floats[std::size(kFloats)] = {};  // torch's dtypes of these

// torch's C functions that make a tensor, wrap it in a Python object, and release the C handle. They take a third of
// the time of torch.empty_strided. Null where a torch has no such functions: then Python makes outputs.
struct {
  int (*empty_strided)(int64_t dims, const int64_t* shape, const int64_t* strides, int32_t dtype, int32_t device,
                       int32_t index, void** made);
  PyObject* (*wrap)(const void* made);
  int (*release)(void* made);
} functions = {};

// torch's number of a type.
int32_t number_of(Element element) {
  switch (element) {
    case Element::kUInt8: return 0;
    case Element::kInt32: return 3;
    case Element::kInt64: return 4;
    case Element::kFloat16: return 5;
    case Element::kFloat32: return 6;
    case Element::kBool: return 11;
    case Element::kBFloat16: return 15;
    case Element::kUInt16: return 27;
    case Element::kUInt32: return 28;
  }
  return -1;
}

// Thrown to decline a call, which Python then reads. Conditions that the C function checks are not checked here.
struct Declined {};
[[noreturn, gnu::cold, gnu::noinline]] void decline() { throw Declined(); }
void need(bool fine) {
  if (!fine) decline();
}

void decline_if_watched() {
  for (PyObject* const watcher : watchers) need(PyObject_IsTrue(Ref(PyObject_CallNoArgs(watcher)).get()) == 0);
}

// ---- reading --------------------------------------------------------------------------------------------------------

constexpr double kInfinity = std::numeric_limits<double>::infinity();

PyObject* item_of(PyObject* tuple, size_t i) { return PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)); }

bool is_a(PyObject* object, PyObject* type) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type; }

bool flag(PyObject* object) {
  need(object == Py_True || object == Py_False);
  return object == Py_True;
}

bool is_text(PyObject* object, std::string_view word) {
  return PyUnicode_CheckExact(object) && PyUnicode_IS_COMPACT_ASCII(object) &&
         std::string_view(reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(object)),
                          static_cast<size_t>(PyUnicode_GET_LENGTH(object))) == word;
}

bool is_contiguous(const Tensor& t) {
  int64_t step = 1;
  for (int32_t i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

// Folds the first `count` dimensions into two: the last of them, and all before it. Without a common stride they stay,
// and no field takes that many dimensions.
void fold(Tensor* t, int32_t count) {
  if (count > 2) t->merge(0, count - 1);
  if (count < 2) t->merge(0, count), t->merge(1, 1);
}

// Lists whose memory a thread's next call reuses.
struct Scratch {
  std::vector<Span> spans;
  std::vector<specdec_cache_layer> layers;
};

class Direct {
 public:
  Direct(const Plan& plan, int32_t device, PyObject* tuple, Scratch& scratch)
      : plan_(plan), tuple_(tuple), device_{device, -1}, spans_(scratch.spans), layers_(scratch.layers) {
    spans_.clear();
    layers_.clear();
    std::fill(std::begin(size_), std::end(size_), -1);
    std::memset(params.bytes, 0, plan.table.bytes);
    indexed_ = plan.index && raw(*plan.index) != Py_None;
    packed_ = plan.packs && raw(*plan.packs) != Py_None;
  }

  void read() {
    if (plan_.draft_tokens) sizes();
    for (const Item& item : plan_.items) read(item);
    if (plan_.edits) read_edits(field<specdec_edits>(plan_.edits->parts[0].field), raw(*plan_.edits));
    if (plan_.index) {
      auto& index = field<specdec_request_index>(plan_.index->parts[0].field);
      index.entries = !indexed_ ? kAnyIndex : entries() >= 0 ? entries() : numbers_;
    }
    fit();
    need(!has_outputs_ || !meet(spans_));
  }

  // Makes the outputs that the caller did not pass. They live as long as the call.
  void make_outputs() {
    for (int i = 0; i < num_outputs_; ++i) {
      Output& output = outputs_[i];
      Tensor& t = output.tensor;
      if (output.from_caller) {
        owned_[i] = Ref(new_reference(output.from_caller));
        continue;
      }
      void* made = nullptr;
      const bool on_host = device_.type == 1;
      need(functions.wrap != nullptr);
      need(functions.empty_strided(t.ndim, t.shape, t.strides, number_of(t.element), !on_host,
                                   on_host ? 0 : device_.index, &made) == 0);
      PyObject* const wrapped = functions.wrap(made);
      functions.release(made);
      owned_[i] = Ref(wrapped);
      if (!view(wrapped, &t)) throw std::runtime_error("a new output cannot be written");
      put_output(*output.part, t);
    }
  }

  // The function's result: its NamedTuple of outputs, or the first of them.
  PyObject* result() {
    if (!plan_.out_type) return owned_[0].release();
    const auto count = static_cast<Py_ssize_t>(plan_.out ? plan_.out->parts.size() : static_cast<size_t>(num_outputs_));
    auto* const type = reinterpret_cast<PyTypeObject*>(plan_.out_type);
    Ref made(type->tp_alloc(type, count));
    for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(made.get(), i, owned_[i].release());
    return made.release();
  }

  Params params;

 private:
  struct Output {
    const Part* part;
    PyObject* from_caller;  // null: make_outputs makes it, like `tensor`
    Tensor tensor;
  };

  PyObject* raw(const Item& item, size_t more = 0) const { return item_of(tuple_, item.at + more); }
  int64_t& size(char name) { return size_[name - 'A']; }
  template <class T>
  T& field(const Field* field) { return params.at<T>(field->at); }
  template <class T>
  T* find_field(const char* name) {
    const Field* const field = plan_.table.find(name);
    return field ? &params.at<T>(field->at) : nullptr;
  }

  // ---- sizes and tensors --------------------------------------------------------------------------------------------

  // E; without request_index as many as there are requests.
  int64_t entries() {
    if (size('E') < 0 && !indexed_) size('E') = size('B');
    return size('E');
  }

  void bind(char name, int64_t got, bool or_more = false) {
    if (name <= '9') return;  // the C function checks fixed sizes
    int64_t& bound = name == 'E' ? (entries(), size('E')) : size(name);
    if (name == 'M') size('N') = got + 1;
    need(name != 'N' || got > 0);
    if (bound < 0) bound = got;
    need(or_more ? got >= bound : got == bound);
  }

  void lead(const Tensor& t, int32_t begin, int32_t others) {
    lead_ = std::max(t.ndim - others, 0);
    need(!indexed_ || lead_ == 1 || lead_ == 2);
    std::copy_n(t.shape + begin, lead_, leading_);
    size('B') = lead_ > 0 ? leading_[0] : 1;
  }

  void match(const Tensor& t, const Shape& shape) {
    int32_t dims = 0, at = 0;
    for (int i = 0; i < shape.count; ++i) {
      const Shape::Dim dim = shape.dim[i];
      if (dim.leads() && lead_ < 0) lead(t, i, shape.count - 1);
      if (dim.size != '^') dims += dim.leads() ? lead_ : 1;  // '^': any number of dimensions of any size
      if (dim.may_miss && dims == t.ndim + 1) missing_ = true, dims -= 1;
    }
    if (shape.dim[0].size == '^') at = std::max(t.ndim - dims, 0);
    need(dims == t.ndim - at);
    for (int i = 0; i < shape.count && at < t.ndim; ++i) {
      const Shape::Dim dim = shape.dim[i];
      for (int32_t j = 0; dim.leads() && j < lead_; ++j, ++at) {
        if (dim.size == '~' && j == 0) bind('E', t.shape[at]);
        else need(t.shape[at] == leading_[j]);
      }
      if (!dim.leads() && dim.size != '^') bind(dim.size, t.shape[at++], dim.or_more);
    }
  }

  void tensor(PyObject* object, Tensor* t, bool written = false) {
    need(view(object, t));
    if (device_.index < 0) device_.index = t->device.index;
    need(t->device.type == device_.type && t->device.index == device_.index);
    spans_.push_back({static_cast<const char*>(t->data), t->end(), written});
    has_outputs_ |= written;
  }

  // Writes a tensor to its field, with leading dimensions folded as the field's struct has them.
  void put(const Part& part, Tensor t, const Shape& shape) {
    if (missing_ && shape.dim[shape.count - 1].may_miss) t.merge(t.ndim, t.ndim);
    if (part.is(Mark::kLastMerged) || part.is(Mark::kFlattened)) {
      need(is_contiguous(t));
      t.merge(part.is(Mark::kFlattened) ? 0 : t.ndim - 2, t.ndim);
    } else if (shape.leads()) {
      const int32_t leading = shape.dim[0].size == '^' ? t.ndim - (shape.count - 1) : lead_;
      if (part.is(Mark::kContiguous)) t.merge(0, leading);
      else fold(&t, leading);
    }
    put_as_it_is(part.field, t);
  }
  void put_as_it_is(const Field* field, const Tensor& t) { put_in(field->kind, t, params.bytes + field->at); }
  static void put_in(Kind kind, const Tensor& t, void* to, int64_t rows = -1) {
    need(python::put(kind, t, to, rows));
  }

  const Shape& shape_of(const Part& part) const { return packed_ && part.packed.count ? part.packed : part.shape; }

  // ---- one item -----------------------------------------------------------------------------------------------------

  void read(const Item& item) {
    switch (item.role) {
      case Role::kTensor: case Role::kPacks: return read_tensor(item.parts[0], raw(item));
      case Role::kDraft: return read_draft(item);
      case Role::kPacking: return;  // by sizes()
      case Role::kSize: return &item == plan_.max_depth ? void() : read_size(item);  // the depth: by read_parents()
      case Role::kInt: return read_int(item);
      case Role::kChoice: return read_choice(item);
      case Role::kFlag: field<bool>(item.parts[0].field) = flag(raw(item)); return;
      case Role::kNumber: return read_number(item, raw(item));
      case Role::kLaw: {
        auto& law = field<specdec_law>(item.parts[0].field);
        read_law(law, raw(item), raw(item, 1), raw(item, 2), item.parts[0].shape);
        if (draft_law_) finish_draft_law(law, raw(item), item.parts[0].shape);
        return;
      }
      case Role::kEdits: return;  // read() does it last, because other items may bind E
      case Role::kNoise: return read_noise(item);
      case Role::kOut: return read_out(item);
      case Role::kOutput: return add_output(item.parts[0], raw(item));
      case Role::kStatus:
        if (raw(item) != Py_None) add_output(item.parts[0], raw(item) == Py_True ? Py_None : raw(item));
        return;
      case Role::kOutputFormat: return read_output_format(item);
      case Role::kParents: return read_parents(item);
      case Role::kWritten: return read_written(item.parts[0], raw(item));
      case Role::kMask: return read_mask(item);
      case Role::kLayers:
        read_layers(raw(item));
        field<specdec_cache_layers>(item.parts[0].field) = {layers_.data(), static_cast<int64_t>(layers_.size())};
    }
  }

  void read_tensor(const Part& part, PyObject* object) {
    if (object == Py_None && part.is(Mark::kOptional)) return;
    if (part.field == plan_.map_of_rows) return read_map(part.field, object, size('V'), INT64_MAX);
    Tensor t;
    const Shape& shape = shape_of(part);
    tensor(object, &t);
    if (shape.count > 0) match(t, shape);
    need(!part.is(Mark::kUnitStride) || t.has_unit_stride());
    need(!part.is(Mark::kContiguous) || is_contiguous(t));
    need(!part.is(Mark::kInt64) || t.element == Element::kInt64);
    if (part.field->kind == Kind::kRows) {
      const int64_t vocab = t.shape[t.ndim - 1];
      need(vocab > 0 && vocab <= INT32_MAX && t.has_unit_stride());
      if (rows_dims_ < 0) {
        rows_dims_ = t.ndim;
        rows_element_ = t.element;
        std::copy_n(t.shape, t.ndim, rows_shape_);
      }
    }
    put(part, t, shape);
  }

  void read_map(const Field* to, PyObject* object, int64_t vocab, int64_t most) {
    if (object == Py_None) return;
    Tensor t;
    tensor(object, &t);
    put_as_it_is(to, t);
    const auto& map = field<specdec_indices>(to);
    need(map.size == vocab);
    if (!t.on_host()) return;
    int64_t before = -1;
    bool rises = true;
    for (int64_t i = 0; i < map.size; ++i) rises &= map.data[i] > before, before = map.data[i];
    need(rises && before < most);
  }

  void read_draft(const Item& item) {
    auto& law = field<specdec_law>(item.parts[2].field);
    PyObject *rows = raw(item), *space = Py_None, *sampling = Py_None, *map = Py_None;
    if (is_a(rows, types.draft)) {
      space = item_of(rows, 1), sampling = item_of(rows, 2), map = item_of(rows, 3);
      rows = item_of(rows, 0);
      need(rows != Py_None);
    }
    Part part = item.parts[0];
    if (packed_ && indexed_) part.packed = part.shape, part.packed.dim[1].or_more = true;
    read_tensor(part, rows);
    if (rows != Py_None) {
      const int64_t vocab = field<Rows>(part.field).vocab;
      need(vocab <= size('V'));
      read_map(item.parts[1].field, map, vocab, size('V'));
      has_draft_ = true;
    }
    draft_space_ = space, draft_sampling_ = sampling, draft_law_ = &law;
  }

  void read_size(const Item& item) {
    int64_t value;
    if (raw(item) == Py_None && item.parts[0].is(Mark::kOptional)) return;
    const Shape& shape = item.parts[0].shape;  // a second letter is the size that this one may be at most
    need(whole(raw(item), &value) && item.takes(value));
    need(shape.count < 2 || value <= size(shape.dim[1].size));
    bind(shape.dim[0].size, value);
  }

  void read_int(const Item& item) {
    int64_t value;
    need(whole(raw(item), &value));
    const Field* const to = item.parts[0].field;
    if (to->kind == Kind::kInt32) field<int32_t>(to) = static_cast<int32_t>(value);
    else field<int64_t>(to) = value;
  }

  void read_choice(const Item& item) {
    const auto& choices = item.choices;
    const auto chosen =
        std::find_if(choices.begin(), choices.end(), [&](const auto& x) { return is_text(raw(item), x); });
    field<int32_t>(item.parts[0].field) = static_cast<int32_t>(chosen - choices.begin());  // C refuses one past the end
  }

  // ---- numbers ------------------------------------------------------------------------------------------------------

  // Broadcasts the first `lead` dimensions of a tensor to these sizes; the first is -1 where it is an unbound E.
  // Without `shared` the dimensions must have these sizes.
  void expand(const Tensor& t, int32_t lead, int64_t* wanted, int32_t dims, bool shared, Tensor* out) {
    const int32_t rest = t.ndim - lead, missing = dims - lead;
    need(missing >= 0 && (shared || missing == 0));
    *out = t;
    out->ndim = dims + rest;
    for (int32_t i = 0; i < dims; ++i) {
      const int64_t got = i < missing ? 1 : t.shape[i - missing];
      const bool fits_all = got == 1 && shared;
      if (wanted[i] < 0 && !fits_all) size('E') = wanted[i] = got;
      need(got == wanted[i] || fits_all);
      out->shape[i] = wanted[i] < 0 ? 1 : wanted[i];
      out->strides[i] = got == 1 ? 0 : t.strides[i - missing];
    }
    std::copy_n(t.shape + lead, rest, out->shape + dims);
    std::copy_n(t.strides + lead, rest, out->strides + dims);
  }

  // Broadcasts a tensor to a shape.
  void broadcast(const Tensor& t, const Shape& shape, Tensor* out) {
    int32_t dims = 0;
    int64_t wanted[Tensor::kMaxDims];
    for (int i = 0; i < shape.count; ++i) {
      const char letter = shape.dim[i].size;
      if (shape.leads() && i == 0) {
        for (int32_t j = 0; j < lead_; ++j) wanted[dims++] = letter == '~' && j == 0 ? entries() : leading_[j];
        continue;
      }
      wanted[dims++] = letter <= '9' ? letter - '0' : letter == 'E' ? entries() : size(letter);
    }
    expand(t, t.ndim, wanted, dims, true, out);
    numbers_ = dims > 0 ? out->shape[0] : 1;
    if (shape.dim[0].size == '=') out->merge(0, lead_), out->merge(0, 0);  // all as the rows of one request
    else if (shape.leads()) fold(out, lead_);
  }

  void read_number(const Item& item, PyObject* object) {
    const Field* const to = item.parts[0].field;
    const Shape& shape = shape_of(item.parts[0]);
    if (to->kind == Kind::kNumber) {
      auto& out = field<specdec_number>(to);
      if (PyFloat_CheckExact(object) || PyLong_CheckExact(object))
        return read_float(out, object, shape, item.least, item.most);
      // With padded drafts a tensor of one dimension has a number per request, not per slot.
      Tensor t;
      const bool each = shape.count == 2 && !packed_ && view(object, &t) && t.ndim == 1;
      Shape alone = shape;
      if (each) alone.count = 1;
      return read_numbers(Kind::kNumber, &out, object, alone);
    }
    int64_t value;
    if (!whole(object, &value)) return read_numbers(to->kind, params.bytes + to->at, object, shape);
    field<specdec_counter>(to).value = value;
    need(item.takes(value));
  }

  void read_numbers(Kind kind, void* to, PyObject* object, const Shape& shape) {
    Tensor t, seen;
    tensor(object, &t);
    broadcast(t, shape, &seen);
    put_in(kind, seen, to);
  }
  void read_float(specdec_number& out, PyObject* object, const Shape& shape, double least, double most) {
    double value;
    if (!real(object, &value)) return read_numbers(Kind::kNumber, &out, object, shape);
    out = {nullptr, 0, 0, static_cast<float>(value), false};
    need(value >= least && value <= most && std::isfinite(value));
  }

  // ---- laws ---------------------------------------------------------------------------------------------------------

  int32_t space_of(PyObject* object) {
    const bool probs = is_text(object, "probs");
    need(probs || is_text(object, "logits"));
    return probs ? SPECDEC_PROBS : SPECDEC_LOGITS;
  }

  void read_law(specdec_law& law, PyObject* space, PyObject* temperature, PyObject* sampling, const Shape& shape) {
    law.top_p.value = 1.0f;
    law.space = space_of(space);
    const bool probs = law.space == SPECDEC_PROBS;
    const bool sampled = sampling != Py_None;
    if (sampled) {
      need(temperature == Py_None && is_a(sampling, types.sampling));
      temperature = item_of(sampling, 0);
    }
    law.temperature.value = 1.0f;
    if (temperature != Py_None || sampled) read_float(law.temperature, temperature, shape, 0.0, kInfinity);
    // Probabilities are final. A double that is neither 0 nor 1 could become one of them as a float.
    double plain;
    need(!probs || !real(temperature, &plain) || plain == 0.0 || plain == 1.0);
    if (sampled) read_filters(law, sampling, shape);
  }

  // Reads the filters of a Sampling.
  void read_filters(specdec_law& law, PyObject* tuple, const Shape& shape) {
    PyObject* const top_k = item_of(tuple, 1);
    if (whole(top_k, &law.top_k.value)) law.top_k.value = std::max<int64_t>(law.top_k.value, 0);
    else read_numbers(Kind::kCounter, &law.top_k, top_k, shape);
    read_float(law.top_p, item_of(tuple, 2), shape, 0.0, 1.0);
    read_float(law.min_p, item_of(tuple, 3), shape, 0.0, 1.0);
    PyObject* const after = item_of(tuple, 4);
    need(PyTuple_CheckExact(after));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(after); ++i) {
      PyObject* const word = PyTuple_GET_ITEM(after, i);
      const bool top_k_first = is_text(word, "top_k");
      need(top_k_first || is_text(word, "min_p"));
      law.rules |= top_k_first ? SPECDEC_TOP_P_AFTER_TOP_K : SPECDEC_TOP_P_AFTER_MIN_P;
    }
    const bool all = is_text(item_of(tuple, 5), "all");
    need(all || is_text(item_of(tuple, 5), "first"));
    if (all) law.rules |= SPECDEC_TIES_ALL;
    const bool at_temperature = flag(item_of(tuple, 6)), divided = flag(item_of(tuple, 7));
    if (!at_temperature) law.rules |= SPECDEC_BEFORE_TEMPERATURE;
    if (divided && law.space != SPECDEC_PROBS) law.rules |= SPECDEC_DIVIDED;
    // Compared as doubles, as Python does: a float could round to "off".
    double top_p, min_p;
    const bool filters = law.top_k.data || law.top_k.value != 0 || !real(item_of(tuple, 2), &top_p) || top_p != 1.0 ||
                         !real(item_of(tuple, 3), &min_p) || min_p != 0.0;
    if (filters) law.rules |= SPECDEC_FILTERED;  // the C function refuses filters of probabilities
  }

  void finish_draft_law(const specdec_law& target, PyObject* target_space, const Shape& shape) {
    specdec_law& law = *draft_law_;
    const int32_t space = draft_space_ == Py_None ? target.space : space_of(draft_space_);
    if (draft_sampling_ == Py_None) {
      law.space = space, law.temperature = target.temperature, law.top_p.value = 1.0f;
      law.rules = space == SPECDEC_LOGITS ? target.rules & SPECDEC_DIVIDED : 0;
      return;
    }
    read_law(law, draft_space_ != Py_None ? draft_space_ : target_space, Py_None, draft_sampling_, shape);
  }

  // ---- noise --------------------------------------------------------------------------------------------------------

  void read_noise(const Item& item) {
    auto& noise = field<specdec_noise>(item.parts[0].field);
    const Shape& shape = item.parts[0].shape;  // sizes other than entries: rows whose noise Python checked before
    PyObject* position = raw(item, 1);
    const auto is_zero = [](PyObject* object) {
      int64_t value;
      return whole(object, &value) && value == 0;
    };
    Tensor rows;
    // A race may have a seed for each row, at position and nonce 0 alone.
    if (plan_.row_seeds && is_zero(position) && is_zero(raw(item, 2)) &&
        field<int32_t>(plan_.method) == SPECDEC_RACE && view(raw(item), &rows) && rows.ndim > 1)
      return read_tensor(*plan_.row_seeds, raw(item));
    const bool shared = (shape.dim[0].size == 'E' || shape.dim[0].size == '~') && !entered_alone();
    if (is_a(position, types.input_positions)) {
      need(plan_.input_positions);
      read_tensor(*plan_.input_positions, item_of(position, 0));
      if (item_of(position, 1) != Py_None) {
        need(plan_.input_nonces && is_zero(raw(item, 2)));  // trees have none
        read_tensor(*plan_.input_nonces, item_of(position, 1));
      }
      position = nullptr;
    }
    bool plain = position != nullptr;
    const auto counter = [&](specdec_counter& out, PyObject* object) {
      if (whole(object, &out.value)) return;
      plain = false;
      read_numbers(Kind::kCounter, &out, object, shape);
    };
    counter(noise.seed, raw(item));
    if (position) counter(noise.position, position);
    counter(noise.nonce, raw(item, 2));
    need(!shared || !plain);
  }

  // Whether there is one request at most, so that no two share their noise.
  bool entered_alone() {
    if (plan_.target_tokens && raw(*plan_.target_tokens) != Py_None) return true;
    int64_t requests = size('B');
    for (int32_t i = 1; i < lead_; ++i) requests *= leading_[i];
    return requests <= 1;
  }

  // ---- outputs ------------------------------------------------------------------------------------------------------

  static Element element_of(Kind kind) {
    switch (kind) {
      case Kind::kTokenOutput: case Kind::kInt64Output: return Element::kInt64;
      case Kind::kFloatOutput: return Element::kFloat32;
      case Kind::kByteOutput: return Element::kUInt8;
      default: return Element::kInt32;
    }
  }

  // Fills in a contiguous tensor of an output's shape, without memory.
  void like(const Part& part, Tensor* out) {
    out->data = nullptr;
    out->element = part.field->kind == Kind::kRows ? rows_element_ : element_of(part.field->kind);
    out->ndim = 0;
    const Shape& shape = shape_of(part);
    for (int i = 0; i < shape.count; ++i) {
      const char letter = shape.dim[i].size;
      if (shape.dim[i].may_miss && missing_) continue;
      if (letter == '*') {
        for (int32_t j = 0; j < lead_; ++j) out->shape[out->ndim++] = leading_[j];
        continue;
      }
      need(out->ndim < Tensor::kMaxDims);
      int64_t extent = letter <= '9' ? letter - '0' : size(letter);
      if (letter == 'I') extent = (size('V') + 31) / 32;
      if (letter == 'J') extent = (size('V') + kMassTile - 1) / kMassTile;
      out->shape[out->ndim++] = extent;  // an unbound size is below 0, and torch makes no such tensor
    }
    int64_t step = 1;
    for (int32_t i = out->ndim - 1; i >= 0; --i) out->strides[i] = step, step *= std::max<int64_t>(out->shape[i], 1);
  }

  // Reads an output that the caller always passes, and that may be larger than the rows written.
  void read_written(const Part& part, PyObject* object) {
    if (object == Py_None && part.is(Mark::kOptional)) return;
    Tensor t;
    tensor(object, &t, true);
    match(t, part.shape);
    need(t.has_unit_stride());
    outputs_[num_outputs_++] = {&part, object, t};
    put_as_it_is(part.field, t);
  }

  void add_output(const Part& part, PyObject* from_caller) {
    need(num_outputs_ < kMostOutputs);
    if (size('B') < 0) size('B') = size('E') < 0 ? 1 : size('E');  // of parents that all requests share
    Output& output = outputs_[num_outputs_++];
    output.part = &part, output.from_caller = from_caller == Py_None ? nullptr : from_caller;
    if (from_caller == Py_True && part.field->kind == Kind::kRows) {  // True: the op overwrites its input
      output.from_caller = raw(plan_.items.front());
      const Field* const rows = plan_.items.front().parts[0].field;
      field<Rows>(part.field) = field<Rows>(rows);
      return;
    }
    if (from_caller == Py_None && part.field->kind == Kind::kByteOutput) {
      const int32_t layout = *find_field<int32_t>("layout");
      Tensor& t = output.tensor;
      need(layout != SPECDEC_TREE_FULL);
      like(part, &t);
      t.element = Element::kBool;
      if (layout == SPECDEC_TREE_NODES) return;
      t.ndim = 2, t.strides[0] = size('N'), t.strides[1] = 1;
      t.element = size('N') > 16 ? Element::kUInt32 : size('N') > 8 ? Element::kUInt16 : Element::kUInt8;
      return;
    }
    const bool any_strides = part.is(Mark::kAnyStrides), scattered = any_strides && scattered_;
    need(!scattered || from_caller != Py_None);
    Tensor wanted, &t = output.tensor;
    if (from_caller == Py_None) return like(part, &t);
    tensor(from_caller, &t, true);
    if (part.field->kind == Kind::kByteOutput) return put_bytes(part, t);
    if (!scattered) like(part, &wanted);
    need(t.ndim == (scattered ? 1 : wanted.ndim));
    need(scattered || std::equal(t.shape, t.shape + t.ndim, wanted.shape));
    if (any_strides) need(t.shape[t.ndim - 1] <= 1 || t.strides[t.ndim - 1] > 0);  // 0 is 1 to C
    else if (part.field->kind == Kind::kRows || part.is(Mark::kContiguousRows)) need(t.has_unit_stride());
    else need(is_contiguous(t));
    put_output(part, t);
  }

  // The mask of build_tree, of any shape; the C function checks that it is large enough.
  void put_bytes(const Part& part, const Tensor& t) {
    const auto word_type = static_cast<Element>(dlpack::kUInt << 8 | (t.element_bytes * 8));
    const bool bits = *find_field<int32_t>("layout") == SPECDEC_TREE_BITS && t.element_bytes <= 4;
    need(t.element == Element::kBool || t.element == (bits ? word_type : Element::kUInt8));
    need(is_contiguous(t));
    int64_t bytes = t.element_bytes;
    for (int32_t i = 0; i < t.ndim; ++i) bytes *= t.shape[i];
    field<specdec_output_u8>(part.field) = {static_cast<uint8_t*>(t.data), 1, bytes, 1};
  }

  void put_output(const Part& part, const Tensor& t) {
    if (part.field->kind == Kind::kByteOutput) return put_bytes(part, t);
    if (part.field->kind == Kind::kRows) return put(part, t, part.shape);
    int64_t rows = shape_of(part).leads() ? 1 : -1;
    for (int32_t i = 0; rows >= 0 && i < lead_; ++i) rows *= leading_[i];
    Tensor one = t;
    if (t.ndim == 0) one.ndim = 1, one.shape[0] = one.strides[0] = 1;
    put_in(part.field->kind, one, params.bytes + part.field->at, rows);
  }

  void read_out(const Item& item) {
    PyObject* const out = raw(item);
    const auto count = static_cast<Py_ssize_t>(item.parts.size());
    if (out != Py_None) need((PyTuple_Check(out) || PyList_CheckExact(out)) && PySequence_Fast_GET_SIZE(out) == count);
    for (Py_ssize_t i = 0; i < count; ++i)
      add_output(item.parts[static_cast<size_t>(i)], out == Py_None ? out : PySequence_Fast_ITEMS(out)[i]);
  }

  void read_output_format(const Item& item) {
    PyObject* const output_format = raw(item);
    if (output_format == Py_None) return;
    PyObject *const path = item_of(output_format, 1), *const passed = item_of(output_format, 2),
                    *const bonus = item_of(output_format, 6);
    const bool chain = plan_.format_bonus != nullptr;
    need(chain || (path == Py_None && passed == Py_None && bonus == Py_None));
    read_tensor(*plan_.format_index, item_of(output_format, 0));
    const bool zeros = flag(item_of(output_format, 3)), add = flag(item_of(output_format, 5));
    const bool emitted = is_text(item_of(output_format, 4), "emitted");
    need(emitted || is_text(item_of(output_format, 4), "accepted"));
    PyObject* const out = raw(*plan_.out);
    if (add) need(out != Py_None && PySequence_Fast_ITEMS(out)[PySequence_Fast_GET_SIZE(out) - 2] != Py_None);
    field<int64_t>(plan_.format_bits->field) = SPECDEC_EMITTED * emitted | SPECDEC_ADDED * add | SPECDEC_ZEROS * zeros;
    if (!chain) return;
    if (path != Py_None) add_output(*plan_.format_path, path);
    passed_ = passed != Py_None;
    if (passed_) add_output(*plan_.format_passed, passed);
    read_tensor(*plan_.format_bonus, bonus);
  }

  // ---- chains and trees ---------------------------------------------------------------------------------------------

  // Binds the sizes that draft_tokens define. Tokens that are no matrix or vector are declined later.
  void sizes() {
    if (plan_.output_format && raw(*plan_.output_format) != Py_None) {
      need(is_a(raw(*plan_.output_format), types.output_format));
      scattered_ = item_of(raw(*plan_.output_format), 0) != Py_None;
    }
    Tensor t = {};
    view(raw(*plan_.draft_tokens), &t);
    if (plan_.packing) return sizes_of_chains(t);
    size('B') = t.shape[0], size('N') = t.shape[1];
    if (!plan_.target_tokens) return;  // read_parents binds the width
    const int64_t path = width_of(caller_output(1));
    size('W') = path < 0 ? t.shape[1] : std::max<int64_t>(path, 1);
  }

  // The width of one of the caller's outputs; -1: there is none.
  static int64_t width_of(PyObject* output) {
    Tensor t;
    return output != Py_None && view(output, &t) && t.ndim == 2 ? t.shape[1] : -1;
  }
  PyObject* caller_output(Py_ssize_t i) {
    PyObject* const out = raw(*plan_.out);
    if ((!PyTuple_Check(out) && !PyList_CheckExact(out)) || PySequence_Fast_GET_SIZE(out) <= i) return Py_None;
    return PySequence_Fast_ITEMS(out)[i];
  }

  void sizes_of_chains(const Tensor& tokens) {
    PyObject* const output_format = plan_.output_format ? raw(*plan_.output_format) : Py_None;
    const bool bonus = output_format != Py_None && item_of(output_format, 6) != Py_None;
    PyObject *const packing = raw(*plan_.packing), *ends = Py_None, *most = Py_None;
    bool by_row = false;
    if (packing != Py_None) {
      need(is_a(packing, types.packing));
      ends = item_of(packing, 0), most = item_of(packing, 2);
      if (item_of(packing, 1) != Py_None) {
        need(ends == Py_None);
        ends = item_of(packing, 1), by_row = true;
      }
      need(ends != Py_None || most == Py_None);
    }
    if (ends == Py_None) {
      size('B') = tokens.shape[0], size('K') = tokens.shape[1];
      size('L') = size('P') = size('K') + 1;
      if (bonus) size('L') -= 1;
      return;
    }
    packed_ = true;
    Tensor t;
    tensor(ends, &t);
    put_as_it_is(plan_.packing->parts[0].field, t);
    field<bool>(plan_.packing->parts[1].field) = by_row;
    const int64_t batch = t.shape[0] - 1, drafts = tokens.shape[0] - (by_row ? batch : 0);
    need(!by_row || !bonus);
    size('B') = batch, size('D') = drafts, size('T') = tokens.shape[0];
    size('L') = drafts + (bonus ? 0 : batch);
    int64_t width = drafts;
    PyObject* const path = output_format != Py_None ? item_of(output_format, 1) : Py_None;
    const int64_t written = width_of(path != Py_None ? path : caller_output(0));
    if (most != Py_None) {
      need(whole(most, &width));
    } else if (written >= 0) {
      width = written - 1;
    } else if (t.on_host() && batch > 0) {
      const auto* const end = static_cast<const int32_t*>(t.data);
      int64_t widest = INT64_MIN;
      for (int64_t b = 0; b < batch; ++b) {
        // As int32, like the difference of two tensors.
        const auto difference = static_cast<int32_t>(static_cast<uint32_t>(end[b + 1]) - static_cast<uint32_t>(end[b]));
        widest = std::max<int64_t>(widest, difference);
      }
      width = std::min(std::max<int64_t>(widest - by_row, 0), drafts);
    }
    size('K') = width, size('P') = width + 1;
  }

  void read_parents(const Item& item) {
    Tensor t;
    const Field* const to = item.parts[0].field;
    tensor(raw(item), &t);
    put_as_it_is(to, t);
    const int64_t nodes = t.shape[t.ndim - 1];
    need(nodes <= INT32_MAX);
    bind('N', nodes);
    if (t.ndim == 2) {
      need(!plan_.draft_tokens || t.shape[0] == size('B'));
      size('B') = t.shape[0];
    }
    ParentsReport report = {static_cast<int32_t>(nodes) - 1, -1, -1};
    if (t.on_host()) report = check_parents(field<Tokens>(to));
    need(report.node < 0);
    if (!plan_.draft_tokens) return;
    int64_t width = report.depth + 1;
    if (plan_.max_depth && raw(*plan_.max_depth) != Py_None) {
      need(whole(raw(*plan_.max_depth), &width));
      width += 1;
    } else if (const int64_t tokens = width_of(caller_output(0)); tokens > 0) {
      width = tokens;
    } else if (const int64_t path = width_of(caller_output(1)); path > 0) {
      width = path;
    }
    size('W') = width;
  }

  // Reads the tensors of caches, which may be nested in lists.
  void read_layers(PyObject* object) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) read_layers(PySequence_Fast_ITEMS(object)[i]);
      return;
    }
    Tensor t;
    tensor(object, &t, true);
    need(t.ndim == 4 && t.has_unit_stride());
    for (int32_t i = 0; i < 4; ++i) need(t.strides[i] != 0 || t.shape[i] <= 1);
    for (int32_t i = 0; i < 4; ++i) need(t.shape[i] * (i == 3 ? t.element_bytes : 1) <= INT32_MAX);
    if (raw(*plan_.block_table) == Py_None) bind('B', t.shape[0]);
    layers_.push_back(python::layer_of(t));
  }

  // Reads tree_mask's layout, dtype, columns and mask.
  void read_mask(const Item& item) {
    Tensor wanted;
    PyObject *const layout = raw(item), *const dtype = raw(item, 1), *const mask = raw(item, 3);
    const bool bits = is_text(layout, "bits"), additive = is_text(layout, "additive");
    wanted.element = bits ? Element::kInt32 : Element::kBool;
    if (!additive) need((bits || is_text(layout, "bool")) && dtype == Py_None);
    for (size_t i = 0; additive && i < std::size(floats); ++i)
      if (floats[i] == (dtype == Py_None ? floats[0] : dtype)) wanted.element = kFloats[i];
    need(!additive || wanted.element != Element::kBool);
    if (size('B') < 0) size('B') = size('E') < 0 ? 1 : size('E');
    const specdec_counter& prefix = *find_field<specdec_counter>("prefix_len");
    int64_t columns = -1;
    if (raw(item, 2) != Py_None) {
      whole(raw(item, 2), &columns);
    } else {
      need(!prefix.data || device_.type == 1);
      int64_t longest = prefix.data ? 0 : prefix.value;
      for (int64_t b = 0; prefix.data && b < size('B'); ++b) longest = std::max(longest, prefix.at(b));
      columns = longest + size('N');
    }
    field<int64_t>(item.parts[0].field) = columns;
    wanted.ndim = 3;
    wanted.shape[0] = size('B'), wanted.shape[1] = size('N'), wanted.shape[2] = bits ? (columns + 31) / 32 : columns;
    wanted.strides[2] = 1;
    wanted.strides[1] = std::max<int64_t>(wanted.shape[2], 1), wanted.strides[0] = wanted.strides[1] * size('N');
    wanted.data = nullptr;
    Output& output = outputs_[num_outputs_++];
    output = {&item.parts[1], nullptr, wanted};
    if (mask == Py_None) return;
    Tensor& t = output.tensor;
    tensor(mask, &t, true);
    put_output(item.parts[1], t);
    need(std::equal(t.shape, t.shape + 3, wanted.shape) && t.element == wanted.element && is_contiguous(t));
    output.from_caller = mask;
  }

  // ---- edits --------------------------------------------------------------------------------------------------------

  // The leading dimensions of a tensor of lists, one list each; backends see two dimensions of them.
  struct ListShape {
    int64_t size[Tensor::kMaxDims];
    int32_t dims;
    bool of_entries;  // size[0] is E, -1 while it is unbound
    bool one_row;     // all are rows of one request
  };

  ListShape of_entries() {
    ListShape list_shape = {{entries()}, 1, true, false};
    if (lead_ < 0) return list_shape;
    list_shape.dims = lead_;
    for (int32_t i = 1; i < lead_; ++i) list_shape.size[i] = leading_[i];
    return list_shape;
  }
  ListShape of_rows() const {
    ListShape list_shape = {{}, rows_dims_ - 1, false, lead_ < 0 && rows_dims_ == 2};
    std::copy_n(rows_shape_, list_shape.dims, list_shape.size);
    return list_shape;
  }

  // `t` has lists in its last dimension; with `shared` its other dimensions may be broadcast.
  void put_lists(const Tensor& t, ListShape list_shape, bool shared, Lists& out) {
    Tensor seen;
    expand(t, t.ndim - 1, list_shape.size, list_shape.dims, shared, &seen);
    if (list_shape.of_entries) numbers_ = seen.shape[0];
    if (list_shape.one_row) seen.merge(0, 0);
    else fold(&seen, list_shape.dims);
    put_in(Kind::kLists, seen, &out);
  }

  void lists(PyObject* object, const ListShape& list_shape, int64_t least, int64_t most, bool wide, Lists& out) {
    if (object == Py_None) return;
    Tensor t;
    tensor(object, &t);
    const int64_t count = t.ndim > 0 ? t.shape[t.ndim - 1] : -1;
    need(count >= least && count <= most && t.has_unit_stride() && (wide || t.element == Element::kInt32));
    put_lists(t, list_shape, true, out);
  }

  // Reads the index tensor of the lists `of`. With one, *lists is the lists' first dimension instead of `list_shape`.
  void index_of_lists(PyObject* object, const ListShape& list_shape, std::initializer_list<PyObject*> of, Lists& out,
                      ListShape* lists) {
    *lists = list_shape;
    if (object == Py_None) return;
    int64_t slots = -1;
    Tensor t;
    for (PyObject* const one : of)
      if (one != Py_None && view(one, &t) && t.ndim > 0) slots = std::max(slots, t.shape[0]);
    tensor(object, &t);
    need(slots >= 0 && t.element == Element::kInt32);
    t.merge(t.ndim, t.ndim);
    *lists = {{slots}, 1, false, false};
    put_lists(t, list_shape, false, out);
  }

  void read_bias(PyObject* bias, specdec_edits& edits) {
    if (bias == Py_None) return;
    need(PyTuple_Check(bias) && PyTuple_GET_SIZE(bias) == 3);
    Tensor tokens, values, spans;
    tensor(item_of(bias, 0), &tokens), tensor(item_of(bias, 1), &values), tensor(item_of(bias, 2), &spans);
    put_in(Kind::kIndices, tokens, &edits.bias_tokens);
    put_in(Kind::kValues, values, &edits.bias_values);
    need(tokens.shape[0] == values.shape[0] && spans.element == Element::kInt32);
    need(spans.ndim == 1 || (spans.ndim > 1 && spans.shape[spans.ndim - 1] == 2));
    need(spans.has_unit_stride());
    if (spans.ndim > 1) {
      put_lists(spans, of_rows(), false, edits.bias_spans);
      edits.by_row |= SPECDEC_BIAS_BY_ROW;
    } else {
      ListShape list_shape = of_entries();
      int64_t inner = 1;
      for (int32_t i = 1; i < list_shape.dims; ++i) inner *= list_shape.size[i];
      if (list_shape.dims == 0) list_shape.size[0] = 1;
      if (list_shape.size[0] < 0) size('E') = list_shape.size[0] = lead_ < 0 ? spans.shape[0] - 1 : 1;
      need(spans.shape[0] == list_shape.size[0] * inner + 1);
      const int64_t last = lead_ < 0 || list_shape.dims < 2 ? 1 : list_shape.size[list_shape.dims - 1];
      Tensor pairs = spans;
      pairs.ndim = 3;
      pairs.shape[0] = (spans.shape[0] - 1) / std::max<int64_t>(last, 1), pairs.shape[1] = last, pairs.shape[2] = 2;
      pairs.strides[0] = last, pairs.strides[1] = pairs.strides[2] = 1;
      if (spans.shape[0] > 1) {
        put_in(Kind::kLists, pairs, &edits.bias_spans);
        numbers_ = pairs.shape[0];
      }
    }
    if (tokens.shape[0] > 0 && edits.bias_spans.data) return;
    edits.bias_tokens = {}, edits.bias_values = {}, edits.bias_spans = {};
    edits.by_row &= ~int64_t{SPECDEC_BIAS_BY_ROW};
  }

  void read_edits(specdec_edits& edits, PyObject* object) {
    edits.repetition.value = 1.0f;
    if (object == Py_None) return;
    need(is_a(object, types.edits));
    enum { kAllowed, kBias, kRepetition, kFrequency, kPresence, kPrompt, kOutput, kCounts, kPending, kSeen, kIndex };
    const auto part = [&](int i) { return item_of(object, static_cast<size_t>(i)); };
    const bool by_rows = lead_ >= 0;
    const int64_t vocab = rows_shape_[rows_dims_ - 1], words = (vocab + 31) / 32;

    Tensor t;
    bool allowed_by_row = by_rows;
    if (!by_rows && part(kIndex) != Py_None) allowed_by_row = view(part(kIndex), &t) && t.ndim == rows_dims_ - 1;
    else if (!by_rows) allowed_by_row = view(part(kAllowed), &t) && t.ndim == rows_dims_;
    ListShape allowed_shape = allowed_by_row ? of_rows() : of_entries();
    if (!allowed_by_row && rows_dims_ == 2 && !by_rows) allowed_shape.size[allowed_shape.dims++] = 1;
    ListShape of_allowed, of_seen;
    index_of_lists(part(kIndex), allowed_shape, {part(kAllowed)}, edits.allowed_index, &of_allowed);
    lists(part(kAllowed), of_allowed, words, INT64_MAX, false, edits.allowed);
    read_bias(part(kBias), edits);

    const Shape& edits_shape = plan_.edits->parts[0].shape;
    const Shape& shape = edits_shape.count ? edits_shape : plan_.law->parts[0].shape;
    double plain;
    need(!real(part(kRepetition), &plain) || plain != 0.0);
    read_float(edits.repetition, part(kRepetition), shape, 0.0, kInfinity);
    read_float(edits.frequency, part(kFrequency), shape, -kInfinity, kInfinity);
    read_float(edits.presence, part(kPresence), shape, -kInfinity, kInfinity);
    index_of_lists(part(kSeen), of_entries(), {part(kPrompt), part(kOutput), part(kCounts)}, edits.seen_index, &of_seen);
    if (part(kSeen) == Py_None) of_seen = of_entries();
    lists(part(kPrompt), of_seen, words, INT64_MAX, false, edits.prompt_mask);
    lists(part(kOutput), of_seen, words, INT64_MAX, false, edits.output_mask);
    lists(part(kCounts), of_seen, vocab, vocab, false, edits.output_counts);
    lists(part(kPending), of_entries(), 0, INT64_MAX, true, edits.pending);

    // Compared as doubles, as Python does.
    const auto other_than = [&](int i, double off) { return !real(part(i), &plain) || plain != off; };
    const bool counting = other_than(kFrequency, 0.0), repeating = other_than(kRepetition, 1.0);
    const bool penalised = counting || repeating || other_than(kPresence, 0.0);
    need(part(kCounts) == Py_None || part(kOutput) != Py_None);
    need(!counting || part(kOutput) == Py_None || part(kCounts) != Py_None);
    if (!((penalised && part(kOutput) != Py_None) || (repeating && part(kPrompt) != Py_None))) edits.seen_index = {};
    if (!repeating) edits.prompt_mask = {};
    if (!penalised) edits.output_mask = {}, edits.pending = {};
    if (!counting) edits.output_counts = {};
    if (allowed_by_row && part(kAllowed) != Py_None) edits.by_row |= SPECDEC_ALLOWED_BY_ROW;
    const bool on = part(kAllowed) != Py_None || edits.bias_tokens.size > 0 || penalised;
    need(!on || law_space() != SPECDEC_PROBS);
  }

  int32_t law_space() { return plan_.law ? field<specdec_law>(plan_.law->parts[0].field).space : SPECDEC_LOGITS; }

  // ---- what excludes what -------------------------------------------------------------------------------------------

  // Rules about combinations that the C function does not check.
  void fit() {
    const auto plain = [](const specdec_number& x, float value) { return !x.data && x.value == value; };
    if (plan_.target_tokens) {
      const bool has_tokens = field<Tokens>(plan_.target_tokens->parts[0].field).data;
      need(has_tokens != (field<Rows>(plan_.target).vocab > 0));
      need(!has_tokens || !field<specdec_number>(plan_.uniforms).data);
    }
    if (!plan_.epsilon) return;
    const bool drafted = plain(field<specdec_number>(plan_.draft_prob), 1.0f);
    const bool usual = drafted && plain(field<specdec_number>(plan_.epsilon), 0.0f);
    need(usual || field<int32_t>(plan_.method) == SPECDEC_REJECTION);
    need(drafted || has_draft_);
    if (!passed_) return;
    const specdec_number& target = field<specdec_law>(plan_.law->parts[0].field).temperature;
    need(has_draft_ && usual && target.value != 0.0f && !draft_law_->temperature.data);  // a tensor's value is 0
  }

  static constexpr int kMostOutputs = 16;

  const Plan& plan_;
  PyObject* const tuple_;
  dlpack::Device device_;  // index -1: set by the first tensor
  int64_t size_[26];
  bool missing_ = false;  // whether a dimension that may miss does
  bool indexed_ = false, packed_ = false, has_draft_ = false, has_outputs_ = false, scattered_ = false, passed_ = false;
  int64_t numbers_ = kAnyIndex;  // how many entries the tensors of numbers or lists have, where E is unbound
  int32_t lead_ = -1;            // leading dimensions; -1: no tensor with any was read
  int64_t leading_[Tensor::kMaxDims];
  int32_t rows_dims_ = -1;  // dimensions of the first rows
  Element rows_element_ = {};
  int64_t rows_shape_[Tensor::kMaxDims];
  PyObject *draft_space_ = nullptr, *draft_sampling_ = nullptr;
  specdec_law* draft_law_ = nullptr;
  std::vector<Span>& spans_;
  std::vector<specdec_cache_layer>& layers_;
  Output outputs_[kMostOutputs];
  Ref owned_[kMostOutputs];
  int num_outputs_ = 0;
};

}  // namespace

PyObject* direct(const Plan& plan, int32_t device, PyObject* tuple, Run run, void* context) {
  if (!torch.tensor) Py_RETURN_NONE;
  thread_local Scratch thread_scratch;
  thread_local bool in_use = false;
  Scratch nested_scratch;  // for a call inside another one, by a finaliser, say
  const bool nested = std::exchange(in_use, true);
  struct Leave {
    bool& in_use;
    bool before;
    ~Leave() { in_use = before; }
  } leave = {in_use, nested};
  try {
    decline_if_watched();
    Direct call(plan, device, tuple, nested ? nested_scratch : thread_scratch);
    call.read();
    call.make_outputs();
    need(run(context, call.params));
    return call.result();
  } catch (const Declined&) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
}

PyObject* use_functions(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    wants(count, 4);
    const auto item = [&](int argument, Py_ssize_t i) { return Ref(PySequence_GetItem(arguments[argument], i)); };
    watchers.clear();
    for (Py_ssize_t i = 0; i < PySequence_Size(arguments[0]); ++i) watchers.push_back(item(0, i).release());
    for (size_t i = 0; i < std::size(floats); ++i) floats[i] = item(1, static_cast<Py_ssize_t>(i)).release();
    PyObject** const grouped_types[] = {&types.sampling, &types.edits,           &types.draft,
                                &types.packing,  &types.input_positions, &types.output_format};
    for (Py_ssize_t i = 0; i < 6; ++i) *grouped_types[i] = item(2, i).release();
    functions = {};
    if (arguments[3] == Py_None) Py_RETURN_NONE;
    const auto address = [&](auto*& function, Py_ssize_t i) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(PyLong_AsVoidPtr(item(3, i).get()));
    };
    address(functions.empty_strided, 0), address(functions.wrap, 1), address(functions.release, 2);
    Py_RETURN_NONE;
  });
}

}  // namespace specdec::python
