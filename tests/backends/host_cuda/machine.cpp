#include "machine.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace host_cuda {

namespace {

// ---- fibers ---------------------------------------------------------------------------------------------------------

#if defined(HOST_CUDA_STACK)
constexpr size_t kStack = HOST_CUDA_STACK;
#elif defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = 256 << 10;
#else
constexpr size_t kStack = 64 << 10;
#endif
constexpr uint64_t kCanary = 0x5bd1e995cafef00dull;

#if defined(__x86_64__)
using Context = void*;
extern "C" void host_cuda_switch(void** save, void* load);
asm(R"(
.text
.local host_cuda_switch
.type host_cuda_switch, @function
host_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size host_cuda_switch, .-host_cuda_switch
)");

void make_context(Context& context, char* stack, void (*entry)()) {
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + kStack) & ~uintptr_t{15};
  void** sp = reinterpret_cast<void**>(top);
  *--sp = nullptr;  // entry never returns; keeps the stack aligned as after a call
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  context = sp;
}
void switch_context(Context& save, Context& load) { host_cuda_switch(&save, load); }
#else
using Context = ucontext_t;
void make_context(Context& context, char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
void switch_context(Context& save, Context& load) { swapcontext(&save, &load); }
#endif

class StackPool {
 public:
  char* take() {
    if (free_.empty()) {
      void* chunk = mmap(nullptr, kStack * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (chunk == MAP_FAILED) std::abort();
      for (int i = 0; i < 64; ++i) free_.push_back(static_cast<char*>(chunk) + i * kStack);
    }
    char* stack = free_.back();
    free_.pop_back();
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, kStack);  // an abandoned fiber leaves its frames poisoned
#endif
    std::memcpy(stack, &kCanary, sizeof kCanary);
    return stack;
  }
  bool give_back(char* stack) {
    free_.push_back(stack);
    return std::memcmp(stack, &kCanary, sizeof kCanary) == 0;
  }

 private:
  std::vector<char*> free_;
};

enum class State { kRunnable, kBlocked, kDone };

struct Warp;

struct Fiber {
  Context context;
  char* stack = nullptr;
  State state = State::kRunnable;
  Block* block;
  Warp* warp;
  uint3 index;
  int linear, lane;
  const char* waits = "";
  Site site{"", 0};
  bool waited = false;  // for the kernel before
  uint32_t fences = 0, published = 0;  // fences of the cluster; those before its last barrier
  void* fake_stack = nullptr;
};

struct Collective {
  const char* kind;
  uint32_t mask, arrived = 0, left = 0;
  uint64_t values[32];
};

struct Warp {
  std::vector<Fiber*> lanes;
  std::vector<std::unique_ptr<Collective>> open;
  uint32_t epoch = 1;  // of __syncwarp over the whole warp
  uint32_t fenced = 0, published = 0;  // what comes before this epoch is covered by a fence, or published
  bool queued = false;
};

struct Touch {  // who touched a word of shared memory last, and when
  int32_t thread = -1;
  uint32_t block_epoch = 0, warp_epoch = 0, cluster_epoch = 0, fences = 0;
};

struct Word {  // what is known of 4 bytes of shared memory
  bool written = false, atomic = false, has_readers = false, many_readers = false, many_warps = false;
  Touch write, read;
};

struct Array {
  const void* tag;
  uint32_t offset, bytes;
};

struct Store {  // what the kernel before writes
  void* to;
  const void* from;
  size_t bytes;
};

struct Cluster {
  std::vector<Block*> blocks;
  int threads = 0, live = 0, arrived = 0;
  uint32_t epoch = 1;
};

}  // namespace

// What a block has seen of another: all until its barrier `epoch`, and what thread `thread` did from there to `step`.
struct Seen {
  uint32_t epoch = 0;
  int32_t thread = -1;
  uint64_t step = 0;
};
using Clock = std::map<unsigned, Seen>;  // by the block's number

struct Block {
  uint3 index;
  Clock seen;
  Cluster* cluster;
  unsigned rank;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  int live = 0, arrived = 0;
  uint32_t epoch = 1;
  uint32_t fenced = 0, published = 0;  // as of a warp
  uint32_t barrier_sum = 0, barrier_result = 0;
  const char* barrier_kind = nullptr;
  Site barrier_site{"", 0};
  std::vector<char> shared;
  std::vector<Word> words;
  std::vector<Array> arrays;
  uint32_t static_bytes = 0;
};

