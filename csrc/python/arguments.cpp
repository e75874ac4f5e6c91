#include "arguments.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "specdec/ops.h"

namespace specdec::python {

namespace {

// ---- tables ---------------------------------------------------------------------------------------------------------

template <class T>
constexpr Kind kind_of() { return Kind::kGroup; }  // a struct of several arguments
#define SPECDEC_KIND(T, kind) \
  template <>                 \
  constexpr Kind kind_of<T>() { return Kind::kind; }
SPECDEC_KIND(bool, kBool)
SPECDEC_KIND(int32_t, kInt32)
SPECDEC_KIND(int64_t, kInt64)
SPECDEC_KIND(Rows, kRows)
SPECDEC_KIND(Tokens, kTokens)
SPECDEC_KIND(specdec_output_tokens, kTokenOutput)
SPECDEC_KIND(specdec_number, kNumber)
SPECDEC_KIND(specdec_counter, kCounter)
SPECDEC_KIND(specdec_indices, kIndices)
SPECDEC_KIND(specdec_values, kValues)
SPECDEC_KIND(specdec_flags, kFlags)
SPECDEC_KIND(Lists, kLists)
SPECDEC_KIND(specdec_request_index, kRequestIndex)
SPECDEC_KIND(specdec_output_i64, kInt64Output)
SPECDEC_KIND(specdec_output_i32, kInt32Output)
SPECDEC_KIND(specdec_path, kPath)
SPECDEC_KIND(specdec_output_f32, kFloatOutput)
SPECDEC_KIND(specdec_output_u8, kByteOutput)
SPECDEC_KIND(specdec_mask, kMask)
SPECDEC_KIND(specdec_cache_layers, kLayers)
#undef SPECDEC_KIND

// A tensor does not say where in the vocabulary it begins, so calls of these ops pass that, after the rows.
template <class P>
constexpr bool kHasFirstToken =
    std::is_same_v<P, RaceParams> || std::is_same_v<P, TokenLogitsParams> || std::is_same_v<P, ResidualRaceParams>;

using RowsOf = int64_t (*)(const void*);
template <class P>
auto rows_of(int) -> decltype(std::declval<const P&>().count(), RowsOf{}) {
  return [](const void* p) -> int64_t { return static_cast<const P*>(p)->count(); };
}
template <class P>
RowsOf rows_of(long) { return nullptr; }

template <class P>
const Table* table_of();

template <class T>
const Table* parts_of() {
  if constexpr (kind_of<T>() == Kind::kGroup) return table_of<T>();
  return nullptr;
}

template <class P>
const Table* make_table() {
  static_assert(sizeof(P) <= kMostBytes && std::is_trivially_copyable_v<P>);
  const P p = {};
  Table* const made = new Table;
  made->bytes = sizeof(P);
  const char* name = P::names();  // "first, second, ..."
  const auto add = [&](Kind kind, const void* field, const Table* parts) {
    const size_t length = std::strcspn(name, ", ");
    made->fields.push_back({name, length, kind,
                            static_cast<size_t>(static_cast<const char*>(field) - reinterpret_cast<const char*>(&p)),
                            parts});
    name += length;
    name += std::strspn(name, ", ");
  };
  p.fields([&](const auto&... field) {
    (add(kind_of<std::decay_t<decltype(field)>>(), &field, parts_of<std::decay_t<decltype(field)>>()), ...);
  });
  if (kHasFirstToken<P>)
    made->fields.insert(made->fields.begin() + 1,
                        {"vocab_start", 11, Kind::kInt32, offsetof(Rows, vocab_start), nullptr});
  made->rows = rows_of<P>(0);
  return made;
}

template <class P>
const Table* table_of() {
  static const Table* const table = make_table<P>();
  return table;
}

// ---- tensors --------------------------------------------------------------------------------------------------------

bool dims(const Tensor& t, int32_t least, int32_t most) { return t.ndim >= least && t.ndim <= most; }

// A dimension of size 1 is broadcast, so its stride is 0.
int64_t stride(const Tensor& t, int32_t i) { return i < t.ndim && t.shape[i] != 1 ? t.strides[i] : 0; }

bool put(const Tensor& t, Rows& out) {
  const int32_t dtype = t.element == Element::kFloat32    ? SPECDEC_FLOAT32
                        : t.element == Element::kBFloat16 ? SPECDEC_BFLOAT16
                        : t.element == Element::kFloat16  ? SPECDEC_FLOAT16
                                                          : -1;
  if (dtype < 0 || !dims(t, 2, 3)) return false;
  const int32_t row = t.ndim - 2;
  out = {};
  out.data = t.data;
  out.request_stride = row ? t.strides[0] : 0;
  out.row_stride = t.strides[row];
  out.requests = row ? t.shape[0] : 1;
  out.rows = t.shape[row];
  out.vocab = static_cast<int32_t>(t.shape[row + 1]);
  out.dtype = dtype;
  return true;
}

bool put(const Tensor& t, Tokens& out) {
  if (!t.is_ints() || !dims(t, 1, 2)) return false;
  const int32_t slot = t.ndim - 1;
  out = {};
  out.data = t.data;
  out.request_stride = slot ? t.strides[0] : 0;
  out.slot_stride = t.strides[slot];
  out.requests = slot ? t.shape[0] : 1;
  out.slots = static_cast<int32_t>(t.shape[slot]);
  out.wide = t.element == Element::kInt64;
  return true;
}

// A tensor of one dimension is one row.
bool put(const Tensor& t, specdec_output_tokens& out) {
  if (!t.is_ints() || !dims(t, 1, 2)) return false;
  const int32_t column = t.ndim - 1;
  out = {};
  out.data = t.data;
  out.row_stride = column ? t.strides[0] : 0;
  out.rows = column ? t.shape[0] : 1;
  out.columns = t.shape[column];
  out.column_stride = t.strides[column];
  out.narrow = t.element == Element::kInt32;
  return true;
}

template <class Number>
bool put_number(const Tensor& t, Number& out) {
  const bool fits = std::is_same_v<Number, specdec_counter> ? t.is_ints() : t.element == Element::kFloat32;
  if (!fits || !dims(t, 0, 2)) return false;
  out = {t.data, stride(t, 0), stride(t, 1), {}, t.element == Element::kInt64};
  return true;
}

template <class Vector>
bool put_vector(const Tensor& t, Vector& out, Element element) {
  if (t.element != element || t.ndim != 1 || (t.shape[0] > 1 && t.strides[0] != 1)) return false;
  out = {static_cast<decltype(out.data)>(t.data), t.shape[0]};
  return true;
}

bool put(const Tensor& t, Lists& out) {
  if (!t.is_ints() || t.ndim != 3) return false;
  out = {};
  out.data = t.data;
  out.request_stride = stride(t, 0);
  out.row_stride = stride(t, 1);
  out.requests = t.shape[0];
  out.rows = t.shape[1];
  out.size = t.shape[2];
  out.wide = t.element == Element::kInt64;
  return true;
}

bool put(const Tensor& t, specdec_request_index& out) {
  if (!t.is_ints() || t.ndim != 1) return false;
  out = {t.data, t.shape[0], kAnyIndex, t.element == Element::kInt64};
  return true;
}

template <class Output>
bool put_output(const Tensor& t, Output& out, Element element, int64_t rows) {
  if (t.element != element || t.ndim < 1) return false;
  if (rows < 0) rows = t.shape[0];
  int64_t columns = 1;  // elements per entry of the first dimension
  for (int32_t i = 1; i < t.ndim; ++i) columns *= t.shape[i];
  out = {static_cast<decltype(out.data)>(t.data), t.strides[0], rows, columns};
  if (rows == t.shape[0]) return true;
  out.row_stride = out.columns = rows > 0 ? t.shape[0] * columns / rows : 0;
  return rows * out.columns == t.shape[0] * columns;
}

bool put(const Tensor& t, specdec_mask& out) {
  if (t.ndim != 3) return false;
  out = {t.data, t.shape[0], static_cast<int32_t>(t.shape[1]), SPECDEC_MASK_BOOL, 0};
  switch (t.element) {
    case Element::kBool: return true;
    case Element::kFloat32: return out.layout = SPECDEC_MASK_ADDITIVE32, out.minus_infinity = 0xff800000u, true;
    case Element::kBFloat16: return out.layout = SPECDEC_MASK_ADDITIVE16, out.minus_infinity = 0xff80u, true;
    case Element::kFloat16: return out.layout = SPECDEC_MASK_ADDITIVE16, out.minus_infinity = 0xfc00u, true;
    case Element::kInt32: return out.layout = SPECDEC_MASK_BITS, true;
    default: return false;
  }
}

// An int of Python, NumPy or another type with __index__; empty for a bool, a tensor and anything else.
Ref integer(PyObject* object) {
  if (PyLong_CheckExact(object)) return Ref(new_reference(object));
  const bool is_tensor = torch.tensor && PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(torch.tensor));
  if (PyBool_Check(object) || is_tensor || !PyIndex_Check(object)) return {};
  PyObject* const number = PyNumber_Index(object);
  if (number) return Ref(number);
  return PyErr_Clear(), Ref();  // of a bool or an array of NumPy
}

// How many entries the edits' lists with one list per entry have; the last such list counts. 0: there is none.
int64_t entries_of(const specdec_edits& edits) {
  int64_t entries = 0;
  const auto count = [&](const Lists& lists) {
    if (lists.data) entries = lists.requests;
  };
  if (!(edits.by_row & SPECDEC_ALLOWED_BY_ROW)) count(edits.allowed_index.data ? edits.allowed_index : edits.allowed);
  if (!(edits.by_row & SPECDEC_BIAS_BY_ROW)) count(edits.bias_spans);
  count(edits.pending);
  if (edits.seen_index.data) return count(edits.seen_index), entries;
  for (const Lists* lists : {&edits.prompt_mask, &edits.output_mask, &edits.output_counts}) count(*lists);
  return entries;
}

}  // namespace

