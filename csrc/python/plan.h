// The plan of an op's direct calls: the op's declaration in Python (Op.plan), read once.
#pragma once

#include <string>
#include <vector>

#include "arguments.h"

namespace specdec::python {

// An argument's sizes: a letter names a size of the op, a digit is a size. The first tensor that has a named size binds
// it; E, the entries of numbers and draft rows, is bound by the first tensor that has not one of them. N are nodes, at
// least one, M those without the root, I the words of bits and J the tiles of V tokens. '*' are all leading dimensions
// of an op on rows, '~' these with E instead of the first, '=' these as the rows of one request, '^' any others.
struct Shape {
  struct Dim {
    char size;
    bool or_more, may_miss;

    bool leads() const { return size == '*' || size == '~' || size == '='; }
  };
  Dim dim[6] = {};
  int count = 0;

  bool leads() const { return dim[0].leads() || dim[0].size == '^'; }
};

// Properties of a tensor beside its shape.
enum class Mark : char {
  kOptional = 'o',
  kContiguous = 'c',
  kContiguousRows = 'r',
  kAnyStrides = 's',
  kUnitStride = 'u',  // in the last dimension
  kInt64 = 'w',
  kFlattened = 'f',
  kLastMerged = 'm',  // the last two dimensions as one
};

// One field of an item.
struct Part {
  const Field* field;
  Shape shape, packed;  // `packed`: the shape where requests are packed
  uint32_t marks = 0;

  bool is(Mark mark) const { return marks >> (static_cast<char>(mark) - 'a') & 1; }
};

// An item's role, and its name in Python.
#define SPECDEC_ROLES(role)                                                                                       \
  role(kTensor, "tensor") role(kDraft, "draft") role(kPacking, "packing") role(kSize, "size") role(kInt, "int")   \
      role(kChoice, "choice") role(kFlag, "flag") role(kNumber, "number") role(kLaw, "law") role(kEdits, "edits") \
          role(kNoise, "noise") role(kOut, "out") role(kOutput, "output") role(kStatus, "status")                 \
              role(kOutputFormat, "output_format") role(kParents, "parents") role(kWritten, "written")            \
                  role(kMask, "mask") role(kLayers, "layers") role(kPacks, "packs")
#define SPECDEC_ROLE(role, word) role,
enum class Role : uint8_t { SPECDEC_ROLES(SPECDEC_ROLE) };
#undef SPECDEC_ROLE

// One argument of an op, or several that go together.
struct Item {
  Role role;
  size_t at;  // index of its first argument in a call's tuple
  std::vector<Part> parts;
  std::vector<std::string> choices;  // choices, by their number
  double least, most;

  bool takes(int64_t value) const { return static_cast<double>(value) >= least && static_cast<double>(value) <= most; }
};

struct Plan {
  // `items`: a tuple of (role, fields, arguments, shapes, least, most). `out`: the NamedTuple of outputs, or None.
  Plan(const Table& table, PyObject* items, PyObject* out);
  Plan(const Plan&) = delete;  // members point into it

  const Table& table;
  std::vector<Item> items;
  size_t count = 0;              // length of a call's tuple
  PyObject* out_type = nullptr;  // the NamedTuple of its outputs, if it has one
  // Items that the reading of others depends on. `packs`: whether requests are packed.
  const Item *index = nullptr, *draft_tokens = nullptr, *packing = nullptr, *out = nullptr, *output_format = nullptr,
             *max_depth = nullptr, *target_tokens = nullptr, *edits = nullptr, *law = nullptr, *packs = nullptr,
             *block_table = nullptr;
  // Items of the output format and of the noise. Trees and linked trees have only the last two of the format.
  const Part *format_path = nullptr, *format_passed = nullptr, *format_bonus = nullptr, *format_index = nullptr,
             *format_bits = nullptr, *input_positions = nullptr, *input_nonces = nullptr, *row_seeds = nullptr;
  // Fields that exclude each other, and the draft_map of ops with one kind of rows.
  const Field *method = nullptr, *draft_prob = nullptr, *epsilon = nullptr, *target = nullptr,
              *uniforms = nullptr, *map_of_rows = nullptr;
};

}  // namespace specdec::python
