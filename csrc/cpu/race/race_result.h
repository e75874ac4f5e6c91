// What a race offers its candidates to.
#pragma once

#include "../rows/law_row.h"

SPECDEC_BEGIN

// Collects the best of the candidates that it is offered.
struct RaceResult {
  const int32_t capacity;
  float to_beat = -kInfinity;  // the score of the last of the best: a candidate below it need not be offered

  // c.score is an upper bound of the candidate's score, `least` a lower one. They differ where weights are bounds.
  virtual void offer(const Candidate& c, float least) = 0;

 protected:
  explicit RaceResult(int32_t count) : capacity(count) {}
  ~RaceResult() = default;
};

SPECDEC_END
