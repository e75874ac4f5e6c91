// The CUDA ops for Python: op(call, stream, workspace, bytes), the workspace by its address. The result is the number
// of bytes the workspace must have, 0 when the kernel is on its way.
#include "../recall.h"

#include <string>

#include "ops.h"

namespace specdec {
namespace cuda {

namespace {

int64_t integer(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw python::py::error_already_set();
  return value;
}

template <class Params>
using Launcher = cudaError_t (*)(const Params&, const Workspace&, cudaStream_t, int64_t*);

// The bytes that are needed; 0 when the kernel is on its way. After the call come the stream and the workspace.
template <class Params>
int64_t launch(const char* name, Launcher<Params> op, const Params& params, PyObject* const* argument) {
  const auto stream = reinterpret_cast<cudaStream_t>(integer(argument[1]));
  const Workspace workspace = {reinterpret_cast<void*>(integer(argument[2])), integer(argument[3])};
  int64_t needed = 0;
  cudaError_t e;
  {
    const python::Unlocked unlocked;
    e = op(params, workspace, stream, &needed);
  }
  if (e != cudaSuccess) throw std::runtime_error(std::string(name) + ": CUDA error: " + cudaGetErrorString(e));
  return needed;
}

}  // namespace

void bind(pybind11::module_ m) {
  // Why no device can be used, or an empty string.
  m.def("unavailable", [] {
    int count = 0;
    const cudaError_t e = cudaGetDeviceCount(&count);
    return std::string(e != cudaSuccess ? cudaGetErrorString(e) : count == 0 ? "no CUDA device" : "");
  });
#define SPECDEC_METHOD(op, Params)                                                                  \
  python::method(#op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {                \
    return python::called(arguments, count, 4, [](PyObject* const* argument) {                     \
      return PyLong_FromLongLong(                                                                  \
          launch<Params>(#op, op, python::Call<Params>(argument[0]).params, argument));            \
    });                                                                                            \
  }),                                                                                              \
  python::method("recall_" #op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {      \
    return python::recalled(python::calls_of<&op, Params>(), arguments, count, 4,                  \
                            [](const Params& params, PyObject* const* argument) {                  \
                              return launch<Params>(#op, op, params, argument) == 0;               \
                            });                                                                    \
  }),                                                                                              \
  python::method("remember_" #op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {    \
    return python::remembered(python::calls_of<&op, Params>(), arguments, count);                  \
  }),
  static PyMethodDef methods[] = {SPECDEC_OPS(SPECDEC_METHOD) PyMethodDef{}};
#undef SPECDEC_METHOD
  python::add_functions(m, methods);
}

}  // namespace cuda
}  // namespace specdec
