// Sums over a pair of rows, p and q, after a scan of both.
#pragma once

#include "../rows/law_row.h"
#include "specdec/paths.h"
#include "specdec/traversal.h"

SPECDEC_BEGIN

// W and R (specdec/walk.h) for this T; `tried` are the tokens of the children tried. Without it R is not summed.
Masses pair_sums(const LawRow& target, const LawRow& draft, float subtracted, const TokenList* tried,
                 const ThreadTeam& team);

// W where scale(p, q) q replaces q.
Masses pair_sums(const LawRow& target, const LawRow& draft, float subtracted, const BucketScales& scales,
                 const ThreadTeam& team);

// Sums by bucket.
struct BucketSums {
  uint64_t units[kBucketSums];
  void operator+=(const BucketSums& other) {
    for (int32_t i = 0; i < kBucketSums; ++i) units[i] += other.units[i];
  }
};
BucketSums bucket_sums(const LawRow& target, const LawRow& draft, const ThreadTeam& team);

// Bounds of W and R from bounds of p, q and T, after scan_bounds.
SumsOf<Range> pair_sums(const LawRow& target, const LawRow& draft, Range subtracted, const TokenList* tried,
                        const ThreadTeam& team);

SPECDEC_END
