// The calling thread does the work of its call. Helpers may take parts; the caller waits for none that has not begun.
//
// Threads take requests one by one. A thread without a request takes parts of the other threads' rows.
#pragma once

#include <atomic>
#include <chrono>

#include "cpu.h"

namespace specdec {

struct ThreadSlot;  // the record of a working thread, in threads.cpp
using Clock = std::chrono::steady_clock;
constexpr int kGroups = 64;  // groups of requests per thread

// One call of an op that helpers may work on. If all slots are taken the call runs without help.
struct Call {
  int threads;  // at most so many work at once, including the caller
  int64_t requests;
  std::atomic<int64_t> left;   // requests that no thread has begun
  int64_t number = 0;          // unique in this process
  ThreadSlot* slot = nullptr;  // the caller's; nullptr: no help
  Clock::time_point begun;
  Call(int threads, int64_t requests);
  ~Call();
};

// Work in parts, each of which runs once: run(work, part, slot of the thread that runs it).
struct Parts {
  int32_t count;
  void (*run)(const void* work, int32_t part, ThreadSlot* slot);
  const void* work;
};

// Runs all parts, and returns when the last one has ended. Throws the exception that a part threw.
enum class Of { kCall, kRow };  // a thread may have a job of each kind at once
void run_parts(const Call& call, ThreadSlot* slot, Of what, const Parts& parts);
// Wakes helpers if the rest of a call is estimated to take long enough.
void request_help(const Call& call, const ThreadSlot* slot);

}  // namespace specdec

SPECDEC_BEGIN

constexpr int kTilesAPart = 8;   // a row's parts have at least so many tiles
constexpr int kTilesAlone = 32;  // less work, some 70 microseconds at most, runs without help
constexpr int kTileBytes = 8192;

inline int64_t tiles_of_bytes(int64_t bytes) { return (bytes + kTileBytes - 1) / kTileBytes; }

inline int parts_of(int32_t tiles) {
  const int parts = tiles / kTilesAPart < kMaxParts ? tiles / kTilesAPart : kMaxParts;
  return parts < 1 ? 1 : parts;
}

// One of the threads that work on a call.
struct ThreadTeam {
  const Call* call = nullptr;  // nullptr: alone
  ThreadSlot* slot = nullptr;
  int parts(int32_t tiles) const {
    return !call || call->left.load(std::memory_order_relaxed) > 0 ? 1 : parts_of(tiles);
  }
};

// Calls f(request, team) for every request. A request's work is that of a row of `tiles` tiles.
template <class F>
inline void over_requests(int64_t requests, int64_t tiles, int threads, F&& f) {
  if (threads > 1 && requests * tiles >= kTilesAlone) {
    Call call(threads, requests);
    if (call.slot) {
      struct Work {
        F& f;
        Call& call;
        int64_t requests, groups;
      } work = {f, call, requests, int64_t{kGroups} * call.threads};
      if (work.groups > requests) work.groups = requests;
      const auto run = [](const void* work, int32_t group, ThreadSlot* slot) {
        const Work& w = *static_cast<const Work*>(work);
        const ThreadTeam team = {&w.call, slot};
        for (int64_t b = w.requests * group / w.groups; b < w.requests * (group + 1) / w.groups; ++b) {
          w.call.left.fetch_sub(1, std::memory_order_relaxed);
          w.f(b, team);
        }
      };
      return run_parts(call, call.slot, Of::kCall, {static_cast<int32_t>(work.groups), run, &work});
    }
  }
  for (int64_t b = 0; b < requests; ++b) f(b, ThreadTeam{});
}

// Runs f(part, from, to) over parts of [0, tiles). Returns how many parts.
template <class F>
inline int over_parts(int32_t tiles, const ThreadTeam& team, F&& f) {
  const int parts = team.parts(tiles);
  if (team.call) request_help(*team.call, team.slot);
  if (parts == 1) {
    f(0, 0, tiles);
    return 1;
  }
  struct Work {
    F& f;
    int32_t tiles;
    int parts;
  } work = {f, tiles, parts};
  const auto run = [](const void* work, int32_t part, ThreadSlot*) {
    const Work& w = *static_cast<const Work*>(work);
    const auto end_of = [&](int64_t parts) { return static_cast<int32_t>(w.tiles * parts / w.parts); };
    w.f(part, end_of(part), end_of(part + int64_t{1}));
  };
  run_parts(*team.call, team.slot, Of::kRow, {parts, run, &work});
  return parts;
}

SPECDEC_END
