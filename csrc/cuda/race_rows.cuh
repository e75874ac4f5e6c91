// The rows of race_sample and race_topk, decoded.
#pragma once

#include "scan.cuh"

namespace specdec {
namespace cuda {

struct RaceRow {
  Row row;
  Law law;
  Noise noise;
  int32_t status;
};

__device__ __forceinline__ RaceRow race_row(const RaceParams& p, int64_t index) {
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  RaceRow r = {row_at(p.rows, p.rows.offset(i, j)), {}, noise_at(p.noise, i, j, kStreamRace), kStatusOk};
  r.law = law_at(p.law, i, j, &r.status);
  return r;
}

__device__ __forceinline__ Find find_winner(const Row& row, const Law& law, const Noise& noise, Part part) {
  if (law.greedy) return argmax_part(row, law, part);
  return race_part(weights_of_row(row, law), noise, part);
}

}  // namespace cuda
}  // namespace specdec
