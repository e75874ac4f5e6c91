#include "tensor.h"

#include <algorithm>

namespace specdec {
namespace python {

Torch torch = {};

void expected(const char* what, PyObject* got) {
  PyErr_Format(PyExc_TypeError, "expected %s; got %.200s", what, Py_TYPE(got)->tp_name);
  throw Raised();
}

namespace {

// What torch views without a word, though the memory does not hold the values: zeros and functional tensors, which have
// no memory, and tensors with the negative bit. These are imaginary parts of conjugates, so their strides are even.
int (*view_of_torch)(void* object, dlpack::View* out) = nullptr;
PyObject* is_negative = nullptr;  // Tensor.is_neg

int view_of_values(void* object, dlpack::View* out) {
  if (view_of_torch(object, out) != 0) return -1;
  bool empty = false, odd = out->dtype.code != dlpack::kFloat;
  for (int32_t i = 0; i < out->ndim; ++i) {
    empty |= out->shape[i] == 0;
    odd |= out->shape[i] > 1 && out->strides[i] % 2 != 0;
  }
  bool fine = out->data || empty;
  if (fine && !odd) {
    PyObject* const negative = PyObject_CallOneArg(is_negative, static_cast<PyObject*>(object));
    if (!negative) return -1;
    fine = negative == Py_False;
    Py_DECREF(negative);
  }
  if (!fine) PyErr_SetString(PyExc_TypeError, "expected a tensor whose memory holds its values");
  return fine ? 0 : -1;
}

bool is_tensor(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == torch.tensor; }

bool all_viewed(PyObject* value) {
  if (PyTuple_Check(value) || PyList_Check(value)) {
    PyObject** items = PySequence_Fast_ITEMS(value);
    return std::all_of(items, items + PySequence_Fast_GET_SIZE(value), all_viewed);
  }
  if (!is_tensor(value))
    return torch.tensor && !PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(torch.tensor));
  dlpack::View view;
  return torch.view(value, &view) == 0 || (PyErr_Clear(), false);
}

Tensor of_view(const dlpack::View& view) {
  Tensor t;
  t.data = view.data ? static_cast<char*>(view.data) + view.byte_offset : nullptr;
  t.element = static_cast<Element>(view.dtype.code << 8 | view.dtype.bits);
  t.element_bytes = view.dtype.bits * view.dtype.lanes / 8;
  t.ndim = view.ndim;
  t.device = view.device;
  std::copy_n(view.shape, view.ndim, t.shape);
  std::copy_n(view.strides, view.ndim, t.strides);
  return t;
}

Ref attribute(PyObject* object, const char* name) { return Ref(PyObject_GetAttrString(object, name)); }
Ref result(PyObject* object, const char* method) { return Ref(PyObject_CallNoArgs(attribute(object, method).get())); }

int64_t integer(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw Raised();
  return value;
}

Element element_of(PyObject* dtype) {
  static constexpr struct {
    const char* name;
    Element element;
  } kNamed[] = {{"torch.float32", Element::kFloat32}, {"torch.float16", Element::kFloat16},
                {"torch.bfloat16", Element::kBFloat16}, {"torch.int32", Element::kInt32},
                {"torch.int64", Element::kInt64},       {"torch.bool", Element::kBool},
                {"torch.uint8", Element::kUInt8}};
  const Ref name(PyObject_Str(dtype));
  for (const auto& named : kNamed)
    if (PyUnicode_CompareWithASCIIString(name.get(), named.name) == 0) return named.element;
  return Element{};
}

Tensor by_attributes(PyObject* object) {
  const Ref shape = attribute(object, "shape"), strides = result(object, "stride");
  const Py_ssize_t dims = PyTuple_GET_SIZE(strides.get());
  if (dims > Tensor::kMaxDims) expected("a tensor of at most 8 dimensions", object);
  Tensor t = {};
  t.data = PyLong_AsVoidPtr(result(object, "data_ptr").get());
  t.element = element_of(attribute(object, "dtype").get());
  t.element_bytes = static_cast<int32_t>(integer(result(object, "element_size").get()));
  t.ndim = static_cast<int32_t>(dims);
  for (Py_ssize_t i = 0; i < dims; ++i) {
    t.shape[i] = integer(Ref(PySequence_GetItem(shape.get(), i)).get());
    t.strides[i] = integer(PyTuple_GET_ITEM(strides.get(), i));
  }
  return t;
}

}  // namespace

bool view(PyObject* object, Tensor* out) {
  dlpack::View view;
  if (!is_tensor(object)) return false;
  if (torch.view(object, &view) != 0) return PyErr_Clear(), false;
  if (view.ndim > Tensor::kMaxDims) return false;
  *out = of_view(view);
  return true;
}

Tensor tensor_of(PyObject* object) {
  if (!is_tensor(object)) {
    if (!PyObject_HasAttrString(object, "data_ptr")) expected("a tensor", object);
    return by_attributes(object);
  }
  dlpack::View view;
  if (torch.view(object, &view) != 0) throw Raised();
  if (view.ndim > Tensor::kMaxDims) expected("a tensor of at most 8 dimensions", object);
  return of_view(view);
}

PyObject* use_tensors(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    wants(count, 2);
    static PyMethodDef method = {
        "all_viewed", [](PyObject*, PyObject* values) { return PyBool_FromLong(all_viewed(values)); }, METH_O, nullptr};
    Ref function(PyCFunction_New(&method, nullptr));
    if (arguments[1] == Py_None) return function.release();
    auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(arguments[1], dlpack::kCapsule));
    if (!api) throw Raised();
    while (api && api->version.major != dlpack::kMajor) api = api->older;
    if (!api || !api->view_object) return function.release();
    view_of_torch = api->view_object;
    is_negative = attribute(arguments[0], "is_neg").release();
    torch = {kept(arguments[0]), view_of_values};
    return function.release();
  });
}

}  // namespace python
}  // namespace specdec