namespace {

struct GlobalTouch {
  unsigned block;
  Touch touch;
  uint64_t step = 0;
  bool many = false;  // other threads of the block did the same
};

struct GlobalWord {
  GlobalTouch write = {};  // its thread is -1 if nobody wrote
  std::vector<GlobalTouch> reads;  // since then, one a block: the last
};

// ---- the machine ----------------------------------------------------------------------------------------------------

struct Machine {
  Device device;
  Counters counters{};
  std::string fault;
  bool broken = false;  // a kernel ended by a fault that nobody has heard of
  std::map<std::pair<const void*, int>, size_t> allowed;  // bytes of dynamic shared memory, by kernel and device
  std::set<const void*> loaded;  // kernels
  std::vector<Store> before;
  bool before_ended = true;
  std::mutex mutex;
  StackPool stacks;
  const Launch* launch = nullptr;
  Fiber* current = nullptr;
  Context scheduler;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_bottom = nullptr;  // the stack of the thread that launched; known from the first switch on
  size_t scheduler_size = 0;
  std::vector<Warp*> ready;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::unordered_map<const void*, GlobalWord> words;
  std::unordered_map<const void*, Clock> released;
  int64_t laggard = -1;
  uint64_t steps = 0;
  std::vector<std::unique_ptr<Block>> spare_blocks;
  uint64_t random_state = 1, idle_spins = 0;
  int in_flight = 0;

  uint32_t random() {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return static_cast<uint32_t>((random_state * 0x2545F4914F6CDD1Dull) >> 32);
  }
  uint32_t random(uint32_t n) { return static_cast<uint32_t>((uint64_t{random()} * n) >> 32); }
};

Machine the_machine;
inline Machine& machine() { return the_machine; }

bool same(const char* a, const char* b) { return a == b || !std::strcmp(a, b); }

void to_scheduler(bool ends = false) {
  Machine& m = machine();
  Fiber* self = m.current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &self->fake_stack, m.scheduler_bottom, m.scheduler_size);
#endif
  switch_context(self->context, m.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
  (void)ends;
}

void queue(Warp& warp) {
  if (warp.queued) return;
  warp.queued = true;
  machine().ready.push_back(&warp);
}

void wake(Fiber& fiber) {
  if (fiber.state != State::kBlocked) return;
  fiber.state = State::kRunnable;
  queue(*fiber.warp);
}

void block_on(const char* what, Site site) {
  Fiber& self = *machine().current;
  self.state = State::kBlocked;
  self.waits = what;
  self.site = site;
  to_scheduler();
}

std::string describe(const Fiber& f) {
  return "block (" + std::to_string(f.block->index.x) + "," + std::to_string(f.block->index.y) + "," +
         std::to_string(f.block->index.z) + ") thread " + std::to_string(f.linear);
}

void finish_fiber() {
  Machine& m = machine();
  Fiber& self = *m.current;
  if (m.launch->overlaps && !self.waited && m.fault.empty())
    m.fault = describe(self) + ": left the kernel and never waited for the kernel before";
  self.state = State::kDone;
  --self.block->live;
  --self.block->cluster->live;
  m.idle_spins = 0;
  to_scheduler(true);
}

void fiber_entry() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &machine().scheduler_bottom, &machine().scheduler_size);
#endif
  machine().launch->body();
  finish_fiber();
  std::abort();
}

void run(Fiber& fiber) {
  Machine& m = machine();
  m.current = &fiber;
  threadIdx = fiber.index;
  blockIdx = fiber.block->index;
  if (!fiber.stack) {
    fiber.stack = m.stacks.take();
    make_context(fiber.context, fiber.stack, fiber_entry);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&m.scheduler_fake_stack, fiber.stack, kStack);
#endif
  switch_context(m.scheduler, fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(m.scheduler_fake_stack, nullptr, nullptr);
#endif
  if (fiber.state == State::kDone || !m.fault.empty()) {
    const bool intact = m.stacks.give_back(fiber.stack);
    fiber.stack = nullptr;
    if (!intact && m.fault.empty()) m.fault = "a thread overran its stack";
  }
}

std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (j > i) text += "-" + std::to_string(numbers[j]);
    i = j + 1;
  }
  return text;
}

