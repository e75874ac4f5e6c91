// Recognises calls like one that was checked before. Python's checks look at the types, shapes, strides and devices of
// a call's tensors. A call that is the same in all of these passes, too. So the checks, some 10 us, are skipped: the
// call runs with the parameters of the first such call, with its own addresses and counters put in.
//
// A raw call is a tuple of the public function's arguments: seed, position and nonce first, if the op has them. Its key
// is what like calls have in common: metadata of tensors, strings, numbers other than these three, and what is None.
#pragma once

#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>

#include "bindings.h"

namespace specdec {
namespace python {

// Python functions without arguments. Each says whether something watches torch's calls (a mode, a profiler).
inline std::vector<PyObject*> watchers;

inline bool watched() {
  for (PyObject* const watcher : watchers) {
    const py::object answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(watcher));
    if (!answer) throw py::error_already_set();
    if (PyObject_IsTrue(answer.ptr()) != 0) return true;
  }
  return false;
}

// One tensor of a raw call. Torch owns its shape and strides.
struct Seen {
  PyObject* object;
  dlpack::View view;

  char* data() const { return view.data ? static_cast<char*>(view.data) + view.byte_offset : nullptr; }
  bool on_host() const { return view.device.type == 1; }  // DLPack's number of the CPU

  // The byte after the last that the tensor can reach.
  const char* end() const {
    int64_t last = 0;
    for (int32_t i = 0; i < view.ndim; ++i) {
      if (view.shape[i] == 0) return data();
      last += (view.shape[i] - 1) * view.strides[i];
    }
    return data() + (last + 1) * (view.dtype.bits / 8);
  }
  bool meets(const Seen& other) const { return data() < other.end() && other.data() < end(); }
};

// A raw call that was read.
class RawCall {
 public:
  std::vector<int64_t> key;
  std::vector<Seen> tensors;
  int64_t counters[3];  // seed, position and nonce, if they are numbers

  // False if the call has something that only Python's checks can read. `lists_by_address` puts the addresses of
  // tensors in lists and plain tuples into the key.
  bool read(PyObject* tuple, bool has_noise, bool lists_by_address) {
    lists_by_address_ = lists_by_address;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
      PyObject* const object = PyTuple_GET_ITEM(tuple, i);
      if (has_noise && i < 3 && PyLong_CheckExact(object)) {
        if (!integer(object, &counters[i])) return false;
        key.push_back(kCounter);
      } else if (!add(object)) {
        return false;
      }
    }
    return true;
  }

  size_t hash() const {
    uint64_t hash = 0;
    for (const int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;  // numbers may differ in their upper bits alone, and the lower ones choose places
    }
    return hash;
  }

 private:
  enum Kind : int64_t { kNone, kTensor, kCounter, kInt, kFloat, kObject, kWord, kSequence };

  bool add(PyObject* object) {
    if (object == Py_None || object == Py_True || object == Py_False) return add_pair(kObject, object);
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == viewed.type) return add_tensor(object);
    if (PyUnicode_CheckExact(object)) return add_pair(kWord, static_cast<int64_t>(PyObject_Hash(object)));
    if (PyFloat_CheckExact(object)) return add_pair(kFloat, bits_of(PyFloat_AS_DOUBLE(object)));
    if (PyTuple_Check(object) || PyList_CheckExact(object)) return add_sequence(object);
    if (std::strcmp(Py_TYPE(object)->tp_name, "torch.dtype") == 0) return add_pair(kObject, object);  // one of each
    int64_t value;
    return PyLong_CheckExact(object) && integer(object, &value) && add_pair(kInt, value);
  }

  bool add_sequence(PyObject* object) {
    PyObject** items = PySequence_Fast_ITEMS(object);
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    add_pair(kSequence, Py_TYPE(object));
    key.push_back(size);
    const bool named = Py_TYPE(object) != &PyTuple_Type && Py_TYPE(object) != &PyList_Type;  // a group of arguments
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!add(items[i])) return false;
      if (lists_by_address_ && !named && !tensors.empty())
        key.push_back(reinterpret_cast<intptr_t>(tensors.back().data()));
    }
    return true;
  }

  bool add_tensor(PyObject* object) {
    tensors.push_back({object, {}});
    dlpack::View& v = tensors.back().view;
    if (viewed.api->view_object(object, &v) != 0) return PyErr_Clear(), false;
    add_pair(kTensor | v.dtype.code << 8 | v.dtype.bits << 16 | static_cast<int64_t>(v.ndim) << 32,
             static_cast<int64_t>(v.device.type) << 32 | static_cast<uint32_t>(v.device.index));
    key.insert(key.end(), v.shape, v.shape + v.ndim);
    key.insert(key.end(), v.strides, v.strides + v.ndim);
    return v.ndim <= Tensor::kMaxDims;
  }

  bool add_pair(int64_t kind, int64_t value) {
    key.push_back(kind);
    key.push_back(value);
    return true;
  }
  bool lists_by_address_ = false;

  bool add_pair(int64_t kind, const void* address) { return add_pair(kind, reinterpret_cast<intptr_t>(address)); }

  static bool integer(PyObject* object, int64_t* out) {
    int overflow = 0;
    *out = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
  }

  static int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
};

