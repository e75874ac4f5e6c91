// Checks on the host whether parents form trees, and computes how deep the trees are.
#pragma once

#include <vector>

#include "specdec/tree.h"

namespace specdec {

struct ParentsReport {
  int32_t depth;       // the largest depth of a node that is connected to the root
  int64_t tree, node;  // the first bad entry; -1 if there is none
};

inline ParentsReport check_parents(const Tokens& parents) {
  ParentsReport report = {0, -1, -1};
  std::vector<int32_t> depths(static_cast<size_t>(parents.slots));
  for (int64_t tree = 0; tree < parents.requests; ++tree) {
    for (int32_t node = 0; node < parents.slots; ++node) {
      int32_t status = SPECDEC_STATUS_OK;
      const int32_t parent = parent_of(parents, tree * parents.request_stride, node, &status);
      if (status != SPECDEC_STATUS_OK) return {0, tree, node};
      // A depth of -1: not connected to the root, like all nodes below it.
      int32_t& depth = depths[static_cast<size_t>(node)];
      const int32_t above = parent < 0 ? -1 : depths[static_cast<size_t>(parent)];
      depth = node == 0 ? 0 : above < 0 ? -1 : above + 1;
      if (depth > report.depth) report.depth = depth;
    }
  }
  return report;
}

}  // namespace specdec
