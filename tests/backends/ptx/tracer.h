// What translated kernels tell the tracer (trace.py): which stretches of the PTX a thread runs, and for which loads it
// waits. Nothing is kept but of one block, the one that is asked for.
#pragma once

#include <cstdint>

namespace ptx {

struct Warp;

// A thread of a kernel, from its begin to its end. Depths count loads one behind the other: a value that came from
// memory has one more than its address, and than what the thread had used when it entered that stretch of code. A value
// that is used is waited for, by all that comes behind. Loads of one stretch are on their way together.
struct Traced {
  explicit Traced(const char* kernel);
  ~Traced();
  Traced(const Traced&) = delete;

  void at(int line) {  // a stretch without a branch, a label or a barrier inside begins with this line
    if (!warp) return;
    count(line);
    if (used > entered) entered = used;
  }
  int use(int depth) { return depth > used ? used = depth : depth; }
  int load(int address) { return 1 + (use(address) > entered ? address : entered); }
  void share(int depth);  // lanes bring this
  int shared();           // and this is what they get
  void barrier();         // before, and behind
  void met();
  void event(int kind);  // 0: a counter that orders blocks is raised; 1: one is read, again and again; 2: a cluster meets

  Warp* warp = nullptr;  // null: not this block

 private:
  void count(int line);
  void put_down();
  void* own = nullptr;
  int used = 0, entered = 0, stretch = 0, shares = 0;
};

}  // namespace ptx