bool put(Kind kind, const Tensor& t, void* field, int64_t rows) {
  switch (kind) {
    case Kind::kRows: return put(t, *static_cast<Rows*>(field));
    case Kind::kTokens: return put(t, *static_cast<Tokens*>(field));
    case Kind::kTokenOutput: return put(t, *static_cast<specdec_output_tokens*>(field));
    case Kind::kNumber: return put_number(t, *static_cast<specdec_number*>(field));
    case Kind::kCounter: return put_number(t, *static_cast<specdec_counter*>(field));
    case Kind::kIndices: return put_vector(t, *static_cast<specdec_indices*>(field), Element::kInt32);
    case Kind::kValues: return put_vector(t, *static_cast<specdec_values*>(field), Element::kFloat32);
    case Kind::kFlags: return put_vector(t, *static_cast<specdec_flags*>(field), Element::kBool);
    case Kind::kLists: return put(t, *static_cast<Lists*>(field));
    case Kind::kRequestIndex: return put(t, *static_cast<specdec_request_index*>(field));
    case Kind::kInt64Output: return put_output(t, *static_cast<specdec_output_i64*>(field), Element::kInt64, rows);
    case Kind::kInt32Output: return put_output(t, *static_cast<specdec_output_i32*>(field), Element::kInt32, rows);
    case Kind::kPath: return put_output(t, *static_cast<specdec_path*>(field), Element::kInt32, rows);
    case Kind::kFloatOutput: return put_output(t, *static_cast<specdec_output_f32*>(field), Element::kFloat32, rows);
    case Kind::kByteOutput: return put_output(t, *static_cast<specdec_output_u8*>(field), Element::kUInt8, rows);
    case Kind::kMask: return put(t, *static_cast<specdec_mask*>(field));
    default: return false;
  }
}

