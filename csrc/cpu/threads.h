// Threads take requests one by one. A thread that finds none left takes parts of the other threads' rows.
#pragma once

#include <atomic>

#include "cpu.h"
#include "specdec/config.h"

SPECDEC_BEGIN

constexpr int kTilesAPart = 8;  // less work is not worth a thread

inline int parts_of(int32_t tiles, int threads) {
  const int parts = tiles / kTilesAPart < kMaxParts ? tiles / kTilesAPart : kMaxParts;
  return parts < 1 ? 1 : parts < threads ? parts : threads;
}

// The threads that share a row.
struct ThreadTeam {
  int threads;
  const std::atomic<int64_t>* requests_left;
  int parts(int32_t tiles) const {
    return requests_left->load(std::memory_order_relaxed) > 0 ? 1 : parts_of(tiles, threads);
  }
};

// Calls f(request, team) for every request. The longest row of a request has `tiles` tiles.
template <class F>
inline void over_requests(int64_t requests, int32_t tiles, int threads, F&& f) {
  std::atomic<int64_t> left(requests);
  const int64_t useful = requests * parts_of(tiles, threads);
  const ThreadTeam team = {threads < useful ? threads : static_cast<int>(useful), &left};
  const auto take = [&](int64_t b) {
    left.fetch_sub(1, std::memory_order_relaxed);
    f(b, team);
  };
  if (team.threads <= 1) {
    for (int64_t b = 0; b < requests; ++b) take(b);
    return;
  }
  // Threads without a request wait at the barrier at the loop's end, and run tasks there.
#pragma omp parallel for num_threads(team.threads) schedule(dynamic, 1)
  for (int64_t b = 0; b < requests; ++b) take(b);
}

// Runs f(part, from, to) over parts of [0, tiles), a part for each thread that is free. Returns how many parts.
template <class F>
inline int over_parts(int32_t tiles, const ThreadTeam& team, F&& f) {
  const int parts = team.parts(tiles);
  const auto run = [&](int part) {
    f(part, static_cast<int32_t>(static_cast<int64_t>(tiles) * part / parts),
      static_cast<int32_t>(static_cast<int64_t>(tiles) * (part + 1) / parts));
  };
  for (int part = 1; part < parts; ++part) {
#pragma omp task firstprivate(part) shared(run)
    run(part);
  }
  run(0);
  if (parts > 1) {
#pragma omp taskwait
  }
  return parts;
}

SPECDEC_END
