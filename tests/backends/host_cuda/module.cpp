// The CUDA ops on the played machine, as a Python module.
#include <pybind11/pybind11.h>

#include "../../../csrc/python/ops.h"
#include "include/cuda_runtime.h"

#if !defined(HOST_CUDA_MODULE)
#define HOST_CUDA_MODULE specdec_host_cuda
#endif

PYBIND11_MODULE(HOST_CUDA_MODULE, m) {
  specdec::python::add_cuda(m.ptr(), 1);
  namespace py = pybind11;
  m.def(
      "configure",
      [](int multiprocessors, int blocks_per_multiprocessor, int capability, int blocks_in_flight, uint64_t schedule,
         int of_streams, bool refuses, bool lags, int64_t first_block, bool overlaps, int team, bool team_is_grid,
         bool clusters, int code) {
        host_cuda::device() = {multiprocessors, blocks_per_multiprocessor, capability, blocks_in_flight, schedule,
                               of_streams,      refuses,                   lags,       first_block,      overlaps,
                               team,            team_is_grid,              clusters,   code};
      },
      py::arg("multiprocessors"), py::arg("blocks_per_multiprocessor"), py::arg("capability"), py::arg("blocks_in_flight"),
      py::arg("schedule"), py::arg("of_streams") = 0, py::arg("refuses") = false,
      py::arg("lags") = false, py::arg("first_block") = 0,
      py::arg("overlaps") = false, py::arg("team") = 0, py::arg("team_is_grid") = false, py::arg("clusters") = true,
      py::arg("code") = 90);
  m.def("kernel_before", [](uintptr_t to, uintptr_t from, size_t bytes) {
    host_cuda::kernel_before(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
  m.def("begin_capture", [](uint64_t number) { host_cuda::capture() = number; }, "0 ends it.");
  m.def("counters", [] {
    const host_cuda::Counters& c = host_cuda::counters();
    return py::dict(py::arg("launches") = c.launches, py::arg("blocks") = c.blocks, py::arg("bytes_read") = c.bytes_read,
                    py::arg("overlapped") = c.overlapped, py::arg("permissions") = c.permissions);
  });
  m.def("pend", [](int error) { host_cuda_failed(static_cast<cudaError_t>(error)); }, "As the caller's last error.");
  m.def("taken_error", [] { return static_cast<int>(cudaGetLastError()); });
}
