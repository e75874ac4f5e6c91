// The parts of the CUDA kernels, for an engine's kernels: rows, races over them, their log-sum-exps, pairs of rows,
// teams of blocks, and launches. Compile with nvcc -std=c++17 --fmad=false, as the package does.
//
// The names in namespace specdec::cuda may change with any version. Those of specdec.h stay.
#pragma once

#include "../../cuda/team/launch.cuh"
#include "../../cuda/rows/pair_sums.cuh"
#include "../../cuda/rows/race_request.cuh"
#include "../../cuda/rows/team_rows.cuh"
#include "c/races.h"
