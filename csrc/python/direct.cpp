#include "direct.h"

#include <algorithm>
#include <cstring>

#include "check_parents.h"
#include "reading.h"

namespace specdec::python {

namespace {

constexpr Element kFloats[] = {Element::kFloat32, Element::kBFloat16, Element::kFloat16};
PyObject* floats[std::size(kFloats)] = {};  // torch's dtypes of these, set once, as are:
std::vector<PyObject*> watchers;  // functions without arguments that report a mode or a profiler

void decline_if_watched() {
  for (PyObject* const watcher : watchers) need(PyObject_IsTrue(Ref(PyObject_CallNoArgs(watcher)).get()) == 0);
}

// Lists whose memory a thread's next call reuses.
struct Scratch {
  std::vector<Span> spans;
  std::vector<specdec_cache_layer> layers;
};

class Direct : public Reading {
 public:
  Direct(const Plan& plan, int32_t device, PyObject* tuple, Scratch& scratch)
      : Reading(device, tuple, scratch.spans), plan_(plan), layers_(scratch.layers) {
    spans_.clear();
    layers_.clear();
    std::memset(params.bytes, 0, plan.table.bytes);
  }

  void read() {
    for (const Item& item : plan_.items) read(item);
    if (index_) index_->entries = entries_;
    need(plan_.table.exact(params.bytes, exact_));
    if (edits_) drop_unread_edits();
    need(!has_outputs_ || !meet(spans_));
  }

  // Makes the outputs that the caller did not pass. They live as long as the call.
  void make_outputs() {
    for (int i = 0; i < num_outputs_; ++i) {
      const Part& part = *outputs_[i].part;
      if (outputs_[i].from_caller) {
        owned_[i] = Ref(new_reference(outputs_[i].from_caller));
        continue;
      }
      Tensor t = {};
      t.element = element_of(part.field->kind);
      if (part.field->kind == Kind::kMask) shape_mask(part, &t);
      else if (part.field->kind == Kind::kByteOutput) shape_bytes(*outputs_[i + 1].part, &t);
      else shape_output(part, &t);
      PyObject* const made = new_tensor(&t, device_);
      need(made != nullptr);
      owned_[i] = Ref(made);
      put_output(part, t);
    }
  }

  // The function's result: its NamedTuple of outputs, or the first of them.
  PyObject* result() {
    if (!plan_.out_type) return owned_[0].release();
    auto* const type = reinterpret_cast<PyTypeObject*>(plan_.out_type);
    Ref made(type->tp_alloc(type, num_returned_));
    for (int i = 0; i < num_returned_; ++i)
      PyTuple_SET_ITEM(made.get(), i, owned_[first_returned_ + i].release());
    return made.release();
  }

 private:
  struct Output {
    const Part* part;
    PyObject* from_caller;  // null: make_outputs makes it
  };

  void shape_output(const Part& part, Tensor* t) {
    const auto& sizes = field<specdec_output_i64>(part.field);  // all outputs begin with these members
    if (part.is(Mark::kLeading)) std::copy_n(leading_, t->ndim = lead_, t->shape);
    else t->shape[t->ndim++] = sizes.rows;
    if (t->ndim < dims_of(part)) t->shape[t->ndim++] = sizes.columns;
  }

  // ---- one item -----------------------------------------------------------------------------------------------------

  void read(const Item& item) {
    const Part& part = item.parts[0];
    PyObject* const object = raw(item);
    switch (item.role) {
      case Role::kTensor: return read_tensor(part, object);
      case Role::kMap: return read_map(part.field, object, INT64_MAX);
      case Role::kDraft: return read_draft(item);
      case Role::kPacking: return read_packing(item);
      case Role::kDepth:
        if (object == Py_None) return;
        [[fallthrough]];
      case Role::kSize: return read_columns(object, item.role == Role::kDepth);
      case Role::kInt: return read_int(part, object);
      case Role::kChoice: return read_choice(item);
      case Role::kFlag: field<bool>(part.field) = flag(object); return;
      case Role::kNumber: return read_number(item, object);
      case Role::kLaw: return read_laws(item);
      case Role::kEdits: return read_edits(item);
      case Role::kNoise: return read_noise(item);
      case Role::kOut: return read_out(item);
      case Role::kOutput: return add_output(part, object);
      case Role::kStatus:
        if (object != Py_None) add_output(part, object == Py_True ? Py_None : object);
        return;
      case Role::kOutputFormat: return read_output_format(item);
      case Role::kParents: return read_parents(part, object);
      case Role::kWritten:
        need(object != Py_None || part.is(Mark::kOptional));
        if (object != Py_None) add_output(part, object);
        return;
      case Role::kMask: return read_mask(item);
      case Role::kLayers:
        read_layers(object);
        field<specdec_cache_layers>(part.field) = {layers_.data(), static_cast<int64_t>(layers_.size())};
    }
  }

