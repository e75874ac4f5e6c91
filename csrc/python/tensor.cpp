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

void read(const dlpack::View& view, Tensor* t) {
  t->data = view.data ? static_cast<char*>(view.data) + view.byte_offset : nullptr;
  t->element = static_cast<Element>(view.dtype.code << 8 | view.dtype.bits);
  t->element_bytes = view.dtype.bits * view.dtype.lanes / 8;
  t->ndim = view.ndim;
  t->device = view.device;
  for (int32_t i = 0; i < view.ndim; ++i) t->shape[i] = view.shape[i], t->strides[i] = view.strides[i];
}

}  // namespace

bool view(PyObject* object, Tensor* out) {
  dlpack::View view;
  if (!is_tensor(object)) return false;
  if (torch.view(object, &view) != 0) return PyErr_Clear(), false;
  if (view.ndim > Tensor::kMaxDims) return false;
  return read(view, out), true;
}

Tensor tensor_of(PyObject* object) {
  if (!torch.tensor || !PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(torch.tensor)))
    expected("a tensor", object);
  dlpack::View view;
  if (torch.view(object, &view) != 0) throw Raised();
  if (view.ndim > Tensor::kMaxDims) expected("a tensor of at most 8 dimensions", object);
  Tensor t;
  return read(view, &t), t;
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
    is_negative = Ref(PyObject_GetAttrString(arguments[0], "is_neg")).release();
    torch = {kept(arguments[0]), view_of_values};
    return function.release();
  });
}

}  // namespace python
}  // namespace specdec
