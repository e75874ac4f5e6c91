// From the DLPack specification 1.3 (https://dmlc.github.io/dlpack): a tensor in C, and the functions that a framework
// offers for its tensors in the capsule `__dlpack_c_exchange_api__`. The order of the fields is the ABI.
#pragma once

#include <cstdint>

namespace specdec::dlpack {

constexpr const char* kCapsule = "dlpack_exchange_api";
constexpr uint32_t kMajor = 1;  // minor versions only add fields

struct Version {
  uint32_t major, minor;
};

struct Device {
  int32_t type, index;
};

enum Code : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6 };

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct View {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ManagedTensor;

struct ExchangeApi {
  Version version;
  const ExchangeApi* older;
  int (*allocate)(View* like, ManagedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*own_object)(void* object, ManagedTensor** out);
  int (*object_of_owned)(ManagedTensor* owned, void** out);
  // May be null. The view is borrowed. -1: a Python exception is set.
  int (*view_object)(void* object, View* out);
  int (*current_stream)(int32_t device_type, int32_t device_index, void** out);
};

}  // namespace specdec::dlpack
