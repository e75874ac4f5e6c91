// Reads a call, Python's tuple of an op's arguments, into the op's parameter struct. A table says what each argument is
// and where it goes. It is made from the types of the struct's fields (specdec/params.h). One reader serves the ops of
// all backends, so it is compiled once, not for each op.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <utility>
#include <vector>

#include "cpu/check_parents.h"
#include "specdec.h"
#include "specdec/ops.h"
#include "tensor.h"

namespace specdec {
namespace python {

// ---- tables of structs ----------------------------------------------------------------------------------------------

enum class Kind : uint8_t {
  kMethod, kSpace, kTreeMask, kBool, kInt32, kInt64, kRows, kTokens, kTokenOutput, kFloats, kCounters, kIndices, kValues,
  kFlags, kLists, kRequestIndex, kInt64Output, kInt32Output, kFloatOutput, kByteOutput, kMask, kLayers, kGroup, kEdits,
};  // clang-format off

template <class T>
constexpr Kind kind_of() { return Kind::kGroup; }  // a struct of several arguments
#define SPECDEC_KIND(T, kind) \
  template <>                 \
  constexpr Kind kind_of<T>() { return Kind::kind; }
SPECDEC_KIND(Method, kMethod)
SPECDEC_KIND(Space, kSpace)
SPECDEC_KIND(TreeMask, kTreeMask)
SPECDEC_KIND(bool, kBool)
SPECDEC_KIND(int32_t, kInt32)
SPECDEC_KIND(int64_t, kInt64)
SPECDEC_KIND(Rows, kRows)
SPECDEC_KIND(Tokens, kTokens)
SPECDEC_KIND(TokenOutput, kTokenOutput)
SPECDEC_KIND(Per<float>, kFloats)
SPECDEC_KIND(Per<int64_t>, kCounters)
SPECDEC_KIND(Vector<const int32_t>, kIndices)
SPECDEC_KIND(Vector<const float>, kValues)
SPECDEC_KIND(Vector<const bool>, kFlags)
SPECDEC_KIND(Lists, kLists)
SPECDEC_KIND(RequestIndex, kRequestIndex)
SPECDEC_KIND(Output<int64_t>, kInt64Output)
SPECDEC_KIND(Output<int32_t>, kInt32Output)
SPECDEC_KIND(Output<const int32_t>, kInt32Output)
SPECDEC_KIND(Output<float>, kFloatOutput)
SPECDEC_KIND(Output<uint8_t>, kByteOutput)
SPECDEC_KIND(Mask, kMask)
SPECDEC_KIND(Vector<const CacheLayer>, kLayers)
SPECDEC_KIND(EditParams, kEdits)
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

template <class Struct, class F>
auto over_arguments(Struct& s, const F& f, int) -> decltype(s.arguments(f)) { return s.arguments(f); }
template <class Struct, class F>
void over_arguments(Struct& s, const F& f, long) { s.fields(f); }

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
SPECDEC_PLACE_OF(noise, NoiseParams)
SPECDEC_PLACE_OF(request_index, RequestIndex)
SPECDEC_PLACE_OF(draft, Rows)
SPECDEC_PLACE_OF(parents, Tokens)
SPECDEC_PLACE_OF(draft_map, Vector<const int32_t>)
SPECDEC_PLACE_OF(layers, Vector<const CacheLayer>)
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
    P p = {};
    Table* const made = new Table;
    made->bytes = sizeof(P);
    over_arguments(
        p,
        [&](auto&... field) {
          (made->add(TypeOf<std::remove_reference_t<decltype(field)>>::value, place_in(&p, &field)), ...);
        },
        0);
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
    params.at<RequestIndex>(table.request_index).entries = has_draft ? draft->requests : numbers_;
  }
  Call(const Call&) = delete;  // params point into it

  Params params;

