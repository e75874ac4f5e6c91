// Helpers around Python's C API. The files of calls include this and not pybind11, which takes 4 s to compile in each.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <new>
#include <stdexcept>
#include <utility>

namespace specdec::python {

// Thrown after a Python error was set.
struct Raised {};

// An owned reference. A null pointer means that a Python error is set, so the constructor throws.
class Ref {
 public:
  Ref() : object_(nullptr) {}
  explicit Ref(PyObject* object) : object_(object) {
    if (!object) throw Raised();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref(const Ref&) = delete;
  Ref& operator=(Ref&& other) noexcept { return std::swap(object_, other.object_), *this; }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// Adds a reference. Objects held until the process ends never drop theirs, since Python may have ended before.
inline PyObject* new_reference(PyObject* object) { return Py_INCREF(object), object; }

// The body of a Python function: returns f()'s result, or null with the error that f() threw.
template <class F>
PyObject* guarded(F&& f) noexcept {
  try {
    return f();
  } catch (const Raised&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

inline void wants(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return;
  PyErr_Format(PyExc_TypeError, "expected %zd arguments; got %zd", wanted, count);
  throw Raised();
}

using Function = PyObject* (*)(PyObject* self, PyObject* const* arguments, Py_ssize_t count);

// Adds a function to a module. `self` is the function's first argument.
inline void add(PyObject* module, const char* name, Function function, PyObject* self = nullptr) {
  auto* const method = new PyMethodDef{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                                       METH_FASTCALL, nullptr};
  if (PyModule_AddObject(module, name, Ref(PyCFunction_New(method, self)).release()) != 0) throw Raised();
}

struct Unlocked {
  PyThreadState* state = PyEval_SaveThread();
  ~Unlocked() { PyEval_RestoreThread(state); }
};

}  // namespace specdec::python
