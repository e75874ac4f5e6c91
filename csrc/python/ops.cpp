#include "ops.h"

#include <atomic>
#include <string>

#include "../cpu/float_mode.h"
#include "specdec.h"

namespace specdec::python {

namespace {

// One op of a module.
struct Op {
  const Table* table;
  void* function;
  const Ops* ops;
  std::atomic<const Plan*> plan = {nullptr};  // until it is declared
};

Op& op_of(PyObject* self) { return *static_cast<Op*>(PyCapsule_GetPointer(self, nullptr)); }

PyObject* checked(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const FloatMode mode;  // needed here, too, because reading a call converts doubles to floats
  return guarded([&] {
    const Op& op = op_of(self);
    wants(count, 1 + op.ops->more);
    Ref result;
    raise_for(op.ops->run(op.function, Call(*op.table, arguments[0]).params, arguments + 1, &result));
    return result.release();
  });
}

PyObject* direct(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const FloatMode mode;
  return guarded([&]() -> PyObject* {
    Op& op = op_of(self);
    wants(count, 1 + op.ops->more);
    const Plan* const plan = op.plan;
    if (!plan) Py_RETURN_NONE;
    struct Context {
      const Op& op;
      PyObject* const* more;
    } context = {op, arguments + 1};
    const auto run = [](void* pointer, const Params& params) {
      const Context& c = *static_cast<Context*>(pointer);
      Ref result;
      const int error = c.op.ops->run(c.op.function, params, c.more, &result);
      if (error == SPECDEC_INVALID_ARGUMENT) return false;  // Python's checks raise it with the caller's names
      raise_for(error);
      return result.get() == Py_None;
    };
    return python::direct(*plan, op.ops->device, arguments[0], run, &context);
  });
}

// declare(items, out): sets the plan by which direct calls are read.
PyObject* declared(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    wants(count, 2);
    op_of(self).plan =
        new Plan(*op_of(self).table, arguments[0], arguments[1]);  // never freed: calls may be reading it
    Py_RETURN_NONE;
  });
}

}  // namespace

void add_ops(PyObject* module, const Ops& ops) {
  const auto* const owned_ops = new Ops(ops);
  Ref names(PyList_New(0));
  for (size_t i = 0; i < tables().size(); ++i) {
    const Table* const table = tables()[i];
    const Ref op(PyCapsule_New(new Op{table, owned_ops->functions[i], owned_ops}, nullptr, nullptr));
    const auto named = [&](const char* before) { return (new std::string(before + std::string(table->op)))->c_str(); };
    add(module, table->op, checked, op.get());
    add(module, named("direct_"), direct, op.get());
    add(module, named("declare_"), declared, op.get());
    if (PyList_Append(names.get(), Ref(PyUnicode_FromString(table->op)).get()) != 0) throw Raised();
  }
  if (PyModule_AddObject(module, "ops", names.release()) != 0) throw Raised();
  add(module, "use_tensors", use_tensors);
  add(module, "all_viewed", all_viewed);
  add(module, "apart", apart);
  add(module, "use_functions", use_functions);
}

}  // namespace specdec::python
