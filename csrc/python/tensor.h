// Reads Python's tensors in C++, through torch's DLPack functions (dlpack.h), in 40 ns each.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "dlpack.h"
#include "object.h"

namespace specdec::python {

// DLPack's code and bits.
enum class Element : uint16_t {
  kFloat32 = dlpack::kFloat << 8 | 32,
  kFloat16 = dlpack::kFloat << 8 | 16,
  kBFloat16 = dlpack::kBFloat << 8 | 16,
  kInt32 = dlpack::kInt << 8 | 32,
  kInt64 = dlpack::kInt << 8 | 64,
  kBool = dlpack::kBool << 8 | 8,
  kUInt8 = dlpack::kUInt << 8 | 8,
  kUInt16 = dlpack::kUInt << 8 | 16,
  kUInt32 = dlpack::kUInt << 8 | 32,
};

struct Tensor {
  static constexpr int kMaxDims = 8;
  void* data;
  Element element;  // not one of the above: a type that only compact_kv takes
  int32_t element_bytes, ndim;
  dlpack::Device device;  // set by `view`
  int64_t shape[kMaxDims], strides[kMaxDims];  // in elements

  // Merges the dimensions [begin, end) into one; an empty range inserts one of size 1. Returns false if they have no
  // common stride, or there are too many.
  bool merge(int32_t begin, int32_t end) {
    int64_t size = 1, step = 0;
    for (int32_t i = end - 1; i >= begin; --i) {
      if (shape[i] == 1) continue;
      if (size > 1 && strides[i] != step * size) return false;
      if (size == 1) step = strides[i];
      size *= shape[i];
    }
    const int32_t dims = ndim - (end - begin) + 1;
    if (dims > kMaxDims) return false;
    for (int64_t* const of : {shape, strides})
      std::memmove(of + begin + 1, of + end, static_cast<size_t>(ndim - end) * sizeof(int64_t));
    return ndim = dims, shape[begin] = size, strides[begin] = step, true;
  }

  bool is_contiguous() const {
    int64_t step = 1;
    for (int32_t i = ndim - 1; i >= 0; --i) {
      if (shape[i] == 0) return true;
      if (shape[i] != 1 && strides[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }
  bool is_ints() const { return element == Element::kInt32 || element == Element::kInt64; }
  // In the last dimension.
  bool has_unit_stride() const { return ndim > 0 && (shape[ndim - 1] <= 1 || strides[ndim - 1] == 1); }
  bool on_host() const { return device.type == 1; }  // DLPack's number of the CPU

  // The byte after the last that the tensor can reach.
  const char* end() const {
    int64_t last = 0;
    for (int32_t i = 0; i < ndim; ++i) {
      if (shape[i] == 0) return static_cast<const char*>(data);
      last += (shape[i] - 1) * strides[i];
    }
    return static_cast<const char*>(data) + (last + 1) * element_bytes;
  }
};

// torch's type and view function, set once by use_tensors.
struct Torch {
  PyObject* tensor;  // the one type that `view` can view; null if there is no such function
  int (*view)(void* object, dlpack::View* out);
};
extern Torch torch;

[[noreturn]] void expected(const char* what, PyObject* got);

// Returns false, without an error set, if the tensor cannot be viewed, is no torch.Tensor or has over 8 dimensions.
bool view(PyObject* object, Tensor* out);

// Views any tensor, also of a subclass; throws if it cannot.
Tensor tensor_of(PyObject* object);

// Makes a contiguous tensor of this shape and type, and views it. Null: this torch has no functions for it, or cannot.
PyObject* new_tensor(Tensor* t, dlpack::Device device);

// Sets torch's functions for new tensors: their addresses, or None.
void use_new_tensors(PyObject* addresses);

// The memory of a tensor.
struct Span {
  const char *begin, *end;
  bool written;
};

// Whether a written span overlaps another one. Reorders the spans.
bool meet(std::vector<Span>& spans);

// use_tensors(torch.Tensor, its capsule of functions, an example of a negative tensor or None): sets `torch`.
PyObject* use_tensors(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// all_viewed(values): whether each tensor in some values, also in nested tuples and lists, can be viewed.
PyObject* all_viewed(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// apart(values, written): whether the written values, whose byte in `written` is not 0, overlap no other value. False
// where spans meet, even if the elements in them do not.
PyObject* apart(PyObject*, PyObject* const* arguments, Py_ssize_t count);

}  // namespace specdec::python
