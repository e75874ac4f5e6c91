// The decisions of csrc/cuda/chain and of specdec/walk.h on the same tables, for tests that compare them. Rows are of
// probabilities, and a table has the winner of each row where a rule takes one.
#include <vector>

#include "../../../csrc/cuda/chain/block.cuh"
#include "../../../csrc/cuda/chain/race.cuh"

namespace specdec::cuda {
namespace {

enum Rule : int { kRejection, kBlock, kRace, kGreedy };

// A chain's stop: the token is the one that is decided, or the one that the draw excludes, or kNoToken; of a race all
// that it emits, in one number.
struct Decision {
  int32_t node, status, residual, token;
  float subtracted;
};

struct Tables {
  ChainParams p;
  int rule, chunk;         // drafts that a warp accepts at once
  const int32_t* winners;  // [B, K+1]
  Decision* decisions;     // [B]
  __device__ int32_t winner(int64_t b, int32_t node) const { return winners[b * p.width() + node]; }
};

__device__ int32_t in_one_number(int32_t before, int64_t token) {
  return static_cast<int32_t>(static_cast<uint32_t>(before) * 31u + static_cast<uint32_t>(token));
}

// The sum of (p - subtracted q)^+ of a node's rows, in units.
__device__ uint64_t units_of_rows(const ChainRequest& r, int32_t node, float subtracted) {
  const LawRow target = side_of(r, node, false), draft = side_of(r, node, true);
  UnitSum<float> sum;
  for (int32_t i = 0; i < r.vocab(); ++i)
    sum.take(residual_weight(target.probability(i, element(target.row, i)),
                             mul(subtracted, draft.probability(i, element(draft.row, i)))));
  return units_of(sum.high, sum.low);
}

// ---- by the functions of chains -------------------------------------------------------------------------------------

__device__ LaneDraft lane_from(const Tables& a, const ChainRequest& r, int32_t first) {
  LaneDraft lane(r, first);
  lane.target_stats = lane.draft_stats = kNoStats;
  if (a.rule == kGreedy && lane.node() <= r.slots) lane.target_stats.argmax = a.winner(r.request, lane.node());
  return lane;
}

__device__ StopPoint stop_of_block(const Tables& a, const ChainRequest& r, const Shared<Leaf>& leaves) {
  LaneDraft lane = lane_from(a, r, 0);
  return accept_as_block(
      r, leaves, lane, [&](int32_t node) { return lane_from(a, r, node); }, [](int32_t, int32_t) {},
      [&](int32_t node) { return units_of_rows(r, node, static_cast<Leaf>(leaves[node]).subtracted()); },
      [](int32_t) { return SPECDEC_STATUS_OK; });
}

__device__ StopPoint stop_of_chunks(const Tables& a, const ChainRequest& r) {
  int32_t status = SPECDEC_STATUS_OK;
  for (int32_t first = 0;; first += a.chunk) {
    const LaneDraft lane = lane_from(a, r, first);
    StopPoint e = a.rule == kGreedy ? accept_greedy(r, lane, a.chunk) : accept_by_rejection(r, lane, a.chunk);
    e.status = status |= e.status;
    if (e.node != kNoNode) return e;
  }
}

// One warp decides every chain.
__global__ void decide_kernel(const Tables a) {
  const Shared<Leaf> leaves = dynamic_shared<Leaf>(0, a.p.width());
  for (int64_t b = 0; b < a.p.batch(); ++b) {
    const ChainRequest r(a.p, b);
    Decision& decision = a.decisions[b];
    if (a.rule == kRace) {
      write_race(r, draft_of_lane(r), r.status,
                 [&](int32_t node) { return Draw{a.winner(b, node), SPECDEC_STATUS_OK, false}; });
      const int32_t node = a.p.num_accepted.data[b];
      int32_t all = 0;
      for (int32_t i = 0; i <= node; ++i)
        all = in_one_number(all, static_cast<const int32_t*>(a.p.tokens.data)[b * a.p.width() + i]);
      if (lane_id() == 0) decision = {node, a.p.status.data[b], false, all, 1.0f};
    } else {
      const StopPoint e = a.rule == kBlock ? stop_of_block(a, r, leaves) : stop_of_chunks(a, r);
      const int32_t status = static_cast<int32_t>(__reduce_or_sync(kWarp, static_cast<unsigned>(r.status | e.status)));
      const float subtracted = e.residual && r.has_draft() ? e.subtracted : 1.0f;
      if (lane_id() == 0) decision = {e.node, status, e.residual, e.decided ? e.token : e.excluded, subtracted};
    }
    __syncthreads();
  }
}

// ---- by walk.h ------------------------------------------------------------------------------------------------------

struct TableOps {
  using Number = float;
  static constexpr bool kSumsBuckets = false;
  const Tables& a;
  const ChainRequest& r;
  std::vector<PathNode<float>> nodes;
  Decision decision = {};

  TableOps(const Tables& tables, const ChainRequest& request)
      : a(tables), r(request), nodes(static_cast<size_t>(tables.p.width()), path_node<float>(0)) {}

