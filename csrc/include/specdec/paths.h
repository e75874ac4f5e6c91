// The arithmetic of walk_paths (walk.h): which of several chains is taken, and by what law. Every number is float32 in
// one fixed order of operations, from sums that are whole numbers. So all backends take the same chain.
#pragma once

#include "residual.h"

SPECDEC_BEGIN

// Tokens are put into buckets by p / q, half an octave each: bucket b holds floor(2 log2(p / q)) = b - 12. The lowest
// holds all ratios below, the highest all above, and the tokens without weight in q.
constexpr int32_t kBuckets = 21;

// The exponent of (p / q)^2 is the bucket. `Float` is float or a vector of them.
template <class Float>
SPECDEC_HD auto find_bucket(Float p, Float q) {
  using Word = decltype(bits(p));
  const Float ratio = div(p, q), highest(0x1p8f);
  const Float square = where(at_least(q, Float(kSmallest)), mul(ratio, ratio), highest);
  return shift_right(bits(min(max(square, Float(0x1p-12f)), highest)), Word(23u)) - Word(115u);
}

// Sums over a row pair, as whole numbers (residual.h): of p over each bucket, then of q.
constexpr int32_t kBucketSums = 2 * kBuckets;

// The factor from a token's q to its probability of being taken, by bucket.
struct BucketScales {
  float by_bucket[kBuckets];
  bool all_one;  // all are 1

  SPECDEC_HD float operator()(float p, float q) const { return all_one ? 1.0f : by_bucket[find_bucket(p, q)]; }
};

// How many chains the walk looks at: `few` with probability `few_prob`, else `many`.
struct Look {
  int32_t few, many;
  float few_prob;

  SPECDEC_HD int32_t chains(float u) const { return u < few_prob ? few : many; }
};

// The workers of Looks::best where one thread evaluates all candidates.
struct OneWorker {
  SPECDEC_HD int32_t index() const { return 0; }
  SPECDEC_HD int32_t count() const { return 1; }
  SPECDEC_HD float largest(float x) const { return x; }
  SPECDEC_HD int32_t least(int32_t x) const { return x; }
};

constexpr int32_t kMostLooked = 16;  // the walk looks at no more chains at a node

// All candidates for a node's Look. If the best of j chains is taken, the token's bucket is B with probability
// F(B)^j - F(<B)^j = q_B G_j(B), where F sums q up to a bucket, and
//   G_1 = 1,   G_{j+1}(B) = F(B) G_j(B) + F(<B)^j.
// Within a bucket tokens are still taken in proportion to q, so the law of the taken token is q G_j. At a node of
// weight w the sum of min(w p_B, q_B G(B)) bounds the probability that the next token is accepted, so the largest sum
// is best. `Floats` is float* or memory of a block.
constexpr int32_t kLookFloats = (kMostLooked + 2) * kBuckets;

template <class Floats>
class Looks {
 public:
  SPECDEC_HD Looks(const Floats& memory, int32_t chains)
      : table(memory), most(chains < kMostLooked ? chains : kMostLooked) {}

  // Fills in a bucket. `sums` has kBucketSums elements; w is the node's weight.
  template <class Sums>
  SPECDEC_HD void fill(const Sums& sums, float w, int32_t b) const {
    uint64_t below = 0, total = 0;
    for (int32_t i = 0; i < kBuckets; ++i) {
      if (i == b) below = total;
      total += sums[kBuckets + i];
    }
    const uint64_t p = sums[b], q = sums[kBuckets + b];
    at(kMostLooked, b) = mul(w, sum_of_units(p)), at(kMostLooked + 1, b) = sum_of_units(q);
    const float before = ratio(below, total), with = ratio(below + q, total);
    float power = 1.0f, gain = 1.0f;
    at(0, b) = gain;
    for (int32_t j = 1; j < most; ++j) {
      power = mul(power, before);
      gain = add(mul(with, gain), power);
      at(j, b) = gain;
    }
  }

  // The first candidate within 2^-14 of the best, so that roundings do not choose among equals: one number of chains,
  // or two of them in one of four mixtures.
  template <class Workers>
  SPECDEC_HD Look best(const Workers& workers) const {
    const int32_t candidates = most + 2 * most * (most - 1);
    float largest = 0.0f;
    for (int32_t i = workers.index(); i < candidates; i += workers.count()) largest = max(largest, reach(candidate(i)));
    largest = workers.largest(largest);
    int32_t first = candidates - 1;
    for (int32_t i = workers.index(); i < first; i += workers.count())
      if (reach(candidate(i)) >= sub(largest, 0x1p-14f)) first = i;
    return candidate(workers.least(first));
  }

  // The factor of a bucket's q.
  SPECDEC_HD float scale(const Look& look, int32_t b) const {
    const float few = at(look.few - 1, b);
    if (look.few == look.many) return few;
    const float many = at(look.many - 1, b);
    return add(mul(look.few_prob, few), mul(sub(1.0f, look.few_prob), many));
  }

 private:
  SPECDEC_HD decltype(auto) at(int32_t row, int32_t b) const { return table[row * kBuckets + b]; }
  SPECDEC_HD static float ratio(uint64_t units, uint64_t total) {
    return total ? div(static_cast<float>(units), static_cast<float>(total)) : 0.0f;
  }
  SPECDEC_HD Look candidate(int32_t index) const {
    if (index < most) return {index + 1, index + 1, 1.0f};
    int32_t pair = (index - most) / 4, few = 1;
    for (; pair >= most - few; ++few) pair -= most - few;
    return {few, few + 1 + pair, div(static_cast<float>((index - most) % 4 + 1), 5.0f)};
  }
  SPECDEC_HD float reach(const Look& look) const {
    float sum = 0.0f;
    for (int32_t b = 0; b < kBuckets; ++b)
      sum = add(sum, min(static_cast<float>(at(kMostLooked, b)), mul(at(kMostLooked + 1, b), scale(look, b))));
    return sum;
  }

  const Floats table;
  const int32_t most;
};

SPECDEC_END
