// The ops as functions of a Python module, two for each: op(call, ...) of a call that Python checked, and
// op.direct(raw call, ...), which returns None where Python's checks have to look at the call.
#pragma once

#include "direct.h"

namespace specdec::python {

struct Ops {
  int32_t device;          // DLPack's type of device, where the tensors of direct calls are
  void* const* functions;  // of specdec.h, in the order of SPECDEC_OPS
  Py_ssize_t more;         // arguments behind the call
  // Runs one. Returns the error of the C function; `result` is op()'s result, None if the op ran.
  int (*run)(void* function, const Params& params, PyObject* const* more, Ref* result);
};

// Adds them, and what tells them of torch.
void add_ops(PyObject* module, const Ops& ops);

// Adds the ops of CUDA: op(call, stream, workspace, bytes), with the workspace's address. They return None if the
// kernel was enqueued, else the number of bytes that the workspace must have.
void add_cuda(PyObject* module, int32_t device);

}  // namespace specdec::python
