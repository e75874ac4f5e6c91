#include "plan.h"

#include <algorithm>
#include <cstring>

namespace specdec::python {

namespace {

[[noreturn]] void bad(const char* what) {
  PyErr_Format(PyExc_ValueError, "declaration: %s", what);
  throw Raised();
}

const char* text(PyObject* object) {
  const char* const utf8 = PyUnicode_AsUTF8(object);
  if (!utf8) throw Raised();
  return utf8;
}

Role role_of(const char* name) {
#define SPECDEC_ROLE(role, word) \
  if (std::strcmp(word, name) == 0) return Role::role;
  SPECDEC_ROLES(SPECDEC_ROLE)
#undef SPECDEC_ROLE
  bad(name);
}

// "BK" or "BK|T", then perhaps ":" and marks. '+' behind a letter: or more; '.' before it: the dimension may miss.
void read_shape(const char* c, Part* part) {
  Shape* shape = &part->shape;
  for (; *c && *c != ':'; ++c) {
    if (*c == '|') {
      shape = &part->packed;
    } else if (*c == '+') {
      shape->dim[shape->count - 1].or_more = true;
    } else if (*c == '.') {
      shape->dim[shape->count].may_miss = true;
    } else {
      if (shape->count == 6) bad("too many dimensions");
      shape->dim[shape->count++].size = *c;
    }
  }
  while (*c && *++c) part->marks |= uint32_t{1} << (*c - 'a');
}

}  // namespace

Plan::Plan(const Table& op, PyObject* declared, PyObject* result) : table(op) {
  if (result != Py_None) out_type = new_reference(result);
  if (!PyTuple_Check(declared)) bad("expected a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(declared); ++i) {
    const char* role = nullptr;
    PyObject *fields = nullptr, *shapes = nullptr;
    Py_ssize_t arguments = 0;
    Item item = {};
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(declared, i), "sO!nO!dd", &role, &PyTuple_Type, &fields, &arguments,
                          &PyTuple_Type, &shapes, &item.least, &item.most))
      throw Raised();
    item.role = role_of(role);
    item.at = count;
    count += static_cast<size_t>(arguments);
    for (Py_ssize_t j = 0; item.role == Role::kChoice && j < PyTuple_GET_SIZE(shapes); ++j)
      item.choices.emplace_back(text(PyTuple_GET_ITEM(shapes, j)));
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(fields); ++j) {
      const Py_ssize_t index_of_field =
          PyLong_AsSsize_t(PyTuple_GET_ITEM(fields, j));  // -1: a size, which has no field
      if (index_of_field >= static_cast<Py_ssize_t>(table.fields.size())) bad("no such argument");
      Part part = {index_of_field < 0 ? nullptr : &table.fields[static_cast<size_t>(index_of_field)], {}, {}};
      if (item.role != Role::kChoice && j < PyTuple_GET_SIZE(shapes))
        read_shape(text(PyTuple_GET_ITEM(shapes, j)), &part);
      item.parts.push_back(part);
    }
    items.push_back(std::move(item));
  }
  for (const Item& item : items) {
    const Part& first = item.parts[0];
    const auto take = [&](const Item*& target_item, bool is) {
      if (is && !target_item) target_item = &item;
    };
    const auto has_role = [&](const Item*& target_item, Role role) { take(target_item, item.role == role); };
    const auto is = [&](const char* name) { return first.field && first.field->is(name); };
    has_role(packing, Role::kPacking), has_role(out, Role::kOut), has_role(output_format, Role::kOutputFormat);
    has_role(edits, Role::kEdits), has_role(law, Role::kLaw), has_role(packs, Role::kPacks);
    take(max_depth, item.role == Role::kSize && first.shape.dim[0].size == 'W');
    take(index, is("request_index")), take(target_tokens, is("target_tokens")), take(draft_tokens, is("draft_tokens"));
    take(block_table, is("block_table"));
  }
  for (const Item& item : items)
    for (const Part& part : item.parts) {
      const auto take = [&](const Part*& target_item, Role role, const char* name) {
        if (item.role == role && part.field->is(name)) target_item = &part;
      };
      take(format_path, Role::kOutputFormat, "path"), take(format_passed, Role::kOutputFormat, "num_passed");
      take(format_bonus, Role::kOutputFormat, "bonus"), take(format_index, Role::kOutputFormat, "index");
      take(format_bits, Role::kOutputFormat, "output_format"), take(row_seeds, Role::kNoise, "row_seeds");
      take(input_positions, Role::kNoise, "input_positions"), take(input_nonces, Role::kNoise, "input_nonces");
    }
  if (!output_format) draft_tokens = nullptr;  // draft_tokens define sizes only for verdicts
  const bool pairs = table.find("draft_law");
  method = table.find("method");
  draft_prob = table.find("draft_prob");
  epsilon = pairs ? table.find("epsilon") : nullptr;
  map_of_rows = pairs ? nullptr : table.find("draft_map");
  target = table.find("target");
  uniforms = table.find("uniforms");
}

}  // namespace specdec::python