// torch.empty_strided.
inline PyObject* empty_strided = nullptr;

// An output for the caller: the raw call's tensor of this index, or for index -1 a new one by empty_strided with these
// arguments, a tuple and a dict. No tensor is kept as a template: a small piece of memory that lives on above a large
// one, which was freed, keeps the process from giving that back.
struct Result {
  int tensor;
  py::object positional, named;

  Seen make() const {
    const py::object made =
        py::reinterpret_steal<py::object>(PyObject_Call(empty_strided, positional.ptr(), named.ptr()));
    Seen seen = {made.ptr(), {}};
    if (!made || viewed.api->view_object(made.ptr(), &seen.view) != 0) throw py::error_already_set();
    made.inc_ref();
    return seen;
  }
};

// ---- calls ---------------------------------------------------------------------------------------------------------

// Where the address of tensor `tensor` goes: `offset` bytes into the parameters, or into the layers.
struct Place {
  bool in_layers;
  size_t offset, tensor;
};

// All that a call at hand needs. A thread keeps one when its call is done, so that the memory is used again. A call
// inside another one (of a finaliser, say) finds none and makes its own.
class Scratch {
 public:
  Scratch() : parts_(spare ? std::move(spare) : std::make_unique<Parts>()) {}
  ~Scratch() {
    parts_->raw.key.clear();
    parts_->raw.tensors.clear();
    parts_->results.clear();
    if (!spare) spare = std::move(parts_);
  }
  Scratch(const Scratch&) = delete;

  struct Parts {
    RawCall raw;
    std::vector<Result> results;
    std::vector<Place> places;
  };
  Parts* operator->() { return parts_.get(); }

 private:
  static inline thread_local std::unique_ptr<Parts> spare;
  std::unique_ptr<Parts> parts_;
};

// A raw call that was recognised: parameters ready to run, and the outputs to return.
struct Recalled {
  Params params;
  std::vector<specdec_cache_layer> layers;  // what params.layers points to
  py::tuple results;
};

// The calls of one op by one backend. Any number of threads may use it: what is remembered is read and written under a
// lock, and no Python runs meanwhile; everything else belongs to a call.
class Calls {
 public:
  explicit Calls(const Table& table) : table_(table) {}

