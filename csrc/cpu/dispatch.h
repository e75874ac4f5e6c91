// The CPU backend as the rest of the library sees it.
#pragma once

#include <string>
#include <vector>

#include "specdec/ops.h"

namespace specdec::cpu {

// Visible to Python's module, which is another library.
#pragma GCC visibility push(default)
std::vector<std::string> isas();  // compiled instruction sets that this machine supports; least capable first
std::string isa();                // the one in use: the most capable, or $SPECDEC_CPU_ISA
void set_isa(const std::string& name);
int64_t weighed_rows();  // so far, in this process; for tests
#pragma GCC visibility pop

#define SPECDEC_CPU_DECLARE(op, Params) void op(const Params& p, int threads);
SPECDEC_OPS(SPECDEC_CPU_DECLARE)
#undef SPECDEC_CPU_DECLARE

}  // namespace specdec::cpu
