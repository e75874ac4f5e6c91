// The Python functions of the CUDA ops.
#include <string>

#include "ops.h"
#include "specdec/ops.h"

namespace specdec::python {

namespace {

uint64_t integer(PyObject* object) {
  const unsigned long long value = PyLong_AsUnsignedLongLongMask(object);
  if (PyErr_Occurred()) throw Raised();
  return value;
}

void* pointer(PyObject* object) { return reinterpret_cast<void*>(integer(object)); }

// An op's C function, for a struct of any type.
using Launch = int (*)(const void* params, void* workspace, size_t bytes, size_t* needed, void* stream);

int launch(void* op, const Params& params, PyObject* const* more, Ref* result) {
  void *const stream = pointer(more[0]), *const workspace = pointer(more[1]);
  const auto bytes = static_cast<size_t>(integer(more[2]));
  size_t needed = 0;
  int error;
  {
    const Unlocked unlocked;
    error = reinterpret_cast<Launch>(op)(params.bytes, workspace, bytes, &needed, stream);
  }
  *result = Ref(error == SPECDEC_WORKSPACE_TOO_SMALL ? PyLong_FromSize_t(needed) : new_reference(Py_None));
  return error == SPECDEC_WORKSPACE_TOO_SMALL ? SPECDEC_OK : error;
}

// Returns why no device can be used, or an empty string.
PyObject* unavailable(PyObject*, PyObject* const*, Py_ssize_t) {
  return PyUnicode_FromString(specdec_cuda_available() == SPECDEC_OK ? "" : specdec_last_error());
}

// wait(stream): returns when the stream is done.
PyObject* wait(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    wants(count, 1);
    void* const stream = pointer(arguments[0]);
    int error;
    {
      const Unlocked unlocked;
      error = specdec_cuda_wait(stream);
    }
    raise_for(error);
    Py_RETURN_NONE;
  });
}

// capture(stream): the id of the capture that a stream is in, or 0.
PyObject* capture(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    wants(count, 1);
    uint64_t id = 0;
    raise_for(specdec_cuda_capture(pointer(arguments[0]), &id));
    return PyLong_FromUnsignedLongLong(id);
  });
}

}  // namespace

void add_cuda(PyObject* module, int32_t device) {
#define SPECDEC_FUNCTION(name, P) reinterpret_cast<void*>(specdec_cuda_##name),
  static void* const functions[] = {SPECDEC_OPS(SPECDEC_FUNCTION)};
#undef SPECDEC_FUNCTION
  add_ops(module, {device, functions, 3, launch});
  add(module, "unavailable", unavailable);
  add(module, "wait", wait);
  add(module, "capture", capture);
}

}  // namespace specdec::python
