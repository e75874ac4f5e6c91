// Parameter structs from what Python hands over: raw addresses, strides in elements and sizes. Shared by the CPU and CUDA
// backends' bindings.
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "specdec/params.h"

namespace specdec {
namespace python {

namespace py = pybind11;

template <class T>
const T* at(intptr_t address) { return reinterpret_cast<const T*>(address); }
template <class T>
T* writable(intptr_t address) { return reinterpret_cast<T*>(address); }

// One item of a tuple. A call hands over some fifty of them, which pybind11's own conversions would take 2 us for.
template <class T>
T item(const py::tuple& t, Py_ssize_t i) {
  PyObject* const o = PyTuple_GET_ITEM(t.ptr(), i);
  if constexpr (std::is_base_of_v<py::object, T>) {
    return py::reinterpret_borrow<T>(o);
  } else {
    std::conditional_t<std::is_floating_point_v<T>, double, long long> value;
    if constexpr (std::is_floating_point_v<T>) value = PyFloat_AsDouble(o);
    else value = PyLong_AsLongLong(o);
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return static_cast<T>(value);
  }
}

// make(items of the tuple...).
template <class Params, class... Args, std::size_t... I>
Params make_params(Params (*make)(Args...), const py::tuple& call, std::index_sequence<I...>) {
  if (call.size() != sizeof...(I)) throw std::invalid_argument("wrong number of arguments");
  return make(item<std::decay_t<Args>>(call, I)...);
}

template <class Params, class... Args>
Params make_params(Params (*make)(Args...), const py::tuple& call) {
  return make_params(make, call, std::index_sequence_for<Args...>());
}

// Python hands the groups over as tuples: (address, strides..., value).
template <class T>
PerRequest<T> per_request(const py::tuple& t) {
  return {at<T>(item<intptr_t>(t, 0)), item<int64_t>(t, 1), item<T>(t, 2)};
}
inline PerSlot per_slot(const py::tuple& t) {
  return {at<float>(item<intptr_t>(t, 0)), item<int64_t>(t, 1), item<int64_t>(t, 2), item<float>(t, 3)};
}
template <class T>
PerRow<T> per_row(const py::tuple& t) {
  return {at<T>(item<intptr_t>(t, 0)), item<int64_t>(t, 1), item<int64_t>(t, 2), item<T>(t, 3)};
}
inline Rows rows(const py::tuple& t) {
  return {at<void>(item<intptr_t>(t, 0)), item<int64_t>(t, 1), item<int64_t>(t, 2), item<int32_t>(t, 3),
          static_cast<DType>(item<int32_t>(t, 4))};
}
inline Tokens tokens(const py::tuple& t) {
  return {at<void>(item<intptr_t>(t, 0)), item<int64_t>(t, 1), item<int64_t>(t, 2), item<bool>(t, 3)};
}

inline ChainParams chain_params(int64_t batch, int32_t max_drafts, int32_t method, int32_t space, const py::tuple& draft_tokens,
                                const py::tuple& target, const py::tuple& draft, intptr_t cu_drafts, int64_t total_drafts,
                                const py::tuple& temperature, const py::tuple& epsilon, const py::tuple& draft_prob,
                                const py::tuple& seed, const py::tuple& position, const py::tuple& nonce, intptr_t out_tokens,
                                int64_t tokens_stride, intptr_t num_accepted, intptr_t status) {
  return {batch,
          max_drafts,
          static_cast<Method>(method),
          static_cast<Space>(space),
          tokens(draft_tokens),
          rows(target),
          rows(draft),
          at<int32_t>(cu_drafts),
          total_drafts,
          per_request<float>(temperature),
          per_request<float>(epsilon),
          per_slot(draft_prob),
          per_request<int64_t>(seed),
          per_request<int64_t>(position),
          per_request<int64_t>(nonce),
          writable<int64_t>(out_tokens),
          tokens_stride,
          writable<int32_t>(num_accepted),
          writable<int32_t>(status)};
}

inline RaceParams race_params(int64_t outer, int64_t inner, int32_t k, int32_t space, const py::tuple& law_rows,
                              const py::tuple& temperature, const py::tuple& seed, const py::tuple& position,
                              const py::tuple& nonce, intptr_t out_tokens) {
  return {outer,
          inner,
          k,
          static_cast<Space>(space),
          rows(law_rows),
          per_row<float>(temperature),
          per_row<int64_t>(seed),
          per_row<int64_t>(position),
          per_row<int64_t>(nonce),
          writable<int64_t>(out_tokens)};
}

inline ResidualParams residual_params(int64_t outer, int64_t inner, int32_t space, const py::tuple& target,
                                      const py::tuple& draft, const py::tuple& temperature, const py::tuple& draft_prob,
                                      const py::tuple& epsilon, intptr_t probs, intptr_t mass) {
  return {outer,
          inner,
          static_cast<Space>(space),
          rows(target),
          rows(draft),
          per_row<float>(temperature),
          per_row<float>(draft_prob),
          per_row<float>(epsilon),
          writable<float>(probs),
          writable<float>(mass)};
}

inline OverlapParams overlap_params(int64_t outer, int64_t inner, int32_t space, const py::tuple& target,
                                    const py::tuple& draft, const py::tuple& temperature, intptr_t accept, intptr_t tv,
                                    intptr_t kl, intptr_t harmonic) {
  return {outer,
          inner,
          static_cast<Space>(space),
          rows(target),
          rows(draft),
          per_row<float>(temperature),
          writable<float>(accept),
          writable<float>(tv),
          writable<float>(kl),
          writable<float>(harmonic)};
}

inline TreeParams tree_params(int64_t batch, int32_t nodes, int32_t max_depth, int32_t method, bool replacement,
                              int32_t space, const py::tuple& draft_tokens, const py::tuple& parents,
                              const py::tuple& target, const py::tuple& draft, const py::tuple& temperature,
                              const py::tuple& seed, const py::tuple& position, const py::tuple& nonce,
                              intptr_t out_tokens, int64_t tokens_stride, intptr_t path, int64_t path_stride,
                              intptr_t num_accepted, intptr_t status) {
  return {batch,
          nodes,
          max_depth,
          static_cast<Method>(method),
          replacement,
          static_cast<Space>(space),
          tokens(draft_tokens),
          tokens(parents),
          rows(target),
          rows(draft),
          per_request<float>(temperature),
          per_request<int64_t>(seed),
          per_request<int64_t>(position),
          per_request<int64_t>(nonce),
          writable<int64_t>(out_tokens),
          tokens_stride,
          writable<int32_t>(path),
          path_stride,
          writable<int32_t>(num_accepted),
          writable<int32_t>(status)};
}

inline MaskParams mask_params(int64_t batch, int32_t nodes, int64_t columns, const py::tuple& parents,
                              const py::tuple& prefix_len, int32_t layout, intptr_t mask, uint32_t minus_infinity,
                              intptr_t status) {
  return {batch,
          nodes,
          columns,
          tokens(parents),
          per_request<int64_t>(prefix_len),
          static_cast<MaskLayout>(layout),
          writable<void>(mask),
          minus_infinity,
          writable<int32_t>(status)};
}

inline PositionsParams positions_params(int64_t batch, int32_t nodes, const py::tuple& parents,
                                        const py::tuple& prefix_len, intptr_t positions, intptr_t status) {
  return {batch, nodes, tokens(parents), per_request<int64_t>(prefix_len), writable<int64_t>(positions),
          writable<int32_t>(status)};
}

// The layers outlive the call they are part of.
struct CompactCall {
  std::vector<CacheLayer> layers;
  CompactParams params;
};

// What an op takes, of whatever `make` made.
template <class Params>
const Params& params_of(const Params& params) { return params; }
inline const CompactParams& params_of(const CompactCall& call) { return call.params; }

inline CompactCall compact_call(int64_t batch, int32_t max_depth, intptr_t path, int64_t path_stride,
                                const py::tuple& prefix_len, const py::list& caches, intptr_t status) {
  CompactCall call;
  for (const py::handle& cache : caches) {
    const py::tuple t = py::reinterpret_borrow<py::tuple>(cache);
    call.layers.push_back({writable<char>(item<intptr_t>(t, 0)), item<int64_t>(t, 1), item<int64_t>(t, 2),
                           item<int64_t>(t, 3), item<int32_t>(t, 4), item<int32_t>(t, 5), item<int32_t>(t, 6)});
  }
  call.params = {batch,
                 max_depth,
                 at<int32_t>(path),
                 path_stride,
                 per_request<int64_t>(prefix_len),
                 call.layers.data(),
                 static_cast<int32_t>(call.layers.size()),
                 writable<int32_t>(status)};
  return call;
}

}  // namespace python
}  // namespace specdec
