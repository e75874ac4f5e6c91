// The race over a row of a draft with a smaller vocabulary. Each column is a token of the target (specdec/draft_map.h)
// and has that token's noise. Candidates are columns. Columns are dismissed by the maximum of their tile and by the
// first arrival of their token's group.
#pragma once

#include "race_scan.h"

SPECDEC_BEGIN

// The random words of one group. Tokens rise with the columns, so a column is mostly in the group of the one before.
struct GroupNoise {
  const Noise& noise;
  uint32_t index, a, b;
  explicit GroupNoise(const Noise& row_noise) : noise(row_noise) { read(0); }
  void go_to(uint32_t group) {
    if (group != index) read(group);
  }

 private:
  void read(uint32_t group) {
    const Words<uint32_t> w = noise_words(noise, group >> 1);
    index = group;
    a = group & 1 ? w.word[1] : w.word[0], b = group & 1 ? w.word[3] : w.word[2];
  }
};

template <class Weights>
inline void mapped_race_tiles(const Weights& weights, const LawRow& r, const Noise& noise, int32_t from, int32_t to,
                              RaceResult& result) {
  GroupNoise group(noise);
  for (int32_t tile = from; tile < to; ++tile) {
    const float bound = weights.log_bound(tile_max(r.cells, tile));
    if (!(bound > -kInfinity)) continue;
    float beaten = result.to_beat;
    uint32_t limit = largest_winning_word(bound, beaten);
    const int32_t begin = tile * kTile, end = begin + r.row.tile_size(tile);
    for (int32_t column = begin; column < end; ++column) {
      const int32_t token = r.map.tokens[column];
      if (token < 0) continue;  // not a valid map
      group.go_to(static_cast<uint32_t>(token) / kGroup);
      if (result.to_beat != beaten) beaten = result.to_beat, limit = largest_winning_word(bound, beaten);
      if (group.a > limit) continue;
      const float log_weight = weights.log_weight(element(r.row, column), column);
      const float earliest = static_cast<float>(group.a) * 0x1p-38f;
      if (log_weight == -kInfinity || log_weight < needed_at_least(beaten, earliest)) continue;
      const float time = arrival(noise, group_of(group.index, group.a, group.b), static_cast<uint32_t>(token));
      const float score = race_score(log_weight, time);
      result.offer({score, column}, score);
    }
  }
}

SPECDEC_END