  // False if no such call was remembered, or if only Python can say what is wrong with this one.
  bool recall(PyObject* tuple, Recalled* recalled) {
    Scratch call;
    if (!look(tuple, call->raw)) return false;
    const size_t hash = call->raw.hash();
    Content content;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const Known* const known = find(hash, call->raw.key);
      if (!known) return false;
      std::memcpy(recalled->params.bytes, known->params.data(), table_.bytes);
      recalled->layers = known->layers;
      call->results = known->results;
      call->places = known->places;
      content = known->content;
    }
    if (outputs_meet(call->results, call->raw)) return false;
    recalled->results = make_results(call->results, call->raw);
    place(call->places, call->raw, *recalled);
    return content_of(recalled->params, call->raw) == content;
  }

  // Called after Python's checks. `checked` is what they made of the raw call, `results` are the caller's outputs, and
  // `recipes` say how to make new ones. If an address cannot be traced to one tensor (an argument was copied, perhaps),
  // nothing is remembered.
  void remember(PyObject* tuple, PyObject* checked, const py::tuple& results, const py::tuple& recipes) {
    Scratch call;
    if (!look(tuple, call->raw)) return;
    const size_t hash = call->raw.hash();
    Call read(table_, checked);
    std::vector<specdec_cache_layer> layers = read.take_layers();
    for (size_t i = 0; i < results.size(); ++i)
      call->results.push_back(result_of(call->raw, results[i].ptr(), recipes[i]));
    call->places.clear();
    if (!find_addresses(call->raw, read.params, layers, call->places)) return;
    const Content content = content_of(read.params, call->raw);
    std::vector<Result> before;  // its Python objects end after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    Known& known = oldest(hash);
    known.hash = hash;
    known.used = ++clock_;
    known.key.assign(call->raw.key.begin(), call->raw.key.end());
    std::memcpy(known.params.data(), read.params.bytes, table_.bytes);
    known.layers.assign(layers.begin(), layers.end());
    known.places.assign(call->places.begin(), call->places.end());
    known.content = content;
    before.assign(std::make_move_iterator(known.results.begin()), std::make_move_iterator(known.results.end()));
    known.results.assign(call->results.begin(), call->results.end());
  }

 private:
  // A call's hash says which kWays places it may have.
  static constexpr size_t kPlaces = 256, kWays = 8;
  using Content = std::pair<int64_t, const void*>;

  // The memory of these lists is used again by the call that takes the place, for the reason that Result gives.
  struct Known {
    size_t hash = 0;
    uint64_t used = 0;
    std::vector<int64_t> key;
    std::vector<char> params;
    std::vector<specdec_cache_layer> layers;
    std::vector<Result> results;
    std::vector<Place> places;
    Content content;
  };

  // compact_kv's list of caches may be long: whether their memory overlaps was checked once for these addresses, and is
  // not checked again.
  bool look(PyObject* tuple, RawCall& raw) const {
    return viewed.type && !watched() && raw.read(tuple, table_.noise != kNone, table_.layers != kNone);
  }

  Known* set_of(size_t hash) {
    if (known_.empty()) {
      known_.resize(kPlaces);
      for (Known& known : known_) {
        known.key.reserve(128);
        known.params.resize(table_.bytes);
        known.results.reserve(4);
        known.places.reserve(32);
      }
    }
    return &known_[hash % (kPlaces / kWays) * kWays];
  }

  const Known* find(size_t hash, const std::vector<int64_t>& key) {
    Known* const set = set_of(hash);
    for (size_t i = 0; i < kWays; ++i)
      if (set[i].used && set[i].hash == hash && set[i].key == key) return set[i].used = ++clock_, &set[i];
    return nullptr;
  }

  // The place of this call, or the one that was longest of no use.
  Known& oldest(size_t hash) {
    Known* const set = set_of(hash);
    Known* found = set;
    for (size_t i = 0; i < kWays; ++i) {
      if (set[i].used && set[i].hash == hash) return set[i];
      if (set[i].used < found->used) found = &set[i];
    }
    return *found;
  }

  // Python's checks also look at some content, if the host can read it: the entries of `parents` (here their depth; -1
  // if they are bad), and draft_map, once for each address.
  Content content_of(const Params& params, const RawCall& raw) const {
    Content content = {0, nullptr};
    const bool on_host = !raw.tensors.empty() && raw.tensors.front().on_host();
    if (table_.parents != kNone && on_host) {
      const ParentsReport report = check_parents(params.at<Tokens>(table_.parents));
      content.first = report.node >= 0 ? -1 : report.depth;
    }
    if (table_.draft_map != kNone) content.second = params.at<specdec_indices>(table_.draft_map).data;
    return content;
  }

  // Whether an output may share memory with another tensor. Rows that lie between another's rows count as shared here;
  // Python's checks decide about them.
  static bool outputs_meet(const std::vector<Result>& results, const RawCall& raw) {
    for (const Result& result : results) {
      if (result.tensor < 0) continue;
      const Seen& output = raw.tensors[static_cast<size_t>(result.tensor)];
      for (const Seen& other : raw.tensors)
        if (&other != &output && output.meets(other)) return true;
    }
    return false;
  }

  // The outputs; those that were not given are made, and appended to the call's tensors.
  static py::tuple make_results(const std::vector<Result>& results, RawCall& raw) {
    py::tuple made(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      PyObject* object;
      if (results[i].tensor >= 0) {
        object = raw.tensors[static_cast<size_t>(results[i].tensor)].object;
        Py_INCREF(object);
      } else {
        raw.tensors.push_back(results[i].make());
        object = raw.tensors.back().object;
      }
      PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), object);
    }
    return made;
  }

  void place(const std::vector<Place>& places, const RawCall& raw, Recalled& recalled) const {
    if (table_.noise != kNone) {
      specdec_noise& noise = recalled.params.at<specdec_noise>(table_.noise);
      specdec_counter* const counters[] = {&noise.seed, &noise.position, &noise.nonce};
      for (int i = 0; i < 3; ++i) counters[i]->value = raw.counters[i];
    }
    if (table_.layers != kNone)
      recalled.params.at<specdec_cache_layers>(table_.layers).data = recalled.layers.data();
    for (const Place& place : places) {
      char* const whole =
          place.in_layers ? reinterpret_cast<char*>(recalled.layers.data()) : recalled.params.bytes;
      *reinterpret_cast<void**>(whole + place.offset) = raw.tensors[place.tensor].data();
    }
  }

  // A new output is appended to the call's tensors.
  static Result result_of(RawCall& raw, PyObject* object, const py::handle& recipe) {
    for (size_t i = 0; i < raw.tensors.size(); ++i)
      if (raw.tensors[i].object == object) return {static_cast<int>(i), {}, {}};
    raw.tensors.push_back({object, {}});
    if (viewed.api->view_object(object, &raw.tensors.back().view) != 0) throw py::error_already_set();
    const auto [positional, named] = recipe.cast<std::pair<py::object, py::object>>();
    return {-1, positional, named};
  }

  // Finds the tensor of each address in the parameters. False if none fits, or more than one.
  bool find_addresses(const RawCall& raw, const Params& params, const std::vector<specdec_cache_layer>& layers,
                      std::vector<Place>& places) const {
    const auto find = [&](bool in_layers, size_t offset, const void* address) {
      if (!address) return true;
      int meant = 0;
      for (size_t i = 0; i < raw.tensors.size(); ++i)
        if (raw.tensors[i].data() == address && ++meant == 1) places.push_back({in_layers, offset, i});
      return meant == 1;
    };
    for (const size_t at : table_.addresses)
      if (!find(false, at, params.at<const void*>(at))) return false;
    for (const specdec_cache_layer& layer : layers)
      if (!find(true, place_in(layers.data(), &layer.data), layer.data)) return false;
    return true;
  }

  const Table& table_;
  std::mutex mutex_;
  std::vector<Known> known_;
  uint64_t clock_ = 0;
};

