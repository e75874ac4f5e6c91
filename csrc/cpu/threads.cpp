// The threads that help with calls. One atomic word holds the number of a job's call and how many of its parts are not
// claimed. A thread that decrements it has claimed a part, and the job's owner waits until that part has ended, so all
// memory that the part reads stays valid. Memory that a helper reads without a claim is never freed. There are no
// locks, since a thread that holds one may have lost its core.
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#if defined(__linux__)
#include <dirent.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "float_mode.h"

namespace specdec {

namespace {

using std::chrono::microseconds;

constexpr int kSlotBits = 9, kThreadSlots = 1 << kSlotBits, kMostThreads = kThreadSlots / 2, kCountBits = 16;
constexpr uint64_t kCount = (1 << kCountBits) - 1;
static_assert(kMostThreads * kGroups <= kCount, "The parts of a call fit its word");
// Waking a thread costs the caller some microseconds, and the thread runs some tens later.
constexpr microseconds kWorthAThread(100), kLingers(50);
constexpr size_t kStackBytes = 2 << 20;  // musl's default stacks are too small

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Sleeps while a word has this value. The C library's condition variables are not used: to signal one may wait.
#if defined(__APPLE__)
// libc++ sleeps by these functions on macOS, too. A last 0 is no time limit. All threads are woken and check again.
extern "C" int __ulock_wait(uint32_t operation, void* word, uint64_t value, uint32_t microseconds);
extern "C" int __ulock_wake(uint32_t operation, void* word, uint64_t value);
constexpr uint32_t kCompareAndWait = 1, kWakeAll = 0x100;

void sleep_while(std::atomic<int32_t>& word, int32_t value) {
  __ulock_wait(kCompareAndWait, &word, static_cast<uint32_t>(value), 0);
}
void wake(std::atomic<int32_t>& word, int) { __ulock_wake(kCompareAndWait | kWakeAll, &word, 0); }
#else
void sleep_while(std::atomic<int32_t>& word, int32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<int32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}
#endif

// A word: the number of a call, and in its low bits a count of the call's parts or seats that are left.
uint64_t word(int64_t call, int count) {
  return static_cast<uint64_t>(call) << kCountBits | static_cast<uint64_t>(count);
}
int64_t call_of(uint64_t word) { return static_cast<int64_t>(word >> kCountBits); }

// Decrements a call's count, and returns its value before: 0 if none is left, or the call has ended.
int take_one(std::atomic<uint64_t>& word, int64_t call) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  do {
    if (call_of(seen) != call || !(seen & kCount)) return 0;
  } while (!word.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire, std::memory_order_relaxed));
  return static_cast<int>(seen & kCount);
}

void give_back(std::atomic<uint64_t>& word, int64_t call) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  while (call_of(seen) == call && !word.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) {
  }
}

}  // namespace

// Parts that threads run now.
struct Job {
  std::atomic<uint64_t> unclaimed{0};
  std::atomic<int32_t> unfinished{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  Parts parts = {};
};

struct alignas(128) ThreadSlot {
  Job jobs[2];                     // by Of
  std::atomic<uint64_t> seats{0};  // how many more helpers this slot's call may have
  std::atomic<bool> taken{false};
};

namespace {

struct Pool {
  ThreadSlot slots[kThreadSlots];
  std::atomic<int> used{0};  // slots that were ever taken
  std::atomic<int64_t> calls{1};
  std::atomic<int> coming{0};  // helpers that are awake without work, or were woken
  std::atomic<int> started{0};
  std::atomic<int> asleep{0};     // helpers that sleep and were not woken
  std::atomic<int32_t> woken{0};  // helpers that were woken and still sleep
  const int cores = static_cast<int>(std::thread::hardware_concurrency());

