#include "reading.h"

#include <algorithm>
#include <cmath>

namespace specdec::python {

Types types = {};

void Reading::tensor(PyObject* object, Tensor* t, bool written) {
  need(view(object, t));
  if (device_.index < 0) device_.index = t->device.index;
  need(t->device.type == device_.type && t->device.index == device_.index);
  for (int32_t i = 0; i < t->ndim; ++i) need(t->shape[i] <= INT32_MAX);
  spans_.push_back({static_cast<const char*>(t->data), t->end(), written});
  has_outputs_ |= written;
}

void Reading::read_tensor(const Part& part, PyObject* object, bool may_be_empty) {
  if (object == Py_None && part.is(Mark::kOptional)) return;
  Tensor t;
  tensor(object, &t);
  const Kind kind = part.field->kind;
  if (lead_ < 0 && part.is(Mark::kLeading)) {
    lead_ = t.ndim - part.dims;
    need(lead_ >= (index_ ? 1 : 0) && lead_ <= 2);
    std::copy_n(t.shape, lead_, leading_);
  }
  need(t.ndim == dims_of(part));
  may_be_empty &= t.ndim > 0 && t.shape[t.ndim - 1] > 0;
  need(t.data || may_be_empty || !(kind == Kind::kRows || part.is(Mark::kOptional)));  // else it would count as absent
  need(t.has_unit_stride() || !(kind == Kind::kRows || part.is(Mark::kUnitStride)));
  need(t.is_contiguous() || !part.is(Mark::kContiguous));
  if (kind == Kind::kRows && vocab_ < 0) vocab_ = t.shape[t.ndim - 1], rows_dims_ = t.ndim;
  if (part.is(Mark::kLeading)) lead_by_two(&t, lead_);
  void* const to = params.bytes + part.field->at;
  need(put(kind, t, to, -1));
  if (kind == Kind::kRequestIndex) index_ = static_cast<specdec_request_index*>(to);
  if (kind == Kind::kNumber) has_size(to, t);
}

void Reading::read_map(const Field* to, PyObject* object, int64_t most) {
  if (object == Py_None) return;
  Tensor t;
  tensor(object, &t);
  need(put(Kind::kIndices, t, params.bytes + to->at, -1));
  const auto& map = field<specdec_indices>(to);
  need(map.size > 0);
  if (!t.on_host()) return;
  int64_t before = -1;
  bool rises = true;
  for (int64_t i = 0; i < map.size; ++i) rises &= map.data[i] > before, before = map.data[i];
  need(rises && before < most);
}

void Reading::has_size(const void* field, const Tensor& t) {
  need(exact_.count < c_api::Exact::kMost);
  exact_.numbers[exact_.count++] = {field, t.shape[0], t.ndim > 1 ? t.shape[1] : 1};
}

void Reading::read_numbers(Kind kind, void* to, PyObject* object, const Part& part) {
  Tensor t;
  tensor(object, &t);
  need(put(kind, t, to, -1));
  need(t.data != nullptr);
  int64_t size = 1;
  for (int32_t i = 0; i < t.ndim; ++i) size *= t.shape[i];
  const int32_t dims = dims_of(part);
  const bool one_each = t.ndim == 1 && dims == 2 && !packed_ && !part.is(Mark::kLeading);
  need(size == 1 ? t.ndim <= dims : t.ndim == dims || one_each);
  has_entries(t.ndim > 0 ? t.shape[0] : 1);
  if (size != 1) has_size(to, t);
}

void Reading::read_number(const Item& item, PyObject* object) {
  const Part& part = item.parts[0];
  if (part.field->kind == Kind::kNumber)
    return read_float(field<specdec_number>(part.field), object, part, item.least, item.most);
  int64_t value;
  if (!whole(object, &value)) return read_numbers(Kind::kCounter, params.bytes + part.field->at, object, part);
  field<specdec_counter>(part.field).value = value;
  need(item.takes(value));
}

void Reading::read_float(specdec_number& out, PyObject* object, const Part& part, double least, double most) {
  double value;
  if (!real(object, &value)) return read_numbers(Kind::kNumber, &out, object, part);
  out.value = static_cast<float>(value);
  need(value >= least && value <= most && std::isfinite(value));
}

}  // namespace specdec::python
