// Converts an op's arguments in Python to the op's struct of specdec.h. A table lists each op's fields and their
// offsets; it is made from the types of the fields. One reader serves all ops of all backends.
#pragma once

#include <vector>

#include "../c_api/call.h"
#include "specdec/c/caches.h"
#include "specdec/config.h"
#include "tensor.h"

namespace specdec::python {

enum class Kind : uint8_t {
  kBool, kInt32, kInt64, kRows, kTokens, kTokenOutput, kNumber, kCounter, kIndices, kValues, kFlags, kLists,
  kRequestIndex, kInt64Output, kInt32Output, kPath, kFloatOutput, kByteOutput, kMask, kLayers, kGroup,
};

constexpr size_t kMostBytes = 4096;

struct Table;

struct Field {
  const char* name;
  size_t length;  // of `name`, which is not terminated
  Kind kind;
  size_t at;           // offset in the op's struct, in bytes
  const Table* parts;  // a group's fields, whose offsets count from `at`

  bool is(const char* other) const;
};

struct Table {
  const char* op;
  size_t bytes = 0;
  std::vector<Field> fields;
  int64_t (*rows)(const void*) = nullptr;  // how many rows the op's outputs have, where the op counts them
  bool (*exact)(void*, const c_api::Exact&) = nullptr;  // c_api's exact check of the op's struct

  const Field* find(const char* name) const;  // null: the op has no such field
};

// The tables of all ops, in the order of SPECDEC_OPS.
const std::vector<const Table*>& tables();

// Memory for the parameter struct of any op.
struct Params {
  alignas(16) char bytes[kMostBytes];

  template <class T>
  T& at(size_t offset) { return *reinterpret_cast<T*>(bytes + offset); }
};

// Writes a tensor to a field of this kind. Returns false if the field cannot hold its type or dimensions. An output has
// so many `rows`, in any shape; -1: [rows, columns] or [rows].
bool put(Kind kind, const Tensor& t, void* field, int64_t rows);

// The element type of an output's kind.
Element element_of(Kind kind);

extern PyObject* floating;  // numpy.floating, set once by use_functions; null before

// Converts a number of Python or NumPy. Returns false for other objects, a bool, or over 64 bits. Unsigned seeds wrap.
bool whole(PyObject* object, int64_t* out);
bool real(PyObject* object, double* out);

// The number of a choice by its name; -1: no choice has this name.
int32_t choice(PyObject* name);

// A cache of four dimensions, of any type: its elements are only moved.
specdec_cache_layer layer_of(const Tensor& t);

constexpr int64_t kAnyIndex = int64_t{1} << 31;  // more entries than any int32 can point to

// A call of an op: a tuple of the op's arguments, checked by Python.
class Call {
 public:
  Call(const Table& table, PyObject* tuple);
  Call(const Call&) = delete;  // params point into it

  Params params;

 private:
  void read(const Table& table, PyObject* tuple, size_t begin);
  void read(const Field& field, PyObject* object, size_t at);

  const Table& table_;
  std::vector<specdec_cache_layer> layers_;
  int64_t numbers_ = kAnyIndex;  // entries of the tensors of numbers
};

// Raises the error of a function of specdec.h.
void raise_for(int error);

}  // namespace specdec::python
