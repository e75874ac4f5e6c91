// The CUDA ops for Python: as the CPU's (csrc/bindings.h), and then stream and workspace. The result is the number of
// bytes the workspace must have, 0 when the kernel is on its way.
#include <stdexcept>
#include <string>

#include "../bindings.h"
#include "ops.h"

namespace specdec {
namespace cuda {

namespace {

void check(cudaError_t e, const char* name) {
  if (e != cudaSuccess) throw std::runtime_error(std::string(name) + ": CUDA error: " + cudaGetErrorString(e));
}

template <class Made, class... Args, class Params>
void bind_op(pybind11::module_& m, const char* name, Made (*make)(Args...),
             cudaError_t (*op)(const Params&, const Workspace&, cudaStream_t, int64_t*)) {
  m.def(name, [=](const pybind11::tuple& call, intptr_t stream, intptr_t workspace, int64_t bytes) {
    const Made made = python::make_params(make, call);
    int64_t needed = 0;
    {
      pybind11::gil_scoped_release unlocked;
      const Workspace room = {reinterpret_cast<void*>(workspace), bytes};
      const cudaError_t e = op(python::params_of(made), room, reinterpret_cast<cudaStream_t>(stream), &needed);
      if (e != cudaSuccess) {
        pybind11::gil_scoped_acquire locked;
        check(e, name);
      }
    }
    return needed;
  });
}

}  // namespace

void bind(pybind11::module_ m) {
  // Why no device can be used, or an empty string.
  m.def("unavailable", [] {
    int count = 0;
    const cudaError_t e = cudaGetDeviceCount(&count);
    return std::string(e != cudaSuccess ? cudaGetErrorString(e) : count == 0 ? "no CUDA device" : "");
  });
  bind_op(m, "verify_chain", python::chain_params, verify_chain);
  bind_op(m, "race_sample", python::race_params, race_sample);
  bind_op(m, "race_topk", python::race_params, race_topk);
  bind_op(m, "residual", python::residual_params, residual);
  bind_op(m, "overlap", python::overlap_params, overlap);
  bind_op(m, "verify_tree", python::tree_params, verify_tree);
  bind_op(m, "tree_mask", python::mask_params, tree_mask);
  bind_op(m, "tree_positions", python::positions_params, tree_positions);
  bind_op(m, "compact_kv", python::compact_call, compact_kv);
}

}  // namespace cuda
}  // namespace specdec
