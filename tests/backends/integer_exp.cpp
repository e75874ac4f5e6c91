// specdec/mass.h over arrays.
#include "specdec/mass.h"

extern "C" {

void integer_exp(const float* d, int64_t count, uint32_t* q, uint32_t* n, uint32_t* units) {
  for (int64_t i = 0; i < count; ++i) {
    const auto e = specdec::integer_exp(d[i]);
    q[i] = e.q, n[i] = e.n, units[i] = specdec::unit_weight(d[i]);
  }
}

void tile_mass(const float* d, int64_t count, const uint64_t* units, uint64_t* mass) {
  for (int64_t i = 0; i < count; ++i) mass[i] = specdec::tile_mass({units[i], d[i]}, 0.0f);
}
}
