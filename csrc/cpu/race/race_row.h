// Races over a row after scan_maxima. Candidates are columns.
#pragma once

#include "race_result.h"
#include "specdec/paths.h"

SPECDEC_BEGIN

// Offers the arrivals of the race with weights p.
void race_row(const LawRow& r, const Noise& noise, const ThreadTeam& team, RaceResult& result);

// The winner of the race with weights p, without some tokens; kNoCandidate if no other has weight.
Candidate row_winner(LawRow& r, const TokenList& excluded, const Noise& noise, const ThreadTeam& team, int scratch_id);

// The winner of the race with weights (p - subtracted q)^+. With scales, scale(p, q) q replaces q.
Candidate residual_winner(LawRow& target, const LawRow& draft, float subtracted, const BucketScales* scales,
                          const Noise& noise, const ThreadTeam& team, int scratch_id);

// That winner's token from bounds of the rows and of the multiple of q; kNoToken if the bounds leave it open.
int32_t residual_winner_by_bounds(const LawRow& target, const LawRow& draft, Range subtracted, const Noise& noise,
                                  const ThreadTeam& team);

SPECDEC_END