std::string where(Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

// Which threads stand where, for the blocks that cannot go on.
std::string standstill(const char* headline) {
  Machine& m = machine();
  std::string text = headline;
  int told = 0;
  for (auto& cluster : m.clusters) {
    for (Block* block : cluster->blocks) {
      if (!block->live || ++told > 3) continue;
      std::map<std::string, std::vector<int>> groups;
      for (Fiber& f : block->fibers) {
        std::string what = f.state == State::kDone      ? "left the kernel"
                           : f.state == State::kBlocked ? std::string("wait in ") + f.waits + " at " + where(f.site)
                                                        : "spin";
        groups[what].push_back(f.linear);
      }
      text += "; block (" + std::to_string(block->index.x) + "," + std::to_string(block->index.y) + "," +
              std::to_string(block->index.z) + ")";
      for (auto& [what, threads] : groups) text += ": threads " + ranges(threads) + " " + what;
    }
  }
  return text;
}

std::unique_ptr<Block> make_block(const Launch& launch, uint3 index, Cluster& cluster) {
  Machine& m = machine();
  std::unique_ptr<Block> block;
  if (!m.spare_blocks.empty()) {
    block = std::move(m.spare_blocks.back());
    m.spare_blocks.pop_back();
  } else {
    block = std::make_unique<Block>();
  }
  const int threads = launch.block.x * launch.block.y * launch.block.z;
  block->index = index;
  block->seen.clear();
  block->cluster = &cluster;
  block->rank = static_cast<unsigned>(cluster.blocks.size());
  block->fibers.assign(threads, Fiber{});
  block->warps.clear();
  block->warps.resize((threads + 31) / 32);
  block->live = threads;
  block->arrived = 0;
  block->epoch = 1;
  block->fenced = block->published = 0;
  block->barrier_sum = 0;
  block->arrays.clear();
  block->static_bytes = 0;
  const size_t shared = launch.declared_shared + launch.dynamic_shared;
  block->shared.assign(shared, launch.poison);
  block->words.assign(shared / 4 + 1, Word{});
  for (int t = 0; t < threads; ++t) {
    Fiber& f = block->fibers[t];
    f.block = block.get();
    f.linear = t;
    f.lane = t % 32;
    f.warp = &block->warps[t / 32];
    f.index = {t % launch.block.x, t / launch.block.x % launch.block.y, t / (launch.block.x * launch.block.y)};
    f.warp->lanes.push_back(&f);
  }
  cluster.blocks.push_back(block.get());
  cluster.threads += threads;
  cluster.live += threads;
  return block;
}

void start_cluster(const Launch& launch, unsigned number) {
  Machine& m = machine();
  const dim3 c = launch.cluster;
  const unsigned nx = launch.grid.x / c.x, ny = launch.grid.y / c.y;
  const uint3 base = {number % nx * c.x, number / nx % ny * c.y, number / (nx * ny) * c.z};
  auto cluster = std::make_unique<Cluster>();
  for (unsigned z = 0; z < c.z; ++z)
    for (unsigned y = 0; y < c.y; ++y)
      for (unsigned x = 0; x < c.x; ++x) make_block(launch, {base.x + x, base.y + y, base.z + z}, *cluster).release();
  for (Block* block : cluster->blocks) {
    ++m.counters.blocks;
    ++m.in_flight;
    for (Warp& warp : block->warps) queue(warp);
  }
  m.clusters.push_back(std::move(cluster));
}

void retire(size_t i) {
  Machine& m = machine();
  for (Block* block : m.clusters[i]->blocks) {
    --m.in_flight;
    for (Fiber& f : block->fibers)
      if (f.stack) m.stacks.give_back(f.stack), f.stack = nullptr;
    m.spare_blocks.emplace_back(block);
  }
  m.clusters[i] = std::move(m.clusters.back());
  m.clusters.pop_back();
}

void run_warp(Warp& warp) {
  Machine& m = machine();
  const uint32_t n = static_cast<uint32_t>(warp.lanes.size());
  const uint32_t start = m.random(n), step = n % 2 ? 1 : 2 * m.random(n / 2 ? n / 2 : 1) + 1;
  const bool coprime = (n & (n - 1)) == 0;  // an odd step visits every lane of a power of two
  for (uint32_t i = 0; i < n && m.fault.empty(); ++i) {
    Fiber& f = *warp.lanes[(start + i * (coprime ? step : 1)) % n];
    if (f.state == State::kRunnable) run(f);
  }
}

// A kernel may have 48 KiB, with what it declares itself; more dynamic memory must be allowed first. What is wrong.
std::string refused_shared(const Launch& launch, size_t declared) {
  const Machine& m = machine();
  const size_t dynamic = launch.dynamic_shared;
  const auto allowed = m.allowed.find({launch.kernel, m.device.capability});
  if (declared > 48 << 10) return "more than 48 KiB of static shared memory";
  const size_t most = std::max((size_t{48} << 10) - declared, allowed == m.allowed.end() ? 0 : allowed->second);
  if (dynamic > most)
    return std::to_string(dynamic) + " bytes of dynamic shared memory beside " + std::to_string(declared) +
           " declared ones were not allowed";
  return dynamic + declared > shared_limit() ? "more shared memory than a block can have" : "";
}

void check_launch(const Launch& launch, unsigned& clusters) {
  Machine& m = machine();
  const dim3 g = launch.grid, c = launch.cluster;
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (!g.x || !g.y || !g.z || !threads || threads > launch.most_threads) m.fault = "invalid launch: grid or block size";
  if (g.y > 65535 || g.z > 65535) m.fault = "invalid launch: grid.y and grid.z are at most 65535";
  if (!c.x || !c.y || !c.z || g.x % c.x || g.y % c.y || g.z % c.z) m.fault = "invalid launch: grid is no multiple of the cluster";
  if (c.x * c.y * c.z > 1 && m.device.code < 90) m.fault = "invalid launch: the code has no clusters";
  if (c.x * c.y * c.z > 1 && !m.device.has_clusters()) m.fault = "invalid launch: the device has no clusters";
  if (c.x * c.y * c.z > 16) m.fault = "invalid launch: a cluster has at most 16 blocks";
  if (launch.dynamic_shared > shared_limit()) m.fault = "invalid launch: dynamic shared memory";
  if (m.fault.empty()) m.fault = refused_shared(launch, launch.declared_shared);
  const uint64_t blocks = uint64_t{g.x} * g.y * g.z;
  if (capture() && !m.loaded.count(launch.kernel)) m.fault = "launched inside a capture before it was loaded";
  if (launch.cooperative && blocks > uint64_t(m.device.usable()) * blocks_that_fit(launch.dynamic_shared))
    m.fault = "invalid launch: cooperative grid of " + std::to_string(blocks) + " blocks is too large";
  if (m.fault.empty()) clusters = static_cast<unsigned>(blocks / (c.x * c.y * c.z));
}

constexpr const char* kWaitsForKernel = "griddepcontrol.wait";

void end_kernel_before() {
  Machine& m = machine();
  for (const Store& store : m.before) std::memcpy(store.to, store.from, store.bytes);
  m.before.clear();
  m.before_ended = true;
}

void schedule(const Launch& launch, unsigned clusters) {
  Machine& m = machine();
  // Clusters start in a shuffled order: i -> (i * step + start) mod n with a step prime to n.
  const unsigned start = m.random(clusters);
  unsigned step = m.random(clusters) | 1;
  while (std::__gcd(step, clusters) != 1) ++step;
  unsigned started = 0;
  while (m.fault.empty()) {
    while (started < clusters && (launch.cooperative || m.in_flight < m.device.blocks_in_flight)) {
      const uint64_t number = (uint64_t{started++} * step + start) % clusters;
      if (static_cast<int64_t>(number * launch.cluster.x) >= m.device.first_block)
        start_cluster(launch, static_cast<unsigned>(number));
    }
    if (m.clusters.empty()) return;
    if (m.ready.empty() && !m.before_ended) {
      end_kernel_before();
      for (auto& cluster : m.clusters)
        for (Block* block : cluster->blocks)
          for (Fiber& f : block->fibers)
            if (f.waits == kWaitsForKernel) wake(f);
      continue;
    }
    if (m.ready.empty()) {
      m.fault = standstill("deadlock");
      return;
    }
    uint32_t pick = m.random(static_cast<uint32_t>(m.ready.size()));
    const int lag = m.idle_spins < 1000 ? 6 : 0;  // a block for which all others wait runs
    for (int again = 0; again < lag && m.ready[pick]->lanes[0]->block->index.x == m.laggard; ++again)
      pick = m.random(static_cast<uint32_t>(m.ready.size()));
    Warp& warp = *m.ready[pick];
    run_warp(warp);
    bool runnable = false;
    for (Fiber* f : warp.lanes) runnable |= f->state == State::kRunnable;
    if (!runnable) {
      // Barriers woke others only; this warp's place in the queue may have moved.
      auto it = m.ready.begin() + pick;
      *it = m.ready.back();
      m.ready.pop_back();
      warp.queued = false;
      for (size_t i = 0; i < m.clusters.size(); ++i)
        if (!m.clusters[i]->live) retire(i--);
    }
    if (m.idle_spins > 100000 + 200ull * m.in_flight * blockDim.x) m.fault = standstill("no progress, threads spin for ever");
  }
}

std::string kernel_name(const char* name) {
  int status = 0;
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 && plain ? plain : name;
  std::free(plain);
  const std::string internal = "(anonymous namespace)::";
  if (const size_t at = text.find(internal); at != std::string::npos) text.erase(at, internal.size());
  return text.substr(0, text.find('('));
}

}  // namespace

