#include "tensor.h"

#include <algorithm>
#include <cstring>

namespace specdec::python {

Torch torch = {};

void expected(const char* what, PyObject* got) {
  PyErr_Format(PyExc_TypeError, "expected %s; got %.200s", what, Py_TYPE(got)->tp_name);
  throw Raised();
}

namespace {

// torch's function. It also views tensors whose memory does not hold the values: zero and functional tensors, which
// have no memory, and tensors with the negative bit.
int (*view_of_torch)(void* object, dlpack::View* out) = nullptr;

// Tests a tensor's negative bit. Its method is_neg takes 80 ns, since it releases the GIL. Torch's C++ function takes
// 2: its argument is the pointer that the Python object holds at an offset, which find_negative determines.
struct {
  PyObject* method;
  bool (*function)(const void* held);  // null: this torch has no such function, or the offset is unknown
  Py_ssize_t offset;

  // 1 or 0; -1: an error is set.
  int operator()(PyObject* object) const {
    if (function) return function(reinterpret_cast<const char*>(object) + offset);
    return PyObject_IsTrue(Ref(PyObject_CallOneArg(method, object)).get());
  }
} is_negative = {};

const void* held_at(PyObject* object, Py_ssize_t offset) {
  const void* held;
  std::memcpy(&held, reinterpret_cast<const char*>(object) + offset, sizeof held);
  return held;
}

// Determines function and offset by examples: (the function's address, a tensor, its address, a negative one, its
// address).
void find_negative(PyObject* example) {
  const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(example, i); };
  const auto address = [&](Py_ssize_t i) { return PyLong_AsVoidPtr(item(i)); };
  const auto function = reinterpret_cast<bool (*)(const void*)>(address(0));
  const Py_ssize_t size = Py_TYPE(item(1))->tp_basicsize, word = sizeof(void*);
  for (Py_ssize_t offset = sizeof(PyObject); offset + word <= size; offset += word) {
    if (held_at(item(1), offset) != address(2) || held_at(item(3), offset) != address(4)) continue;
    const auto is_negative_at = [&](Py_ssize_t i) { return function(reinterpret_cast<const char*>(item(i)) + offset); };
    if (!is_negative_at(1) && is_negative_at(3)) is_negative.function = function, is_negative.offset = offset;
    return;
  }
}

int view_of_values(void* object, dlpack::View* out) {
  if (view_of_torch(object, out) != 0) return -1;
  bool fine = out->data != nullptr;
  for (int32_t i = 0; !fine && i < out->ndim; ++i) fine = out->shape[i] == 0;
  if (fine) fine = is_negative(static_cast<PyObject*>(object)) == 0;
  if (!fine && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected a tensor whose memory holds its values");
  return fine ? 0 : -1;
}

bool is_tensor(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == torch.tensor; }

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

namespace {

// torch's C functions that make a tensor, wrap it in a Python object, release the C handle, and return its address.
// They take a third of the time of torch.empty_strided. Null where a torch has no such functions: then Python makes
// outputs.
struct {
  int (*empty_strided)(int64_t dims, const int64_t* shape, const int64_t* strides, int32_t dtype, int32_t device,
                       int32_t index, void** made);
  PyObject* (*wrap)(const void* made);
  int (*release)(void* made);
  int (*address)(void* made, void** data);
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

}  // namespace

PyObject* new_tensor(Tensor* t, dlpack::Device device) {
  const bool on_host = device.type == 1;
  void* made = nullptr;
  int64_t step = 1;
  bool empty = false;
  for (int32_t i = t->ndim - 1; i >= 0; --i) {
    t->strides[i] = step, step *= std::max<int64_t>(t->shape[i], 1);
    empty |= t->shape[i] == 0;
  }
  if (!functions.wrap ||
      functions.empty_strided(t->ndim, t->shape, t->strides, number_of(t->element), !on_host,
                              on_host ? 0 : device.index, &made) != 0)
    return nullptr;
  const int error = functions.address(made, &t->data);
  PyObject* const wrapped = functions.wrap(made);
  functions.release(made);
  if (error != 0 || (!t->data && !empty)) throw std::runtime_error("a new output cannot be written");
  return wrapped;
}

void use_new_tensors(PyObject* addresses) {
  functions = {};
  if (addresses == Py_None) return;
  const auto address = [&](auto*& function, Py_ssize_t i) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(
        PyLong_AsVoidPtr(Ref(PySequence_GetItem(addresses, i)).get()));
  };
  address(functions.empty_strided, 0), address(functions.wrap, 1), address(functions.release, 2);
  address(functions.address, 3);
}

bool meet(std::vector<Span>& spans) {
  // A written span with each other one: of few spans, as calls have, this takes less than sorting all.
  const auto empty = [](const Span& span) { return span.begin == span.end; };
  const auto first_read = std::partition(spans.begin(), spans.end(), [](const Span& span) { return span.written; });
  std::sort(spans.begin(), first_read, [](const Span& one, const Span& other) { return one.begin < other.begin; });
  const char* end = nullptr;  // of the written spans so far
  for (auto span = spans.begin(); span != first_read; ++span) {
    if (empty(*span)) continue;
    if (span->begin < end) return true;
    end = span->end;
    for (auto other = first_read; other != spans.end(); ++other)
      if (other->begin < span->end && span->begin < other->end && !empty(*other)) return true;
  }
  return false;
}

namespace {

// Adds the spans of all tensors in a value. False if one cannot be viewed.
bool add_spans(PyObject* value, bool written, std::vector<Span>* spans) {
  if (PyTuple_Check(value) || PyList_Check(value)) {
    PyObject** const items = PySequence_Fast_ITEMS(value);
    return std::all_of(items, items + PySequence_Fast_GET_SIZE(value),
                       [&](PyObject* item) { return add_spans(item, written, spans); });
  }
  Tensor t;
  if (view(value, &t)) return spans->push_back({static_cast<const char*>(t.data), t.end(), written}), true;
  return torch.tensor && !PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(torch.tensor));
}

}  // namespace

PyObject* all_viewed(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    wants(count, 1);
    std::vector<Span> spans;
    return PyBool_FromLong(add_spans(arguments[0], false, &spans));
  });
}

PyObject* apart(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    wants(count, 2);
    std::vector<Span> spans;
    bool viewed = true;
    for (Py_ssize_t i = 0; viewed && i < PyTuple_GET_SIZE(arguments[0]); ++i)
      viewed = add_spans(PyTuple_GET_ITEM(arguments[0], i), PyBytes_AS_STRING(arguments[1])[i] != 0, &spans);
    return PyBool_FromLong(viewed && !meet(spans));
  });
}

PyObject* use_tensors(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    wants(count, 3);
    auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(arguments[1], dlpack::kCapsule));
    if (!api) throw Raised();
    while (api && api->version.major != dlpack::kMajor) api = api->older;
    if (!api || !api->view_object) Py_RETURN_NONE;
    view_of_torch = api->view_object;
    is_negative = {Ref(PyObject_GetAttrString(arguments[0], "is_neg")).release(), nullptr, 0};
    if (arguments[2] != Py_None) find_negative(arguments[2]);
    torch = {new_reference(arguments[0]), view_of_values};
    Py_RETURN_NONE;
  });
}

}  // namespace specdec::python
