// Prints the microseconds of launches and barriers on this GPU as JSON: an empty kernel in a graph, plain and
// cooperative, a ticket, a fence, and the barriers of each kind of team (csrc/cuda/team/team.cuh) by the number of its
// blocks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../csrc/cuda/team/team.cuh"

namespace specdec {
namespace cuda {
namespace {

constexpr int kCalls = 50, kReplays = 25, kSyncs = 100;

void must(cudaError_t e) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(e));
  std::exit(1);
}

// The median time of a call, from graphs of `calls` of them.
template <class Call>
double graph_time(int calls, Call&& call) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream));
  call(stream);
  must(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t run;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < calls; ++i) call(stream);
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&run, graph, 0));
  cudaEvent_t start, end;
  must(cudaEventCreate(&start));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kReplays + 3; ++i) {
    float milliseconds = 0.0f;
    must(cudaEventRecord(start, stream));
    must(cudaGraphLaunch(run, stream));
    must(cudaEventRecord(end, stream));
    must(cudaEventSynchronize(end));
    must(cudaEventElapsedTime(&milliseconds, start, end));
    if (i >= 3) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  must(cudaGraphExecDestroy(run));
  must(cudaGraphDestroy(graph));
  must(cudaStreamDestroy(stream));
  return 1e3 * times[times.size() / 2] / calls;
}

__global__ void empty_kernel(int) {}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor) sync_kernel(const TeamLayout room) {
  Team team(room);
#pragma unroll 1
  for (int i = 0; i < kSyncs; ++i) team.sync();
  team.leave();
}

// Stores a word, and fences it for the cluster.
__global__ void fence_kernel(unsigned* word) {
#pragma unroll 1
  for (unsigned i = 0; i < kSyncs; ++i)
    if (threadIdx.x == 0) {
      *static_cast<volatile unsigned*>(word) = i;
      fence_cluster();
    }
}

__global__ void ticket_kernel(unsigned* ticket) {
#pragma unroll 1
  for (int i = 0; i < kSyncs; ++i)
    if (threadIdx.x == 0) add_acquire_release(ticket, 1u);
}

Device this_one() {
  Device device;
  must(this_device(nullptr, &device));
  return device;
}

double empty_time(bool cooperative, int64_t blocks) {
  Shape shape = {blocks, kThreads};
  shape.cooperative = cooperative;
  shape.multiprocessors = this_one().multiprocessors;
  return graph_time(kCalls, [&](cudaStream_t s) { must(launch(empty_kernel, shape, 0, s)); });
}

// Microseconds of a team's barrier, without the launch around it.
double sync_time(TeamKind kind, int size, unsigned* counters, WideKey* words) {
  const bool grid = kind == TeamKind::kGrid;
  const int items = kThreads / 32 * (grid ? size : 1);
  const TeamLayout room = team_layout(kind, size, items, counters, words);
  Shape shape = {size, kThreads};
  shape.cooperative = grid;
  shape.multiprocessors = this_one().multiprocessors;
  shape.cluster = grid ? 1 : size;
  shape.dynamic_shared = grid ? 0 : 2 * sizeof(WideKey) * items;
  const double whole = graph_time(4, [&](cudaStream_t s) { must(launch(sync_kernel, shape, room, s)); });
  return (whole - empty_time(grid, size)) / kSyncs;
}

}  // namespace
}  // namespace cuda
}  // namespace specdec

int main() {
  using namespace specdec::cuda;
  const Device device = this_one();
  unsigned* counters;
  WideKey* words;
  must(cudaMalloc(&counters, 4096));
  must(cudaMalloc(&words, 1 << 20));
  must(cudaMemset(counters, 0, 4096));
  const int most = static_cast<int>(blocks_at_once(device));
  std::printf("{\n  \"multiprocessors\": %d,\n", device.multiprocessors);
  std::printf("  \"empty kernel\": %.3f,\n", empty_time(false, most));
  std::printf("  \"empty cooperative kernel\": %.3f,\n", empty_time(true, most));
  const auto each = [&](void (*kernel)(unsigned*)) {
    return (graph_time(4, [&](cudaStream_t s) { must(launch(kernel, {1, kThreads}, counters + 512, s)); }) -
            empty_time(false, 1)) / kSyncs;
  };
  std::printf("  \"ticket\": %.4f,\n", each(ticket_kernel));
  if (device.clusters) std::printf("  \"store and fence of a cluster\": %.4f,\n", each(fence_kernel));
  std::printf("  \"barrier of a block\": %.4f", sync_time(TeamKind::kBlock, 1, counters, words));
  for (int size = 2; size <= 8 && device.clusters; size *= 2)
    std::printf(",\n  \"barrier of a cluster of %d\": %.4f", size,
                sync_time(TeamKind::kCluster, size, counters, words));
  for (int size : {2, 8, 32, 128, most})
    if (size <= most)
      std::printf(",\n  \"barrier of %d blocks of the grid\": %.4f", size,
                  sync_time(TeamKind::kGrid, size, counters, words));
  std::printf("\n}\n");
}
