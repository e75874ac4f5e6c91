// An op's arguments in Python and the op's struct of specdec.h. A table says of each op what its fields are and where
// they lie. It is made from the types of the fields. One reader serves all ops of all backends.
#pragma once

#include <vector>

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
  size_t length;  // of the name
  Kind kind;
  size_t at;           // bytes from the begin of the op's struct
  const Table* parts;  // of a group, whose fields lie from there

  bool is(const char* other) const;
};

struct Table {
  const char* op;
  size_t bytes = 0;
  std::vector<Field> fields;
  int64_t (*rows)(const void*) = nullptr;  // how many rows the op's outputs have, where the op counts them

  const Field* find(const char* name) const;  // null: the op has none
};

// Of every op, in the order of SPECDEC_OPS.
const std::vector<const Table*>& tables();

// An op's parameter struct, of any op.
struct Params {
  alignas(16) char bytes[kMostBytes];

  template <class T>
  T& at(size_t place) { return *reinterpret_cast<T*>(bytes + place); }
};

// Writes a tensor to a field of this kind. False if the field cannot have one of its type or dimensions. An output has
// so many `rows`, in any shape; -1: [rows, columns] or [rows].
bool put(Kind kind, const Tensor& t, void* field, int64_t rows);

// A number of Python. False: the object is none, or a bool, or has more than 64 bits. Of an unsigned seed bits count.
bool whole(PyObject* object, int64_t* out);
bool real(PyObject* object, double* out);

// The number of a choice by its name; -1: there is none of this name.
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
