// tree_mask on the CPU: a node attends to what its parent attends to, and to itself.
#include <algorithm>
#include <cstring>

#include "../threads.h"
#include "specdec/c/trees.h"
#include "specdec/tree.h"

SPECDEC_BEGIN

namespace {

// The row of one node.
struct MaskRow {
  char* data;
  int32_t layout;

  // Sets the slots [from, to) of a row that is all unset.
  void attend(int64_t from, int64_t to) const {
    switch (layout) {
      case SPECDEC_MASK_BOOL: std::memset(data + from, 1, static_cast<size_t>(to - from)); break;
      case SPECDEC_MASK_ADDITIVE32: std::memset(data + 4 * from, 0, static_cast<size_t>(4 * (to - from))); break;
      case SPECDEC_MASK_ADDITIVE16: std::memset(data + 2 * from, 0, static_cast<size_t>(2 * (to - from))); break;
      case SPECDEC_MASK_BITS:
        for (int64_t i = from; i < to; ++i) reinterpret_cast<uint32_t*>(data)[i / 32] |= 1u << (i % 32);
        break;
    }
  }
};

int64_t row_bytes(const MaskParams& p) {
  switch (p.mask.layout) {
    case SPECDEC_MASK_BOOL: return p.columns;
    case SPECDEC_MASK_ADDITIVE32: return 4 * p.columns;
    case SPECDEC_MASK_ADDITIVE16: return 2 * p.columns;
    default: return (p.columns + 31) / 32 * 4;
  }
}

void attend_to_nothing(const MaskParams& p, char* row, int64_t bytes) {
  if (p.mask.layout == SPECDEC_MASK_ADDITIVE32) {
    std::fill_n(reinterpret_cast<uint32_t*>(row), p.columns, p.mask.minus_infinity);
  } else if (p.mask.layout == SPECDEC_MASK_ADDITIVE16) {
    std::fill_n(reinterpret_cast<uint16_t*>(row), p.columns, static_cast<uint16_t>(p.mask.minus_infinity));
  } else {
    std::memset(row, 0, static_cast<size_t>(bytes));
  }
}

}  // namespace

void tree_mask(const MaskParams& p, int threads) {
  const int64_t bytes = row_bytes(p);
  over_requests(p.mask.batch, tiles_of_bytes(p.mask.nodes * bytes), threads, [&](int64_t b, const ThreadTeam&) {
    int32_t status = SPECDEC_STATUS_OK;
    const int64_t prefix = clamp_prefix(p.prefix_len.at(b), p.columns - p.mask.nodes, &status);
    char* rows = static_cast<char*>(p.mask.data) + b * p.mask.nodes * bytes;
    for (int32_t node = 0; node < p.mask.nodes; ++node) {
      const MaskRow row = {rows + node * bytes, p.mask.layout};
      const int32_t parent = parent_of(p.parents, b * p.parents.request_stride, node, &status);
      if (parent >= 0) {
        std::memcpy(row.data, rows + parent * bytes, static_cast<size_t>(bytes));
      } else {
        attend_to_nothing(p, row.data, bytes);
        row.attend(0, prefix);
      }
      row.attend(prefix + node, prefix + node + 1);
    }
    p.status.data[b] = status;
  });
}

SPECDEC_END