  ThreadSlot* take_slot() {
    for (int i = 0; i < kThreadSlots; ++i) {
      if (slots[i].taken.load(std::memory_order_relaxed) || slots[i].taken.exchange(true)) continue;
      for (int seen = used.load(); seen <= i && !used.compare_exchange_weak(seen, i + 1);) {
      }
      return &slots[i];
    }
    return nullptr;
  }
};

// Never freed: helpers read the pool as long as the process lives. A forked child has no helpers, and makes a new one.
std::atomic<Pool*> the_pool{nullptr};
const int watching_forks = pthread_atfork(nullptr, nullptr, [] { the_pool = nullptr; });

Pool& pool() {
  Pool* there = the_pool.load(std::memory_order_acquire);
  if (there) return *there;
  Pool* const fresh = new Pool;
  if (the_pool.compare_exchange_strong(there, fresh)) return *fresh;
  delete fresh;
  return *there;
}

// Runs a part that was claimed. All work that threads share passes through this function.
void run_part(Job& job, ThreadSlot* owner, int32_t part, ThreadSlot* mine) {
  try {
    job.parts.run(job.parts.work, part, mine);
  } catch (...) {
    if (!job.failed.exchange(true)) job.error = std::current_exception();
  }
  if (job.unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1 && owner != mine) wake(job.unfinished, 1);
}

// Claims and runs parts until none is left, and calls left_after(unclaimed parts) after each. Returns whether one ran.
template <class F>
bool run_some(Job& job, int64_t call, ThreadSlot* owner, ThreadSlot* mine, F&& left_after) {
  bool any = false;
  for (int left; (left = take_one(job.unclaimed, call)); any = true) {
    run_part(job, owner, job.parts.count - left, mine);
    left_after(left - 1);
  }
  return any;
}

// Runs parts of one job whose call has a free seat. Returns whether one ran.
bool help(Pool& p, ThreadSlot* mine) {
  const int used = p.used.load(std::memory_order_relaxed);
  for (ThreadSlot* owner = p.slots; owner < p.slots + used; ++owner) {
    for (Job& job : owner->jobs) {
      const uint64_t seen = job.unclaimed.load(std::memory_order_relaxed);
      const int64_t call = call_of(seen);
      std::atomic<uint64_t>& seats = p.slots[call % kThreadSlots].seats;
      if (!(seen & kCount) || !take_one(seats, call)) continue;
      p.coming.fetch_sub(1, std::memory_order_relaxed);
      const bool helped = run_some(job, call, owner, mine, [](int) {});
      p.coming.fetch_add(1, std::memory_order_relaxed);
      give_back(seats, call);
      if (helped) return true;
    }
  }
  return false;
}

// Subtracts up to `count` from a number, and returns how much it subtracted.
int take(std::atomic<int32_t>& number, int count) {
  int seen = number.load(), taken;
  do taken = std::min(seen, count);
  while (taken > 0 && !number.compare_exchange_weak(seen, seen - taken));
  return std::max(taken, 0);
}

void sleep(Pool& p) {
  p.coming.fetch_sub(1, std::memory_order_relaxed);
  p.asleep.fetch_add(1);
  while (!take(p.woken, 1)) sleep_while(p.woken, 0);
}

// A new thread inherits the cores of the thread that starts it, and OpenMP may have bound that to one (OMP_PROC_BIND).
// A helper may run on every core that any thread of this process may use.
void leave_core() {
#if defined(__linux__)
  cpu_set_t cores, allowed;
  CPU_ZERO(&cores);
  DIR* const threads = opendir("/proc/self/task");
  if (!threads) return;
  while (const dirent* const thread = readdir(threads))
    if (const int id = std::atoi(thread->d_name); id > 0 && sched_getaffinity(id, sizeof allowed, &allowed) == 0)
      CPU_OR(&cores, &cores, &allowed);
  closedir(threads);
  sched_setaffinity(0, sizeof cores, &cores);
#endif
}

void* helper(void* pool) {
  const FloatMode mode;  // replaces the mode inherited from the thread that started the helper
  leave_core();
  Pool& p = *static_cast<Pool*>(pool);
  ThreadSlot* const mine = p.take_slot();
  if (!mine) return p.coming.fetch_sub(1, std::memory_order_relaxed), nullptr;
  for (Clock::time_point idle = Clock::now();;) {
    if (help(p, mine)) {
      idle = Clock::now();
    } else if (Clock::now() - idle < kLingers) {
      for (int i = 0; i < 16; ++i) pause();
    } else {
      sleep(p);
      idle = Clock::now();
    }
  }
}

bool start_helper(Pool& p) {
  // Signals go to the program's threads, except those that a thread's instructions raise in itself.
  sigset_t others, before;
  sigfillset(&others);
  for (int synchronous : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&others, synchronous);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, helper, &p) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

// Waits for the parts that helpers have claimed.
void wait(Job& job) {
  const auto left = [&] { return job.unfinished.load(std::memory_order_acquire); };
  if (!left()) return;
  for (const Clock::time_point begun = Clock::now(); Clock::now() - begun < kLingers;)
    for (int i = 0; i < 16; ++i, pause())
      if (!left()) return;
  while (const int32_t now = left()) sleep_while(job.unfinished, now);
}

// Wakes or starts threads if the rest is worth it: `done` units of the work took from `begun` until now.
void request_help(const Call& call, const ThreadSlot* slot, Clock::time_point begun, int64_t done, int64_t left) {
  if (slot != call.slot || left <= 0) return;
  Pool& p = pool();
  const int others = call.threads - 1, free = static_cast<int>(slot->seats.load(std::memory_order_relaxed) & kCount);
  const int missing = free - p.coming.load(std::memory_order_relaxed);
  if (missing <= 0) return;
  const std::chrono::duration<double> spent = Clock::now() - begun;
  const double worth = spent / kWorthAThread * static_cast<double>(left) / static_cast<double>(done);
  const int more = static_cast<int>(worth < others ? worth : others) - (others - missing);
  if (more <= 0) return;
  const int woken = take(p.asleep, more), most = std::min(std::max(p.cores, call.threads), kMostThreads) - 1;
  if (woken) {
    p.coming.fetch_add(woken, std::memory_order_relaxed);
    p.woken.fetch_add(woken);
    wake(p.woken, woken);
  }
  for (int i = woken; i < more && p.started.load() < most; ++i) {
    p.coming.fetch_add(1, std::memory_order_relaxed);
    p.started.fetch_add(1);
    if (!start_helper(p)) p.coming.fetch_sub(1, std::memory_order_relaxed);  // `started` still counts it: no retry
  }
}

}  // namespace

Call::Call(int most, int64_t count) : threads(most < kMostThreads ? most : kMostThreads), requests(count), left(count) {
  Pool& p = pool();
  slot = p.take_slot();
  if (!slot) return;
  number = p.calls.fetch_add(1, std::memory_order_relaxed) << kSlotBits | (slot - p.slots);
  slot->seats.store(word(number, threads - 1), std::memory_order_release);
  begun = Clock::now();
}

Call::~Call() {
  if (!slot) return;
  slot->seats.store(0, std::memory_order_relaxed);
  slot->taken.store(false, std::memory_order_release);
}

void request_help(const Call& call, const ThreadSlot* slot) {
  // An estimate: this request and each that was not begun still need as much as each that was begun has taken.
  const int64_t left = call.left.load(std::memory_order_relaxed);
  request_help(call, slot, call.begun, call.requests - left, left + 1);
}

void run_parts(const Call& call, ThreadSlot* slot, Of what, const Parts& parts) {
  Job& job = slot->jobs[static_cast<int>(what)];
  job.parts = parts;
  job.unfinished.store(parts.count, std::memory_order_relaxed);
  job.unclaimed.store(word(call.number, parts.count), std::memory_order_release);
  const Clock::time_point begun = what == Of::kCall ? call.begun : Clock::now();
  run_some(job, call.number, slot, slot, [&](int left) {
    request_help(call, slot, begun, parts.count - left, left);
  });
  wait(job);
  if (!job.failed.load(std::memory_order_relaxed)) return;
  job.failed.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(job.error, nullptr));
}

}  // namespace specdec