  // A size that the caller passes for outputs: how many columns they have, without `more`.
  void read_columns(PyObject* object, int64_t more) {
    need(whole(object, &exact_.columns) && exact_.columns >= 0 && exact_.columns < INT32_MAX);
    exact_.columns += more;
  }

  void read_int(const Part& part, PyObject* object) {
    int64_t value;
    need(whole(object, &value));
    if (part.field->kind == Kind::kInt32) field<int32_t>(part.field) = static_cast<int32_t>(value);
    else field<int64_t>(part.field) = value;
  }

  void read_choice(const Item& item) {
    const auto& choices = item.choices;
    const auto chosen =
        std::find_if(choices.begin(), choices.end(), [&](const auto& x) { return is_text(raw(item), x.c_str()); });
    field<int32_t>(item.parts[0].field) = static_cast<int32_t>(chosen - choices.begin());  // C refuses one past the end
  }

  void read_draft(const Item& item) {
    PyObject *rows = raw(item), *map = Py_None;
    if (is_a(rows, types.draft)) {
      draft_ = rows, rows = item_of(draft_, 0), map = item_of(draft_, 3);
      need(rows != Py_None);
    }
    Part part = item.parts[0];
    if (index_) part.packed = part.dims;  // of entries, which are not packed
    read_tensor(part, rows, true);
    if (rows == Py_None) return;
    entries_of_draft_ = true, entries_ = field<Rows>(part.field).requests;
    read_map(item.parts[1].field, map, vocab_);
  }

  void read_packing(const Item& item) {
    PyObject* const packing = raw(item);
    if (packing == Py_None) return;
    need(is_a(packing, types.packing));
    PyObject *ends = item_of(packing, 0), *const most = item_of(packing, 2);
    const bool by_row = ends == Py_None;
    if (by_row) ends = item_of(packing, 1);
    else need(item_of(packing, 1) == Py_None);
    packed_ = true;
    Tensor t;
    tensor(ends, &t);
    need(t.data != nullptr && t.is_contiguous());
    need(put(Kind::kIndices, t, params.bytes + item.parts[0].field->at, -1));
    field<bool>(item.parts[1].field) = by_row;
    if (most != Py_None) {
      read_columns(most, 1);
    } else if (t.on_host()) {
      const auto* const end = static_cast<const int32_t*>(t.data);
      int32_t longest = by_row;
      for (int64_t b = 0; b + 1 < t.shape[0]; ++b) {  // as int32, like the difference of two tensors
        const uint32_t count = static_cast<uint32_t>(end[b + 1]) - static_cast<uint32_t>(end[b]);
        longest = std::max(longest, static_cast<int32_t>(count));
      }
      exact_.longest = longest - by_row;
    }
  }

  void read_parents(const Part& part, PyObject* object) {
    Tensor t;
    tensor(object, &t);
    need((t.ndim == 1 || t.ndim == 2) && t.data);
    auto& parents = field<Tokens>(part.field);
    need(put(Kind::kTokens, t, &parents, -1));
    if (t.ndim == 2 && parents.requests == 1) parents.request_stride = 1;  // a stride of 0 is that of a shared tree
    ParentsReport report = {parents.slots - 1, -1, -1};
    if (t.on_host()) report = check_parents(parents);
    need(report.node < 0);
    exact_.longest = report.depth;
  }

