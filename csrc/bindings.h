// Reads a call, Python's tuple of an op's arguments, into the op's parameter struct. A table says what each argument is
// and where it goes. It is made from the types of the struct's fields (specdec.h). One reader serves the ops of all
// backends, so it is compiled once, not for each op.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <utility>
#include <vector>

#include "check_parents.h"
#include "specdec.h"
#include "specdec/ops.h"
#include "tensor.h"

namespace specdec {
namespace python {

// ---- tables of structs ----------------------------------------------------------------------------------------------

enum class Kind : uint8_t {
  kBool, kInt32, kInt64, kRows, kTokens, kTokenOutput, kFloats, kCounters, kIndices, kValues, kFlags, kLists,
  kRequestIndex, kInt64Output, kInt32Output, kFloatOutput, kByteOutput, kMask, kLayers, kGroup, kEdits,
};  // clang-format off

template <class T>
constexpr Kind kind_of() { return Kind::kGroup; }  // a struct of several arguments
#define SPECDEC_KIND(T, kind) \
  template <>                 \
  constexpr Kind kind_of<T>() { return Kind::kind; }
SPECDEC_KIND(bool, kBool)
SPECDEC_KIND(int32_t, kInt32)
SPECDEC_KIND(int64_t, kInt64)
SPECDEC_KIND(Rows, kRows)
SPECDEC_KIND(Tokens, kTokens)
SPECDEC_KIND(specdec_output_tokens, kTokenOutput)
SPECDEC_KIND(specdec_number, kFloats)
SPECDEC_KIND(specdec_counter, kCounters)
SPECDEC_KIND(specdec_indices, kIndices)
SPECDEC_KIND(specdec_values, kValues)
SPECDEC_KIND(specdec_flags, kFlags)
SPECDEC_KIND(Lists, kLists)
SPECDEC_KIND(specdec_request_index, kRequestIndex)
SPECDEC_KIND(specdec_output_i64, kInt64Output)
SPECDEC_KIND(specdec_output_i32, kInt32Output)
SPECDEC_KIND(specdec_path, kInt32Output)
SPECDEC_KIND(specdec_output_f32, kFloatOutput)
SPECDEC_KIND(specdec_output_u8, kByteOutput)
SPECDEC_KIND(specdec_mask, kMask)
SPECDEC_KIND(specdec_cache_layers, kLayers)
SPECDEC_KIND(specdec_edits, kEdits)
#undef SPECDEC_KIND

constexpr size_t kNone = ~size_t{0}, kMostBytes = 4096;

struct Table;

struct Field {
  Kind kind;
  size_t at;           // bytes from the begin of the op's struct
  const Table* parts;  // of a group, whose fields lie from there
};

struct Type;

struct Table {
  void add(const Type& type, size_t place);

  size_t bytes = 0;
  std::vector<Field> fields;
  std::vector<size_t> addresses;  // where pointers to tensors stand
  // Fields that some ops have, by their place.
  size_t noise = kNone, request_index = kNone, draft = kNone, parents = kNone, draft_map = kNone, layers = kNone;
  int64_t (*rows)(const void*) = nullptr;  // how many rows the op's outputs have, where the op counts them
};

// A tensor does not say where in the vocabulary it begins, so calls of these ops have that apart, after the rows, which
// come first.
template <class P>
constexpr bool kHasFirstToken =
    std::is_same_v<P, RaceParams> || std::is_same_v<P, TokenLogitsParams> || std::is_same_v<P, ResidualRaceParams>;

inline size_t place_in(const void* whole, const void* field) {
  return static_cast<size_t>(static_cast<const char*>(field) - static_cast<const char*>(whole));
}

// The place of a field of this name, if the struct has one of this type.
#define SPECDEC_PLACE_OF(field, Type)                                                                        \
  template <class P>                                                                                         \
  auto place_of_##field(const P& p, int) -> std::enable_if_t<std::is_same_v<decltype(p.field), Type>, size_t> { \
    return place_in(&p, &p.field);                                                                             \
  }                                                                                                          \
  template <class P>                                                                                         \
  size_t place_of_##field(const P&, long) { return kNone; }
SPECDEC_PLACE_OF(noise, specdec_noise)
SPECDEC_PLACE_OF(request_index, specdec_request_index)
SPECDEC_PLACE_OF(draft, Rows)
SPECDEC_PLACE_OF(parents, Tokens)
SPECDEC_PLACE_OF(draft_map, specdec_indices)
SPECDEC_PLACE_OF(layers, specdec_cache_layers)
#undef SPECDEC_PLACE_OF

using RowsOf = int64_t (*)(const void*);
template <class P>
auto rows_of(int) -> decltype(std::declval<const P&>().count(), RowsOf{}) {
  return [](const void* p) -> int64_t { return static_cast<const P*>(p)->count(); };
}
template <class P>
RowsOf rows_of(long) { return nullptr; }

template <class P>
const Table& table_of();

// What an argument of this type is, and, of a tensor, how far from its begin its address stands.
struct Type {
  Kind kind;
  size_t address;
  const Table& (*parts)();  // of a group

