// Reads Python's tensors in C++: through the functions that torch offers for this (dlpack.h), in 40 ns each. A torch
// without these functions, and subclasses of its tensors, are read through Python attributes.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>

#include "dlpack.h"

namespace specdec {
namespace python {

namespace py = pybind11;

// DLPack's code and bits.
enum class Element : uint16_t {
  kFloat32 = dlpack::kFloat << 8 | 32,
  kFloat16 = dlpack::kFloat << 8 | 16,
  kBFloat16 = dlpack::kBFloat << 8 | 16,
  kInt32 = dlpack::kInt << 8 | 32,
  kInt64 = dlpack::kInt << 8 | 64,
  kBool = dlpack::kBool << 8 | 8,
  kUInt8 = dlpack::kUInt << 8 | 8,
};

struct Tensor {
  static constexpr int kMaxDims = 8;
  void* data;
  Element element;  // not one of the above: a type that only compact_kv takes
  int32_t element_bytes, ndim;
  int64_t shape[kMaxDims], strides[kMaxDims];  // in elements
};

[[noreturn]] inline void expected(const char* what, PyObject* got) {
  PyErr_Format(PyExc_TypeError, "expected %s; got %.200s", what, Py_TYPE(got)->tp_name);
  throw py::error_already_set();
}

// The one type that `api` can view; null until use_tensors is called.
struct Viewed {
  PyObject* type;
  const dlpack::ExchangeApi* api;
};
inline Viewed viewed = {};

// What torch views without a word, though the memory does not hold the values: zeros and functional tensors, which have
// no memory, and tensors with the negative bit. These are imaginary parts of conjugates, so their strides are even.
inline int (*view_of_torch)(void* object, dlpack::View* out) = nullptr;
inline PyObject* is_negative = nullptr;  // Tensor.is_neg

inline int view_of_values(void* object, dlpack::View* out) {
  if (view_of_torch(object, out) != 0) return -1;
  bool empty = false, odd = out->dtype.code != dlpack::kFloat;
  for (int32_t i = 0; i < out->ndim; ++i) {
    empty |= out->shape[i] == 0;
    odd |= out->shape[i] > 1 && out->strides[i] % 2 != 0;
  }
  bool fine = out->data || empty;
  if (fine && !odd) {
    const py::object negative = py::reinterpret_steal<py::object>(
        PyObject_CallOneArg(is_negative, static_cast<PyObject*>(object)));
    if (!negative) return -1;
    fine = negative.ptr() == Py_False;
  }
  if (!fine) PyErr_SetString(PyExc_TypeError, "expected a tensor whose memory holds its values");
  return fine ? 0 : -1;
}

// Whether each tensor in some values, in tuples and lists among these, too, is of that type and can be viewed.
inline bool all_viewed(PyObject* value) {
  if (PyTuple_Check(value) || PyList_Check(value)) {
    PyObject** items = PySequence_Fast_ITEMS(value);
    return std::all_of(items, items + PySequence_Fast_GET_SIZE(value), all_viewed);
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != viewed.type)
    return viewed.type && !PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(viewed.type));
  dlpack::View view;
  return viewed.api->view_object(value, &view) == 0 || (PyErr_Clear(), false);
}

// Returns all_viewed as a function of Python. Without a capsule, or if it has another major version or no view_object,
// nothing is viewed.
inline py::object use_tensors(const py::type& type, const py::object& capsule) {
  static PyMethodDef method = {
      "all_viewed", [](PyObject*, PyObject* values) { return PyBool_FromLong(all_viewed(values)); }, METH_O, nullptr};
  const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr));
  if (!function) throw py::error_already_set();
  if (capsule.is_none()) return function;
  auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
  if (!api) throw py::error_already_set();
  while (api && api->version.major != dlpack::kMajor) api = api->older;
  if (!api || !api->view_object) return function;
  static dlpack::ExchangeApi own;
  own = *api;
  own.view_object = view_of_values;
  view_of_torch = api->view_object;
  is_negative = py::object(type.attr("is_neg")).release().ptr();
  viewed = {py::type(type).release().ptr(), &own};
  return function;
}

inline Tensor tensor_by_view(PyObject* object) {
  dlpack::View view;
  if (viewed.api->view_object(object, &view) != 0) throw py::error_already_set();
  if (view.ndim > Tensor::kMaxDims) expected("a tensor of at most 8 dimensions", object);
  Tensor t;
  t.data = view.data ? static_cast<char*>(view.data) + view.byte_offset : nullptr;
  t.element = static_cast<Element>(view.dtype.code << 8 | view.dtype.bits);
  t.element_bytes = view.dtype.bits * view.dtype.lanes / 8;
  t.ndim = view.ndim;
  std::copy_n(view.shape, view.ndim, t.shape);
  std::copy_n(view.strides, view.ndim, t.strides);
  return t;
}

inline Element element_of(const py::handle& dtype) {
  static constexpr struct {
    const char* name;
    Element element;
  } kNamed[] = {{"torch.float32", Element::kFloat32}, {"torch.float16", Element::kFloat16},
                {"torch.bfloat16", Element::kBFloat16}, {"torch.int32", Element::kInt32},
                {"torch.int64", Element::kInt64},       {"torch.bool", Element::kBool},
                {"torch.uint8", Element::kUInt8}};
  const py::str name(dtype);
  for (const auto& named : kNamed)
    if (PyUnicode_CompareWithASCIIString(name.ptr(), named.name) == 0) return named.element;
  return Element{};
}

inline Tensor tensor_by_attributes(const py::handle& object) {
  const py::tuple shape = object.attr("shape"), strides = object.attr("stride")();
  if (shape.size() > Tensor::kMaxDims) expected("a tensor of at most 8 dimensions", object.ptr());
  Tensor t;
  t.data = reinterpret_cast<void*>(object.attr("data_ptr")().cast<uintptr_t>());
  t.element = element_of(object.attr("dtype"));
  t.element_bytes = object.attr("element_size")().cast<int32_t>();
  t.ndim = static_cast<int32_t>(shape.size());
  for (int32_t i = 0; i < t.ndim; ++i) {
    t.shape[i] = shape[static_cast<size_t>(i)].cast<int64_t>();
    t.strides[i] = strides[static_cast<size_t>(i)].cast<int64_t>();
  }
  return t;
}

inline Tensor tensor_of(PyObject* object) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == viewed.type) return tensor_by_view(object);
  if (!PyObject_HasAttrString(object, "data_ptr")) expected("a tensor", object);
  return tensor_by_attributes(object);
}

}  // namespace python
}  // namespace specdec