Element element_of(Kind kind) {
  switch (kind) {
    case Kind::kTokenOutput: case Kind::kInt64Output: return Element::kInt64;
    case Kind::kFloatOutput: return Element::kFloat32;
    case Kind::kByteOutput: return Element::kUInt8;
    default: return Element::kInt32;
  }
}

bool whole(PyObject* object, int64_t* out) {
  const Ref number = integer(object);
  if (!number.get()) return false;
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
  if (overflow <= 0) return overflow == 0;
  const unsigned long long bits = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred()) return PyErr_Clear(), false;
  return *out = static_cast<int64_t>(bits), true;
}

PyObject* floating = nullptr;

bool real(PyObject* object, double* out) {
  if (PyFloat_Check(object)) return *out = PyFloat_AS_DOUBLE(object), true;
  if (floating && PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(floating))) {
    *out = PyFloat_AsDouble(object);
    return !PyErr_Occurred() || (PyErr_Clear(), false);  // a class derived from NumPy's may raise
  }
  const Ref number = integer(object);
  if (!number.get()) return false;
  int overflow = 0;
  *out = static_cast<double>(PyLong_AsLongLongAndOverflow(number.get(), &overflow));
  return overflow == 0;
}

int32_t choice(PyObject* name) {
  static constexpr struct {
    const char* name;
    int32_t number;
  } kChoices[] = {{"logits", SPECDEC_LOGITS}, {"probs", SPECDEC_PROBS}, {"rejection", SPECDEC_REJECTION},
                  {"race", SPECDEC_RACE}, {"traversal", SPECDEC_TRAVERSAL}, {"block", SPECDEC_BLOCK},
                  {"paths", SPECDEC_PATHS},
                  {"full", SPECDEC_TREE_FULL}, {"nodes", SPECDEC_TREE_NODES}, {"bits", SPECDEC_TREE_BITS}};
  for (const auto& choice : kChoices)
    if (PyUnicode_CompareWithASCIIString(name, choice.name) == 0) return choice.number;
  return -1;
}

specdec_cache_layer layer_of(const Tensor& t) {
  const int64_t size = t.element_bytes;
  specdec_cache_layer layer = {};
  layer.data = static_cast<char*>(t.data);
  layer.batch_stride = t.strides[0] * size;
  layer.head_stride = t.strides[1] * size;
  layer.slot_stride = t.strides[2] * size;
  layer.heads = static_cast<int32_t>(t.shape[1]);
  layer.slots = static_cast<int32_t>(t.shape[2]);
  layer.entry_bytes = static_cast<int32_t>(t.shape[3] * size);
  layer.batch = static_cast<int32_t>(t.shape[0]);
  return layer;
}