  Field at(size_t place) const { return {kind, place, parts ? &parts() : nullptr}; }
};

template <class T, class = void>
struct TypeOf {
  static constexpr Type value = {kind_of<T>(), kNone, nullptr};
};
template <class T>
struct TypeOf<T, std::enable_if_t<sizeof(T::data) != 0>> {
  static constexpr Type value = {kind_of<T>(), offsetof(T, data), nullptr};
};
template <class T>
struct TypeOf<T, std::enable_if_t<kind_of<T>() == Kind::kGroup || kind_of<T>() == Kind::kEdits>> {
  static constexpr Type value = {kind_of<T>(), kNone, &table_of<T>};
};

inline void Table::add(const Type& type, size_t place) {
  fields.push_back(type.at(place));
  if (const Table* const parts = fields.back().parts)
    for (const size_t at : parts->addresses) addresses.push_back(place + at);
  else if (type.address != kNone && type.kind != Kind::kLayers)  // layers are in host memory
    addresses.push_back(place + type.address);
}

template <class P>
const Table& table_of() {
  static_assert(sizeof(P) <= kMostBytes && std::is_trivially_copyable_v<P>);
  static const Table& table = *[] {
    const P p = {};
    Table* const made = new Table;
    made->bytes = sizeof(P);
    p.fields([&](const auto&... field) {
      (made->add(TypeOf<std::decay_t<decltype(field)>>::value, place_in(&p, &field)), ...);
    });
    if (kHasFirstToken<P>)
      made->fields.insert(made->fields.begin() + 1, {Kind::kInt32, offsetof(Rows, vocab_start), nullptr});
    made->noise = place_of_noise(p, 0);
    made->request_index = place_of_request_index(p, 0);
    made->draft = place_of_draft(p, 0);
    made->parents = place_of_parents(p, 0);
    made->draft_map = place_of_draft_map(p, 0);
    made->layers = place_of_layers(p, 0);
    made->rows = rows_of<P>(0);
    return made;
  }();
  return table;
}

// ---- a call ---------------------------------------------------------------------------------------------------------

// An op's parameter struct, of any op.
struct Params {
  alignas(16) char bytes[kMostBytes];

  template <class T>
  T& at(size_t place) { return *reinterpret_cast<T*>(bytes + place); }
  template <class T>
  const T& at(size_t place) const { return *reinterpret_cast<const T*>(bytes + place); }
};

class Call {
 public:
  Call(const Table& table, PyObject* tuple) : table_(table) {
    std::memset(params.bytes, 0, table.bytes);
    read(table, tuple, 0);
    if (table.request_index == kNone) return;
    // There are as many entries as draft rows, or, without these, as numbers. Without both nothing is looked up.
    const Rows* const draft = table.draft == kNone ? nullptr : &params.at<Rows>(table.draft);
    const bool has_draft = draft && draft->vocab > 0;  // not by its data, which is null for a draft of 0 requests
    params.at<specdec_request_index>(table.request_index).entries = has_draft ? draft->requests : numbers_;
  }
  Call(const Call&) = delete;  // params point into it

  Params params;

  // What the layers of params point to, for a caller that keeps the parameters after the call.
  std::vector<specdec_cache_layer> take_layers() { return std::move(layers_); }