Device& device() { return machine().device; }
Counters& counters() { return machine().counters; }
uint64_t& capture() {
  static uint64_t number = 0;
  return number;
}
const std::string& last_fault() {
  machine().broken = false;
  return machine().fault;
}
void load(const void* kernel) {
  const std::lock_guard<std::mutex> guard(machine().mutex);
  machine().loaded.insert(kernel);
}

bool launch(const Launch& launch) {
  Machine& m = machine();
  std::lock_guard<std::mutex> guard(m.mutex);
  // As on a GPU: else a launch of one block a request, by which the host goes on, would hide what happened.
  if (m.broken) return false;
  m.fault.clear();
  m.launch = &launch;
  m.random_state = m.device.schedule * 0x9E3779B97F4A7C15ull + 0x1234567;
  m.idle_spins = 0;
  m.before_ended = false;
  if (launch.overlaps) ++m.counters.overlapped;
  else end_kernel_before();
  m.words.clear();
  m.released.clear();
  m.laggard = m.device.lags ? m.random(launch.grid.x) : -1;
  blockDim = launch.block;
  gridDim = launch.grid;
  ++m.counters.launches;
  unsigned clusters = 0;
  check_launch(launch, clusters);
  const bool runs = m.fault.empty();
  if (runs) schedule(launch, clusters);
  m.ready.clear();
  while (!m.clusters.empty()) retire(m.clusters.size() - 1);
  m.current = nullptr;
  if (!m.fault.empty()) m.fault = "kernel " + kernel_name(launch.name) + ": " + m.fault;
  m.broken = runs && !m.fault.empty();
  return m.fault.empty();
}

