// pybind11: raw addresses, strides in elements and sizes in; nothing of torch. specdec_kernels/backends/cpu.py is the
// only caller, and what it passes has been checked by specdec_kernels/ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu/dispatch.h"
#include "specdec/chain.h"
#include "specdec/softmax.h"
#include "specdec_build_info.h"  // written by setup.py

namespace py = pybind11;
using namespace specdec;

namespace {

template <class T>
const T* at(intptr_t address) { return reinterpret_cast<const T*>(address); }
template <class T>
T* writable(intptr_t address) { return reinterpret_cast<T*>(address); }

// Python hands the groups over as tuples: (address, strides..., value).
template <class T>
PerRequest<T> per_request(const py::tuple& t) {
  return {at<T>(t[0].cast<intptr_t>()), t[1].cast<int64_t>(), t[2].cast<T>()};
}
PerSlot per_slot(const py::tuple& t) {
  return {at<float>(t[0].cast<intptr_t>()), t[1].cast<int64_t>(), t[2].cast<int64_t>(), t[3].cast<float>()};
}
template <class T>
PerRow<T> per_row(const py::tuple& t) {
  return {at<T>(t[0].cast<intptr_t>()), t[1].cast<int64_t>(), t[2].cast<int64_t>(), t[3].cast<T>()};
}
Rows rows(const py::tuple& t) {
  return {at<void>(t[0].cast<intptr_t>()), t[1].cast<int64_t>(), t[2].cast<int64_t>(), t[3].cast<int32_t>(),
          static_cast<DType>(t[4].cast<int32_t>())};
}
Tokens tokens(const py::tuple& t) {
  return {at<void>(t[0].cast<intptr_t>()), t[1].cast<int64_t>(), t[2].cast<int64_t>(), t[3].cast<bool>()};
}

ChainParams chain_params(int64_t batch, int32_t max_drafts, int32_t method, int32_t space, const py::tuple& draft_tokens,
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

RaceParams race_params(int64_t outer, int64_t inner, int32_t k, int32_t space, const py::tuple& law_rows,
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

ResidualParams residual_params(int64_t outer, int64_t inner, int32_t space, const py::tuple& target,
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

OverlapParams overlap_params(int64_t outer, int64_t inner, int32_t space, const py::tuple& target,
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

// Binds op(make(arguments...), threads), without the GIL while it runs.
template <class Params, class... Args>
void bind_op(py::module_& m, const char* name, Params (*make)(Args...), void (*op)(const Params&, int)) {
  m.def(name, [make, op](Args... args, int threads) {
    const Params p = make(args...);
    py::gil_scoped_release unlocked;
    op(p, threads);
  });
}

// The maths itself, for tests: arrays in and out by address.
void bind_maths(py::module_& m) {
  m.def("philox", [](uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    const Words<uint32_t> w = philox<uint32_t>(key_of(static_cast<int64_t>(key)), c0, c1, c2, c3);
    return std::vector<uint32_t>(w.word, w.word + 4);
  });
  m.def("arrivals", [](int64_t seed, uint32_t position, uint32_t nonce, uint32_t stream, uint32_t first_token,
                       int64_t count, intptr_t out) {
    const Noise noise = {key_of(seed), position, nonce, stream};
    for (int64_t i = 0; i < count; ++i)
      writable<float>(out)[i] = arrival(noise, first_token + static_cast<uint32_t>(i));
  });
  m.def("group_uniform", [](uint32_t a, uint32_t b) { return group_uniform(a, b); });
  m.def("first_arrival", [](uint32_t a, uint32_t b) { return first_arrival(a, b); });
  m.def("later_by", [](uint32_t word) { return later_by(word); });
  m.def("coin_of", [](uint32_t word) { return coin_of(word); });
  m.def("coin", [](int64_t seed, uint32_t index, uint32_t position, uint32_t nonce, uint32_t stream) {
    return coin({key_of(seed), position, nonce, stream}, index);
  });
  const auto map = [&](const char* name, float (*f)(float)) {
    m.def(name, [f](intptr_t in, int64_t count, intptr_t out) {
      for (int64_t i = 0; i < count; ++i) writable<float>(out)[i] = f(at<float>(in)[i]);
    });
  };
  map("log", [](float x) { return specdec::log(x); });
  map("neg_log1p_neg", [](float x) { return neg_log1p_neg(x); });
  map("exp_or_zero", [](float x) { return exp_or_zero(x); });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("build_info", [] { return std::string(SPECDEC_BUILD_INFO); });
  m.def("isas", &cpu::isas);
  m.def("isa", &cpu::isa);
  m.def("set_isa", &cpu::set_isa);
  bind_op(m, "verify_chain", chain_params, cpu::verify_chain);
  bind_op(m, "race_sample", race_params, cpu::race_sample);
  bind_op(m, "race_topk", race_params, cpu::race_topk);
  bind_op(m, "residual", residual_params, cpu::residual);
  bind_op(m, "overlap", overlap_params, cpu::overlap);
  bind_maths(m);
}
