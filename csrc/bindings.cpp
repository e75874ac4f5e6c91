// pybind11: raw addresses, strides in elements and sizes in; nothing of torch. specdec_kernels/backends/cpu.py is the
// only caller, and what it passes has been checked by specdec_kernels/ops.
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

// Binds op(make(call...), threads), without the GIL while it runs.
template <class Made, class... Args, class Params>
void bind_op(py::module_& m, const char* name, Made (*make)(Args...), void (*op)(const Params&, int)) {
  m.def(name, [make, op](const py::tuple& call, int threads) {
    const Made made = make_params(make, call);
    py::gil_scoped_release unlocked;
    op(params_of(made), threads);
  });
}

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
      writable<float>(out)[i] = arrival(noise, first_token + static_cast<uint32_t>(i));
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
      for (int64_t i = 0; i < count; ++i) writable<float>(out)[i] = f(at<float>(in)[i]);
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
    const ParentsReport report = check_parents({at<void>(address), tree_stride, node_stride, wide}, trees, nodes);
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
  bind_op(m, "verify_chain", chain_params, cpu::verify_chain);
  bind_op(m, "race_sample", race_params, cpu::race_sample);
  bind_op(m, "race_topk", race_params, cpu::race_topk);
  bind_op(m, "residual", residual_params, cpu::residual);
  bind_op(m, "overlap", overlap_params, cpu::overlap);
  bind_op(m, "verify_tree", tree_params, cpu::verify_tree);
  bind_op(m, "tree_mask", mask_params, cpu::tree_mask);
  bind_op(m, "tree_positions", positions_params, cpu::tree_positions);
  bind_op(m, "compact_kv", compact_call, cpu::compact_kv);
  bind_trees(m);
  bind_maths(m);
#if defined(SPECDEC_WITH_CUDA)
  cuda::bind(m.def_submodule("cuda"));
#endif
}