void fault(const std::string& what, Site site) {
  Machine& m = machine();
  if (m.fault.empty()) m.fault = describe(*m.current) + " at " + where(site) + ": " + what;
  m.current->state = State::kDone;
  to_scheduler(true);
  std::abort();
}

void kernel_before(void* to, const void* from, size_t bytes) { machine().before.push_back({to, from, bytes}); }

void wait_for_kernel_before(Site site) {
  if (!machine().before_ended) block_on(kWaitsForKernel, site);
  machine().current->waited = true;
}

void memory_touched(Site site) {
  if (machine().launch->overlaps && !machine().current->waited)
    fault("touches memory before it waited for the kernel before", site);
}

int lane() { return machine().current->lane; }
int warp() { return machine().current->linear / 32; }
unsigned cluster_rank() { return machine().current->block->rank; }
unsigned cluster_size() { return static_cast<unsigned>(machine().current->block->cluster->blocks.size()); }

// ---- warps ----------------------------------------------------------------------------------------------------------

const uint64_t* collective(const char* kind, uint32_t mask, uint64_t value, Site site) {
  static uint64_t result[32];  // copied out before any other fiber runs
  Machine& m = machine();
  Fiber& self = *m.current;
  Warp& warp = *self.warp;
  const uint32_t mine = 1u << self.lane;
  if (!(mask & mine)) fault(std::string(kind) + ": the calling lane is not in its mask", site);
  if (warp.lanes.size() < 32 && mask >> warp.lanes.size()) fault(std::string(kind) + ": the mask names lanes that do not exist", site);
  Collective* c = nullptr;
  for (auto& open : warp.open)
    if (open->arrived != open->mask && (open->mask & mask)) {
      if (open->mask != mask || !same(open->kind, kind))
        fault(std::string(kind) + ": other lanes of its mask are in " + open->kind + " with another mask or kind", site);
      c = open.get();
    }
  if (!c) {
    warp.open.push_back(std::make_unique<Collective>());
    c = warp.open.back().get();
    c->kind = kind;
    c->mask = mask;
  }
  c->values[self.lane] = value;
  c->arrived |= mine;
  if (c->arrived == mask) {
    m.idle_spins = 0;
    if (mask == (warp.lanes.size() == 32 ? 0xffffffffu : (1u << warp.lanes.size()) - 1) && same(kind, "__syncwarp"))
      ++warp.epoch;
    for (Fiber* f : warp.lanes)
      if (mask >> f->lane & 1) wake(*f);
  } else {
    block_on(kind, site);
  }
  c->left |= mine;
  std::memcpy(result, c->values, sizeof result);
  if (c->left == mask) {
    for (size_t i = 0; i < warp.open.size(); ++i)
      if (warp.open[i].get() == c) {
        warp.open.erase(warp.open.begin() + i);
        break;
      }
  }
  return result;
}

