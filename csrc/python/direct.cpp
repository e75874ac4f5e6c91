#include "direct.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "check_parents.h"
#include "specdec/mass.h"

namespace specdec {
namespace python {

namespace {

// ---- what Python tells once -----------------------------------------------------------------------------------------

// Types of several arguments in one.
struct Types {
  PyObject *sampling, *edits, *draft, *packing, *input_positions, *form;
} types = {};

std::vector<PyObject*> watchers;  // functions without arguments

constexpr Element kFloats[] = {Element::kFloat32, Element::kBFloat16, Element::kFloat16};
PyObject* floats[std::size(kFloats)] = {};  // torch's names of them

// torch's C functions for a new tensor, which take a third of the time of torch.empty_strided: the tensor, as an object
// of Python, and what the first made. Null where a torch has no such functions: then Python makes outputs.
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

bool watched() {
  for (PyObject* const watcher : watchers)
    if (PyObject_IsTrue(Ref(PyObject_CallNoArgs(watcher)).get()) != 0) return true;
  return false;
}

// ---- reading --------------------------------------------------------------------------------------------------------

constexpr double kInfinity = std::numeric_limits<double>::infinity();

PyObject* item_of(PyObject* tuple, size_t i) { return PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)); }

bool is_a(PyObject* object, PyObject* type) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type; }

bool flag(PyObject* object, bool* out) {
  *out = object == Py_True;
  return object == Py_True || object == Py_False;
}

