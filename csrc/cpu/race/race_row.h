// Races over a row that scan_maxima has looked through. Candidates are columns.
#pragma once

#include "../rows/law_row.h"
#include "specdec/paths.h"

SPECDEC_BEGIN

// What keeps the best of the candidates that it is offered.
struct RaceResult {
  const int32_t places;        // how many it keeps
  float to_beat = -kInfinity;  // the score of the last of them: a candidate below it need not be offered

  // Of a score that it may have at most, and of one that it has at least. They differ where weights are known by bounds.
  virtual void offer(const Candidate& c, float least) = 0;

 protected:
  explicit RaceResult(int32_t count) : places(count) {}
  ~RaceResult() = default;
};

// Offers the arrivals of the race with weights p.
void race_row(const LawRow& r, const Noise& noise, const ThreadTeam& team, RaceResult& result);

// Who wins the race with weights p, some tokens left out; kNobody if no other has weight. `slot` is the scratch memory
// that was used for the row.
Candidate row_winner(LawRow& r, const TokenList& excluded, const Noise& noise, const ThreadTeam& team, int slot);

// Who wins the race with weights (p - subtracted q)^+. With shares these times q stand in the place of q.
Candidate residual_winner(LawRow& target, const LawRow& draft, float subtracted, const BucketShares* shares,
                          const Noise& noise, const ThreadTeam& team, int slot);

// That winner's token by bounds, of rows that are known roughly and of a multiple of q between two numbers; kNoToken if
// they do not tell.
int32_t residual_winner_by_bounds(const LawRow& target, const LawRow& draft, Range subtracted, const Noise& noise,
                                  const ThreadTeam& team);

SPECDEC_END