bool Field::is(const char* other) const {
  return std::strlen(other) == length && std::memcmp(name, other, length) == 0;
}

const Field* Table::find(const char* name) const {
  for (const Field& field : fields)
    if (field.is(name)) return &field;
  return nullptr;
}

const std::vector<const Table*>& tables() {
  static const std::vector<const Table*> all = [] {
    std::vector<const Table*> made;
#define SPECDEC_TABLE(name, P)                                                                                   \
  {                                                                                                              \
    Table* const table = new Table(*table_of<P>());                                                              \
    table->op = #name;                                                                                           \
    table->exact = [](void* p, const c_api::Exact& e) { return c_api::exact_##name(*static_cast<P*>(p), e); };   \
    made.push_back(table);                                                                                       \
  }
    SPECDEC_OPS(SPECDEC_TABLE)
#undef SPECDEC_TABLE
    return made;
  }();
  return all;
}

// ---- checked calls --------------------------------------------------------------------------------------------------

Call::Call(const Table& table, PyObject* tuple) : table_(table) {
  std::memset(params.bytes, 0, table.bytes);
  read(table, tuple, 0);
  const Field* const index = table.find("request_index");
  if (!index) return;
  // There are as many entries as draft rows, or, without these, as numbers. Without both any index is valid.
  const Field* const rows = table.find("draft");
  const Rows* const draft = rows ? &params.at<Rows>(rows->at) : nullptr;
  const bool has_draft = draft && draft->vocab > 0;  // not by its data, which is null for a draft of 0 requests
  params.at<specdec_request_index>(index->at).entries = has_draft ? draft->requests : numbers_;
}

// Reads a struct at the offset `begin`, field by field.
void Call::read(const Table& table, PyObject* tuple, size_t begin) {
  const auto count = static_cast<Py_ssize_t>(table.fields.size());
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
    PyErr_Format(PyExc_TypeError, "expected a tuple of %zd; got %.200s", count, Py_TYPE(tuple)->tp_name);
    throw Raised();
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Field& field = table.fields[static_cast<size_t>(i)];
    read(field, PyTuple_GET_ITEM(tuple, i), begin + field.at);
  }
}

void Call::read(const Field& field, PyObject* object, size_t at) {
  int64_t integer;
  double number;
  switch (field.kind) {
    case Kind::kBool: return void(params.at<bool>(at) = PyObject_IsTrue(object) != 0);
    case Kind::kInt32:
      if (PyUnicode_Check(object)) integer = choice(object);
      else if (!whole(object, &integer)) expected("an int", object);
      return void(params.at<int32_t>(at) = static_cast<int32_t>(integer));
    case Kind::kInt64:
      if (!whole(object, &params.at<int64_t>(at))) expected("an int", object);
      return;
    case Kind::kLayers:
      if (!PyList_Check(object)) expected("a list of caches", object);
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
        const Tensor t = tensor_of(PyList_GET_ITEM(object, i));
        if (t.ndim != 4) expected("a cache of four dimensions", PyList_GET_ITEM(object, i));
        layers_.push_back(layer_of(t));
      }
      return void(params.at<specdec_cache_layers>(at) = {layers_.data(), static_cast<int64_t>(layers_.size())});
    case Kind::kGroup:
      read(*field.parts, object, at);
      if (field.is("edits"))
        if (const int64_t entries = entries_of(params.at<specdec_edits>(at))) numbers_ = entries;
      return;
    case Kind::kNumber:
      if (real(object, &number)) return void(params.at<specdec_number>(at).value = static_cast<float>(number));
      break;
    case Kind::kCounter:
      if (whole(object, &params.at<specdec_counter>(at).value)) return;
      break;
    case Kind::kRequestIndex:
      if (object == Py_None) return void(params.at<specdec_request_index>(at).entries = kAnyIndex);
      break;
    default: break;
  }
  if (object == Py_None) return;
  const Tensor t = tensor_of(object);
  if (!put(field.kind, t, params.bytes + at, table_.rows ? table_.rows(params.bytes) : -1))
    expected("a tensor of another dtype or other dimensions", object);
  if ((field.kind == Kind::kNumber || field.kind == Kind::kCounter) && t.ndim > 0) numbers_ = t.shape[0];
}

void raise_for(int error) {
  if (error == SPECDEC_OUT_OF_MEMORY) throw std::bad_alloc();
  if (error != SPECDEC_OK) throw std::runtime_error(specdec_last_error());
}

}  // namespace specdec::python
