// The ops as functions of a Python module, two for each: op(call, ...) takes a call that Python checked, and
// direct_op(raw call, ...) returns None where Python's checks have to read the call.
#pragma once

#include "direct.h"

namespace specdec::python {

struct Ops {
  int32_t device;          // DLPack's device type of direct calls' tensors
  void* const* functions;  // the functions of specdec.h, in the order of SPECDEC_OPS
  Py_ssize_t more;         // arguments behind the call
  // Runs an op. Returns the error of the C function; `result` is op()'s result, None if the op ran.
  int (*run)(void* function, const Params& params, PyObject* const* more, Ref* result);
};

// Adds the ops, and the functions that pass torch's types and functions to them.
void add_ops(PyObject* module, const Ops& ops);

// Adds the ops of CUDA: op(call, stream, workspace, bytes), with the workspace's address. They return None if the
// kernel was enqueued, else the number of bytes that the workspace must have.
void add_cuda(PyObject* module, int32_t device);

}  // namespace specdec::python
