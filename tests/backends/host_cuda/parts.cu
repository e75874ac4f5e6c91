// Functions of csrc/cuda for tests that call them one by one.
#include "../../../csrc/cuda/rows/draw.cuh"
#include "../../../csrc/cuda/rows/race.cuh"
#include "../../../csrc/cuda/team/team.cuh"
#include "../../../csrc/cuda/rows/weights.cuh"

#include <algorithm>
#include <cmath>

using namespace specdec::cuda;
using specdec::LawWithStats;

namespace {

struct ExchangeArguments {
  TeamLayout team;
  unsigned* ticket;
  WideKey* partials;
  int rounds;
  WideKey* out;
};

// Software clusters whose members hand items to each other round by round; the last block of all adds up what they got.
__global__ void exchange_kernel(const ExchangeArguments a) {
  Team team(a.team);
  WideKey sum = 0;
  for (int round = 0; round < a.rounds; ++round) {
    for (int item = team.first_item(); item < a.team.items; item += team.size() * warps_in_block())
      if (lane_id() == 0) team.put(item, static_cast<WideKey>(round + item));
    team.sync();
    for (int item = 0; item < a.team.items; ++item) sum += team.get(item);
  }
  team.leave();
  if (threadIdx.x == 0) store_partial(a.partials, blockIdx.x, {{static_cast<float>(sum), 1}, 0});
  if (!is_last_block(a.ticket, gridDim.x)) return;
  WideKey all = 0;
  for (unsigned block = 0; block < gridDim.x; ++block)
    all += static_cast<WideKey>(gather_partials(a.partials, block, 1).best.score);
  if (threadIdx.x == 0) *a.out = all;
}

struct AheadArguments {
  Row row;
  uint64_t* bytes;  // that a warp has loaded at the start, and when it looks at each of its chunks
};

__global__ void ahead_kernel(const AheadArguments a) {
  const uint64_t before = a.bytes[0];
  int seen = 0;
  const auto note = [&] {
    __syncwarp();
    a.bytes[seen++] = host_cuda::counters().bytes_read - before;
    __syncwarp();
  };
  race_chunks<true, BFloat16>(
      a.row, {0, 1}, [](int32_t) { return 0; }, [&](int32_t, int, int) { note(); },
      [](const Batch<BFloat16>& batch, int steps) { return largest_of(specdec::Law{}, batch, steps); },
      [&](const Largest&, int32_t, int, int) { note(); });
}

// A word of any size.
uint32_t any_word(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(*state >> 32) >> (*state >> 27) % 32;
}

}  // namespace

extern "C" {

// The largest share of score_error that is needed between a token's score and the middle of its bounds.
double bounds_of_scores(uint64_t state, int count) {
  double most = 0.0;
  for (int i = 0; i < count; ++i) {
    const LaneNoise group = {any_word(&state), any_word(&state)};
    const uint32_t word = any_word(&state);
    const float any_weight = static_cast<float>(any_word(&state) >> 8) - 0x1p23f;
    const float first = about_first_arrival(group), exact = specdec::first_arrival(group.a, group.b);
    for (int way = 0; way < 4; ++way) {
      const bool leads = way % 2;
      const float log_weight = any_weight * (way / 2 ? 0x1p-8f : 0x1p-16f), log2_weight = log_weight * kLog2E;
      const float about = log2_weight - log2_approx(leads ? first : first + about_neg_log1p(word));
      const double score =
          specdec::race_score(log_weight, leads ? exact : specdec::add(exact, specdec::later_by(word)));
      const double off = score * 1.44269504088896340736 - about;
      most = std::max(most, std::abs(off) / score_error(log2_weight));
    }
  }
  return most;
}

// The same of probabilities, as a share of kLawError.
double bounds_of_laws(uint64_t state, int count) {
  double most = 0.0;
  for (int i = 0; i < count; ++i) {
    const float x = -static_cast<float>(any_word(&state) >> 8) * 0x1p-18f;
    const LawWithStats side = {{SPECDEC_LOGITS, 1.0f, false}, {0.0f, 3.0f + static_cast<float>(i % 64) / 64}, 0};
    const double p = side.probability(0, x), about = about_probability(side, x);
    if (p >= 1e-30) most = std::max(most, std::abs(about - p) / p / kLawError);
  }
  return most;
}

// Races a row by one warp. `bytes` has a place for the start, and one for each chunk.
void loads_ahead(const void* row, int vocab, uint64_t* bytes) {
  host_cuda::device() = {8, 2, 90, 1, 1, 0, false, false, 0, false};
  bytes[0] = host_cuda::counters().bytes_read;
  const AheadArguments a = {{row, vocab, SPECDEC_BFLOAT16}, bytes};
  launch(ahead_kernel, Shape{1, 32}, a, nullptr);
}

// The blocks of a team that walks, on a device with clusters; negative if it is a software cluster.
int team_size(int multiprocessors, int64_t requests, int vocab, int work) {
  const Device device = {multiprocessors, true, 223 << 10, true};
  specdec::Rows rows = {};
  rows.vocab = vocab;
  rows.dtype = SPECDEC_BFLOAT16;
  const TeamShape shape = team_shape(device, requests, rows, work, Ends::kOneByOne);
  return shape.grid ? -shape.size : shape.size;
}

// The sum that the last block found; 0 after a fault.
uint64_t exchange(uint64_t schedule, int lags, int teams, int size, int items, int rounds) {
  host_cuda::device() = {8, 2, 90, 1, schedule, 0, false, lags != 0, 0, false};
  std::vector<unsigned> counters(static_cast<size_t>(teams) + 1);
  std::vector<WideKey> words(static_cast<size_t>(2 * teams * (items + size)));
  WideKey found = 0;
  Shape shape = {teams * size, 64};
  shape.cooperative = true;
  shape.multiprocessors = 8;
  const ExchangeArguments a = {team_layout(TeamKind::kGrid, size, items, counters.data(), words.data()),
                               counters.data() + teams, words.data() + 2 * teams * items, rounds, &found};
  return launch(exchange_kernel, shape, a, nullptr) == cudaSuccess ? found : 0;
}

const char* fault() { return host_cuda::last_fault().c_str(); }
}
