// Cuts of rows that are split between devices, computed on the host from all mass tiles and all candidates.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "specdec/filter.h"

namespace specdec {

struct ListCut {
  float value;
  int64_t last;   // index in the list
  int32_t count;
  int64_t mass;
  float max;
};

// `v` [listed]: the values that filters compare, by rising token; -inf fills unused entries.
inline ListCut cut_list(const float* v, int32_t listed, const Filter& filter, const int32_t* tiles, int32_t tile_count) {
  std::vector<int32_t> order(static_cast<size_t>(listed));
  std::iota(order.begin(), order.end(), 0);
  order.erase(std::remove_if(order.begin(), order.end(), [&](int32_t i) { return !(v[i] > -kInfinity); }), order.end());
  if (order.empty()) return {-kInfinity, -1, 0, 0, -kInfinity};
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return v[a] > v[b]; });
  const float top = v[order[0]], least = filter.floor_below(top);
  uint64_t whole = 0;
  for (int32_t tile = 0; tile < tile_count; ++tile) whole += tile_mass(tile_at(tiles, tile_count, tile), top);
  const uint64_t most = std::max<uint64_t>(top_p_limit(filter, whole), 1);
  ListCut cut = {-kInfinity, -1, 0, 0, top};
  uint64_t before = 0;  // the mass of the tokens before this one; `rank` is their number
  int32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const float value = v[order[i]];
    if (i == 0 || !filter.ties_all() || value != v[order[i - 1]])  // else the tie is decided as one token
      before = static_cast<uint64_t>(cut.mass), rank = cut.count;
    if (rank >= filter.top_k || !(value >= least) || before >= most) break;
    cut = {value, order[i], cut.count + 1, cut.mass + static_cast<int64_t>(row_weight(sub(value, top))), top};
  }
  return cut;
}

}  // namespace specdec
