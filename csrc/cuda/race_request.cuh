// The rows of race_sample and race_topk, decoded.
#pragma once

#include "scan.cuh"

namespace specdec {
namespace cuda {

struct RaceRequest {
  Row row;
  Law law;
  Noise noise;
  int32_t status;
};

__device__ __forceinline__ RaceRequest race_request(const RaceParams& p, int64_t index) {
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  RaceRequest r = {part_at(p.rows, p.rows.offset(i, j)), {}, noise_at(p.noise, i, j, kStreamRace), kStatusOk};
  r.law = law_at(p.law, i, j, &r.status);
  return r;
}

__device__ __forceinline__ RowPartial find_winner(const Row& row, const Law& law, const Noise& noise, Part part) {
  if (law.greedy) return argmax_part(row, law, part);
  return race_part(weights_of_row(row, law), noise, part);
}

}  // namespace cuda
}  // namespace specdec
