// logprobs on the CPU: the log-probability and the rank of a token, the most probable tokens, and the set in the cut.
#include <algorithm>
#include <vector>

#include "../rows/edits.h"
#include "specdec/c/rows.h"
#include "specdec/request.h"

SPECDEC_BEGIN

namespace {

// How many tokens in the cut are at least as probable.
int32_t rank_of(const LawRow& r, const Logits& space, float x) {
  int32_t rank = 0;
  const F32x16 least(x), largest_x(kLargest);
  for (int32_t tile = 0; tile < r.row.tiles(); ++tile) {
    if (!(space.scaled(tile_max(r.cells, tile)) >= x)) continue;
    const int32_t begin = tile * kTile, end = begin + r.row.tile_size(tile);
    for (int32_t at = begin; at < end; at += kLanes) {
      const F32x16 raw = elements(r.row, at, end - at, __builtin_nanf(""));
      Mask lanes = at_least(min(largest_x, space.key(raw)), least);
      if (lanes && r.filter.on()) lanes &= lanes_in_cut(r.in_support.cut, value_of(r.filter, raw), at);
      rank += __builtin_popcount(lanes);
    }
  }
  return rank;
}

// How many tokens are at least as large; 1 for the argmax, 0 for a token without weight.
int32_t greedy_rank(const LawRow& r, int32_t column) {
  const float mine = r.stats.law.rank(element(r.row, column));
  if (column == r.stats.argmax || mine == -kInfinity) return column == r.stats.argmax ? 1 : 0;
  int32_t rank = 0;
  const F32x16 least(mine), largest_finite(kLargest);
  for (int32_t at = 0; at < r.row.vocab; at += kLanes)
    rank += __builtin_popcount(
        at_least(min(largest_finite, elements(r.row, at, r.row.vocab - at, __builtin_nanf(""))), least));
  return rank;
}

// The list entries of the `top` most probable tokens in the cut, in order; fewer if the cut has fewer.
std::vector<uint64_t> most_probable(const LawRow& r, const Logits& space, int32_t top) {
  std::vector<uint64_t> best;
  const F32x16 largest_x(kLargest);
  float least = -kInfinity;  // the worst of the best so far, which the next token has to beat
  const auto earlier = [](uint64_t a, uint64_t b) { return a > b; };
  const auto drop_all_but_top = [&] {
    std::nth_element(best.begin(), best.begin() + (top - 1), best.end(), earlier);
    best.resize(static_cast<size_t>(top));
    least = value_at(best.back());
  };
  for (int32_t tile = 0; tile < r.row.tiles(); ++tile) {
    if (!(space.scaled(tile_max(r.cells, tile)) > least)) continue;
    const int32_t begin = tile * kTile, end = begin + r.row.tile_size(tile);
    for (int32_t at = begin; at < end; at += kLanes) {
      const F32x16 raw = elements(r.row, at, end - at, __builtin_nanf("")), scaled = min(largest_x, space.key(raw));
      Mask better = greater(scaled, F32x16(least));
      if (better && r.filter.on()) better &= lanes_in_cut(r.in_support.cut, value_of(r.filter, raw), at);
      if (!better) continue;
      float x[kLanes];
      store(x, scaled);
      for (; better; better &= better - 1) {
        const int lane = __builtin_ctz(better);
        if (x[lane] > least) best.push_back(list_entry(x[lane], at + lane));
        if (static_cast<int64_t>(best.size()) >= 2 * static_cast<int64_t>(top) + 64) drop_all_but_top();
      }
    }
  }
  std::sort(best.begin(), best.end(), earlier);
  if (static_cast<int64_t>(best.size()) > top) best.resize(static_cast<size_t>(top));
  return best;
}

// Writes a bit for each token in the law's support; returns how many there are.
int32_t store_support(const LawRow& r, const Logits& space, int32_t* bits) {
  int32_t count = 0;
  const F32x16 nothing(-kInfinity);
  const auto sixteen = [&](int32_t at) -> uint32_t {
    if (at >= r.row.vocab) return 0;
    const F32x16 raw = elements(r.row, at, r.row.vocab - at, __builtin_nanf(""));
    Mask in_support = greater(space.key(raw), nothing);
    if (in_support && r.filter.on()) in_support &= lanes_in_cut(r.in_support.cut, value_of(r.filter, raw), at);
    count += __builtin_popcount(in_support);
    return in_support;
  };
  for (int32_t at = 0; at < r.row.vocab; at += 32)
    bits[at / 32] = static_cast<int32_t>(sixteen(at) | sixteen(at + kLanes) << kLanes);
  return count;
}

struct Report {
  const LogprobsParams& p;
  int64_t index;

