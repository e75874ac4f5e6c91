// The processor's rounding and denormal mode belongs to the caller outside of a call, and to this library inside.
// Logits may be denormal, and filters compare them: a mode that flushes them to 0 would change a filter's cut.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specdec {

// While an object lives, its thread rounds to nearest and does not flush denormals. Reading it takes few cycles.
class FloatMode {
 public:
  FloatMode() : before_(now()) {
    if (!is_usual(before_)) set(usual(before_));
  }
  ~FloatMode() {
    if (!is_usual(before_)) set(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#if defined(__x86_64__)
  using Word = uint32_t;
  static Word now() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
  // The lowest six bits are sticky exception flags, so they are preserved and not compared.
  static Word usual(Word word) { return (word & 0x3fu) | 0x1f80u; }
  static bool is_usual(Word word) { return (word & ~0x3fu) == 0x1f80u; }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static Word now() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
  static Word usual(Word) { return 0; }
  static bool is_usual(Word word) { return word == 0; }
#else
  using Word = uint32_t;
  static Word now() { return 0; }
  static void set(Word) {}
  static Word usual(Word word) { return word; }
  static bool is_usual(Word) { return true; }
#endif

 private:
  const Word before_;
};

}  // namespace specdec
