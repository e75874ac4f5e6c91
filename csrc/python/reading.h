// What a direct call has read so far, and the readers of its tensors, numbers and values (laws, edits, noise).
#pragma once

#include "plan.h"

namespace specdec::python {

// Python's types that group several arguments, set once by use_functions.
struct Types {
  PyObject *sampling, *edits, *draft, *packing, *input_positions, *output_format;
};
extern Types types;

// Thrown to decline a call, which Python then reads. What the exact check refuses is not checked here.
struct Declined {};
[[noreturn, gnu::cold, gnu::noinline]] inline void decline() { throw Declined(); }
inline void need(bool fine) {
  if (!fine) decline();
}

inline PyObject* item_of(PyObject* tuple, Py_ssize_t i) { return PyTuple_GET_ITEM(tuple, i); }

inline bool is_a(PyObject* object, PyObject* type) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type; }

inline bool flag(PyObject* object) {
  need(object == Py_True || object == Py_False);
  return object == Py_True;
}

// Also for a str of a subclass, as enums have.
inline bool is_text(PyObject* object, const char* word) {
  return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, word) == 0;
}

class Reading {
 public:
  Params params;

 protected:
  Reading(int32_t device, PyObject* tuple, std::vector<Span>& spans)
      : tuple_(tuple), device_{device, -1}, spans_(spans) {}

  PyObject* raw(const Item& item, Py_ssize_t more = 0) const { return item_of(tuple_, item.at + more); }
  template <class T>
  T& field(const Field* field) { return params.at<T>(field->at); }

  // How many dimensions a part's tensor has.
  int32_t dims_of(const Part& part) const {
    return part.is(Mark::kLeading) ? lead_ + part.dims : packed_ ? part.packed : part.dims;
  }

  // ---- tensors (reading.cpp) ----------------------------------------------------------------------------------------

  // Views a tensor on the call's device; a `written` one is an output.
  void tensor(PyObject* object, Tensor* t, bool written = false);
  // `may_be_empty`: whether rows may have no memory, which makes them the draft rows of no draft.
  void read_tensor(const Part& part, PyObject* object, bool may_be_empty = false);
  // Inserts dimensions of 1 behind `lead` leading ones, for fields that have two of these.
  static void lead_by_two(Tensor* t, int32_t lead) {
    for (; lead < 2; ++lead) need(t->merge(lead, lead));
  }
  // Reads the map of a draft's tokens to the target's, which rise and are below `most`.
  void read_map(const Field* to, PyObject* object, int64_t most);

  // ---- numbers (reading.cpp) ----------------------------------------------------------------------------------------

  // A tensor of one number, or of as many as the part has. One for each request may stand for each draft.
  void read_numbers(Kind kind, void* to, PyObject* object, const Part& part);
  void read_number(const Item& item, PyObject* object);
  void read_float(specdec_number& out, PyObject* object, const Part& part, double least, double most);
  // Records the size of a tensor of numbers for the exact check.
  void has_size(const void* field, const Tensor& t);
  // Numbers or lists have this many entries, unless draft rows, or others that are not one for all, have said so.
  void has_entries(int64_t count) {
    if (!entries_of_draft_ && (entries_ == kAnyIndex || entries_ == 1)) entries_ = count;
  }

  // ---- values (values.cpp) ------------------------------------------------------------------------------------------

  // The law of the target, and that of a draft, which has the target's settings unless it comes with some.
  void read_laws(const Item& item);
  // The parts of the noise: its counters, and the tensors with an item for each row that some ops take instead.
  void read_noise(const Item& item);
  void read_edits(const Item& item);
  // Drops the lists that no penalty reads, and those of an empty bias, after their check.
  void drop_unread_edits();

  PyObject* const tuple_;
  dlpack::Device device_;  // index -1: set by the first tensor
  int32_t lead_ = -1;      // leading dimensions of the op's rows; -1: it has none
  int64_t leading_[2];
  int64_t vocab_ = -1;     // of the first rows
  int32_t rows_dims_ = 0;
  bool packed_ = false, has_outputs_ = false, entries_of_draft_ = false;
  specdec_request_index* index_ = nullptr;
  int64_t entries_ = kAnyIndex;    // how many entries numbers and draft rows have
  PyObject* draft_ = nullptr;      // a Draft
  PyObject* edits_ = nullptr;      // a LogitEdits, and its field
  specdec_edits* edited_ = nullptr;
  c_api::Exact exact_;
  std::vector<Span>& spans_;

 private:
  void read_law(specdec_law& law, PyObject* space, PyObject* temperature, PyObject* sampling, const Part& part);
  void read_filters(specdec_law& law, PyObject* sampling, const Part& part);
  void read_bias(PyObject* bias, specdec_edits& edits);
  // Puts lists, the last dimension of `t`, with two dimensions before it. One dimension of `rows` is one request's.
  void put_lists(Tensor t, Lists& out, bool rows);
  // Lists with `lead` dimensions before them. With an index they have one, for the items that the index points to.
  void read_lists(PyObject* object, int32_t lead, bool indexed, Lists& out, bool rows = false);
  void read_index(PyObject* object, int32_t lead, Lists& out, bool rows = false);
};

}  // namespace specdec::python