  // Reads the tensors of caches, which may be nested in lists.
  void read_layers(PyObject* object) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) read_layers(PySequence_Fast_ITEMS(object)[i]);
      return;
    }
    Tensor t;
    tensor(object, &t, true);
    need(t.ndim == 4 && t.has_unit_stride() && t.shape[3] * t.element_bytes <= INT32_MAX);
    for (int32_t i = 0; i < 4; ++i) need(t.strides[i] != 0 || t.shape[i] <= 1);
    layers_.push_back(python::layer_of(t));
  }

  // ---- outputs ------------------------------------------------------------------------------------------------------

  void add_output(const Part& part, PyObject* object) {
    need(num_outputs_ < kMostOutputs);
    outputs_[num_outputs_++] = {&part, object == Py_None ? nullptr : object};
    if (object == Py_None) return;
    Tensor t;
    tensor(object, &t, true);
    // Without memory it would count as one to make; the best 0 tokens of rows have none.
    need(t.data || (part.is(Mark::kLeading) && !part.is(Mark::kOptional)));
    if (part.field->kind == Kind::kByteOutput) return put_bytes(part, t);
    const bool is_mask = part.field->kind == Kind::kMask;
    const bool any_strides = part.is(Mark::kAnyStrides), in_one_row = any_strides && scattered_;
    need(t.ndim == (in_one_row ? 1 : dims_of(part)));
    if (part.is(Mark::kLeading)) need(std::equal(leading_, leading_ + lead_, t.shape));
    if (any_strides) need(t.shape[t.ndim - 1] <= 1 || t.strides[t.ndim - 1] > 0);  // 0 is 1 to C
    else if (part.is(Mark::kContiguousRows)) need(t.has_unit_stride());
    else need(t.is_contiguous());
    need(!is_mask || (t.element == mask_element_ && t.shape[2] == mask_columns_));
    put_output(part, t);
  }

  void put_output(const Part& part, Tensor t) {
    if (part.field->kind == Kind::kByteOutput) return put_bytes(part, t);
    int64_t rows = part.is(Mark::kLeading) ? 1 : -1;
    for (int32_t i = 0; rows >= 0 && i < lead_; ++i) rows *= leading_[i];
    if (t.ndim == 0) t.ndim = 1, t.shape[0] = t.strides[0] = 1;
    need(put(part.field->kind, t, params.bytes + part.field->at, rows));
  }

  void read_out(const Item& item) {
    PyObject* const out = raw(item);
    first_returned_ = num_outputs_, num_returned_ = static_cast<int>(item.parts.size());
    if (out != Py_None)
      need((PyTuple_Check(out) || PyList_CheckExact(out)) && PySequence_Fast_GET_SIZE(out) == num_returned_);
    for (int i = 0; i < num_returned_; ++i)
      add_output(item.parts[static_cast<size_t>(i)], out == Py_None ? out : PySequence_Fast_ITEMS(out)[i]);
    need(!adds_ || outputs_[num_outputs_ - 2].from_caller);  // num_accepted is the last but one
  }

  void read_output_format(const Item& item) {
    enum { kBits, kIndex, kPath, kPassed, kBonus };  // parts; trees have the first two
    PyObject* const format = raw(item);
    if (format == Py_None) return;
    need(is_a(format, types.output_format));
    PyObject *const path = item_of(format, 1), *const passed = item_of(format, 2), *const bonus = item_of(format, 6);
    const bool zeros = flag(item_of(format, 3)), emitted = is_text(item_of(format, 4), "emitted");
    need(emitted || is_text(item_of(format, 4), "accepted"));
    adds_ = flag(item_of(format, 5));
    scattered_ = item_of(format, 0) != Py_None;
    field<int64_t>(item.parts[kBits].field) = SPECDEC_EMITTED * emitted | SPECDEC_ADDED * adds_ | SPECDEC_ZEROS * zeros;
    read_tensor(item.parts[kIndex], item_of(format, 0));
    need(item.parts[kPath].field || (path == Py_None && passed == Py_None && bonus == Py_None));
    if (path != Py_None) add_output(item.parts[kPath], path);
    if (passed != Py_None) add_output(item.parts[kPassed], passed);
    if (bonus != Py_None) read_tensor(item.parts[kBonus], bonus);
  }

  // ---- masks of trees -----------------------------------------------------------------------------------------------

  // Reads tree_mask's layout, dtype, columns and mask, of which the struct has two dimensions.
  void read_mask(const Item& item) {
    PyObject *const layout = raw(item), *const dtype = raw(item, 1);
    const bool bits = is_text(layout, "bits"), additive = is_text(layout, "additive");
    mask_element_ = bits ? Element::kInt32 : Element::kBool;
    need(additive || ((bits || is_text(layout, "bool")) && dtype == Py_None));
    for (size_t i = 0; additive && i < std::size(floats); ++i)
      if (floats[i] == (dtype == Py_None ? floats[0] : dtype)) mask_element_ = kFloats[i];
    need(!additive || mask_element_ != Element::kBool);
    const auto& prefix = field<specdec_counter>(plan_.table.find("prefix_len"));
    int64_t& columns = field<int64_t>(item.parts[0].field);
    if (raw(item, 2) == Py_None) {
      need(!prefix.data || device_.type == 1);  // else Python refuses to wait for the device
      const auto* const size = exact_.find(&prefix);
      for (int64_t b = 0; b < (size ? size->outer : 1); ++b) columns = std::max(columns, prefix.at(b));
      columns += field<Tokens>(plan_.table.find("parents")).slots;
    } else {
      need(whole(raw(item, 2), &columns));
    }
    mask_columns_ = bits ? (columns + 31) / 32 : columns;
    add_output(item.parts[1], raw(item, 3));
  }

  void shape_mask(const Part& part, Tensor* t) {
    const auto& mask = field<specdec_mask>(part.field);
    t->ndim = 3, t->shape[0] = mask.batch, t->shape[1] = mask.nodes, t->shape[2] = mask_columns_;
    t->element = mask_element_;
  }

  // The mask of build_tree, of any shape; the C function checks that it is large enough.
  void put_bytes(const Part& part, const Tensor& t) {
    const auto word_type = static_cast<Element>(dlpack::kUInt << 8 | (t.element_bytes * 8));
    const bool bits = tree_layout() == SPECDEC_TREE_BITS && t.element_bytes <= 4;
    need(t.element == Element::kBool || t.element == (bits ? word_type : Element::kUInt8));
    need(t.is_contiguous());
    int64_t bytes = t.element_bytes;
    for (int32_t i = 0; i < t.ndim; ++i) bytes *= t.shape[i];
    field<specdec_output_u8>(part.field) = {static_cast<uint8_t*>(t.data), 1, bytes, 1};
  }

  // A row of a new mask for each node of `nodes`, an output [B, N].
  void shape_bytes(const Part& nodes, Tensor* t) {
    shape_output(nodes, t);
    const int64_t count = t->shape[1];
    t->element = Element::kBool, t->element_bytes = 1;
    if (tree_layout() == SPECDEC_TREE_NODES) t->shape[t->ndim++] = count;
    else t->element_bytes = count > 16 ? 4 : count > 8 ? 2 : 1;
    if (tree_layout() == SPECDEC_TREE_BITS)
      t->element = static_cast<Element>(dlpack::kUInt << 8 | (t->element_bytes * 8));
  }

  int32_t tree_layout() { return field<int32_t>(plan_.table.find("layout")); }

  static constexpr int kMostOutputs = 16;

  const Plan& plan_;
  bool scattered_ = false, adds_ = false;  // tokens lie in one row, num_accepted is added to
  Element mask_element_ = {};
  int64_t mask_columns_ = 0;
  std::vector<specdec_cache_layer>& layers_;
  Output outputs_[kMostOutputs];
  Ref owned_[kMostOutputs];
  int num_outputs_ = 0, first_returned_ = 0, num_returned_ = 0;
};

}  // namespace

