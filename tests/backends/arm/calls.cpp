// Calls of specdec.h's CPU functions, written down on one machine and made again on another, which must write the same
// bits. Structs are written as they lie in memory, so both machines are 64-bit and little-endian.
//
//   a library with -DRECORD   its functions stand before those of libspecdec
//   a program                 `calls FILE THREADS` prints each call that gives something else, and how many calls it made
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "specdec/ops.h"

namespace {

// What stands in the file before the struct of a call, and before the bytes of a span.
struct Head {
  char name[32];
  int64_t bytes, spans;
};
struct Span {
  const char* begin;
  int64_t bytes;
};

template <class Test>
void expect(Test test, const char* what) {
  if (test) return;
  std::perror(what);
  std::exit(1);
}

template <class T, class = void>
constexpr bool has_data = false;
template <class T>
constexpr bool has_data<T, std::enable_if_t<sizeof(T::data) != 0>> = true;

// act(field) for each field that points somewhere.
template <class T, class Act>
void for_addresses(T& field, Act&& act) {
  if constexpr (has_data<T>) {
    act(field);
  } else if constexpr (!std::is_arithmetic_v<T>) {
    field.fields([&](const auto&... part) {
      (for_addresses(const_cast<std::decay_t<decltype(part)>&>(part), act), ...);
    });
  }
}

}  // namespace

#if defined(RECORD)
#include <dlfcn.h>

namespace {

FILE* file;
void* library;
std::vector<Span> tensors;

void write(const void* data, size_t bytes) {
  expect(bytes == 0 || std::fwrite(data, bytes, 1, file) == 1, "write");
}

template <class Params>
int record(const char* op, const char* function, const Params* params, int threads) {
  Params call = *params;
  for_addresses(call, [&](auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, specdec_cache_layers>)  // no tensors are there
      tensors.push_back({reinterpret_cast<const char*>(field.data), field.size * int64_t{sizeof *field.data}});
  });
  Head head = {{}, sizeof call, static_cast<int64_t>(tensors.size())};
  std::strncpy(head.name, op, sizeof head.name - 1);
  write(&head, sizeof head);
  write(&call, sizeof call);
  for (const Span& span : tensors) {
    write(&span, sizeof span);
    write(span.begin, span.bytes);
  }
  const int error = reinterpret_cast<int (*)(const Params*, int)>(dlsym(library, function))(params, threads);
  write(&error, sizeof error);
  for (const Span& span : tensors) write(span.begin, span.bytes);
  return error;
}

}  // namespace

SPECDEC_API void record_into(const char* path, const char* libspecdec) {
  expect(file = std::fopen(path, "wb"), path);
  expect(library = dlopen(libspecdec, RTLD_NOW | RTLD_LOCAL), libspecdec);
}
// Where the tensors of the next call lie.
SPECDEC_API void record_tensors(const Span* spans, int64_t count) { tensors.assign(spans, spans + count); }
SPECDEC_API void record_end() { expect(std::fclose(file) == 0, "close"); }

#define RECORD_CALLS(op, Params)                                          \
  int specdec_cpu_##op(const specdec_##op##_params* params, int threads) { \
    return record(#op, "specdec_cpu_" #op, params, threads);               \
  }
SPECDEC_OPS(RECORD_CALLS)

#else

namespace {

FILE* file;

bool read(void* data, size_t bytes) { return bytes == 0 || std::fread(data, bytes, 1, file) == 1; }
void must_read(void* data, size_t bytes) { expect(read(data, bytes), "read"); }

// A tensor's memory, aligned as it was where it was recorded.
class Copy {
 public:
  Copy() {
    must_read(&span_, sizeof span_);
    room_.reset(new char[span_.bytes + 2 * kAligned]);
    const auto place = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kAligned; };
    bytes_ = room_.get() + (place(span_.begin) + kAligned - place(room_.get())) % kAligned;
    must_read(bytes_, span_.bytes);
  }
  // Where `recorded` is here; null if it is not in this tensor.
  char* at(const void* recorded) const {
    const int64_t offset = static_cast<const char*>(recorded) - span_.begin;
    return offset >= 0 && offset < span_.bytes ? bytes_ + offset : nullptr;
  }
  void compare(const char* op, int64_t call, size_t tensor) const {
    std::vector<char> wanted(span_.bytes);
    must_read(wanted.data(), wanted.size());
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < span_.bytes; ++i)
      if (bytes_[i] != wanted[i] && ++wrong == 1) first = i & -4;
    if (wrong == 0) return;
    uint32_t words[2] = {};
    std::memcpy(&words[0], &wanted[first], sizeof words[0]);
    std::memcpy(&words[1], bytes_ + first, sizeof words[1]);
    std::printf("call %lld, %s: tensor %zu differs in %lld of %lld bytes; at %lld expected %08x, got %08x\n",
                static_cast<long long>(call), op, tensor, static_cast<long long>(wrong),
                static_cast<long long>(span_.bytes), static_cast<long long>(first), words[0], words[1]);
  }

 private:
  static constexpr uintptr_t kAligned = 64;
  Span span_;
  std::unique_ptr<char[]> room_;
  char* bytes_;
};

void* find(const std::vector<Copy>& tensors, const void* recorded) {
  static char nowhere[64];  // of a tensor without elements
  if (!recorded) return nullptr;
  for (const Copy& tensor : tensors)
    if (char* const found = tensor.at(recorded)) return found;
  return nowhere;
}

template <class Params>
int replay(int (*function)(const Params*, int), const char* bytes, const std::vector<Copy>& tensors, int threads) {
  Params params;
  std::memcpy(&params, bytes, sizeof params);
  std::vector<specdec_cache_layer> layers;
  for_addresses(params, [&](auto& field) {
    using Field = std::decay_t<decltype(field)>;
    field.data = static_cast<decltype(field.data)>(find(tensors, field.data));
    if constexpr (std::is_same_v<Field, specdec_cache_layers>) {
      layers.assign(field.data, field.data + field.size);
      for (specdec_cache_layer& layer : layers) layer.data = static_cast<char*>(find(tensors, layer.data));
      field.data = layers.data();
    }
  });
  return function(&params, threads);
}

int replay(const Head& head, const char* bytes, const std::vector<Copy>& tensors, int threads) {
#define REPLAY_CALL(op, Params) \
  if (std::strcmp(head.name, #op) == 0) return replay(specdec_cpu_##op, bytes, tensors, threads);
  SPECDEC_OPS(REPLAY_CALL)
  return -1;
}

}  // namespace

int main(int count, char** arguments) {
  expect(count == 3, "calls FILE THREADS");
  expect(file = std::fopen(arguments[1], "rb"), arguments[1]);
  Head head;
  int64_t calls = 0;
  for (; read(&head, sizeof head); ++calls) {
    std::vector<char> bytes(head.bytes);
    must_read(bytes.data(), bytes.size());
    std::vector<Copy> tensors(head.spans);
    const int error = replay(head, bytes.data(), tensors, std::atoi(arguments[2]));
    int wanted;
    must_read(&wanted, sizeof wanted);
    if (error != wanted)
      std::printf("call %lld, %s: expected %d, got %d: %s\n", static_cast<long long>(calls), head.name, wanted, error,
                  specdec_last_error());
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].compare(head.name, calls, i);
  }
  std::printf("%lld calls\n", static_cast<long long>(calls));
}

#endif
