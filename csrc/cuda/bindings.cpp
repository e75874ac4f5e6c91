// The CUDA ops for Python: op(call, stream, workspace, bytes), with the workspace's address. Returns 0 if the kernel
// was enqueued, else the number of bytes that the workspace must have.
#include "../recall.h"

namespace specdec {
namespace cuda {

namespace {

int64_t integer(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw python::py::error_already_set();
  return value;
}

template <class C>
using Function = int (*)(const C*, void*, size_t, size_t*, void*);

// Returns 0 if the kernel was enqueued, else the bytes needed. argument[1 .. 3] are stream, workspace and its bytes.
template <class C, class Params>
size_t launch(Function<C> op, const Params& params, PyObject* const* argument) {
  const auto stream = reinterpret_cast<void*>(integer(argument[1]));
  const auto workspace = reinterpret_cast<void*>(integer(argument[2]));
  const auto bytes = static_cast<size_t>(integer(argument[3]));
  size_t needed = 0;
  int error;
  {
    const python::Unlocked unlocked;
    error = op(c_api::c_of<C>(params), workspace, bytes, &needed, stream);
  }
  if (error != SPECDEC_WORKSPACE_TOO_SMALL) python::raise_for(error);
  return needed;
}

}  // namespace

void bind(pybind11::module_ m) {
  // Why no device can be used, or an empty string.
  m.def("unavailable", [] { return std::string(specdec_cuda_available() == SPECDEC_OK ? "" : specdec_last_error()); });
#define SPECDEC_METHOD(op, Params)                                                                  \
  python::method(#op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {                \
    return python::called(arguments, count, 4, [](PyObject* const* argument) {                     \
      return PyLong_FromSize_t(                                                                    \
          launch(specdec_cuda_##op, python::Call<Params>(argument[0]).params, argument));          \
    });                                                                                            \
  }),                                                                                              \
  python::method("recall_" #op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {      \
    return python::recalled(python::calls_of<&specdec_cuda_##op, Params>(), arguments, count, 4,   \
                            [](const Params& params, PyObject* const* argument) {                  \
                              return launch(specdec_cuda_##op, params, argument) == 0;             \
                            });                                                                    \
  }),                                                                                              \
  python::method("remember_" #op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {    \
    return python::remembered(python::calls_of<&specdec_cuda_##op, Params>(), arguments, count);   \
  }),
  // capture(stream): which capture a stream is in, or 0.
  static const auto capture = [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return python::called(arguments, count, 1, [](PyObject* const* argument) {
      uint64_t found = 0;
      if (const int error = specdec_cuda_capture(reinterpret_cast<void*>(integer(argument[0])), &found))
        python::raise_for(error);
      return PyLong_FromUnsignedLongLong(found);
    });
  };
  static PyMethodDef methods[] = {SPECDEC_CUDA_OPS(SPECDEC_METHOD) python::method("capture", capture), PyMethodDef{}};
#undef SPECDEC_METHOD
  python::add_functions(m, methods);
}

}  // namespace cuda
}  // namespace specdec
