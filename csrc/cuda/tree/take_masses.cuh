// Work on rows: sums over both rows of a node.
#pragma once

#include "take_sums.cuh"

namespace specdec::cuda {

// Marks the tokens of the node's children with an index below `end`. All threads of the block call.
__device__ __forceinline__ void mark_tried(const WarpTree& t, int32_t node, int32_t end,
                                           const Shared<unsigned>& tried) {
  over_block((t.vocab() + 31) / 32, [&](int32_t word) { tried[word] = 0; });
  __syncthreads();
  int32_t reported = SPECDEC_STATUS_OK;
  over_block(node + 1, end < t.nodes() ? end : t.nodes(), [&](int32_t child) {
    if (t.parent(child, &reported) != node) return;
    const int64_t token = t.draft_token(child);
    if (in_vocab(t, token)) atomicOr(&tried[token / 32], 1u << token % 32);
  });
  __syncthreads();
}

// Calls f(token, p, q) for four tokens of a thread at a time, over the rows of a node, and end() after each tile.
template <class Shaping, class F, class End>
__device__ __forceinline__ void over_pairs(const WalkArguments& a, Team& team, const RowWork& work,
                                           const WalkMemory& memory, const Shaping& shaping, F&& f, End&& end) {
  const Shared<Four> held = dynamic_shared<Four>(a.held_at, 2 * a.held_fours);
  const auto target = row_of_work(a, work, true, memory, shaping), draft = row_of_work(a, work, false, memory, shaping);
  const int32_t vocab = a.p.target.vocab;
  over_sum_tiles(
      part_of(team), vocab, [](int) {},  // the rows are in the L2 cache
      [&](int32_t token) {
        const int index = (team.item_index(token / kSumTile) * kSumTile + token % kSumTile) / 4;
        Four law_p, law_q;
        if (a.held_fours && !work.fresh) {  // a thread gets the same tokens each time
          law_p = held[index], law_q = held[a.held_fours + index];
        } else {
          law_p = probabilities(target, token, vocab), law_q = probabilities(draft, token, vocab);
          if (a.held_fours) held[index] = law_p, held[a.held_fours + index] = law_q;
        }
        f(token, law_p, law_q);
      },
      [&](int) { end(); });
}

// A node's rows come from memory once, for their log-sum-exps. From the second child on, or if a leaf is removed, the
// walk needs sums over both rows. They are taken from p and q in the team's shared memory or, if a member's part does
// not fit, from the L2 cache.
template <class Shaping>
__device__ __forceinline__ void take_masses(const WalkArguments& a, Team& team, const RowWork& work,
                                            const WalkMemory& memory, const Shaping& shaping) {
  TwoUnitSums sums;  // a: W, b: R
  over_pairs(
      a, team, work, memory, shaping,
      [&](int32_t token, const Four& law_p, const Four& law_q) {
        unsigned gone = 0u;
        if (work.end) gone = memory.tried[token / 32] >> token % 32;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float q = law_q.value[i];
          sums.b.take(gone >> i & 1u ? 0.0f : q);
          if (work.scales >= 0) q = mul(memory.chosen[work.scales * kSharesADepth + find_bucket(law_p.value[i], q)], q);
          sums.a.take(residual_weight(law_p.value[i], mul(work.subtracted, q)));
        }
      },
      [&] { sums.end_tile(); });
  const TwoSums all = add_up(team, sums);
  if (threadIdx.x == 0) {
    WalkAnswers answer = memory.answers[0];
    answer.masses = {all.a, all.b, SPECDEC_STATUS_OK};
    memory.answers[0] = answer;
  }
}

// Sums p and q by buckets, and chooses how many of the remaining chains to look at.
template <class Shaping>
__device__ __forceinline__ void take_buckets(const WalkArguments& a, Team& team, const RowWork& work,
                                             const WalkMemory& memory, const Shaping& shaping) {
  const BucketMemory buckets = bucket_memory(a.paths_at + bytes_of_chosen(a.nodes), warps_in_block());
  BucketCounts counts(buckets);
  over_pairs(
      a, team, work, memory, shaping,
      [&](int32_t, const Four& law_p, const Four& law_q) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) counts.take(law_p.value[i], law_q.value[i]);
      },
      [&] { counts.end_tile(); });
  counts.add_up(team);
  if (warp_id() == 0) choose_look(buckets, work.end, work.subtracted, &memory.chosen[work.scales * kSharesADepth]);
}

}  // namespace specdec::cuda
