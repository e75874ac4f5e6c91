// Reads a call, Python's tuple of an op's arguments, into the op's parameter struct. The type of a field
// (specdec/params.h) says how its item is read. The bindings of the CPU and the CUDA backend share this.
#pragma once

#include <exception>
#include <initializer_list>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "c_api/mirror.h"
#include "tensor.h"

namespace specdec {
namespace python {

template <class Params>
class Call {
 public:
  explicit Call(PyObject* tuple) {
    read(tuple, params);
    count_entries(params, 0);
  }
  Call(const Call&) = delete;  // params point into it

  Params params = {};

  // What params.layers points to, for a caller that keeps the parameters after the call.
  std::vector<CacheLayer> take_layers() { return std::move(layers_); }

 private:
  // Reads a struct from a tuple, field by field.
  template <class Struct>
  void read(PyObject* object, Struct& out) {
    const auto fields = arguments_of(out, 0);
    constexpr Py_ssize_t kCount = std::tuple_size_v<std::remove_const_t<decltype(fields)>>;
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != kCount) {
      PyErr_Format(PyExc_TypeError, "expected a tuple of %zd; got %.200s", kCount, Py_TYPE(object)->tp_name);
      throw py::error_already_set();
    }
    PyObject** item = &PyTuple_GET_ITEM(object, 0);
    std::apply([&](auto&... field) { (read(*item++, field), ...); }, fields);
  }

  template <class Struct>
  static auto arguments_of(Struct& out, int) -> decltype(out.arguments()) { return out.arguments(); }
  template <class Struct>
  static auto arguments_of(Struct& out, long) { return out.fields(); }

  void read(PyObject* object, Method& out) {
    const int named = choice(object, {"rejection", "race", "traversal", "block"});
    out = named == 3 ? Method::kTraversal : static_cast<Method>(named);
  }
  void read(PyObject* object, Space& out) { out = static_cast<Space>(choice(object, {"logits", "probs"})); }
  void read(PyObject* object, TreeMask& out) {
    out = static_cast<TreeMask>(choice(object, {"full", "nodes", "bits"}));
  }
  void read(PyObject* object, bool& out) { out = PyObject_IsTrue(object) != 0; }
  void read(PyObject* object, int64_t& out) {
    if (!number(object, &out)) expected("an int", object);
  }
  void read(PyObject* object, int32_t& out) {
    int64_t wide;
    read(object, wide);
    out = static_cast<int32_t>(wide);
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
  void read(PyObject* object, Per<T>& out) {
    if (number(object, &out.value)) return;
    const Tensor t = std::is_floating_point_v<T> ? tensor(object, {Element::kFloat32}, 0, 2)
                                                 : tensor(object, {Element::kInt32, Element::kInt64}, 0, 2);
    // A dimension of one entry is shared, so its stride does not matter.
    const auto stride = [&](int32_t i) { return i < t.ndim && t.shape[i] != 1 ? t.strides[i] : 0; };
    out = {t.data, stride(0), stride(1), T{}, t.element == Element::kInt64};
    if (t.ndim > 0) numbers_ = t.shape[0];
  }

  void read(PyObject* object, Vector<const int32_t>& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kInt32}, 1, 1);
    out = {static_cast<const int32_t*>(t.data), t.shape[0]};
  }

  void read(PyObject* object, Vector<const float>& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kFloat32}, 1, 1);
    out = {static_cast<const float*>(t.data), t.shape[0]};
  }

  void read(PyObject* object, Vector<const bool>& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kBool}, 1, 1);
    out = {static_cast<const bool*>(t.data), t.shape[0]};
  }

  void read(PyObject* object, Lists& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {Element::kInt32, Element::kInt64}, 3, 3);
    const auto stride = [&](int32_t i) { return t.shape[i] != 1 ? t.strides[i] : 0; };
    out = {t.data, stride(0), stride(1), t.shape[0], t.shape[1], t.shape[2], t.element == Element::kInt64};
  }

  void read(PyObject* object, EditParams& out) {
    read<EditParams>(object, out);
    if (!(out.by_row & kAllowedByRow)) count_lists(out.allowed_index.data ? out.allowed_index : out.allowed);
    if (!(out.by_row & kBiasByRow)) count_lists(out.bias_spans);
    count_lists(out.pending);
    if (out.seen_index.data) return count_lists(out.seen_index);
    for (const Lists* lists : {&out.prompt_mask, &out.output_mask, &out.output_counts}) count_lists(*lists);
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
  void read(PyObject* object, Output<T>& out) {
    if (object == Py_None) return;
    const Tensor t = tensor(object, {element_for<std::remove_const_t<T>>()}, 1, Tensor::kMaxDims);
    const int64_t rows = rows_of_output(params, t.shape[0], 0);
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
  template <class T>
  static constexpr Element element_for() {
    if (std::is_floating_point_v<T>) return Element::kFloat32;
    return sizeof(T) == 8 ? Element::kInt64 : sizeof(T) == 4 ? Element::kInt32 : Element::kUInt8;
  }

  template <class P>
  static auto rows_of_output(const P& p, int64_t, int) -> decltype(p.count()) { return p.count(); }
  template <class P>
  static int64_t rows_of_output(const P&, int64_t first_dim, long) { return first_dim; }

  // There are as many entries as draft rows, or, without these, as numbers. Without both nothing is looked up.
  template <class P>
  auto count_entries(P& p, int) -> decltype(p.request_index, void()) {
    const Rows* const draft = draft_of(p, 0);
    const bool has_draft = draft && draft->vocab > 0;  // not by its data, which is null for a draft of 0 requests
    p.request_index.entries = has_draft ? draft->requests : numbers_;
  }
  template <class P>
  void count_entries(P&, long) {}

  template <class P>
  static auto draft_of(const P& p, int) -> decltype(&p.draft) { return &p.draft; }
  template <class P>
  static const Rows* draft_of(const P&, long) { return nullptr; }

  static constexpr int64_t kAny = int64_t{1} << 31;  // more than any int32

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