void sync_warp(uint32_t mask, Site site) { collective("__syncwarp", mask, 0, site); }

// ---- barriers -------------------------------------------------------------------------------------------------------

uint32_t sync_threads(const char* kind, uint32_t value, Site site) {
  Machine& m = machine();
  Block& block = *m.current->block;
  if (block.arrived == 0) {
    block.barrier_sum = 0;
    block.barrier_kind = kind;
    block.barrier_site = site;
  } else if (block.barrier_site.line != site.line || !same(block.barrier_site.file, site.file) ||
             !same(block.barrier_kind, kind)) {
    fault(std::string(kind) + ": other threads of the block are in " + block.barrier_kind + " at " + where(block.barrier_site), site);
  }
  block.barrier_sum += value;
  if (++block.arrived == static_cast<int>(block.fibers.size())) {
    block.arrived = 0;
    block.barrier_result = block.barrier_sum;
    ++block.epoch;
    m.idle_spins = 0;
    for (Fiber& f : block.fibers) wake(f);
  } else {
    block_on(kind, site);
  }
  return block.barrier_result;
}

void sync_cluster(Site site) {
  Machine& m = machine();
  Cluster& cluster = *m.current->block->cluster;
  if (++cluster.arrived == cluster.threads) {
    cluster.arrived = 0;
    ++cluster.epoch;
    m.idle_spins = 0;
    for (Block* block : cluster.blocks) {
      block->published = block->fenced;
      for (Warp& warp : block->warps) warp.published = warp.fenced;
      for (Fiber& f : block->fibers) f.published = f.fences, wake(f);
    }
  } else {
    block_on("the cluster barrier", site);
  }
}

void fence_cluster() {
  Fiber& self = *machine().current;
  ++self.fences;
  self.warp->fenced = self.warp->epoch;
  self.block->fenced = self.block->epoch;
}

void yield() {
  queue(*machine().current->warp);
  to_scheduler();
}

void spin() {
  ++machine().idle_spins;
  yield();
}

void progress() { machine().idle_spins = 0; }

// ---- shared memory --------------------------------------------------------------------------------------------------

size_t shared_limit() { return machine().device.shared() - (1 << 10); }

int blocks_that_fit(size_t dynamic_shared) {
  const Device& d = machine().device;
  return std::min(d.blocks_per_multiprocessor, static_cast<int>(d.shared() / (dynamic_shared + (3 << 10))));
}

void allow_dynamic_shared(const void* kernel, size_t bytes) {
  const std::lock_guard<std::mutex> guard(machine().mutex);
  ++machine().counters.permissions;
  machine().allowed[{kernel, machine().device.capability}] = bytes;
}

Range static_shared(const void* tag, size_t element, size_t count, const char* name) {
  Block& block = *machine().current->block;
  const uint32_t bytes = static_cast<uint32_t>(element * count);
  for (const Array& a : block.arrays)
    if (a.tag == tag) return {&block, a.offset, static_cast<uint32_t>(count), name};
  // Static arrays stand behind the dynamic ones, 16 bytes apart.
  const uint32_t offset = static_cast<uint32_t>((block.shared.size() + 31) & ~size_t{15});
  block.shared.resize(offset + bytes, static_cast<char>(0xff));
  block.words.resize(block.shared.size() / 4 + 1);
  block.arrays.push_back({tag, offset, bytes});
  block.static_bytes += bytes;
  const std::string refused = refused_shared(*machine().launch, block.static_bytes);
  if (!refused.empty()) fault(refused, Site::here());
  return {&block, offset, static_cast<uint32_t>(count), name};
}

