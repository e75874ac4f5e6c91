// Direct calls: a public op's call, as its caller made it, is read into the op's struct without Python's checks. It is
// compared with the op's declaration (Op.plan in Python) while it is read. A call that does not keep to it in every
// point is not run: Python's checks then say what is wrong, or take it after all. A call leaves no state behind.
#pragma once

#include "plan.h"

namespace specdec::python {

// Runs an op that was read. False: it could not run.
using Run = bool (*)(void* context, const Params& params);

// What the function returns for a call, a tuple of its arguments; None if it was not run. Its tensors must be on
// DLPack's `device`.
PyObject* direct(const Plan& plan, int32_t device, PyObject* tuple, Run run, void* context);

// What direct calls need of Python: use_functions(functions that say whether a mode or a profiler watches; float32,
// bfloat16 and float16; types of grouped arguments; the addresses of torch's functions for a new tensor, or None).
PyObject* use_functions(PyObject*, PyObject* const* arguments, Py_ssize_t count);

}  // namespace specdec::python