  // What the layers of params point to, for a caller that keeps the parameters after the call.
  std::vector<CacheLayer> take_layers() { return std::move(layers_); }

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
      case Kind::kMethod: return read(object, params.at<Method>(at));
      case Kind::kSpace: return void(params.at<Space>(at) = static_cast<Space>(choice(object, {"logits", "probs"})));
      case Kind::kTreeMask:
        return void(params.at<TreeMask>(at) = static_cast<TreeMask>(choice(object, {"full", "nodes", "bits"})));
      case Kind::kBool: return void(params.at<bool>(at) = PyObject_IsTrue(object) != 0);
      case Kind::kInt32: return void(params.at<int32_t>(at) = static_cast<int32_t>(integer(object)));
      case Kind::kInt64: return void(params.at<int64_t>(at) = integer(object));
      case Kind::kRows: return read(object, params.at<Rows>(at));
      case Kind::kTokens: return read(object, params.at<Tokens>(at));
      case Kind::kTokenOutput: return read(object, params.at<TokenOutput>(at));
      case Kind::kFloats: return read(object, params.at<Per<float>>(at), {Element::kFloat32});
      case Kind::kCounters: return read(object, params.at<Per<int64_t>>(at), {Element::kInt32, Element::kInt64});
      case Kind::kIndices: return read(object, params.at<Vector<const int32_t>>(at), Element::kInt32);
      case Kind::kValues: return read(object, params.at<Vector<const float>>(at), Element::kFloat32);
      case Kind::kFlags: return read(object, params.at<Vector<const bool>>(at), Element::kBool);
      case Kind::kLists: return read(object, params.at<Lists>(at));
      case Kind::kRequestIndex: return read(object, params.at<RequestIndex>(at));
      case Kind::kInt64Output: return read(object, params.at<Output<int64_t>>(at), Element::kInt64);
      case Kind::kInt32Output: return read(object, params.at<Output<int32_t>>(at), Element::kInt32);
      case Kind::kFloatOutput: return read(object, params.at<Output<float>>(at), Element::kFloat32);
      case Kind::kByteOutput: return read(object, params.at<Output<uint8_t>>(at), Element::kUInt8);
      case Kind::kMask: return read(object, params.at<Mask>(at));
      case Kind::kLayers: return read(object, params.at<Vector<const CacheLayer>>(at));
      case Kind::kGroup: return read(*field.parts, object, at);
      case Kind::kEdits:
        read(*field.parts, object, at);
        return count_edits(params.at<EditParams>(at));
    }
  }

  void read(PyObject* object, Method& out) {
    const int named = choice(object, {"rejection", "race", "traversal", "block"});
    out = named == 3 ? Method::kTraversal : static_cast<Method>(named);
  }

  void read(PyObject* object, Rows& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kFloat32, Element::kBFloat16, Element::kFloat16}, 2, 3);
    const int32_t row = t.ndim - 2;
    out = {t.data, row ? t.strides[0] : 0, t.strides[row], row ? t.shape[0] : 1, t.shape[row],
           static_cast<int32_t>(t.shape[row + 1]), dtype_of(t.element)};
  }

  void read(PyObject* object, Tokens& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 1, 2);
    const int32_t slot = t.ndim - 1;
    out = {t.data, slot ? t.strides[0] : 0, t.strides[slot], slot ? t.shape[0] : 1,
           static_cast<int32_t>(t.shape[slot]), t.element == Element::kInt64};
  }

  // One dimension is one row.
  void read(PyObject* object, TokenOutput& out) {
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 1, 2);
    const int32_t column = t.ndim - 1;
    out = {t.data, column ? t.strides[0] : 0, column ? t.shape[0] : 1, t.shape[column], t.strides[column],
           t.element == Element::kInt32};
  }

  template <class T>
  void read(PyObject* object, Per<T>& out, std::initializer_list<Element> elements) {
    if (number(object, &out.value)) return;
    const Tensor t = tensor(object, elements, 0, 2);
    // A dimension of one entry is shared, so its stride does not matter.
    const auto stride = [&](int32_t i) { return i < t.ndim && t.shape[i] != 1 ? t.strides[i] : 0; };
    out = {t.data, stride(0), stride(1), T{}, t.element == Element::kInt64};
    if (t.ndim > 0) numbers_ = t.shape[0];
  }

  template <class T>
  void read(PyObject* object, Vector<T>& out, Element element) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {element}, 1, 1);
    out = {static_cast<T*>(t.data), t.shape[0]};
  }

  void read(PyObject* object, Lists& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 3, 3);
    const auto stride = [&](int32_t i) { return t.shape[i] != 1 ? t.strides[i] : 0; };
    out = {t.data, stride(0), stride(1), t.shape[0], t.shape[1], t.shape[2], t.element == Element::kInt64};
  }

  void count_edits(const EditParams& edits) {
    if (!(edits.by_row & kAllowedByRow)) count_lists(edits.allowed_index.data ? edits.allowed_index : edits.allowed);
    if (!(edits.by_row & kBiasByRow)) count_lists(edits.bias_spans);
    count_lists(edits.pending);
    if (edits.seen_index.data) return count_lists(edits.seen_index);
    for (const Lists* lists : {&edits.prompt_mask, &edits.output_mask, &edits.output_counts}) count_lists(*lists);
  }
  void count_lists(const Lists& lists) {
    if (lists.data) numbers_ = lists.requests;
  }

  void read(PyObject* object, RequestIndex& out) {
    if (object == Py_None) return void(out = {nullptr, 0, kAny, false});
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 1, 1);
    out = {t.data, t.shape[0], kAny, t.element == Element::kInt64};
  }

  // If the op counts the rows of its input: that many rows, in any shape. Else [rows, columns] or [rows].
  template <class T>
  void read(PyObject* object, Output<T>& out, Element element) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {element}, 1, Tensor::kMaxDims);
    const int64_t rows = table_.rows ? table_.rows(params.bytes) : t.shape[0];
    int64_t first_columns = 1;  // of the first dimension
    for (int32_t i = 1; i < t.ndim; ++i) first_columns *= t.shape[i];
    out = {static_cast<T*>(t.data), t.strides[0], rows, first_columns};
    if (rows == t.shape[0]) return;
    out.row_stride = out.columns = rows > 0 ? t.shape[0] * first_columns / rows : 0;
    if (rows * out.columns != t.shape[0] * first_columns) expected("an output of as many rows as the input", object);
  }

  void read(PyObject* object, Mask& out) {
    const Tensor t = tensor(
        object, {Element::kBool, Element::kFloat32, Element::kBFloat16, Element::kFloat16, Element::kInt32}, 3, 3);
    out = {t.data, t.shape[0], static_cast<int32_t>(t.shape[1]), MaskLayout::kBool, 0};
    switch (t.element) {
      case Element::kFloat32: out.layout = MaskLayout::kAdditive32, out.minus_infinity = 0xff800000u; break;
      case Element::kBFloat16: out.layout = MaskLayout::kAdditive16, out.minus_infinity = 0xff80u; break;
      case Element::kFloat16: out.layout = MaskLayout::kAdditive16, out.minus_infinity = 0xfc00u; break;
      case Element::kInt32: out.layout = MaskLayout::kBits; break;
      default: break;
    }
  }

  void read(PyObject* object, Vector<const CacheLayer>& out) {
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

  // Which of these names it is.
  static int choice(PyObject* object, std::initializer_list<const char*> names) {
    int which = 0;
    for (const char* name : names) {
      if (PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, name) == 0) return which;
      ++which;
    }
    PyErr_Format(PyExc_ValueError, "expected '%s' or another choice; got %R", *names.begin(), object);
    throw py::error_already_set();
  }

  static DType dtype_of(Element element) {
    return element == Element::kFloat32    ? DType::kFloat32
           : element == Element::kBFloat16 ? DType::kBFloat16
                                           : DType::kFloat16;
  }

  static constexpr int64_t kAny = int64_t{1} << 31;  // more than any int32

  const Table& table_;
  std::vector<CacheLayer> layers_;
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