PyObject* direct(const Plan& plan, int32_t device, PyObject* tuple, Run run, void* context) {
  if (!torch.tensor) Py_RETURN_NONE;
  thread_local Scratch thread_scratch;
  thread_local bool in_use = false;
  Scratch nested_scratch;  // for a call inside another one, by a finaliser, say
  const bool nested = std::exchange(in_use, true);
  struct Leave {
    bool& in_use;
    bool before;
    ~Leave() { in_use = before; }
  } leave = {in_use, nested};
  try {
    decline_if_watched();
    Direct call(plan, device, tuple, nested ? nested_scratch : thread_scratch);
    call.read();
    call.make_outputs();
    need(run(context, call.params));
    return call.result();
  } catch (const Declined&) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
}

PyObject* use_functions(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    wants(count, 4);
    const auto item = [&](int argument, Py_ssize_t i) { return Ref(PySequence_GetItem(arguments[argument], i)); };
    watchers.clear();
    for (Py_ssize_t i = 0; i < PySequence_Size(arguments[0]); ++i) watchers.push_back(item(0, i).release());
    PyObject** const grouped_types[] = {&types.sampling, &types.edits,           &types.draft,
                                        &types.packing,  &types.input_positions, &types.output_format};
    for (Py_ssize_t i = 0; i < 6; ++i) *grouped_types[i] = item(1, i).release();
    floating = item(1, 6).release();
    for (size_t i = 0; i < std::size(floats); ++i) floats[i] = item(2, static_cast<Py_ssize_t>(i)).release();
    use_new_tensors(arguments[3]);
    Py_RETURN_NONE;
  });
}

}  // namespace specdec::python