Range dynamic_shared(size_t byte_offset, size_t element, size_t count, const char* name, Site site) {
  Machine& m = machine();
  if (byte_offset % element || byte_offset + element * count > m.launch->dynamic_shared)
    fault(std::string(name) + ": outside the " + std::to_string(m.launch->dynamic_shared) + " bytes of dynamic shared memory", site);
  return {m.current->block, static_cast<uint32_t>(byte_offset), static_cast<uint32_t>(count), name};
}

Range peer_shared(const Range& mine, unsigned rank, Site site) {
  Cluster& cluster = *machine().current->block->cluster;
  if (rank >= cluster.blocks.size()) fault("no block of rank " + std::to_string(rank) + " in the cluster", site);
  Block* peer = cluster.blocks[rank];
  if (!peer->live) fault(std::string(mine.name) + ": the peer block has left, its shared memory is gone", site);
  Range range = mine;
  range.block = peer;
  if (peer->shared.size() < mine.block->shared.size()) {  // the peer has not named its static arrays yet
    peer->shared.resize(mine.block->shared.size(), static_cast<char>(0xff));
    peer->words.resize(mine.block->words.size());
    peer->arrays = mine.block->arrays;
    peer->static_bytes = mine.block->static_bytes;
  }
  return range;
}

Range all_shared(unsigned rank, const char* name, Site site) {
  Block* mine = machine().current->block;
  const Range range = {mine, 0, static_cast<uint32_t>(mine->shared.size()), name};
  return rank == mine->rank ? range : peer_shared(range, rank, site);
}

bool shared_holds(size_t offset, const void* value, size_t bytes) {
  const std::vector<char>& shared = machine().current->block->shared;
  return offset + bytes <= shared.size() && std::memcmp(shared.data() + offset, value, bytes) == 0;
}

namespace {

Touch touch_of(const Fiber& f) {
  return {static_cast<int32_t>(f.block->rank * 1024 + f.linear), f.block->epoch, f.warp->epoch, f.block->cluster->epoch,
          f.fences};
}

// Do a fence and a barrier of the cluster, in this order, stand between what `then` did and what `now` does? The fence
// is of the same thread, or of one that a barrier of the block or warp put behind it.
bool published(const Touch& then, const Touch& now, const Cluster& cluster) {
  if (then.cluster_epoch >= now.cluster_epoch) return false;
  const Block& block = *cluster.blocks[then.thread / 1024];
  const Fiber& fiber = block.fibers[then.thread % 1024];
  return then.fences < fiber.published || then.block_epoch < block.published ||
         then.warp_epoch < fiber.warp->published;
}

// Does a barrier stand between what `then` did and what `now` does?
bool ordered(const Touch& then, const Touch& now, const Cluster& cluster) {
  if (then.thread < 0 || then.thread == now.thread || published(then, now, cluster)) return true;
  if (then.thread / 1024 != now.thread / 1024) return false;
  return then.block_epoch < now.block_epoch || (then.thread / 32 == now.thread / 32 && then.warp_epoch < now.warp_epoch);
}

// Does a barrier stand between every reader of the word and `now`? (Of many readers the last one stands for all.)
bool read_before(const Word& word, const Touch& now, const Cluster& cluster) {
  const Touch& then = word.read;
  if (published(then, now, cluster)) return true;
  if (then.thread / 1024 != now.thread / 1024) return false;
  if (then.block_epoch < now.block_epoch) return true;
  return !word.many_warps && then.thread / 32 == now.thread / 32 && then.warp_epoch < now.warp_epoch;
}

void race(const char* what, const Touch& other, const char* name, ptrdiff_t index, Site site) {
  fault(std::string(name) + "[" + std::to_string(index) + "]: " + what + " thread " + std::to_string(other.thread % 1024) +
            " without a barrier between (a race)", site);
}

}  // namespace

