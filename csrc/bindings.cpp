// The module specdec_kernels._C: the CPU's ops, the CUDA ones where they were built, and what the host works out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings.h"
#include "cpu/check_parents.h"
#include "cpu/dispatch.h"
#include "specdec/chain.h"
#include "specdec/optimal_tree.h"
#include "specdec/softmax.h"
#include "specdec_build_info.h"  // written by setup.py

namespace py = pybind11;
using namespace specdec;
using namespace specdec::python;

#if defined(SPECDEC_WITH_CUDA)
namespace specdec {
namespace cuda {
void bind(py::module_ m);  // csrc/cuda/bindings.cpp
}  // namespace cuda
}  // namespace specdec
#endif

namespace {

// op(call, threads), without the GIL while it runs.
template <class Params>
PyObject* run(void (*op)(const Params&, int), PyObject* const* arguments, Py_ssize_t count) {
  return called(arguments, count, 2, [op](PyObject* const* argument) {
    const Call<Params> call(argument[0]);
    const long threads = PyLong_AsLong(argument[1]);
    if (threads == -1 && PyErr_Occurred()) throw py::error_already_set();
    {
      const Unlocked unlocked;
      op(call.params, static_cast<int>(threads));
    }
    Py_RETURN_NONE;
  });
}

void bind_ops(py::module_& m) {
#define SPECDEC_METHOD(op, Params)                                            \
  method(#op, [](PyObject*, PyObject* const* arguments, Py_ssize_t count) {  \
    return run<Params>(cpu::op, arguments, count);                           \
  }),
  static PyMethodDef methods[] = {SPECDEC_OPS(SPECDEC_METHOD) PyMethodDef{}};
#undef SPECDEC_METHOD
  add_functions(m, methods);
}

template <class T>
T* at(intptr_t address) { return reinterpret_cast<T*>(address); }

// The maths itself, for tests: arrays in and out by address.
void bind_maths(py::module_& m) {
  m.def("philox", [](uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    const Words<uint32_t> w = philox<uint32_t>(key_of(static_cast<int64_t>(key)), c0, c1, c2, c3);
    return std::vector<uint32_t>(w.word, w.word + 4);
  });
  m.def("arrivals", [](int64_t seed, uint32_t position, uint32_t nonce, uint32_t stream, uint32_t first_token,
                       int64_t count, intptr_t out) {
    const Noise noise = {key_of(seed), position, nonce, stream};
    for (int64_t i = 0; i < count; ++i)
      at<float>(out)[i] = arrival(noise, first_token + static_cast<uint32_t>(i));
  });
  m.def("group_uniform", [](uint32_t a, uint32_t b) { return group_uniform(a, b); });
  m.def("first_arrival", [](uint32_t a, uint32_t b) { return first_arrival(a, b); });
  m.def("later_by", [](uint32_t word) { return later_by(word); });
  m.def("coin_of", [](uint32_t word) { return coin_of(word); });
  m.def("coin", [](int64_t seed, uint32_t index, uint32_t position, uint32_t nonce, uint32_t stream) {
    return coin({key_of(seed), position, nonce, stream}, index);
  });
  const auto map = [&](const char* name, float (*f)(float)) {
    m.def(name, [f](intptr_t in, int64_t count, intptr_t out) {
      for (int64_t i = 0; i < count; ++i) at<float>(out)[i] = f(at<float>(in)[i]);
    });
  };
  map("log", [](float x) { return specdec::log(x); });
  map("neg_log1p_neg", [](float x) { return neg_log1p_neg(x); });
  map("exp_or_zero", [](float x) { return exp_or_zero(x); });
}

// What the host works out about trees.
void bind_trees(py::module_& m) {
  m.def("check_parents", [](intptr_t address, int64_t tree_stride, int64_t node_stride, bool wide, int64_t trees,
                            int32_t nodes) {
    const ParentsReport report = check_parents({at<void>(address), tree_stride, node_stride, trees, nodes, wide});
    return py::make_tuple(report.depth, report.tree, report.node);
  });
  m.def("optimal_tree", [](int32_t k, const std::vector<double>& acceptance) {
    return optimal_tree(k, [&](const OptimalTree&, int32_t, int32_t child) -> std::optional<double> {
             if (child >= static_cast<int32_t>(acceptance.size())) return std::nullopt;
             return acceptance[static_cast<size_t>(child)];
           }).parents;
  });
  m.def("optimal_tree_by_path", [](int32_t k, const py::function& acceptance) {
    return optimal_tree(k, [&](const OptimalTree& tree, int32_t parent, int32_t child) {
             std::vector<int32_t> path = {child};
             for (int32_t node = parent; node > 0; node = tree.parents[static_cast<size_t>(node)])
               path.insert(path.begin(), tree.child_index[static_cast<size_t>(node)]);
             return acceptance(py::tuple(py::cast(path))).cast<std::optional<double>>();
           }).parents;
  });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("build_info", [] { return std::string(SPECDEC_BUILD_INFO); });
  m.def("isas", &cpu::isas);
  m.def("isa", &cpu::isa);
  m.def("set_isa", &cpu::set_isa);
  m.def("use_tensors", use_tensors);
  bind_ops(m);
  bind_trees(m);
  bind_maths(m);
#if defined(SPECDEC_WITH_CUDA)
  cuda::bind(m.def_submodule("cuda"));
#endif
}