 private:
  // Reads a struct that lies from `begin`, field by field.
  void read(const Table& table, PyObject* object, size_t begin) {
    const auto count = static_cast<Py_ssize_t>(table.fields.size());
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != count) {
      PyErr_Format(PyExc_TypeError, "expected a tuple of %zd; got %.200s", count, Py_TYPE(object)->tp_name);
      throw py::error_already_set();
    }
    PyObject** item = &PyTuple_GET_ITEM(object, 0);
    for (const Field& field : table.fields) read(field, *item++, begin + field.at);
  }

  void read(const Field& field, PyObject* object, size_t at) {
    switch (field.kind) {
      case Kind::kBool: return void(params.at<bool>(at) = PyObject_IsTrue(object) != 0);
      case Kind::kInt32: return void(params.at<int32_t>(at) = number_or_choice(object));
      case Kind::kInt64: return void(params.at<int64_t>(at) = integer(object));
      case Kind::kRows: return read(object, params.at<Rows>(at));
      case Kind::kTokens: return read(object, params.at<Tokens>(at));
      case Kind::kTokenOutput: return read(object, params.at<specdec_output_tokens>(at));
      case Kind::kFloats: return read(object, params.at<specdec_number>(at), {Element::kFloat32});
      case Kind::kCounters: return read(object, params.at<specdec_counter>(at), {Element::kInt32, Element::kInt64});
      case Kind::kIndices: return read_vector(object, params.at<specdec_indices>(at), Element::kInt32);
      case Kind::kValues: return read_vector(object, params.at<specdec_values>(at), Element::kFloat32);
      case Kind::kFlags: return read_vector(object, params.at<specdec_flags>(at), Element::kBool);
      case Kind::kLists: return read(object, params.at<Lists>(at));
      case Kind::kRequestIndex: return read(object, params.at<specdec_request_index>(at));
      case Kind::kInt64Output: return read_output(object, params.at<specdec_output_i64>(at), Element::kInt64);
      case Kind::kInt32Output: return read_output(object, params.at<specdec_output_i32>(at), Element::kInt32);
      case Kind::kFloatOutput: return read_output(object, params.at<specdec_output_f32>(at), Element::kFloat32);
      case Kind::kByteOutput: return read_output(object, params.at<specdec_output_u8>(at), Element::kUInt8);
      case Kind::kMask: return read(object, params.at<specdec_mask>(at));
      case Kind::kLayers: return read(object, params.at<specdec_cache_layers>(at));
      case Kind::kGroup: return read(*field.parts, object, at);
      case Kind::kEdits:
        read(*field.parts, object, at);
        return count_edits(params.at<specdec_edits>(at));
    }
  }