  bool argmax(int32_t node, Draw* draw) {
    *draw = {a.winner(r.request, node), SPECDEC_STATUS_OK, false};
    decision.token = draw->token, decision.subtracted = 1.0f;
    return true;
  }
  bool race(int32_t node, const Noise&, Draw* draw) {
    const int32_t before = decision.token;
    argmax(node, draw);
    decision.token = a.rule == kRace ? in_one_number(before, draw->token) : kNoToken;
    return true;
  }
  bool residual(int32_t node, const Noise&, float subtracted, Draw* draw) {
    const int64_t draft = node < r.slots ? r.draft_token(node + 1) : -1;
    argmax(node, draw);
    decision.residual = true;
    decision.token = !r.has_draft() && in_vocab(r, draft) ? static_cast<int32_t>(draft) : kNoToken;
    if (r.has_draft()) decision.subtracted = subtracted;
    return true;
  }
  bool is_empty(int32_t, bool* empty) { return *empty = false, true; }
  bool laws(int32_t node, int32_t token, float* p, float* q, int32_t* status) {
    *p = law(side_of(r, node, false), token, status);
    *q = r.has_draft() ? law(side_of(r, node, true), token, status) : 1.0f;
    return true;
  }
  bool masses(int32_t node, int32_t, float subtracted, Masses* masses) {
    *masses = {sum_of_units(units_of_rows(r, node, subtracted)), 1.0f, SPECDEC_STATUS_OK};
    return true;
  }
  PathNode<float> path(int32_t depth) const { return nodes[static_cast<size_t>(depth)]; }
  void put(int32_t depth, const PathNode<float>& node) { nodes[static_cast<size_t>(depth)] = node; }
  void emit(int32_t, int32_t, int32_t) {}
  void enter(int32_t, int32_t, int32_t) {}
  void leave(int32_t, int32_t, int32_t) {}

 private:
  static float law(const LawRow& side, int32_t token, int32_t* status) {
    const float raw = element(side.row, token);
    if (!side.stats.law.is_element(raw)) *status |= SPECDEC_STATUS_NON_FINITE;
    return side.probability(token, raw);
  }
};

void walk_tables(const Tables& a) {
  for (int64_t b = 0; b < a.p.batch(); ++b) {
    const ChainRequest r(a.p, b);
    TableOps ops(a, r);
    Walk at = walk_from(0, 0);
    int32_t status = r.status;
    walk(r, a.p.method, ops, &at, &status);
    ops.decision.node = at.depth, ops.decision.status = status;
    a.decisions[b] = ops.decision;
  }
}

}  // namespace

extern "C" {

// Decides chains by the kernels' functions, or by the walk. draft: null for drafts that are certain. Returns false after
// a fault of the machine.
bool decide(bool by_walk, int rule, int chunk, int64_t requests, int drafts, int vocab, const int32_t* draft_tokens,
            const float* target, const float* draft, const float* draft_prob, const float* epsilon, const int64_t* seeds,
            const int32_t* winners, Decision* decisions) {
  const int width = drafts + 1;
  std::vector<int32_t> tokens(static_cast<size_t>(requests * width)), counts(static_cast<size_t>(2 * requests));
  Tables a = {};
  a.rule = rule, a.chunk = chunk, a.winners = winners, a.decisions = decisions;
  a.p.method = rule == kBlock ? SPECDEC_BLOCK : rule == kRace ? SPECDEC_RACE : SPECDEC_REJECTION;
  a.p.draft_tokens = {draft_tokens, drafts, 1, requests, drafts, false};
  a.p.target = {target, int64_t{width} * vocab, vocab, requests, width, vocab, SPECDEC_FLOAT32, 0};
  if (draft) a.p.draft = {draft, int64_t{drafts} * vocab, vocab, requests, drafts, vocab, SPECDEC_FLOAT32, 0};
  a.p.target_law.space = a.p.draft_law.space = SPECDEC_PROBS;
  a.p.target_law.temperature.value = rule == kGreedy ? 0.0f : 1.0f;
  a.p.draft_law.temperature.value = 1.0f;
  a.p.draft_prob = {draft_prob, drafts, 1, 0.0f, false};
  a.p.epsilon = {epsilon, 1, 0, 0.0f, false};
  a.p.noise.seed = {seeds, 1, 0, 0, true};
  a.p.tokens = {tokens.data(), width, requests, width, 1, true};
  a.p.num_accepted = {counts.data(), 1, requests, 1};
  a.p.status = {counts.data() + requests, 1, requests, 1};
  if (by_walk) return walk_tables(a), true;
  host_cuda::device() = {1, 1, 90, 1, 1, 0, false, false, 0, false};
  Shape shape = {1, 32};
  shape.dynamic_shared = static_cast<size_t>(width) * sizeof(Leaf);
  return launch(decide_kernel, shape, a, nullptr) == cudaSuccess;
}

const char* fault() { return host_cuda::last_fault().c_str(); }
}

}  // namespace specdec::cuda
