#include "plan.h"

#include <algorithm>
#include <cstring>

namespace specdec::python {

Plan::Plan(const Table& op, PyObject* declared, PyObject* result)
    : table(op), out_type(result == Py_None ? nullptr : new_reference(result)) {
  static constexpr const char* kRoles[] = {
#define SPECDEC_ROLE(role, word) word,
      SPECDEC_ROLES(SPECDEC_ROLE)
#undef SPECDEC_ROLE
  };
  const auto parsed = [](int done) { if (!done) throw Raised(); };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(declared); ++i) {
    const char* role = nullptr;
    PyObject *parts = nullptr, *choices = nullptr;
    Item item = {};
    parsed(PyArg_ParseTuple(PyTuple_GET_ITEM(declared, i), "snddO!O!", &role, &item.at, &item.least, &item.most,
                            &PyTuple_Type, &parts, &PyTuple_Type, &choices));
    const auto named = std::find_if(kRoles, std::end(kRoles), [&](auto* x) { return std::strcmp(x, role) == 0; });
    if (named == std::end(kRoles)) throw std::invalid_argument(std::string("no such role: ") + role);
    item.role = static_cast<Role>(named - kRoles);
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(choices); ++j)
      item.choices.emplace_back(PyUnicode_AsUTF8(PyTuple_GET_ITEM(choices, j)));
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(parts); ++j) {
      Part part = {};
      int field = 0;
      const char* marks = nullptr;
      parsed(PyArg_ParseTuple(PyTuple_GET_ITEM(parts, j), "iiis", &field, &part.dims, &part.packed, &marks));
      part.field = field < 0 ? nullptr : &table.fields[static_cast<size_t>(field)];
      for (; *marks; ++marks) part.marks |= uint32_t{1} << (*marks - 'a');
      item.parts.push_back(part);
    }
    items.push_back(std::move(item));
  }
}

}  // namespace specdec::python