  void read(PyObject* object, Rows& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kFloat32, Element::kBFloat16, Element::kFloat16}, 2, 3);
    const int32_t row = t.ndim - 2;
    out = {t.data, row ? t.strides[0] : 0, t.strides[row], row ? t.shape[0] : 1, t.shape[row],
           static_cast<int32_t>(t.shape[row + 1]), dtype_of(t.element), 0};
  }

  void read(PyObject* object, Tokens& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 1, 2);
    const int32_t slot = t.ndim - 1;
    out = {t.data, slot ? t.strides[0] : 0, t.strides[slot], slot ? t.shape[0] : 1,
           static_cast<int32_t>(t.shape[slot]), t.element == Element::kInt64};
  }

  // One dimension is one row.
  void read(PyObject* object, specdec_output_tokens& out) {
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 1, 2);
    const int32_t column = t.ndim - 1;
    out = {t.data, column ? t.strides[0] : 0, column ? t.shape[0] : 1, t.shape[column], t.strides[column],
           t.element == Element::kInt32};
  }

  template <class Number>
  void read(PyObject* object, Number& out, std::initializer_list<Element> elements) {
    if (number(object, &out.value)) return;
    const Tensor t = tensor(object, elements, 0, 2);
    // A dimension of one entry is shared, so its stride does not matter.
    const auto stride = [&](int32_t i) { return i < t.ndim && t.shape[i] != 1 ? t.strides[i] : 0; };
    out = {t.data, stride(0), stride(1), {}, t.element == Element::kInt64};
    if (t.ndim > 0) numbers_ = t.shape[0];
  }

  template <class Vector>
  void read_vector(PyObject* object, Vector& out, Element element) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {element}, 1, 1);
    if (t.shape[0] > 1 && t.strides[0] != 1) expected("a contiguous tensor", object);
    out = {static_cast<decltype(out.data)>(t.data), t.shape[0]};
  }

  void read(PyObject* object, Lists& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 3, 3);
    const auto stride = [&](int32_t i) { return t.shape[i] != 1 ? t.strides[i] : 0; };
    out = {t.data, stride(0), stride(1), t.shape[0], t.shape[1], t.shape[2], t.element == Element::kInt64};
  }

  void count_edits(const specdec_edits& edits) {
    if (!(edits.by_row & SPECDEC_ALLOWED_BY_ROW))
      count_lists(edits.allowed_index.data ? edits.allowed_index : edits.allowed);
    if (!(edits.by_row & SPECDEC_BIAS_BY_ROW)) count_lists(edits.bias_spans);
    count_lists(edits.pending);
    if (edits.seen_index.data) return count_lists(edits.seen_index);
    for (const Lists* lists : {&edits.prompt_mask, &edits.output_mask, &edits.output_counts}) count_lists(*lists);
  }
  void count_lists(const Lists& lists) {
    if (lists.data) numbers_ = lists.requests;
  }

  void read(PyObject* object, specdec_request_index& out) {
    if (object == Py_None) return void(out = {nullptr, 0, kAny, false});
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 1, 1);
    out = {t.data, t.shape[0], kAny, t.element == Element::kInt64};
  }

  // If the op counts the rows of its input: that many rows, in any shape. Else [rows, columns] or [rows].
  template <class Output>
  void read_output(PyObject* object, Output& out, Element element) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {element}, 1, Tensor::kMaxDims);
    const int64_t rows = table_.rows ? table_.rows(params.bytes) : t.shape[0];
    int64_t first_columns = 1;  // of the first dimension
    for (int32_t i = 1; i < t.ndim; ++i) first_columns *= t.shape[i];
    out = {static_cast<decltype(out.data)>(t.data), t.strides[0], rows, first_columns};
    if (rows == t.shape[0]) return;
    out.row_stride = out.columns = rows > 0 ? t.shape[0] * first_columns / rows : 0;
    if (rows * out.columns != t.shape[0] * first_columns) expected("an output of as many rows as the input", object);
  }

  void read(PyObject* object, specdec_mask& out) {
    const Tensor t = tensor(
        object, {Element::kBool, Element::kFloat32, Element::kBFloat16, Element::kFloat16, Element::kInt32}, 3, 3);
    out = {t.data, t.shape[0], static_cast<int32_t>(t.shape[1]), SPECDEC_MASK_BOOL, 0};
    switch (t.element) {
      case Element::kFloat32: out.layout = SPECDEC_MASK_ADDITIVE32, out.minus_infinity = 0xff800000u; break;
      case Element::kBFloat16: out.layout = SPECDEC_MASK_ADDITIVE16, out.minus_infinity = 0xff80u; break;
      case Element::kFloat16: out.layout = SPECDEC_MASK_ADDITIVE16, out.minus_infinity = 0xfc00u; break;
      case Element::kInt32: out.layout = SPECDEC_MASK_BITS; break;
      default: break;
    }
  }

  void read(PyObject* object, specdec_cache_layers& out) {
    if (!PyList_Check(object)) expected("a list of caches", object);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      const Tensor t = tensor_of(PyList_GET_ITEM(object, i));  // of any type: its elements are only moved
      if (t.ndim != 4) expected("a cache of four dimensions", object);
      const int64_t size = t.element_bytes;
      layers_.push_back({static_cast<char*>(t.data), t.strides[0] * size, t.strides[1] * size, t.strides[2] * size,
                         static_cast<int32_t>(t.shape[1]), static_cast<int32_t>(t.shape[2]),
                         static_cast<int32_t>(t.shape[3] * size), static_cast<int32_t>(t.shape[0])});
    }
    out = {layers_.data(), static_cast<int64_t>(layers_.size())};
  }

  // ---- items --------------------------------------------------------------------------------------------------------

  static Tensor tensor(PyObject* object, std::initializer_list<Element> elements, int32_t least_dims,
                       int32_t most_dims) {
    const Tensor t = tensor_of(object);
    if (std::find(elements.begin(), elements.end(), t.element) == elements.end())
      expected("a tensor of another dtype", object);
    if (t.ndim < least_dims || t.ndim > most_dims) expected("a tensor of other dimensions", object);
    return t;
  }

  // False if the object is not a number.
  static bool number(PyObject* object, float* out) {
    if (!PyFloat_Check(object) && !PyLong_Check(object)) return false;
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    *out = static_cast<float>(value);
    return true;
  }
  static bool number(PyObject* object, int64_t* out) {
    if (!PyLong_Check(object)) return false;
    int overflow = 0;
    *out = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow > 0) *out = static_cast<int64_t>(PyLong_AsUnsignedLongLong(object));  // a seed: its bits
    if (overflow < 0) expected("an int of 64 bits", object);
    if (*out == -1 && PyErr_Occurred()) throw py::error_already_set();
    return true;
  }
  static int64_t integer(PyObject* object) {
    int64_t value;
    if (!number(object, &value)) expected("an int", object);
    return value;
  }

  // A choice comes by its name.
  static int32_t number_or_choice(PyObject* object) {
    if (!PyUnicode_Check(object)) return static_cast<int32_t>(integer(object));
    static constexpr struct {
      const char* name;
      int32_t number;
    } kChoices[] = {{"logits", SPECDEC_LOGITS}, {"probs", SPECDEC_PROBS}, {"rejection", SPECDEC_REJECTION},
                    {"race", SPECDEC_RACE}, {"traversal", SPECDEC_TRAVERSAL}, {"block", SPECDEC_BLOCK},
                    {"paths", SPECDEC_PATHS},
                    {"full", SPECDEC_TREE_FULL}, {"nodes", SPECDEC_TREE_NODES}, {"bits", SPECDEC_TREE_BITS}};
    for (const auto& choice : kChoices)
      if (PyUnicode_CompareWithASCIIString(object, choice.name) == 0) return choice.number;
    PyErr_Format(PyExc_ValueError, "expected one of an op's choices; got %R", object);
    throw py::error_already_set();
  }

  static int32_t dtype_of(Element element) {
    return element == Element::kFloat32    ? SPECDEC_FLOAT32
           : element == Element::kBFloat16 ? SPECDEC_BFLOAT16
                                           : SPECDEC_FLOAT16;
  }

  static constexpr int64_t kAny = int64_t{1} << 31;  // more than any int32

  const Table& table_;
  std::vector<specdec_cache_layer> layers_;
  int64_t numbers_ = kAny;  // entries of the tensors of numbers
};

// ---- functions of a module ------------------------------------------------------------------------------------------

struct Unlocked {
  PyThreadState* state = PyEval_SaveThread();
  ~Unlocked() { PyEval_RestoreThread(state); }
};

// Throws the error of a function of specdec.h.
inline void raise_for(int error) {
  if (error == SPECDEC_OUT_OF_MEMORY) throw std::bad_alloc();
  if (error != SPECDEC_OK) throw std::runtime_error(specdec_last_error());
}

// The body of a Python function of `wanted` arguments: returns f(arguments), and raises what f throws. The interpreter
// calls it directly, because pybind11's conversions take longer than a small call.
template <class F>
PyObject* called(PyObject* const* arguments, Py_ssize_t count, Py_ssize_t wanted, F&& f) {
  try {
    if (count == wanted) return f(arguments);
    PyErr_Format(PyExc_TypeError, "expected %zd arguments; got %zd", wanted, count);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

inline PyMethodDef method(const char* name, FastFunction f) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f)), METH_FASTCALL, nullptr};
}

// `methods` ends with an empty one and must live as long as the module.
inline void add_functions(py::module_& m, PyMethodDef* methods) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace python
}  // namespace specdec
