// The rows of race_sample and race_topk, decoded.
#pragma once

#include "scan.cuh"
#include "specdec/chain.h"

namespace specdec {
namespace cuda {

struct RaceRow {
  Row row;
  Temperature temperature;
  Noise noise;
};

__device__ __forceinline__ RaceRow race_row(const RaceParams& p, int64_t index) {
  const int64_t i = index / p.inner, j = index % p.inner;
  int32_t status = kStatusOk;
  return {row_at(p.rows, i * p.rows.request_stride + j * p.rows.row_stride),
          temperature_of(p.temperature.at(i, j), &status),
          {key_of(p.seed.at(i, j)), static_cast<uint32_t>(p.position.at(i, j)),
           static_cast<uint32_t>(p.nonce.at(i, j)), kStreamRace}};
}

__device__ __forceinline__ Find find_winner(const Row& row, const Temperature& temperature, const Noise& noise,
                                            Space space, int32_t excluded, Part part) {
  if (temperature.greedy) return argmax_part(row, space, part);
  return race_part(law_of_row(row, space, temperature.inverse, excluded), noise, part);
}

__device__ __forceinline__ Find find_winner(const RaceRow& r, Space space, Part part) {
  return find_winner(r.row, r.temperature, r.noise, space, kNoToken, part);
}

}  // namespace cuda
}  // namespace specdec