  int32_t* support_bits() const { return p.support_bits.data + index * p.words(); }
  void support_size(int32_t count) const { p.support_size.data[index] = count; }
  void support_of_one(int32_t column) const {
    if (!p.support_bits.data) return;
    std::fill_n(support_bits(), p.words(), 0);
    support_size(column != kNoToken);
    if (column != kNoToken) support_bits()[column / 32] = static_cast<int32_t>(uint32_t{1} << column % 32);
  }

  void token(float logprob, int32_t rank) const {
    p.logprob.data[index] = logprob;
    p.rank.data[index] = rank;
  }
  void top(int32_t column, int64_t token, float logprob) const {
    p.top_tokens.data[index * p.top() + column] = token;
    p.top_logprobs.data[index * p.top() + column] = logprob;
  }
  void nothing_from(int32_t column) const {
    for (; column < p.top(); ++column) top(column, -1, -kInfinity);
  }
  void status(int32_t bits) const {
    if (p.status.data) p.status.data[index] = bits;
  }
};

void logprobs_row(const LogprobsParams& p, int64_t index, const ThreadTeam& team) {
  const int64_t i = index / p.rows.rows, j = index % p.rows.rows;
  const Report report = {p, index};
  report.token(-kInfinity, 0);
  const Entry source = decode_entry(p.request_index, i);
  const int64_t token = p.tokens.at(i * p.tokens.request_stride + j * p.tokens.slot_stride);
  if (!source.live() || (token == -1 && p.top() == 0)) {
    report.nothing_from(0);
    report.support_of_one(kNoToken);
    return report.status(source.live() ? SPECDEC_STATUS_OK : source.status());
  }
  TargetRow edited_row(p.rows, p.law, p.edits, source.index, i, j);
  LawRow& r = edited_row.row;
  int32_t status = edited_row.status;
  scan_exact(r, team, 0);
  status |= r.status;
  const bool in_range = token >= 0 && token < p.rows.vocab;
  if (!in_range && token != -1) status |= SPECDEC_STATUS_TOKEN_RANGE;
  report.status(status);
  const int32_t column = static_cast<int32_t>(token);
  if (r.stats.law.greedy) {
    const int32_t argmax = r.stats.argmax;
    report.support_of_one(argmax);
    if (argmax == kNoToken) return report.nothing_from(0);
    if (in_range) report.token(column == argmax ? 0.0f : -kInfinity, greedy_rank(r, column));
    if (p.top() > 0) report.top(0, argmax, 0.0f);
    return report.nothing_from(1);
  }
  const Logits space = r.stats.law.logits();
  const auto log_of = [&](float x) { return log_probability(x, r.stats.lse); };
  if (p.support_bits.data) report.support_size(store_support(r, space, report.support_bits()));
  if (in_range) {
    const float raw = element(r.row, column), x = space.scaled(raw);
    if (x > -kInfinity && r.keeps(column, raw)) report.token(log_of(x), rank_of(r, space, x));
  }
  if (p.top() == 0) return;
  const std::vector<uint64_t> best = most_probable(r, space, p.top());
  int32_t written = 0;
  for (const uint64_t at : best) report.top(written++, column_at(at), log_of(value_at(at)));
  report.nothing_from(written);
}

}  // namespace

void logprobs(const LogprobsParams& p, int threads) {
  over_requests(p.count(), tiles_of(p.rows.vocab), threads,
                [&](int64_t index, const ThreadTeam& team) { logprobs_row(p, index, team); });
}

SPECDEC_END
