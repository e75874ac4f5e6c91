// The plan of an op's direct calls: what C++ reads of the op's declaration in Python (Op.plan).
#pragma once

#include "arguments.h"

namespace specdec::python {

// Properties of a tensor beside its dimensions.
enum class Mark : char {
  kOptional = 'o',
  kContiguous = 'c',
  kContiguousRows = 'r',
  kAnyStrides = 's',
  kUnitStride = 'u',  // in the last dimension
  kLeading = 'l',     // the dimensions of the op's rows come first
};

// One field of an item, and the dimensions of its tensor: behind the leading ones, and where requests are packed.
struct Part {
  const Field* field;  // null: the op has no such field
  int32_t dims, packed;
  uint32_t marks;

  bool is(Mark mark) const { return marks >> (static_cast<char>(mark) - 'a') & 1; }
};

// An item's role, and its name in Python.
#define SPECDEC_ROLES(role)                                                                                         \
  role(kTensor, "tensor") role(kMap, "map") role(kDraft, "draft") role(kPacking, "packing") role(kSize, "size")     \
      role(kDepth, "depth") role(kInt, "int") role(kChoice, "choice") role(kFlag, "flag") role(kNumber, "number")   \
          role(kLaw, "law") role(kEdits, "edits") role(kNoise, "noise") role(kOut, "out") role(kOutput, "output")   \
              role(kStatus, "status") role(kOutputFormat, "output_format") role(kParents, "parents")                \
                  role(kWritten, "written") role(kMask, "mask") role(kLayers, "layers")
#define SPECDEC_ROLE(role, word) role,
enum class Role : uint8_t { SPECDEC_ROLES(SPECDEC_ROLE) };
#undef SPECDEC_ROLE

// One argument of an op, or several that go together.
struct Item {
  Role role;
  Py_ssize_t at;  // index of its first argument in a call's tuple
  double least, most;
  std::vector<Part> parts;
  std::vector<std::string> choices;  // by their number

  bool takes(int64_t value) const { return static_cast<double>(value) >= least && static_cast<double>(value) <= most; }
};

struct Plan {
  // `items`: a tuple of (role, first argument, least, most, ((field, dims, packed dims, marks), ...), choices), in the
  // order of reading. `out`: the NamedTuple of outputs, or None.
  Plan(const Table& table, PyObject* items, PyObject* out);

  const Table& table;
  std::vector<Item> items;
  PyObject* out_type;  // null: none
};

}  // namespace specdec::python
