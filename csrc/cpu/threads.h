// A call's own thread does its work. Others help if they come, and nobody waits for one that has not begun.
//
// Threads take requests one by one. A thread that finds none left takes parts of the other threads' rows.
#pragma once

#include <atomic>
#include <chrono>

#include "cpu.h"

namespace specdec {

struct Place;  // of a thread that works, in threads.cpp
using Clock = std::chrono::steady_clock;
constexpr int kGroups = 64;  // of requests, a thread

// One call of an op that others may help with. Where there is no place for one more call, there is no help.
struct Call {
  int threads;  // at most so many work at once, the caller among them
  int64_t requests;
  std::atomic<int64_t> left;  // of the requests those that nobody has begun
  int64_t number = 0;         // no other call of this process has it
  Place* place = nullptr;     // the caller's, nullptr without help
  Clock::time_point begun;
  Call(int threads, int64_t requests);
  ~Call();
};

// The parts of some work, each to be run once: run(work, part, place of the thread that runs it).
struct Parts {
  int32_t count;
  void (*run)(const void* work, int32_t part, Place* place);
  const void* work;
};

// Runs all parts, and returns when the last one has ended. Throws what a part threw.
enum class Of { kCall, kRow };  // a thread may share both at once
void run_parts(const Call& call, Place* place, Of what, const Parts& parts);
// Wakes others if what is left of a call seems to be worth it.
void call_for_help(const Call& call, const Place* place);

}  // namespace specdec

SPECDEC_BEGIN

constexpr int kTilesAPart = 8;   // of a row
constexpr int kTilesAlone = 32;  // less work, some 70 microseconds at most, needs no help
constexpr int kTileBytes = 8192;

inline int64_t tiles_of_bytes(int64_t bytes) { return (bytes + kTileBytes - 1) / kTileBytes; }

inline int parts_of(int32_t tiles) {
  const int parts = tiles / kTilesAPart < kMaxParts ? tiles / kTilesAPart : kMaxParts;
  return parts < 1 ? 1 : parts;
}

// A thread among those of a call.
struct ThreadTeam {
  const Call* call = nullptr;  // nullptr: alone
  Place* place = nullptr;
  int parts(int32_t tiles) const {
    return !call || call->left.load(std::memory_order_relaxed) > 0 ? 1 : parts_of(tiles);
  }
};

// Calls f(request, team) for every request. The longest row of a request has `tiles` tiles, or is as much work.
template <class F>
inline void over_requests(int64_t requests, int64_t tiles, int threads, F&& f) {
  if (threads > 1 && requests * tiles >= kTilesAlone) {
    Call call(threads, requests);
    if (call.place) {
      struct Work {
        F& f;
        Call& call;
        int64_t requests, groups;
      } work = {f, call, requests, int64_t{kGroups} * call.threads};
      if (work.groups > requests) work.groups = requests;
      const auto run = [](const void* work, int32_t group, Place* place) {
        const Work& w = *static_cast<const Work*>(work);
        const ThreadTeam team = {&w.call, place};
        for (int64_t b = w.requests * group / w.groups; b < w.requests * (group + 1) / w.groups; ++b) {
          w.call.left.fetch_sub(1, std::memory_order_relaxed);
          w.f(b, team);
        }
      };
      return run_parts(call, call.place, Of::kCall, {static_cast<int32_t>(work.groups), run, &work});
    }
  }
  for (int64_t b = 0; b < requests; ++b) f(b, ThreadTeam{});
}

// Runs f(part, from, to) over parts of [0, tiles). Returns how many parts.
template <class F>
inline int over_parts(int32_t tiles, const ThreadTeam& team, F&& f) {
  const int parts = team.parts(tiles);
  if (team.call) call_for_help(*team.call, team.place);
  if (parts == 1) {
    f(0, 0, tiles);
    return 1;
  }
  struct Work {
    F& f;
    int32_t tiles;
    int parts;
  } work = {f, tiles, parts};
  const auto run = [](const void* work, int32_t part, Place*) {
    const Work& w = *static_cast<const Work*>(work);
    const auto end_of = [&](int64_t parts) { return static_cast<int32_t>(w.tiles * parts / w.parts); };
    w.f(part, end_of(part), end_of(part + int64_t{1}));
  };
  run_parts(*team.call, team.place, Of::kRow, {parts, run, &work});
  return parts;
}

SPECDEC_END
