// What the headers' bounds say of numbers, and the numbers themselves: for each of `count` of them. Fields that begin with
// a large letter are written.
#include "specdec/accept.h"
#include "specdec/law.h"
#include "specdec/mass.h"
#include "specdec/traversal.h"

using namespace specdec;

extern "C" {

// Of a token of log weight `w` in a group of words a and b: it arrives first, or later by a second word.
struct Arriving {
  const float* w;
  const uint32_t *a, *b, *second;
  float *Score, *Reach, *Noted, *Needed, *LaterScore, *LaterNeeded;
  uint32_t* Limit;
};

void race_bounds(const Arriving* p, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float earliest = static_cast<float>(p->a[i]) * 0x1p-38f, first = first_arrival(p->a[i], p->b[i]);
    p->Score[i] = race_score(p->w[i], first);
    p->Reach[i] = sub(p->w[i], log_below(earliest));
    p->Noted[i] = lowest_noted(p->Score[i]);
    p->Limit[i] = largest_winning_word(p->w[i], p->Score[i]);
    p->Needed[i] = needed_at_least(p->Score[i], earliest);
    p->LaterScore[i] = race_score(p->w[i], add(first, later_by(p->second[i])));
    p->LaterNeeded[i] =
        needed_at_least(p->LaterScore[i], add(earliest, mul(static_cast<float>(p->second[i]), 0x1p-32f)));
  }
}

// Of an element in a row of this law.
struct Elements {
  const float* raw;
  float inverse, max, log_sum;
  float *Weight, *Bound, *Bounds, *Needed, *Key;
};

void logit_bounds(const Elements* p, int64_t count) {
  const Logits space = {p->inverse};
  const LogSumExp lse = {p->max, p->log_sum};
  for (int64_t i = 0; i < count; ++i) {
    p->Weight[i] = log_weight(space.probability(p->raw[i], lse));
    p->Bound[i] = space.log_bound(p->raw[i], lse), p->Bounds[i] = space.log_bounds(p->raw[i], lse);
    p->Needed[i] = space.needed_key(p->Weight[i], lse), p->Key[i] = space.key(p->raw[i]);
  }
}

void prob_bounds(const Elements* p, int64_t count) {
  const Probs space = {};
  for (int64_t i = 0; i < count; ++i) {
    p->Weight[i] = space.log_weight(p->raw[i]);
    p->Bound[i] = space.log_bound(p->raw[i]), p->Bounds[i] = space.log_bounds(p->raw[i]);
    p->Needed[i] = space.needed_key(p->Weight[i]), p->Key[i] = space.key(p->raw[i]);
  }
}

// Five ranges, and a number of each. What functions of them are, by number, and their ranges: see names in the test.
struct Ranges {
  const float *low, *high, *inside;  // [count, 5]
  const uint32_t* seed;              // of a uniform
  float *Low, *High, *Inside;        // [count, 7]
  uint8_t *Decided, *Accepted, *Accepts;
};

void ranges(const Ranges* p, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto of = [&](int k) { return Range{p->low[5 * i + k], p->high[5 * i + k]}; };
    const auto at = [&](int k) { return p->inside[5 * i + k]; };
    int k = 0;
    const auto put = [&](Range range, float x) {
      p->Low[7 * i + k] = range.low, p->High[7 * i + k] = range.high, p->Inside[7 * i + k++] = x;
    };
    put(weight_after(of(0), of(1), of(2)), weight_after(at(0), at(1), at(2)));
    put(draft_scale(of(1), of(2)), draft_scale(at(1), at(2)));
    put(child_weight(of(0), of(1), of(2), of(3), of(4)), child_weight(at(0), at(1), at(2), at(3), at(4)));
    put(subtracted_after(of(3), of(4)), subtracted_after(at(3), at(4)));
    put(subtracted_after(of(3), of(4), of(0)), subtracted_after(at(3), at(4), at(0)));
    put(untried_after(of(0), of(1)), untried_after(at(0), at(1)));
    put(of(0), at(0));
    const Noise noise = {{p->seed[i], 0}, 0, 0, kStreamAccept};
    const AcceptTestOf<Range> test = {noise, 0, of(3), of(4), 0.0f};
    bool accepted;
    p->Decided[i] = test.decided(of(1), of(2), &accepted), p->Accepted[i] = accepted;
    p->Accepts[i] = AcceptTest{noise, 0, at(3), at(4), 0.0f}(at(1), at(2));
  }
}

// specdec/mass.h over arrays.
void integer_exps(const float* d, int64_t count, uint32_t* q, uint32_t* n, uint32_t* units) {
  for (int64_t i = 0; i < count; ++i) {
    const auto e = integer_exp(d[i]);
    q[i] = e.q, n[i] = e.n, units[i] = unit_weight(d[i]);
  }
}

void tile_masses(const float* d, int64_t count, const uint64_t* units, uint64_t* mass) {
  for (int64_t i = 0; i < count; ++i) mass[i] = tile_mass({units[i], d[i]}, 0.0f);
}
}