// The Python functions that every call uses.
inline void use_functions(py::object make_strided, const py::list& tell_watched) {
  empty_strided = make_strided.release().ptr();
  for (const py::handle& function : tell_watched) watchers.push_back(function.inc_ref().ptr());
}

// ---- as functions of a module --------------------------------------------------------------------------------------

// recall_op(raw call, ...): runs launch(params, arguments) and returns the outputs. None if the call is not known, or
// launch returned false.
template <class Launch>
PyObject* recalled(Calls& calls, PyObject* const* arguments, Py_ssize_t count, Py_ssize_t wanted, Launch launch) {
  return called(arguments, count, wanted, [&](PyObject* const* argument) {
    Recalled recalled;
    if (!calls.recall(argument[0], &recalled) || !launch(recalled.params, argument)) Py_RETURN_NONE;
    return recalled.results.release().ptr();
  });
}

// remember_op(raw call, call, results, recipes).
inline PyObject* remembered(Calls& calls, PyObject* const* arguments, Py_ssize_t count) {
  return called(arguments, count, 4, [&](PyObject* const* argument) {
    calls.remember(argument[0], argument[1], py::reinterpret_borrow<py::tuple>(argument[2]),
                   py::reinterpret_borrow<py::tuple>(argument[3]));
    Py_RETURN_NONE;
  });
}

}  // namespace python
}  // namespace specdec