char* shared_at(const Range& range, ptrdiff_t index, size_t element, Access access, Site site) {
  const Fiber& self = *machine().current;
  if (index < 0 || index >= static_cast<ptrdiff_t>(range.count))
    fault(std::string(range.name) + "[" + std::to_string(index) + "]: out of bounds, it has " + std::to_string(range.count) + " elements", site);
  Block& block = *range.block;
  const uint32_t at = range.offset + static_cast<uint32_t>(index * element);
  const Touch now = touch_of(self);
  const bool may_be_unwritten = access == Access::kWrite || access == Access::kSpeculated;
  if (access == Access::kSpeculated) access = Access::kRead;
  for (uint32_t w = at / 4; w <= (at + element - 1) / 4; ++w) {
    Word& word = block.words[w];
    const bool whole = element >= 4;  // words shared by smaller elements are not told apart
    if (!may_be_unwritten && !word.written)
      fault(std::string(range.name) + "[" + std::to_string(index) + "]: read of unwritten shared memory", site);
    if (whole && !(access == Access::kAtomic && word.atomic) && !ordered(word.write, now, *block.cluster))
      race(access == Access::kRead ? "read of what was written by" : "write over what was written by", word.write, range.name, index, site);
    const bool settled = !word.has_readers || read_before(word, now, *block.cluster);
    if (access == Access::kRead) {
      if (settled) word.many_readers = word.many_warps = false;
      else word.many_readers |= word.read.thread != now.thread, word.many_warps |= word.read.thread / 32 != now.thread / 32;
      word.read = now;
      word.has_readers = true;
    } else {
      const bool own = !word.many_readers && word.read.thread == now.thread;
      if (whole && !settled && !own) race("write over what was read by", word.read, range.name, index, site);
      word.write = now;
      word.written = true;
      word.atomic = access == Access::kAtomic;
      word.has_readers = false;
    }
  }
  return block.shared.data() + at;
}

// ---- global memory --------------------------------------------------------------------------------------------------

namespace {

// Does what `then` did come before what `now` does?
bool seen(const GlobalTouch& then, const Block& block, const Touch& now) {
  if (then.touch.thread == -1) return true;
  if (then.block == block.index.x)
    return then.many ? then.touch.block_epoch < now.block_epoch : ordered(then.touch, now, *block.cluster);
  const auto found = block.seen.find(then.block);
  if (found == block.seen.end()) return false;
  const Seen& known = found->second;
  return known.epoch > then.touch.block_epoch ||
         (known.epoch == then.touch.block_epoch && known.thread == then.touch.thread && known.step > then.step &&
          !then.many);
}

void join(Clock& to, const Clock& from) {
  for (const auto& [block, known] : from) {
    Seen& mine = to[block];
    if (std::tie(mine.epoch, mine.step) < std::tie(known.epoch, known.step)) mine = known;
  }
}

std::string whose(const GlobalTouch& then) { return "block " + std::to_string(then.block); }

}  // namespace

void word_written(const void* at, Site site) {
  memory_touched(site);
  Machine& m = machine();
  const Block& block = *m.current->block;
  const Touch now = touch_of(*m.current);
  GlobalWord& word = m.words[at];
  if (!seen(word.write, block, now)) fault("writes over what " + whose(word.write) + " wrote, unordered", site);
  for (const GlobalTouch& read : word.reads)
    if (!seen(read, block, now)) fault("writes over what " + whose(read) + " may still read", site);
  word.write = {block.index.x, now, ++m.steps};
  word.reads.clear();
}

void word_read(const void* at, Site site) {
  memory_touched(site);
  Machine& m = machine();
  const Block& block = *m.current->block;
  const Touch now = touch_of(*m.current);
  const auto found = m.words.find(at);
  if (found == m.words.end()) fault("reads a word of the workspace that nobody wrote", site);
  GlobalWord& word = found->second;
  if (!seen(word.write, block, now))
    fault("reads what " + whose(word.write) + " wrote, without a release and an acquire between", site);
  for (GlobalTouch& read : word.reads) {
    if (read.block != block.index.x) continue;
    read.many |= read.touch.thread != now.thread;
    read.touch = now;
    read.step = ++m.steps;
    return;
  }
  word.reads.push_back({block.index.x, now, ++m.steps});
}

void release(const void* at) {
  Machine& m = machine();
  const Fiber& self = *m.current;
  Clock& clock = m.released[at];
  join(clock, self.block->seen);
  clock[self.block->index.x] = {self.block->epoch, touch_of(self).thread, ++m.steps};
}

void acquire(const void* at) {
  const auto found = machine().released.find(at);
  if (found != machine().released.end()) join(machine().current->block->seen, found->second);
}

}  // namespace host_cuda
