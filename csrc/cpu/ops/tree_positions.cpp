// tree_positions on the CPU.
#include "../threads.h"
#include "specdec/c/trees.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

void tree_positions(const PositionsParams& p, int threads) {
  over_requests(p.positions.rows, 1, threads, [&](int64_t b, const ThreadTeam&) {
    int32_t status = SPECDEC_STATUS_OK;
    const int64_t prefix = clamp_prefix(p.prefix_len.at(b), INT64_MAX - p.positions.columns, &status);
    int64_t* positions = p.positions.data + b * p.positions.columns;
    for (int32_t node = 0; node < p.positions.columns; ++node) {
      const int32_t parent = parent_of(p.parents, b * p.parents.request_stride, node, &status);
      positions[node] = parent < 0 ? prefix : positions[parent] + 1;
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
