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

// An op's C function, for a struct of any type.
using Launch = int (*)(const void* params, void* workspace, size_t bytes, size_t* needed, void* stream);

// Returns 0 if the kernel was enqueued, else the bytes needed. argument[1 .. 3] are stream, workspace and its bytes.
size_t launch(Launch op, const python::Params& params, PyObject* const* argument) {
  const auto stream = reinterpret_cast<void*>(integer(argument[1]));
  const auto workspace = reinterpret_cast<void*>(integer(argument[2]));
  const auto bytes = static_cast<size_t>(integer(argument[3]));
  size_t needed = 0;
  int error;
  {
    const python::Unlocked unlocked;
    error = op(params.bytes, workspace, bytes, &needed, stream);
  }
  if (error != SPECDEC_WORKSPACE_TOO_SMALL) python::raise_for(error);
  return needed;
}

}  // namespace

void bind(pybind11::module_ m) {
  // Why no device can be used, or an empty string.
  m.def("unavailable", [] { return std::string(specdec_cuda_available() == SPECDEC_OK ? "" : specdec_last_error()); });
  // Until a stream is done.
  m.def("wait", [](uintptr_t stream) {
    int error;
    {
      const python::Unlocked unlocked;
      error = specdec_cuda_wait(reinterpret_cast<void*>(stream));
    }
    python::raise_for(error);
  });
#define SPECDEC_METHOD(name, P, cpu_function, cpu_kernel, c_function, ...)                                       \
  static const Launch launch_##name = [](const void* params, void* workspace, size_t bytes, size_t* needed,      \
                                         void* stream) {                                                         \
    return c_function(static_cast<const P*>(params), workspace, bytes, needed, stream);                          \
  };                                                                                                             \
  static python::Calls& calls_##name = *new python::Calls(python::table_of<P>());                                \
  methods.push_back(python::method(#name, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {          \
    return python::called(arguments, count, 4, [](PyObject* const* argument) {                                   \
      return PyLong_FromSize_t(                                                                                  \
          launch(launch_##name, python::Call(python::table_of<P>(), argument[0]).params, argument));             \
    });                                                                                                          \
  }));                                                                                                           \
  methods.push_back(python::method("recall_" #name, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) { \
    return python::recalled(calls_##name, arguments, count, 4,                                                   \
                            [](const python::Params& params, PyObject* const* argument) {                        \
                              return launch(launch_##name, params, argument) == 0;                               \
                            });                                                                                  \
  }));                                                                                                           \
  methods.push_back(python::method("remember_" #name, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) { \
    return python::remembered(calls_##name, arguments, count);                                                   \
  }));
  static std::vector<PyMethodDef> methods;
  SPECDEC_OPS(SPECDEC_METHOD)
#undef SPECDEC_METHOD
  // capture(stream): which capture a stream is in, or 0.
  static const auto capture = [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return python::called(arguments, count, 1, [](PyObject* const* argument) {
      uint64_t found = 0;
      if (const int error = specdec_cuda_capture(reinterpret_cast<void*>(integer(argument[0])), &found))
        python::raise_for(error);
      return PyLong_FromUnsignedLongLong(found);
    });
  };
  methods.push_back(python::method("capture", capture));
  methods.push_back({});
  python::add_functions(m, methods.data());
}

}  // namespace cuda
}  // namespace specdec
