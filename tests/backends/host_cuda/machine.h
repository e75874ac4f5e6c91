// A CUDA machine played on one CPU thread, so that the kernels of csrc/cuda run and are checked without a GPU.
//
// Every CUDA thread is a fiber. The scheduler picks warps and lanes in a seeded, shuffled order; a fiber runs until it
// meets something that other threads can see (a shuffle, a vote, a barrier, an atomic, a spin). Several blocks are in
// flight at once. Shared memory is reached through checked handles: bounds, reads of unwritten words, and two threads
// touching a word without a barrier between them are faults. So are words that blocks hand to each other through global
// memory without a release and an acquire between. A fault ends the launch; `last_fault` says what happened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace host_cuda {

// Where in the kernel's source a call stands: the default arguments are taken at the call.
struct Site {
  const char* file;
  int line;
  static Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

struct Device {
  int multiprocessors = 4;
  int blocks_per_multiprocessor = 2;
  int capability = 90;  // major * 10 + minor
  int blocks_in_flight = 5;
  uint64_t schedule = 1;  // seed of the order in which warps, lanes and blocks run
  int of_streams = 0;     // the multiprocessors that a stream may use, if that is not all of them
  bool refuses = false;   // launches in which blocks wait for each other: clusters are an error, and cooperative ones fail
  bool lags = false;      // one block of each launch falls far behind
  int64_t first_block = 0;  // blocks before this one do not run
  bool overlaps = false;    // kernels may be launched while the one before them runs
  int team = 0;             // blocks a team, if they are asked for; with or without clusters
  bool team_is_grid = false;
  bool clusters = true;     // whether a device that is new enough has them
  int code = 90;            // the architecture that the code was compiled for; the driver compiles it for newer ones

  int usable() const { return of_streams ? of_streams : multiprocessors; }
  bool has_clusters() const { return clusters && capability >= 90; }
  // Bytes of shared memory a multiprocessor. Each block takes 1 KiB beside its own.
  size_t shared() const {
    if (capability >= 120 || capability == 86 || capability == 89) return 100 << 10;
    return (capability < 90 ? 164 : 228) << 10;
  }
};

struct Launch {
  dim3 grid, block, cluster;
  size_t dynamic_shared = 0;
  size_t declared_shared = 0;  // in front of the dynamic bytes, where it is known before the kernel runs
  unsigned most_threads = 1024;
  char poison = static_cast<char>(0xff);  // of shared memory: as a float a NaN, as an integer far out of range
  bool cooperative = false, overlaps = false;
  const void* kernel = nullptr;
  const char* name = "";
  std::function<void()> body;
};

struct Block;

struct Counters {
  uint64_t launches, blocks, bytes_read, overlapped, permissions;
};

Device& device();
uint64_t& capture();  // the one that all streams are in; 0: none
Counters& counters();
bool launch(const Launch&);  // false after a fault
void load(const void* kernel);  // as the driver does before the first launch; a capture need not allow it
void allow_dynamic_shared(const void* kernel, size_t bytes);
const std::string& last_fault();
[[noreturn]] void fault(const std::string& what, Site site);

// The kernel before the next launch copies these bytes: before that starts or, if it overlaps, once all of its threads
// in flight wait. A thread that touches memory before it waited, where the machine can see it, is a fault. So is one
// that leaves and never waited.
void kernel_before(void* to, const void* from, size_t bytes);
void wait_for_kernel_before(Site site);
void memory_touched(Site site);

// The current thread.
int lane();
int warp();
unsigned cluster_rank();
unsigned cluster_size();

// Waits until every lane of `mask` has called with the same mask and kind; gives back what each lane brought.
const uint64_t* collective(const char* kind, uint32_t mask, uint64_t value, Site site);
void sync_warp(uint32_t mask, Site site);
uint32_t sync_threads(const char* kind, uint32_t value, Site site);  // the sum of the values brought
// The threads of a cluster meet. Only what a fence of the cluster covers comes before what others do then.
void sync_cluster(Site site);
void fence_cluster();
void yield();  // other threads may run here
void spin();   // yields, and counts as no progress
void progress();

// Shared memory.
struct Range {
  Block* block;
  uint32_t offset, count;  // in elements
  const char* name;
};
enum class Access { kRead, kWrite, kAtomic, kSpeculated };  // the last: a read whose value may not be used

Range static_shared(const void* tag, size_t element, size_t count, const char* name);
Range dynamic_shared(size_t byte_offset, size_t element, size_t count, const char* name, Site site);
Range peer_shared(const Range& mine, unsigned rank, Site site);
Range all_shared(unsigned rank, const char* name, Site site);  // of a block of the cluster, as bytes
// Do these bytes stand there in the shared memory of this block?
bool shared_holds(size_t offset, const void* value, size_t bytes);
// The bytes of element `index`, after the checks.
char* shared_at(const Range& range, ptrdiff_t index, size_t element, Access access, Site site);
size_t shared_limit();
// Blocks of a kernel that fit on a multiprocessor. It may declare 2 KiB itself.
int blocks_that_fit(size_t dynamic_shared);

// Words of global memory that blocks hand to each other. Each block knows up to where it has seen the others' work: an
// atomic that releases leaves that at its address, and whoever acquires there knows it, too. A word may be read once
// its writer's work was seen, and written once all work that read or wrote it was.
void word_written(const void* word, Site site);
void word_read(const void* word, Site site);
void release(const void* word);
void acquire(const void* word);

}  // namespace host_cuda
