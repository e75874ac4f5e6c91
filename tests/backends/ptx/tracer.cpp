// What translated kernels did: see tracer.h. One launch is traced at a time.
#include "tracer.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "thread.h"

namespace ptx {

struct Stretch {
  std::unordered_map<int, uint32_t> counts;  // by line, of the lane that came by most often
  int depth = 0, events[3] = {};
};
struct Warp {
  std::vector<int> shared;  // the depth that lanes brought to each of their shuffles and votes
};

namespace {

struct Thread {
  std::unordered_map<int, uint32_t> counts;
  int events[3] = {};
};

struct Trace {
  int64_t wanted = -1, last = -1, blocks = 0;
  std::string kernel;
  std::map<int, Warp> warps;
  std::map<std::pair<int, int>, Stretch> stretches;  // by warp and number
  std::map<int64_t, unsigned> left;                  // threads of a block that have ended
  std::map<int, int> at_barrier;  // the depth to which a block's threads came, by stretch: some are ahead
} trace;

// Blocks by number; the first axis runs fastest.
int64_t number_of_block() {
  const auto at = [](Place which, int axis) { return static_cast<int64_t>(place(which, axis)); };
  return at(kCtaid, 0) + at(kNctaid, 0) * (at(kCtaid, 1) + at(kNctaid, 1) * at(kCtaid, 2));
}
int warp_of_thread() { return static_cast<int>(place(kTid, 0) / 32); }

}  // namespace

Traced::Traced(const char* kernel) {
  trace.kernel = kernel;
  trace.blocks = int64_t{place(kNctaid, 0)} * place(kNctaid, 1) * place(kNctaid, 2);
  if (number_of_block() != trace.wanted) return;
  warp = &trace.warps[warp_of_thread()];
  own = new Thread;
}

Traced::~Traced() {
  const int64_t block = number_of_block();
  if (++trace.left[block] == place(kNtid, 0)) trace.last = block;
  if (!warp) return;
  put_down();
  delete static_cast<Thread*>(own);
}

void Traced::count(int line) { ++static_cast<Thread*>(own)->counts[line]; }

void Traced::put_down() {
  Thread& mine = *static_cast<Thread*>(own);
  Stretch& all = trace.stretches[{warp_of_thread(), stretch}];
  for (auto [line, n] : mine.counts) {
    uint32_t& most = all.counts[line];
    most = std::max(most, n);
  }
  all.depth = std::max(all.depth, used);
  for (int kind = 0; kind < 3; ++kind) all.events[kind] = std::max(all.events[kind], mine.events[kind]);
  mine = {};
}

void Traced::share(int depth) {
  if (!warp) return;
  warp->shared.resize(std::max(warp->shared.size(), static_cast<size_t>(shares) + 1));
  warp->shared[shares] = std::max(warp->shared[shares], use(depth));
}
int Traced::shared() { return warp ? use(warp->shared[shares++]) : 0; }

void Traced::barrier() {
  if (!warp) return;
  put_down();
  int& depth = trace.at_barrier[stretch];
  depth = std::max(depth, used);
}
void Traced::met() {
  if (!warp) return;
  used = entered = std::max(used, trace.at_barrier[stretch++]);
}

void Traced::event(int kind) {
  if (warp) ++static_cast<Thread*>(own)->events[kind];
}

}  // namespace ptx

extern "C" {

// From here on block `block` of a launch is traced, none if it is -1.
void ptx_trace(int64_t block) {
  ptx::trace = {};
  ptx::trace.wanted = block;
}
int64_t ptx_last_block() { return ptx::trace.last; }

// Writes what came: "kernel NAME blocks", "WARP STRETCH depth tickets spins clusters", "WARP STRETCH LINE count".
int ptx_traced(const char* path) {
  FILE* const to = std::fopen(path, "w");
  if (!to) return 1;
  std::fprintf(to, "%s %lld\n", ptx::trace.kernel.c_str(), static_cast<long long>(ptx::trace.blocks));
  for (auto& [where, s] : ptx::trace.stretches) {
    std::fprintf(to, "s %d %d %d %d %d %d\n", where.first, where.second, s.depth, s.events[0], s.events[1], s.events[2]);
    for (auto& [line, n] : s.counts) std::fprintf(to, "c %d %d %d %u\n", where.first, where.second, line, n);
  }
  return std::fclose(to);
}
}
