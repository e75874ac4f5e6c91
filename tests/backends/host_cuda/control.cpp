// Turns the machine's knobs from Python (ctypes).
#include "machine.h"

extern "C" {

void host_cuda_configure(int multiprocessors, int blocks_per_multiprocessor, int capability, int blocks_in_flight, uint64_t schedule) {
  host_cuda::device() = {multiprocessors, blocks_per_multiprocessor, capability, blocks_in_flight, schedule, 0, false, false, 0, false};
}

const char* host_cuda_last_fault() { return host_cuda::last_fault().c_str(); }
}
