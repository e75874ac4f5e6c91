// Direct calls: a public op's call is read into the op's struct without Python's checks. Its tensors must have the
// dimensions of the op's declaration (Op.plan in Python), and c_api's exact check judges their sizes. A call that
// differs in any point is declined: Python's checks then raise the error, or broadcast. A call leaves no state behind.
#pragma once

#include "plan.h"

namespace specdec::python {

// Runs an op whose call was read. Returns false if it could not run.
using Run = bool (*)(void* context, const Params& params);

// Returns the public function's result for a tuple of its arguments; None if the call was declined. `device` is
// DLPack's.
PyObject* direct(const Plan& plan, int32_t device, PyObject* tuple, Run run, void* context);

// Stores the Python objects that direct calls need: use_functions(functions that return whether a mode or a profiler
// watches; types of grouped arguments, and numpy.floating; float32, bfloat16, float16; addresses of torch's functions
// for new tensors).
PyObject* use_functions(PyObject*, PyObject* const* arguments, Py_ssize_t count);

}  // namespace specdec::python