bool is_word(PyObject* object, std::string_view word) {
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

// Whether no two elements of one or two dimensions are one.
bool is_apart(const Tensor& t) {
  if (is_contiguous(t)) return true;
  const int32_t last = t.ndim - 1, inner = t.strides[0] < t.strides[last] ? 0 : last, outer = last - inner;
  if (t.strides[inner] < 1 && t.shape[inner] > 1) return false;
  return last == 0 || t.shape[outer] <= 1 ||
         t.strides[outer] >= std::max<int64_t>(1, t.shape[inner] * t.strides[inner]);
}

// The first `count` dimensions as two, the last of them and all before it; false if these have no common stride.
bool fold(Tensor* t, int32_t count) {
  if (count == 2) return true;
  return count > 2 ? t->merge(0, count - 1) : t->merge(0, count) && t->merge(1, 1);
}

// Lists whose memory the next call of a thread uses again.
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

  bool read() {
    if (!PyTuple_CheckExact(tuple_) || PyTuple_GET_SIZE(tuple_) != static_cast<Py_ssize_t>(plan_.count)) return false;
    if (plan_.draft_tokens && !sizes()) return false;
    for (const Item& item : plan_.items)
      if (!read(item)) return false;
    if (plan_.edits && !read_edits(field<specdec_edits>(plan_.edits->parts[0].field), raw(*plan_.edits))) return false;
    if (plan_.index) {
      auto& index = field<specdec_request_index>(plan_.index->parts[0].field);
      index.entries = !indexed_ ? kAnyIndex : entries() >= 0 ? entries() : numbers_;
    }
    return fits() && !(has_given_ && meet(spans_));
  }

  // Makes the outputs that were not given. They live as long as the call. False: not all could be made.
  bool make_outputs() {
    for (int i = 0; i < num_outputs_; ++i) {
      Output& output = outputs_[i];
      Tensor& t = output.tensor;
      if (output.given) {
        owned_[i] = Ref(kept(output.given));
        continue;
      }
      void* made = nullptr;
      const bool on_host = device_.type == 1;
      if (!functions.wrap || functions.empty_strided(t.ndim, t.shape, t.strides, number_of(t.element), !on_host,
                                                     on_host ? 0 : device_.index, &made) != 0)
        return false;
      PyObject* const wrapped = functions.wrap(made);
      functions.release(made);
      owned_[i] = Ref(wrapped);
      if (!view(wrapped, &t) || !put_output(*output.part, t))
        throw std::runtime_error("a new output cannot be written");
    }
    return true;
  }

  // What the function returns: its NamedTuple of outputs, or the first of them.
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
    PyObject* given;  // null: to be made, like `tensor`
    Tensor tensor;
  };

  PyObject* raw(const Item& item, size_t more = 0) const { return item_of(tuple_, item.at + more); }
  int64_t& size(char name) { return size_[name - 'A']; }
  template <class T>
  T& field(const Field* field) { return params.at<T>(field->at); }
  template <class T>
  T* found(const char* name) {
    const Field* const field = plan_.table.find(name);
    return field ? &params.at<T>(field->at) : nullptr;
  }

  // ---- sizes and tensors --------------------------------------------------------------------------------------------

  // E; where requests use their own numbers, as many as there are requests.
  int64_t entries() {
    if (size('E') < 0 && !indexed_) size('E') = size('B');
    return size('E');
  }

  bool bind(char name, int64_t got, bool or_more = false) {
    if (name <= '9') return got == name - '0';
    int64_t& known = name == 'E' ? (entries(), size('E')) : size(name);
    if (name == 'M') size('N') = got + 1;
    if (name == 'N' && got < 1) return false;
    if (known < 0) return known = got, true;
    return or_more ? got >= known : got == known;
  }

  bool lead(const Tensor& t, int32_t begin, int32_t others) {
    lead_ = t.ndim - others;
    if (lead_ < 0 || lead_ > 6 || (indexed_ && (lead_ < 1 || lead_ > 2))) return false;
    std::copy_n(t.shape + begin, lead_, leading_);
    size('B') = lead_ > 0 ? leading_[0] : 1;
    return true;
  }

  bool match(const Tensor& t, const Shape& shape) {
    int32_t at = 0;
    for (int i = 0; i < shape.count; ++i) {
      const Shape::Dim dim = shape.dim[i];
      if (dim.size == '^') {  // leading dimensions of its own
        at = t.ndim - (shape.count - 1);
        if (at < 0) return false;
        continue;
      }
      if (!dim.leads()) {
        if (dim.may_miss && at == t.ndim) missing_ = true;
        else if (at >= t.ndim || !bind(dim.size, t.shape[at++], dim.or_more)) return false;
        continue;
      }
      if (lead_ < 0 && !lead(t, at, shape.count - 1)) return false;
      if (at + lead_ > t.ndim) return false;
      for (int32_t j = 0; j < lead_; ++j, ++at) {
        if (dim.size == '~' && j == 0 ? !bind('E', t.shape[at]) : t.shape[at] != leading_[j]) return false;
      }
    }
    return at == t.ndim;
  }

  bool tensor(PyObject* object, Tensor* t, bool written = false) {
    if (!view(object, t) || t->device.type != device_.type) return false;
    if (device_.index < 0) device_.index = t->device.index;
    spans_.push_back({static_cast<const char*>(t->data), t->end(), written});
    has_given_ |= written;
    return t->device.index == device_.index;
  }

  // As a field's struct sees it.
  bool put(const Part& part, Tensor t, const Shape& shape) {
    if (missing_ && shape.dim[shape.count - 1].may_miss && !t.merge(t.ndim, t.ndim)) return false;
    if (part.is(Mark::kLastMerged) || part.is(Mark::kFlattened)) {
      const int32_t begin = part.is(Mark::kFlattened) ? 0 : t.ndim - 2;
      if (!is_contiguous(t) || !t.merge(begin, t.ndim)) return false;
    } else if (shape.leads()) {
      const int32_t own = shape.dim[0].size == '^' ? t.ndim - (shape.count - 1) : lead_;
      if (!(part.is(Mark::kContiguous) ? t.merge(0, own) : fold(&t, own))) return false;
    }
    return put_as_it_is(part.field, t);
  }
  bool put_as_it_is(const Field* field, const Tensor& t) {
    return python::put(field->kind, t, params.bytes + field->at, -1);
  }

  const Shape& shape_of(const Part& part) const { return packed_ && part.packed.count ? part.packed : part.shape; }

  // ---- one item -----------------------------------------------------------------------------------------------------

  bool read(const Item& item) {
    switch (item.role) {
      case Role::kTensor: case Role::kPacks: return read_tensor(item.parts[0], raw(item));
      case Role::kDraft: return read_draft(item);
      case Role::kPacking: return true;  // by sizes()
      case Role::kSize: return &item == plan_.max_depth || read_size(item);  // the depth: by read_parents()
      case Role::kInt: return read_int(item);
      case Role::kChoice: return read_choice(item);
      case Role::kFlag: return flag(raw(item), &field<bool>(item.parts[0].field));
      case Role::kNumber: return read_number(item, raw(item));
      case Role::kLaw: {
        auto& law = field<specdec_law>(item.parts[0].field);
        if (!read_law(law, raw(item), raw(item, 1), raw(item, 2), item.parts[0].shape)) return false;
        return !draft_law_ || finish_draft_law(law, raw(item), item.parts[0].shape);
      }
      case Role::kEdits: return true;  // after all else, because E may be known then
      case Role::kNoise: return read_noise(item);
      case Role::kOut: return read_out(item);
      case Role::kOutput: return add_output(item.parts[0], raw(item));
      case Role::kStatus:
        return raw(item) == Py_None || add_output(item.parts[0], raw(item) == Py_True ? Py_None : raw(item));
      case Role::kForm: return read_form(item);
      case Role::kParents: return read_parents(item);
      case Role::kWritten: return read_written(item.parts[0], raw(item));
      case Role::kMask: return read_mask(item);
      case Role::kLayers:
        if (!read_layers(raw(item))) return false;
        field<specdec_cache_layers>(item.parts[0].field) = {layers_.data(), static_cast<int64_t>(layers_.size())};
        return true;
    }
    return false;
  }

  bool read_tensor(const Part& part, PyObject* object) {
    if (object == Py_None) return part.is(Mark::kOptional);
    if (part.field == plan_.map_of_rows) return read_map(part.field, object, size('V'), INT64_MAX);
    Tensor t;
    const Shape& shape = shape_of(part);
    if (!tensor(object, &t) || (shape.count > 0 && !match(t, shape))) return false;
    if (part.is(Mark::kUnitStride) && !t.has_unit_stride()) return false;
    if (part.is(Mark::kContiguous) && !is_contiguous(t)) return false;
    if (part.is(Mark::kInt64) && t.element != Element::kInt64) return false;
    if (part.field->kind == Kind::kRows) {
      if (t.shape[t.ndim - 1] == 0 || t.shape[t.ndim - 1] > INT32_MAX || !t.has_unit_stride()) return false;
      if (rows_dims_ < 0) {
        rows_dims_ = t.ndim;
        rows_element_ = t.element;
        std::copy_n(t.shape, t.ndim, rows_shape_);
      }
    }
    return put(part, t, shape);
  }

  bool read_map(const Field* place, PyObject* object, int64_t vocab, int64_t most) {
    if (object == Py_None) return true;
    Tensor t;
    if (!tensor(object, &t) || t.ndim != 1 || t.shape[0] != vocab || !put_as_it_is(place, t)) return false;
    const int32_t* const token = field<specdec_indices>(place).data;
    if (!t.on_host()) return true;
    bool rises = token[0] >= 0 && token[vocab - 1] < most;
    for (int64_t i = 1; i < vocab; ++i) rises &= token[i] > token[i - 1];
    return rises;
  }

  bool read_draft(const Item& item) {
    auto& law = field<specdec_law>(item.parts[2].field);
    PyObject *rows = raw(item), *space = Py_None, *sampling = Py_None, *map = Py_None;
    if (is_a(rows, types.draft)) {
      space = item_of(rows, 1), sampling = item_of(rows, 2), map = item_of(rows, 3);
      rows = item_of(rows, 0);
      if (rows == Py_None) return false;
    }
    Part part = item.parts[0];
    if (packed_ && indexed_) part.packed = part.shape, part.packed.dim[1].or_more = true;
    if (!read_tensor(part, rows)) return false;
    if (rows != Py_None) {
      const int64_t vocab = field<Rows>(part.field).vocab;
      if (vocab > size('V') || !read_map(item.parts[1].field, map, vocab, size('V'))) return false;
      has_draft_ = true;
    } else if (map != Py_None) {
      return false;
    }
    draft_space_ = space, draft_sampling_ = sampling, draft_law_ = &law;
    return true;
  }

  bool read_size(const Item& item) {
    int64_t value;
    if (raw(item) == Py_None) return item.parts[0].is(Mark::kOptional);
    const Shape& shape = item.parts[0].shape;  // a second letter is the size that this one may be at most
    if (!whole(raw(item), &value) || !item.takes(value)) return false;
    return (shape.count < 2 || value <= size(shape.dim[1].size)) && bind(shape.dim[0].size, value);
  }

  bool read_int(const Item& item) {
    int64_t value;
    if (!whole(raw(item), &value) || !item.takes(value)) return false;
    const Field* const to = item.parts[0].field;
    if (to->kind == Kind::kInt32) field<int32_t>(to) = static_cast<int32_t>(value);
    else field<int64_t>(to) = value;
    return true;
  }

  bool read_choice(const Item& item) {
    for (size_t i = 0; i < item.words.size(); ++i)
      if (is_word(raw(item), item.words[i]))
        return field<int32_t>(item.parts[0].field) = static_cast<int32_t>(i), true;
    return false;
  }

  // ---- numbers ------------------------------------------------------------------------------------------------------

  // The first `own` dimensions of a tensor broadcast to these sizes, of which the first is -1 where it is E, not known.
  // Not `shared`: they have to be these.
  bool expand(const Tensor& t, int32_t own, int64_t* wanted, int32_t dims, bool shared, Tensor* out) {
    const int32_t rest = t.ndim - own, missing = dims - own;
    if (missing < 0 || (!shared && missing > 0) || dims + rest > Tensor::kMaxDims) return false;
    *out = t;
    out->ndim = dims + rest;
    for (int32_t i = 0; i < dims; ++i) {
      const int64_t got = i < missing ? 1 : t.shape[i - missing];
      const bool fits_all = got == 1 && shared;
      if (wanted[i] < 0 && !fits_all) size('E') = wanted[i] = got;
      if (got != wanted[i] && !fits_all) return false;
      out->shape[i] = wanted[i] < 0 ? 1 : wanted[i];
      out->strides[i] = got == 1 ? 0 : t.strides[i - missing];
    }
    std::copy_n(t.shape + own, rest, out->shape + dims);
    std::copy_n(t.strides + own, rest, out->strides + dims);
    return true;
  }

  // A tensor broadcast to a shape.
  bool broadcast(const Tensor& t, const Shape& shape, Tensor* out) {
    int32_t dims = 0;
    int64_t wanted[Tensor::kMaxDims];
    for (int i = 0; i < shape.count; ++i) {
      const char letter = shape.dim[i].size;
      if (shape.leads() && i == 0) {
        for (int32_t j = 0; j < lead_; ++j) wanted[dims++] = letter == '~' && j == 0 ? entries() : leading_[j];
        continue;
      }
      wanted[dims] = letter <= '9' ? letter - '0' : letter == 'E' ? entries() : size(letter);
      if (wanted[dims++] < 0 && letter != 'E') return false;
    }
    if (!expand(t, t.ndim, wanted, dims, true, out)) return false;
    numbers_ = dims > 0 ? out->shape[0] : 1;
    if (shape.dim[0].size == '=') return out->merge(0, lead_) && out->merge(0, 0);  // all as the rows of one request
    return !shape.leads() || fold(out, lead_);
  }

  bool read_number(const Item& item, PyObject* object) {
    const Field* const to = item.parts[0].field;
    const Shape& shape = shape_of(item.parts[0]);
    if (to->kind == Kind::kNumber) {
      auto& out = field<specdec_number>(to);
      if (PyFloat_CheckExact(object) || PyLong_CheckExact(object))
        return read_float(out, object, shape, item.least, item.most);
      // One dimension beside slots is one of requests, where they are padded.
      Tensor t;
      const bool each = shape.count == 2 && !packed_ && view(object, &t) && t.ndim == 1;
      Shape alone = shape;
      if (each) alone.count = 1;
      return read_numbers(Kind::kNumber, &out, object, alone);
    }
    int64_t value;
    if (!whole(object, &value)) return read_numbers(to->kind, params.bytes + to->at, object, shape);
    field<specdec_counter>(to).value = value;
    return item.takes(value);
  }

  bool read_numbers(Kind kind, void* to, PyObject* object, const Shape& shape) {
    Tensor t, seen;
    return tensor(object, &t) && broadcast(t, shape, &seen) && python::put(kind, seen, to, -1);
  }
  bool read_float(specdec_number& out, PyObject* object, const Shape& shape, double least, double most) {
    double value;
    if (!real(object, &value)) return read_numbers(Kind::kNumber, &out, object, shape);
    out = {nullptr, 0, 0, static_cast<float>(value), false};
    return value >= least && value <= most && std::isfinite(value);
  }

  // ---- laws ---------------------------------------------------------------------------------------------------------

  bool read_space(PyObject* object, int32_t* out) {
    *out = is_word(object, "probs") ? SPECDEC_PROBS : SPECDEC_LOGITS;
    return *out == SPECDEC_PROBS || is_word(object, "logits");
  }

  bool read_law(specdec_law& law, PyObject* space, PyObject* temperature, PyObject* sampling, const Shape& shape) {
    law.top_p.value = 1.0f;
    if (!read_space(space, &law.space)) return false;
    const bool probs = law.space == SPECDEC_PROBS;
    const bool sampled = sampling != Py_None;
    if (sampled && (temperature != Py_None || !is_a(sampling, types.sampling))) return false;
    if (sampled) temperature = item_of(sampling, 0);
    law.temperature.value = 1.0f;
    if ((temperature != Py_None || sampled) && !read_float(law.temperature, temperature, shape, 0.0, kInfinity))
      return false;
    // Probabilities are final. A double that is neither 0 nor 1 could become one of them as a float.
    double plain;
    if (probs && real(temperature, &plain) && plain != 0.0 && plain != 1.0) return false;
    return !sampled || read_filters(law, sampling, shape);
  }

  // The rest of a Sampling.
  bool read_filters(specdec_law& law, PyObject* tuple, const Shape& shape) {
    PyObject* const top_k = item_of(tuple, 1);
    if (whole(top_k, &law.top_k.value)) law.top_k.value = std::max<int64_t>(law.top_k.value, 0);
    else if (!read_numbers(Kind::kCounter, &law.top_k, top_k, shape)) return false;
    if (!read_float(law.top_p, item_of(tuple, 2), shape, 0.0, 1.0)) return false;
    if (!read_float(law.min_p, item_of(tuple, 3), shape, 0.0, 1.0)) return false;
    PyObject* const after = item_of(tuple, 4);
    if (!PyTuple_CheckExact(after)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(after); ++i) {
      PyObject* const word = PyTuple_GET_ITEM(after, i);
      if (is_word(word, "top_k")) law.rules |= SPECDEC_TOP_P_AFTER_TOP_K;
      else if (is_word(word, "min_p")) law.rules |= SPECDEC_TOP_P_AFTER_MIN_P;
      else return false;
    }
    bool at_temperature, divided;
    if (is_word(item_of(tuple, 5), "all")) law.rules |= SPECDEC_TIES_ALL;
    else if (!is_word(item_of(tuple, 5), "first")) return false;
    if (!flag(item_of(tuple, 6), &at_temperature) || !flag(item_of(tuple, 7), &divided)) return false;
    if (!at_temperature) law.rules |= SPECDEC_BEFORE_TEMPERATURE;
    if (divided && law.space != SPECDEC_PROBS) law.rules |= SPECDEC_DIVIDED;
    // As Python compares its doubles, which are not yet floats.
    double top_p, min_p;
    const bool filters = law.top_k.data || law.top_k.value != 0 || !real(item_of(tuple, 2), &top_p) || top_p != 1.0 ||
                         !real(item_of(tuple, 3), &min_p) || min_p != 0.0;
    if (filters) law.rules |= SPECDEC_FILTERED;  // of probabilities the C function takes none
    return true;
  }

  bool finish_draft_law(const specdec_law& target, PyObject* target_space, const Shape& shape) {
    specdec_law& law = *draft_law_;
    int32_t space = target.space;
    if (draft_space_ != Py_None && !read_space(draft_space_, &space)) return false;
    if (draft_sampling_ == Py_None) {
      law.space = space, law.temperature = target.temperature, law.top_p.value = 1.0f;
      law.rules = space == SPECDEC_LOGITS ? target.rules & SPECDEC_DIVIDED : 0;
      return true;
    }
    return read_law(law, draft_space_ != Py_None ? draft_space_ : target_space, Py_None, draft_sampling_, shape);
  }

  // ---- noise --------------------------------------------------------------------------------------------------------

  bool read_noise(const Item& item) {
    auto& noise = field<specdec_noise>(item.parts[0].field);
    const Shape& shape = item.parts[0].shape;  // of other sizes than entries: of rows whose noise was looked at before
    PyObject* position = raw(item, 1);
    const bool shared = (shape.dim[0].size == 'E' || shape.dim[0].size == '~') && !entered_alone();
    if (is_a(position, types.input_positions)) {
      if (item.parts.size() < 2 || !read_tensor(item.parts[1], item_of(position, 0)) || item_of(position, 0) == Py_None)
        return false;
      PyObject* const nonces = item_of(position, 1);
      int64_t nonce;
      if (nonces != Py_None && (item.parts.size() < 3 || !read_tensor(item.parts[2], nonces) ||
                                !whole(raw(item, 2), &nonce) || nonce != 0))
        return false;
      position = nullptr;
    }
    bool plain = position != nullptr;
    const auto counter = [&](specdec_counter& out, PyObject* object) {
      if (whole(object, &out.value)) return true;
      plain = false;
      return read_numbers(Kind::kCounter, &out, object, shape);
    };
    return (counter(noise.seed, raw(item)) && (!position || counter(noise.position, position)) &&
            counter(noise.nonce, raw(item, 2)) && !(shared && plain)) ||
           read_row_seeds(item);
  }

  // A race may have a seed for each row, at position and nonce 0: the last part.
  bool read_row_seeds(const Item& item) {
    int64_t place, nonce;
    return item.parts.size() > 2 && field<int32_t>(plan_.method) == SPECDEC_RACE && raw(item) != Py_None &&
           read_tensor(item.parts.back(), raw(item)) && whole(raw(item, 1), &place) && place == 0 &&
           whole(raw(item, 2), &nonce) && nonce == 0;
  }

  // Whether there is one request at most, so that none can share another's noise.
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

  // The tensor that an output of this shape is, contiguous.
  bool like(const Part& part, Tensor* out) {
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
      if (out->ndim == Tensor::kMaxDims) return false;
      int64_t known = letter <= '9' ? letter - '0' : size(letter);
      if (letter == 'I') known = (size('V') + 31) / 32;
      if (letter == 'J') known = (size('V') + kMassTile - 1) / kMassTile;
      if (known < 0) return false;
      out->shape[out->ndim++] = known;
    }
    int64_t step = 1;
    for (int32_t i = out->ndim - 1; i >= 0; --i) out->strides[i] = step, step *= std::max<int64_t>(out->shape[i], 1);
    return true;
  }

  // Whether the rows of an output are contiguous, and share no memory if it is said so.
  static bool has_rows(const Part& part, const Tensor& t) {
    return t.has_unit_stride() && (!part.is(Mark::kContiguousRows) || t.shape[0] <= 1 || t.strides[0] >= t.shape[1]);
  }

  // What is always given, and has room for more than is written.
  bool read_written(const Part& part, PyObject* object) {
    if (object == Py_None) return part.is(Mark::kOptional);
    Tensor t;
    if (!tensor(object, &t, true) || !match(t, part.shape)) return false;
    if (part.field->kind == Kind::kRows && t.element != rows_element_) return false;
    if (!has_rows(part, t)) return false;
    outputs_[num_outputs_++] = {&part, object, t};
    return put_as_it_is(part.field, t);
  }

  bool add_output(const Part& part, PyObject* given) {
    if (num_outputs_ == kMostOutputs) return false;
    if (size('B') < 0) size('B') = size('E') < 0 ? 1 : size('E');  // of parents that all requests share
    Output& output = outputs_[num_outputs_++];
    output.part = &part, output.given = given == Py_None ? nullptr : given;
    if (given == Py_True && part.field->kind == Kind::kRows) {  // in the place of its input
      output.given = raw(plan_.items.front());
      const Field* const rows = plan_.items.front().parts[0].field;
      return field<Rows>(part.field) = field<Rows>(rows), true;
    }
    if (given == Py_None && part.field->kind == Kind::kByteOutput) {
      const int32_t layout = *found<int32_t>("layout");
      Tensor& t = output.tensor;
      if (layout == SPECDEC_TREE_FULL || !like(part, &t)) return false;
      t.element = Element::kBool;
      if (layout == SPECDEC_TREE_NODES) return true;
      t.ndim = 2, t.strides[0] = size('N'), t.strides[1] = 1;
      t.element = size('N') > 16 ? Element::kUInt32 : size('N') > 8 ? Element::kUInt16 : Element::kUInt8;
      return true;
    }
    if (given == Py_None) return !(part.is(Mark::kAnyStrides) && scattered_) && like(part, &output.tensor);
    Tensor wanted, &t = output.tensor;
    if (!tensor(given, &t, true)) return false;
    if (part.field->kind == Kind::kByteOutput) return put_bytes(part, t);
    if (part.is(Mark::kAnyStrides) && scattered_) {
      if (!t.is_ints() || t.ndim != 1 || !is_apart(t)) return false;
      return put_output(part, t);
    }
    if (!like(part, &wanted)) return false;
    if (t.ndim != wanted.ndim || !std::equal(t.shape, t.shape + t.ndim, wanted.shape)) return false;
    if (part.is(Mark::kAnyStrides)) {
      if (!t.is_ints() || !is_apart(t)) return false;
    } else if (t.element != wanted.element) {
      return false;
    } else if (part.field->kind == Kind::kRows || part.is(Mark::kContiguousRows)) {
      if (!has_rows(part, t)) return false;
    } else if (!is_contiguous(t)) {
      return false;
    }
    return put_output(part, t);
  }

  // The mask of build_tree, of any shape; the C function looks whether it is large enough.
  bool put_bytes(const Part& part, const Tensor& t) {
    const auto words = static_cast<Element>(dlpack::kUInt << 8 | (t.element_bytes * 8));
    const bool bits = *found<int32_t>("layout") == SPECDEC_TREE_BITS && t.element_bytes <= 4;
    if (t.element != Element::kBool && t.element != (bits ? words : Element::kUInt8)) return false;
    int64_t bytes = t.element_bytes;
    for (int32_t i = 0; i < t.ndim; ++i) bytes *= t.shape[i];
    field<specdec_output_u8>(part.field) = {static_cast<uint8_t*>(t.data), 1, bytes, 1};
    return is_contiguous(t);
  }

  bool put_output(const Part& part, const Tensor& t) {
    if (part.field->kind == Kind::kByteOutput) return put_bytes(part, t);
    if (part.field->kind == Kind::kRows) return put(part, t, part.shape);
    int64_t rows = shape_of(part).leads() ? 1 : -1;
    for (int32_t i = 0; rows >= 0 && i < lead_; ++i) rows *= leading_[i];
    Tensor one = t;
    if (t.ndim == 0) one.ndim = 1, one.shape[0] = one.strides[0] = 1;
    return python::put(part.field->kind, one, params.bytes + part.field->at, rows);
  }

  bool read_out(const Item& item) {
    PyObject* const out = raw(item);
    const auto count = static_cast<Py_ssize_t>(item.parts.size());
    if (out != Py_None && ((!PyTuple_Check(out) && !PyList_CheckExact(out)) || PySequence_Fast_GET_SIZE(out) != count))
      return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!add_output(item.parts[static_cast<size_t>(i)], out == Py_None ? out : PySequence_Fast_ITEMS(out)[i]))
        return false;
    return true;
  }

  bool read_form(const Item& item) {
    PyObject* const form = raw(item);
    if (form == Py_None) return true;
    PyObject *const path = item_of(form, 1), *const passed = item_of(form, 2), *const bonus = item_of(form, 6);
    const bool chain = plan_.form_bonus != nullptr;
    if (!chain && (path != Py_None || passed != Py_None || bonus != Py_None)) return false;
    if (!read_tensor(*plan_.form_index, item_of(form, 0))) return false;
    const bool indexed = item_of(form, 0) != Py_None;
    if (indexed && (!field<Tokens>(plan_.form_index->field).data || (chain && path == Py_None))) return false;
    bool zeros, add;
    if (!flag(item_of(form, 3), &zeros) || !flag(item_of(form, 5), &add)) return false;
    const bool emitted = is_word(item_of(form, 4), "emitted");
    if (!emitted && !is_word(item_of(form, 4), "accepted")) return false;
    PyObject* const out = raw(*plan_.out);
    if (add && (out == Py_None || PySequence_Fast_ITEMS(out)[PySequence_Fast_GET_SIZE(out) - 2] == Py_None))
      return false;
    field<int64_t>(plan_.form_bits->field) = SPECDEC_EMITTED * emitted | SPECDEC_ADDED * add | SPECDEC_ZEROS * zeros;
    if (!chain) return true;
    if (path != Py_None && !add_output(*plan_.form_path, path)) return false;
    if (passed != Py_None && !add_output(*plan_.form_passed, passed)) return false;
    return read_tensor(*plan_.form_bonus, bonus);
  }

  // ---- chains and trees ---------------------------------------------------------------------------------------------

  // What can be said of sizes before anything is read.
  bool sizes() {
    if (plan_.form && raw(*plan_.form) != Py_None) {
      if (!is_a(raw(*plan_.form), types.form)) return false;
      scattered_ = item_of(raw(*plan_.form), 0) != Py_None;
    }
    Tensor t;
    if (!view(raw(*plan_.draft_tokens), &t)) return false;
    if (plan_.packing) return sizes_of_chains(t);
    if (t.ndim != 2) return false;
    size('B') = t.shape[0], size('N') = t.shape[1];
    if (!plan_.target_tokens) return t.shape[1] > 0;  // the width is that of parents
    const int64_t path = width_of(given(1));
    size('W') = path < 0 ? t.shape[1] : std::max<int64_t>(path, 1);
    return t.shape[1] > 0;
  }

  // The width that the caller's outputs have; -1: none of these says it.
  static int64_t width_of(PyObject* output) {
    Tensor t;
    return output != Py_None && view(output, &t) && t.ndim == 2 ? t.shape[1] : -1;
  }
  PyObject* given(Py_ssize_t i) {
    PyObject* const out = raw(*plan_.out);
    if ((!PyTuple_Check(out) && !PyList_CheckExact(out)) || PySequence_Fast_GET_SIZE(out) <= i) return Py_None;
    return PySequence_Fast_ITEMS(out)[i];
  }

  bool sizes_of_chains(const Tensor& tokens) {
    PyObject* const form = plan_.form ? raw(*plan_.form) : Py_None;
    const bool bonus = form != Py_None && item_of(form, 6) != Py_None;
    PyObject *const packing = raw(*plan_.packing), *ends = Py_None, *most = Py_None;
    bool by_row = false;
    if (packing != Py_None) {
      if (!is_a(packing, types.packing)) return false;
      ends = item_of(packing, 0), most = item_of(packing, 2);
      if (item_of(packing, 1) != Py_None) {
        if (ends != Py_None) return false;
        ends = item_of(packing, 1), by_row = true;
      }
      if (ends == Py_None && most != Py_None) return false;
    }
    if (ends == Py_None) {
      if (tokens.ndim != 2) return false;
      size('B') = tokens.shape[0], size('K') = tokens.shape[1];
      size('L') = size('P') = size('K') + 1;
      if (bonus) size('L') -= 1;
      return true;
    }
    packed_ = true;
    Tensor t;
    if (tokens.ndim != 1 || !tensor(ends, &t) || !put_as_it_is(plan_.packing->parts[0].field, t)) return false;
    if (t.shape[0] == 0) return false;
    field<bool>(plan_.packing->parts[1].field) = by_row;
    const int64_t batch = t.shape[0] - 1, drafts = tokens.shape[0] - (by_row ? batch : 0);
    if (drafts < 0 || (by_row && bonus)) return false;
    size('B') = batch, size('D') = drafts, size('T') = tokens.shape[0];
    size('L') = drafts + (bonus ? 0 : batch);
    int64_t width = drafts;
    PyObject* const path = form != Py_None ? item_of(form, 1) : Py_None;
    const int64_t written = width_of(path != Py_None ? path : given(0));
    if (most != Py_None) {
      if (!whole(most, &width)) return false;
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
    if (width < 0 || width >= INT32_MAX) return false;
    size('K') = width, size('P') = width + 1;
    return true;
  }

  bool read_parents(const Item& item) {
    Tensor t;
    const Field* const to = item.parts[0].field;
    if (!tensor(raw(item), &t) || !t.is_ints() || t.ndim < 1 || t.ndim > 2 || !put_as_it_is(to, t)) return false;
    const int64_t nodes = t.shape[t.ndim - 1];
    if (nodes == 0 || nodes > INT32_MAX || !bind('N', nodes)) return false;
    if (t.ndim == 2 && plan_.draft_tokens && t.shape[0] != size('B')) return false;
    if (t.ndim == 2) size('B') = t.shape[0];
    ParentsReport found = {static_cast<int32_t>(nodes) - 1, -1, -1};
    if (t.on_host()) found = check_parents(field<Tokens>(to));
    if (found.node >= 0) return false;
    if (!plan_.draft_tokens) return true;
    int64_t width = found.depth + 1;
    if (plan_.max_depth && raw(*plan_.max_depth) != Py_None) {
      if (!whole(raw(*plan_.max_depth), &width) || width < 0 || width >= INT32_MAX) return false;
      width += 1;
    } else if (const int64_t tokens = width_of(given(0)); tokens > 0) {
      width = tokens;
    } else if (const int64_t path = width_of(given(1)); path > 0) {
      width = path;
    }
    size('W') = width;
    return true;
  }

  // Tensors of caches, in lists of lists.
  bool read_layers(PyObject* object) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
        if (!read_layers(PySequence_Fast_ITEMS(object)[i])) return false;
      return true;
    }
    Tensor t;
    if (!tensor(object, &t, true) || t.ndim != 4 || !t.has_unit_stride()) return false;
    for (int32_t i = 0; i < 4; ++i)
      if ((t.strides[i] == 0 && t.shape[i] > 1) || t.shape[i] > INT32_MAX) return false;
    if (raw(*plan_.block_table) == Py_None && !bind('B', t.shape[0])) return false;
    layers_.push_back(python::layer_of(t));
    return t.shape[3] * t.element_bytes <= INT32_MAX;
  }

  // Of tree_mask: layout, dtype, columns and the mask itself.
  bool read_mask(const Item& item) {
    Tensor wanted;
    PyObject *const layout = raw(item), *const dtype = raw(item, 1), *const given = raw(item, 3);
    const bool bits = is_word(layout, "bits");
    wanted.element = bits ? Element::kInt32 : Element::kBool;
    if (is_word(layout, "additive")) {
      const auto* const known = std::find(std::begin(floats), std::end(floats), dtype == Py_None ? floats[0] : dtype);
      if (known == std::end(floats)) return false;
      wanted.element = kFloats[known - floats];
    } else if ((!bits && !is_word(layout, "bool")) || dtype != Py_None) {
      return false;
    }
    if (size('B') < 0) size('B') = size('E') < 0 ? 1 : size('E');
    const specdec_counter& prefix = *found<specdec_counter>("prefix_len");
    int64_t columns;
    if (raw(item, 2) != Py_None) {
      if (!whole(raw(item, 2), &columns) || columns < size('N')) return false;
    } else {
      if (prefix.data && device_.type != 1) return false;
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
    if (given == Py_None) return true;
    Tensor& t = output.tensor;
    if (!tensor(given, &t, true) || t.ndim != 3 || !std::equal(t.shape, t.shape + 3, wanted.shape)) return false;
    if (t.element != wanted.element || !is_contiguous(t)) return false;
    output.given = given;
    return put_output(item.parts[1], t);
  }

  // ---- edits --------------------------------------------------------------------------------------------------------

  // One list for each of these places, of which backends see two dimensions.
  struct Places {
    int64_t size[Tensor::kMaxDims];
    int32_t dims;
    bool of_entries;  // size[0] is E, -1 if it is not known
    bool one_row;     // all are rows of one request
  };

  Places of_entries() {
    Places places = {{entries()}, 1, true, false};
    if (lead_ < 0) return places;
    places.dims = lead_;
    for (int32_t i = 1; i < lead_; ++i) places.size[i] = leading_[i];
    return places;
  }
  Places of_rows() const {
    Places places = {{}, rows_dims_ - 1, false, lead_ < 0 && rows_dims_ == 2};
    std::copy_n(rows_shape_, places.dims, places.size);
    return places;
  }

  // `t` has one list for each place, in its last dimension; other dimensions may be one entry for all, if `shared`.
  bool put_lists(const Tensor& t, Places places, bool shared, Lists& out) {
    Tensor seen;
    if (!expand(t, t.ndim - 1, places.size, places.dims, shared, &seen)) return false;
    if (places.of_entries) numbers_ = seen.shape[0];
    if (!(places.one_row ? seen.merge(0, 0) : fold(&seen, places.dims))) return false;
    return python::put(Kind::kLists, seen, &out, -1);
  }

  bool lists(PyObject* object, const Places& places, int64_t least, int64_t most, bool wide, Lists& out) {
    if (object == Py_None) return true;
    Tensor t;
    if (!tensor(object, &t) || t.ndim < 1 || !(t.element == Element::kInt32 || (wide && t.is_ints()))) return false;
    const int64_t count = t.shape[t.ndim - 1];
    if (count < least || count > most || !t.has_unit_stride()) return false;
    return put_lists(t, places, true, out);
  }

  // Which of the lists `of` a place has; then these are one for each of their own first dimension.
  bool index_of_lists(PyObject* object, const Places& places, std::initializer_list<PyObject*> of, Lists& out,
                      Places* lists) {
    if (object == Py_None) return *lists = places, true;
    int64_t slots = -1;
    Tensor t;
    for (PyObject* const one : of)
      if (one != Py_None && view(one, &t) && t.ndim > 0) slots = std::max(slots, t.shape[0]);
    if (slots < 0 || !tensor(object, &t) || t.element != Element::kInt32 || !t.merge(t.ndim, t.ndim)) return false;
    *lists = {{slots}, 1, false, false};
    return put_lists(t, places, false, out);
  }

  bool read_bias(PyObject* bias, specdec_edits& edits) {
    if (bias == Py_None) return true;
    if (!PyTuple_Check(bias) || PyTuple_GET_SIZE(bias) != 3) return false;
    Tensor tokens, values, spans;
    if (!tensor(item_of(bias, 0), &tokens) || !python::put(Kind::kIndices, tokens, &edits.bias_tokens, -1))
      return false;
    if (!tensor(item_of(bias, 1), &values) || !python::put(Kind::kValues, values, &edits.bias_values, -1)) return false;
    if (!tensor(item_of(bias, 2), &spans)) return false;
    if (tokens.shape[0] != values.shape[0] || spans.element != Element::kInt32 || spans.ndim < 1) return false;
    if (!spans.has_unit_stride()) return false;
    if (spans.ndim != 1) {
      const Places rows = of_rows();
      if (spans.shape[spans.ndim - 1] != 2 || !put_lists(spans, rows, false, edits.bias_spans)) return false;
      edits.by_row |= SPECDEC_BIAS_BY_ROW;
    } else {
      Places places = of_entries();
      int64_t inner = 1;
      for (int32_t i = 1; i < places.dims; ++i) inner *= places.size[i];
      if (places.dims == 0) places.size[0] = 1;
      if (places.size[0] < 0) size('E') = places.size[0] = lead_ < 0 ? spans.shape[0] - 1 : 1;
      if (spans.shape[0] != places.size[0] * inner + 1) return false;
      const int64_t last = lead_ < 0 || places.dims < 2 ? 1 : places.size[places.dims - 1];
      Tensor pairs = spans;
      pairs.ndim = 3;
      pairs.shape[0] = (spans.shape[0] - 1) / std::max<int64_t>(last, 1), pairs.shape[1] = last, pairs.shape[2] = 2;
      pairs.strides[0] = last, pairs.strides[1] = pairs.strides[2] = 1;
      if (spans.shape[0] == 1) return edits.bias_tokens = {}, edits.bias_values = {}, true;
      if (!python::put(Kind::kLists, pairs, &edits.bias_spans, -1)) return false;
      numbers_ = pairs.shape[0];
    }
    if (tokens.shape[0] > 0) return true;
    edits.bias_tokens = {}, edits.bias_values = {}, edits.bias_spans = {};
    edits.by_row &= ~int64_t{SPECDEC_BIAS_BY_ROW};
    return true;
  }

  bool read_edits(specdec_edits& edits, PyObject* object) {
    edits.repetition.value = 1.0f;
    if (object == Py_None) return true;
    if (!is_a(object, types.edits)) return false;
    enum { kAllowed, kBias, kRepetition, kFrequency, kPresence, kPrompt, kOutput, kCounts, kPending, kSeen, kIndex };
    const auto part = [&](int i) { return item_of(object, static_cast<size_t>(i)); };
    const bool by_rows = lead_ >= 0;
    const int64_t vocab = rows_shape_[rows_dims_ - 1], words = (vocab + 31) / 32;

    Tensor t;
    bool allowed_by_row = by_rows;
    if (!by_rows && part(kIndex) != Py_None) allowed_by_row = view(part(kIndex), &t) && t.ndim == rows_dims_ - 1;
    else if (!by_rows) allowed_by_row = view(part(kAllowed), &t) && t.ndim == rows_dims_;
    Places own = allowed_by_row ? of_rows() : of_entries();
    if (!allowed_by_row && rows_dims_ == 2 && !by_rows) own.size[own.dims++] = 1;
    Places of_allowed, of_seen;
    if (!index_of_lists(part(kIndex), own, {part(kAllowed)}, edits.allowed_index, &of_allowed)) return false;
    if (!lists(part(kAllowed), of_allowed, words, INT64_MAX, false, edits.allowed)) return false;
    if (!read_bias(part(kBias), edits)) return false;

    const Shape& own_shape = plan_.edits->parts[0].shape;
    const Shape& shape = own_shape.count ? own_shape : plan_.law->parts[0].shape;
    double plain;
    if (real(part(kRepetition), &plain) && plain == 0.0) return false;
    if (!read_float(edits.repetition, part(kRepetition), shape, 0.0, kInfinity) ||
        !read_float(edits.frequency, part(kFrequency), shape, -kInfinity, kInfinity) ||
        !read_float(edits.presence, part(kPresence), shape, -kInfinity, kInfinity))
      return false;
    PyObject* const seen[] = {part(kPrompt), part(kOutput), part(kCounts)};
    if (!index_of_lists(part(kSeen), of_entries(), {seen[0], seen[1], seen[2]}, edits.seen_index, &of_seen))
      return false;
    if (part(kSeen) == Py_None) of_seen = of_entries();
    if (!lists(part(kPrompt), of_seen, words, INT64_MAX, false, edits.prompt_mask) ||
        !lists(part(kOutput), of_seen, words, INT64_MAX, false, edits.output_mask) ||
        !lists(part(kCounts), of_seen, vocab, vocab, false, edits.output_counts) ||
        !lists(part(kPending), of_entries(), 0, INT64_MAX, true, edits.pending))
      return false;

    // As Python compares its doubles.
    const auto other_than = [&](int i, double off) { return !real(part(i), &plain) || plain != off; };
    const bool counting = other_than(kFrequency, 0.0), repeating = other_than(kRepetition, 1.0);
    const bool penalised = counting || repeating || other_than(kPresence, 0.0);
    if (part(kCounts) != Py_None && part(kOutput) == Py_None) return false;
    if (counting && part(kOutput) != Py_None && part(kCounts) == Py_None) return false;
    if (!((penalised && part(kOutput) != Py_None) || (repeating && part(kPrompt) != Py_None))) edits.seen_index = {};
    if (!repeating) edits.prompt_mask = {};
    if (!penalised) edits.output_mask = {}, edits.pending = {};
    if (!counting) edits.output_counts = {};
    if (allowed_by_row && part(kAllowed) != Py_None) edits.by_row |= SPECDEC_ALLOWED_BY_ROW;
    const bool on = part(kAllowed) != Py_None || edits.bias_tokens.size > 0 || penalised;
    return !(on && law_space() == SPECDEC_PROBS);
  }

  int32_t law_space() { return plan_.law ? field<specdec_law>(plan_.law->parts[0].field).space : SPECDEC_LOGITS; }

  // ---- what excludes what -------------------------------------------------------------------------------------------

  // Beside what the C function looks at.
  bool fits() {
    const auto plain = [](const specdec_number& x, float value) { return !x.data && x.value == value; };
    if (plan_.target_tokens) {
      const bool given = field<Tokens>(plan_.target_tokens->parts[0].field).data;
      return given != (field<Rows>(plan_.target).vocab > 0) && !(given && field<specdec_number>(plan_.coins).data);
    }
    if (!plan_.epsilon) return true;
    const bool drafted = plain(field<specdec_number>(plan_.draft_prob), 1.0f);
    const bool usual = drafted && plain(field<specdec_number>(plan_.epsilon), 0.0f);
    if ((!usual && field<int32_t>(plan_.method) != SPECDEC_REJECTION) || (!drafted && !has_draft_)) return false;
    if (!plan_.num_passed || !field<specdec_output_i32>(plan_.num_passed).data) return true;
    const specdec_number& target = field<specdec_law>(plan_.law->parts[0].field).temperature;
    const specdec_number& draft = draft_law_->temperature;
    return has_draft_ && usual && !target.data && !draft.data && target.value != 0.0f;
  }

  static constexpr int kMostOutputs = 16;

  const Plan& plan_;
  PyObject* const tuple_;
  dlpack::Device device_;  // index -1: not known yet
  int64_t size_[26];
  bool missing_ = false;  // a dimension that may miss
  bool indexed_ = false, packed_ = false, has_draft_ = false, has_given_ = false, scattered_ = false;
  int64_t numbers_ = kAnyIndex;  // how many entries a tensor of numbers or lists has, where E is not known
  int32_t lead_ = -1;     // leading dimensions; -1: not known, or no op on rows
  int64_t leading_[6];
  int32_t rows_dims_ = -1;  // of the first rows
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
  if (!torch.tensor || watched()) Py_RETURN_NONE;
  thread_local Scratch kept_scratch;
  thread_local bool in_use = false;
  Scratch own;  // of a call inside another one, by a finaliser, say
  const bool nested = std::exchange(in_use, true);
  struct Leave {
    bool& in_use;
    bool before;
    ~Leave() { in_use = before; }
  } leave = {in_use, nested};
  Direct call(plan, device, tuple, nested ? own : kept_scratch);
  if (!call.read()) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  if (!call.make_outputs() || !run(context, call.params)) Py_RETURN_NONE;
  return call.result();
}

PyObject* use_functions(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    wants(count, 4);
    const auto item = [&](int argument, Py_ssize_t i) { return Ref(PySequence_GetItem(arguments[argument], i)); };
    watchers.clear();
    for (Py_ssize_t i = 0; i < PySequence_Size(arguments[0]); ++i) watchers.push_back(item(0, i).release());
    for (size_t i = 0; i < std::size(floats); ++i) floats[i] = item(1, static_cast<Py_ssize_t>(i)).release();
    PyObject** const known[] = {&types.sampling, &types.edits,           &types.draft,
                                &types.packing,  &types.input_positions, &types.form};
    for (Py_ssize_t i = 0; i < 6; ++i) *known[i] = item(2, i).release();
    functions = {};
    if (arguments[3] == Py_None) Py_RETURN_NONE;
    const auto address = [&](auto*& function, Py_ssize_t i) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(PyLong_AsVoidPtr(item(3, i).get()));
    };
    address(functions.empty_strided, 0), address(functions.wrap, 1), address(functions.release, 2);
    Py_RETURN_NONE;
  });
}

}  // namespace python
}  // namespace specdec
