// What the CPU's threads promise, tried hard: csrc/cpu/threads.h without ops. The argument names what is tried.
#include "../../csrc/cpu/threads.cpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

using namespace specdec;

#define EXPECT(what)                                                    \
  do {                                                                  \
    if (!(what)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #what), _exit(1); \
  } while (0)

namespace {

constexpr int kTiles = 64;  // enough for a look at whether help is worth it

int threads_of_process() {
  DIR* const tasks = opendir("/proc/self/task");
  int count = -2;  // . and ..
  while (readdir(tasks)) ++count;
  closedir(tasks);
  return count;
}

void work_for(int microseconds) {
  const auto end = Clock::now() + std::chrono::microseconds(microseconds);
  while (Clock::now() < end) {
  }
}

void in_threads(int count, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(f, i);
  for (std::thread& thread : threads) thread.join();
}

// Calls until another thread helps, and runs `f`. The call ends when that has ended.
void helped_call(int threads, const std::function<void()>& f) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> begun{0}, ended{0};
  for (int i = 0; i < 500 && !begun; ++i)
    over_requests(32, kTiles, threads, [&](int64_t, const ThreadTeam&) {
      if (std::this_thread::get_id() != caller) {
        ++begun;
        f();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ++ended;
      } else if (!begun) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  EXPECT(begun > 0 && begun == ended);
}

// The same within a request, again and again: who found no work may come back to the call.
void helped_rows(int) {
  const std::thread::id caller = std::this_thread::get_id();
  over_requests(1, kTiles, 2, [&](int64_t, const ThreadTeam& team) {
    for (int row = 0; row < 3; ++row) {
      std::atomic<int> begun{0}, ended{0};
      for (int i = 0; i < 2000 && !begun; ++i)
        over_parts(kTiles, team, [&](int, int32_t, int32_t) {
          const bool helps = std::this_thread::get_id() != caller;
          begun += helps;
          std::this_thread::sleep_for(std::chrono::milliseconds(helps ? 5 : 1));
          ended += helps;
        });
      EXPECT(begun > 0 && begun == ended);
    }
  });
}

// Every tile of every request is run once, and a call ends when all of it has ended.
void check_once(int64_t requests, int32_t tiles, int threads, int microseconds) {
  std::vector<int> done(static_cast<size_t>(requests * tiles));  // no atomics: one thread a tile
  std::vector<int> found(static_cast<size_t>(requests));
  over_requests(requests, tiles, threads, [&](int64_t b, const ThreadTeam& team) {
    int count[kMaxParts] = {};
    const int parts = over_parts(tiles, team, [&](int part, int32_t from, int32_t to) {
      for (int32_t tile = from; tile < to; ++tile) ++done[static_cast<size_t>(b * tiles + tile)], ++count[part];
      if (microseconds) work_for(microseconds);
    });
    for (int part = 0; part < parts; ++part) found[static_cast<size_t>(b)] += count[part];
  });
  for (int count : done) EXPECT(count == 1);
  for (int count : found) EXPECT(count == tiles);
}

void once(int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (int threads : {1, 2, 3, 5, 8})
      for (int64_t requests : {0, 1, 2, 3, 17, 700})
        for (int32_t tiles : {1, 16, 63, 513}) check_once(requests, tiles, threads, requests < 4 ? 20 : 0);
}

// More calls at once than there are cores, with threads that differ from call to call.
void many_callers(int rounds) {
  in_threads(6, [&](int i) {
    for (int round = 0; round < 40 * rounds; ++round) check_once(1 + round % 5, 64, 1 + (round + i) % 4, 10);
  });
}

// The helper of one call does not end; others that might have been helped by it do.
void nobody_waits(int) {
  std::atomic<bool> stuck{false}, open{false};
  std::thread other([&] {
    const std::thread::id caller = std::this_thread::get_id();
    over_requests(1000, kTiles, 2, [&](int64_t, const ThreadTeam&) {
      if (std::this_thread::get_id() == caller) return std::this_thread::sleep_for(std::chrono::milliseconds(1));
      stuck = true;
      while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  while (!stuck) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) check_once(5, 64, 2, 50);
  EXPECT(!open);
  open = true;
  other.join();
}

// What a part throws, the caller gets, whoever ran it; everything else has been done.
void throws(int rounds) {
  for (int round = 0; round < 5 * rounds; ++round) {
    for (int threads : {1, 2, 4}) {
      std::atomic<int> run{0};
      bool caught = false;
      try {
        over_requests(40, kTiles, threads, [&](int64_t b, const ThreadTeam& team) {
          over_parts(kTiles, team, [&](int part, int32_t, int32_t) {
            work_for(10);
            if (b == 39 && part == 0) throw std::bad_alloc();
          });
          ++run;
        });
      } catch (const std::bad_alloc&) {
        caught = true;
      }
      EXPECT(caught && run == 39);
    }
  }
  try {
    helped_call(2, [] { throw 7; });
    EXPECT(false);
  } catch (int number) {
    EXPECT(number == 7);
  }
  check_once(9, 64, 3, 10);
}

void nested(int rounds) {
  for (int round = 0; round < 5 * rounds; ++round)
    over_requests(8, kTiles, 3, [&](int64_t, const ThreadTeam& team) {
      over_parts(kTiles, team, [&](int, int32_t, int32_t) { check_once(3, 64, 2, 5); });
    });
}

// Of a pool that has more threads, no more work on a call than it allows.
void at_most(int) {
  for (int threads : {6, 2, 3, 1}) {
    std::atomic<int> now{0}, most{0};
    const auto enter = [&] {
      const int here = ++now;
      for (int seen = most; seen < here && !most.compare_exchange_weak(seen, here);) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      --now;
    };
    for (int round = 0; round < 5; ++round)
      over_requests(round % 2 ? 1 : 40, kTiles, threads, [&](int64_t, const ThreadTeam& team) {
        over_parts(kTiles, team, [&](int, int32_t, int32_t) { enter(); });
      });
    EXPECT(most <= threads);
    EXPECT(threads == 1 || most > 1);
  }
}

void small_work_is_done_alone(int) {
  for (int i = 0; i < 100; ++i) check_once(1, kTilesAlone - 1, 8, 300);
  check_once(100, 64, 1, 100);
  EXPECT(threads_of_process() == 1);
}

// A forked child starts threads of its own, also while other threads of its parent are in calls.
void forks(int) {
  std::atomic<bool> end{false};
  std::thread busy([&] {
    while (!end) check_once(20, 64, 3, 20);
  });
  for (int i = 0; i < 5; ++i) {
    helped_call(3, [] {});
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      EXPECT(threads_of_process() == 1);
      check_once(5, 64, 3, 20);
      helped_call(2, [] {});
      EXPECT(threads_of_process() > 1);
      const pid_t grandchild = fork();
      if (grandchild == 0) helped_call(2, [] {}), _exit(0);
      int status = 1;
      EXPECT(waitpid(grandchild, &status, 0) == grandchild && status == 0);
      std::exit(0);  // with a helper that sleeps, or looks for work
    }
    int status = 1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
  }
  end = true;
  busy.join();
}

// Callers that end give their places back; more callers than places do their work alone.
void more_callers_than_slots(int) {
  for (int i = 0; i < 2 * kThreadSlots; ++i) std::thread([] { check_once(2, 64, 2, 0); }).join();
  EXPECT(pool().used.load() < 20);
  std::mutex mutex;
  std::condition_variable all_here;
  int here = 0;
  in_threads(kThreadSlots + 40, [&](int) {
    over_requests(1, kTiles, 2, [&](int64_t, const ThreadTeam&) {
      std::unique_lock<std::mutex> lock(mutex);
      if (++here == kThreadSlots + 40) all_here.notify_all();
      all_here.wait(lock, [&] { return here == kThreadSlots + 40; });
    });
  });
  check_once(9, 64, 3, 10);
}

// A helper rounds and flushes as a new process does, whatever the thread did that needed it.
void modes(int) {
  const auto rounds_up = [] {
    volatile float one = 1.0f, tiny = 1e-10f;
    return one + tiny > 1.0f;
  };
  std::fesetround(FE_UPWARD);
  bool seen = true;
  helped_call(2, [&] { seen = rounds_up(); });
  EXPECT(!seen && rounds_up());
}

// A helper runs wherever a thread of the process may, though the one that needed it is bound to a core. Elsewhere than on
// Linux, and on one core, nothing is tried.
void bound_caller(int) {
#if defined(__linux__)
  cpu_set_t all, one, seen;
  EXPECT(sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&one);
  CPU_ZERO(&seen);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  std::atomic<bool> over{false};
  std::thread unbound([&] {
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT(sched_setaffinity(0, sizeof one, &one) == 0);
  helped_call(2, [&] { sched_getaffinity(0, sizeof seen, &seen); });
  EXPECT(CPU_EQUAL(&seen, &all));
  over = true;
  unbound.join();
#endif
}

// The program ends while a helper is in a part: nothing waits, nothing crashes.
void exit_in_a_call(int) {
  std::atomic<bool> stuck{false};
  std::thread([&] {
    const std::thread::id caller = std::this_thread::get_id();
    over_requests(1000, kTiles, 2, [&](int64_t, const ThreadTeam&) {
      if (std::this_thread::get_id() == caller) return std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (stuck = true;;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }).detach();
  while (!stuck) std::this_thread::yield();
  std::exit(0);
}

}  // namespace

int main(int count, char** arguments) {
  const struct {
    const char* name;
    void (*run)(int rounds);
  } tried[] = {
      {"once", once}, {"many_callers", many_callers}, {"nobody_waits", nobody_waits}, {"throws", throws},
      {"nested", nested}, {"at_most", at_most}, {"small_work_is_done_alone", small_work_is_done_alone},
      {"helped_rows", helped_rows}, {"forks", forks}, {"more_callers_than_slots", more_callers_than_slots}, {"modes", modes},
      {"bound_caller", bound_caller}, {"exit_in_a_call", exit_in_a_call},
  };
  alarm(300);
  for (const auto& one : tried) {
    if (count < 2) std::printf("%s\n", one.name);
    else if (!std::strcmp(one.name, arguments[1])) return one.run(count > 2 ? std::atoi(arguments[2]) : 1), 0;
  }
  return count < 2 ? 0 : 2;
}
