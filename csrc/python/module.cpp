// The module specdec_kernels._C: the ops of libspecdec by their C functions (those of CUDA if they were built), and
// functions about trees. Callers: the modules of specdec_kernels/backends, the ops' checks of `parents`,
// DraftTree.optimal and the tests. The arguments of ops were checked by specdec_kernels/ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "../cpu/dispatch.h"
#include "../cpu/float_mode.h"
#include "check_parents.h"
#include "cut_lists.h"
#include "ops.h"
#include "specdec/chain.h"
#include "specdec/optimal_tree.h"
#include "specdec/softmax.h"
#include "specdec_build_info.h"  // written by setup.py

namespace py = pybind11;
using namespace specdec;
using namespace specdec::python;

namespace {

// The Python function that returns how many threads an op may use. It returns threads_unset where the program set no
// number; threads_by_default replaces that.
PyObject* threads_function = nullptr;
long threads_unset = 0, threads_by_default = 0;

int threads() {
  if (!threads_function) return 1;
  const long number = PyLong_AsLong(Ref(PyObject_CallNoArgs(threads_function)).get());
  if (number == -1 && PyErr_Occurred()) throw Raised();
  return static_cast<int>(number == threads_unset ? threads_by_default : number);
}

using Function = int (*)(const void* params, int threads);

int run(void* op, const Params& params, PyObject* const*, Ref* result) {
  const int count = threads();
  *result = Ref(new_reference(Py_None));
  const Unlocked unlocked;
  return reinterpret_cast<Function>(op)(params.bytes, count);
}

template <class T>
T* at(intptr_t address) { return reinterpret_cast<T*>(address); }

// The maths, for tests and for the detection of watermarks: arrays are passed by address. A submodule keeps its names
// apart from ops.
void bind_maths(py::module_ m) {
  m.def("philox", [](uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    const Words<uint32_t> w = philox<uint32_t>(key_of(static_cast<int64_t>(key)), c0, c1, c2, c3);
    return std::vector<uint32_t>(w.word, w.word + 4);
  });
  m.def("arrivals", [](int64_t seed, uint32_t position, uint32_t nonce, uint32_t stream, uint32_t vocab_start,
                       int64_t count, intptr_t out) {
    const Noise noise = {key_of(seed), position, nonce, stream};
    for (int64_t i = 0; i < count; ++i)
      at<float>(out)[i] = arrival(noise, vocab_start + static_cast<uint32_t>(i));
  });
  m.def("group_uniform", [](uint32_t a, uint32_t b) { return group_uniform(a, b); });
  m.def("first_arrival", [](uint32_t a, uint32_t b) { return first_arrival(a, b); });
  m.def("later_by", [](uint32_t word) { return later_by(word); });
  m.def("uniform_of", [](uint32_t word) { return uniform_of(word); });
  m.def("uniform", [](int64_t seed, uint32_t index, uint32_t position, uint32_t nonce, uint32_t stream) {
    return uniform({key_of(seed), position, nonce, stream}, index);
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

// Functions about trees on the host.
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

// Cuts of rows split between devices. Arrays are passed by address: values [lists, listed], of_tiles [lists, 3, tiles].
void bind_lists(py::module_& m) {
  m.def("cut_lists", [](int64_t lists, int32_t listed, int32_t tiles, int64_t rules, intptr_t values, intptr_t top_k,
                        intptr_t top_p, intptr_t min_p, intptr_t of_tiles, intptr_t value, intptr_t last, intptr_t count,
                        intptr_t mass, intptr_t max) {
    const FloatMode mode;
    for (int64_t i = 0; i < lists; ++i) {
      specdec_law law = {};
      law.rules = rules | SPECDEC_FILTERED;
      law.top_k.value = at<int64_t>(top_k)[i];
      law.top_p.value = at<float>(top_p)[i], law.min_p.value = at<float>(min_p)[i];
      int32_t status = SPECDEC_STATUS_OK;
      const Filter filter = filter_at(law, decode_law(SPECDEC_LOGITS, 1.0f, &status), listed, 0, 0, &status);
      const ListCut cut =
          cut_list(at<float>(values) + i * listed, listed, filter, at<int32_t>(of_tiles) + i * 3 * tiles, tiles);
      at<float>(value)[i] = cut.value, at<int64_t>(last)[i] = cut.last, at<int32_t>(count)[i] = cut.count;
      at<int64_t>(mass)[i] = cut.mass, at<float>(max)[i] = cut.max;
    }
  });
}

}  // namespace

// Shared state is written only while the module is imported, so a Python without the GIL can run calls in parallel.
PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  m.def("build_info", [] { return std::string(SPECDEC_BUILD_INFO); });
  m.def("isas", &cpu::isas);
  m.def("isa", &cpu::isa);
  m.def("set_isa", &cpu::set_isa);
  m.def("weighed_rows", &cpu::weighed_rows);
  m.def("use_threads", [](py::object function, long unset, long by_default) {
    threads_function = function.release().ptr();
    threads_unset = unset, threads_by_default = by_default;
  });
  bind_trees(m);
  bind_lists(m);
  bind_maths(m.def_submodule("maths"));
#define SPECDEC_FUNCTION(name, P) reinterpret_cast<void*>(specdec_cpu_##name),
  static void* const functions[] = {SPECDEC_OPS(SPECDEC_FUNCTION)};
#undef SPECDEC_FUNCTION
  add_ops(m.ptr(), {1, functions, 0, run});
#if defined(SPECDEC_WITH_CUDA)
  add_cuda(m.def_submodule("cuda").ptr(), 2);
#endif
}
