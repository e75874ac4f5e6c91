// Recognises calls like one that was checked before. Python's checks look at the types, shapes, strides and devices of
// a call's tensors. A call that is the same in all of these passes, too. So the checks, some 10 us, are skipped: the
// call runs with the parameters of the first such call, with its own addresses and counters put in.
//
// A raw call is a tuple of the public function's arguments: seed, position and nonce first, if the op has them. Its key
// is what like calls have in common: metadata of tensors, strings, numbers other than these three, and what is None.
#pragma once

#include <cstring>
#include <unordered_map>

#include "bindings.h"
#include "cpu/check_parents.h"

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

// A raw call that was read. One object serves many calls, so that its memory is reused.
class RawCall {
 public:
  std::vector<int64_t> key;
  std::vector<Seen> tensors;
  int64_t counters[3];  // seed, position and nonce, if they are numbers

  // Whether the key has the addresses of tensors in lists and plain tuples.
  explicit RawCall(bool lists_by_address) : lists_by_address_(lists_by_address) {}

  // False if the call has something that only Python's checks can read.
  bool read(PyObject* tuple, bool has_noise) {
    key.clear();
    tensors.clear();
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
    for (const int64_t word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
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
  bool lists_by_address_;

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

// torch.empty_like: the fastest way to make a tensor.
inline PyObject* empty_like = nullptr;

// An output for the caller: the raw call's tensor of this index, or for index -1 a new one like `like`.
struct Result {
  int tensor;
  py::object like;

  Seen make() const {
    const py::object made = py::reinterpret_steal<py::object>(PyObject_CallOneArg(empty_like, like.ptr()));
    Seen seen = {made.ptr(), {}};
    if (!made || viewed.api->view_object(made.ptr(), &seen.view) != 0) throw py::error_already_set();
    made.inc_ref();
    return seen;
  }
};

// ---- addresses in a parameter struct -------------------------------------------------------------------------------

template <class T, class = void>
struct HasFields : std::false_type {};
template <class T>
struct HasFields<T, std::void_t<decltype(std::declval<T&>().fields())>> : std::true_type {};

template <class T, class = void>
struct HasData : std::false_type {};
template <class T>
struct HasData<T, std::void_t<decltype(std::declval<T&>().data)>> : std::true_type {};

// Calls f(address of a pointer to a tensor's data) for every field that has one.
template <class T, class F>
void over_addresses(T& field, F&& f) {
  if constexpr (std::is_same_v<T, Vector<const CacheLayer>>) {  // in host memory
  } else if constexpr (HasFields<T>::value) {
    std::apply([&](auto&... part) { (over_addresses(part, f), ...); }, field.fields());
  } else if constexpr (HasData<T>::value) {
    f(const_cast<void**>(reinterpret_cast<const void* const*>(&field.data)));
  }
}

template <class T, class = void>
struct HasNoise : std::false_type {};
template <class T>
struct HasNoise<T, std::void_t<decltype(std::declval<T&>().noise)>> : std::true_type {};

template <class T, class = void>
struct HasLayers : std::false_type {};
template <class T>
struct HasLayers<T, std::void_t<decltype(std::declval<T&>().layers)>> : std::true_type {};

// Python's checks also look at some content, if the host can read it: the entries of `parents` (here their depth; -1 if
// they are bad), and draft_map, once for each address.
template <class Params>
auto depth_of(const Params& p, int) -> decltype(check_parents(p.parents), int64_t{}) {
  const ParentsReport report = check_parents(p.parents);
  return report.node >= 0 ? -1 : report.depth;
}
template <class Params>
int64_t depth_of(const Params&, long) { return 0; }

template <class Params>
auto map_of(const Params& p, int) -> decltype(static_cast<const void*>(p.draft_map.data)) { return p.draft_map.data; }
template <class Params>
const void* map_of(const Params&, long) { return nullptr; }

// ---- calls ---------------------------------------------------------------------------------------------------------

// A raw call that was recognised: parameters ready to run, and the outputs to return.
template <class Params>
struct Recalled {
  Params params;
  std::vector<CacheLayer> layers;  // what params.layers points to
  py::tuple results;
};

// The calls of one op by one backend. Python's lock is held all the time.
template <class Params>
class Calls {
 public:
  // False if no such call was remembered, or if only Python can say what is wrong with this one.
  bool recall(PyObject* tuple, Recalled<Params>* recalled) {
    if (!look(tuple)) return false;
    const auto found = known_.find(raw_.hash());
    if (found == known_.end() || found->second.key != raw_.key) return false;
    Known& known = found->second;
    if (outputs_meet(known)) return false;
    recalled->params = known.params;
    recalled->layers = known.layers;
    make_results(known, *recalled);
    place(known, *recalled);
    return content_of(recalled->params) == known.content;
  }

  // Called after Python's checks. `call` is what they made of the raw call, `results` are the caller's outputs, `likes`
  // tensors to make new outputs like. If an address cannot be traced to one tensor (an argument was copied, perhaps),
  // nothing is remembered.
  void remember(PyObject* tuple, PyObject* call, const py::tuple& results, const py::tuple& likes) {
    if (!look(tuple)) return;
    Call<Params> checked(call);
    Known known = {raw_.key, checked.params, checked.take_layers(), {}, {}, {}};
    for (size_t i = 0; i < results.size(); ++i) add_result(known, results[i].ptr(), likes[i].ptr());
    if (!find_addresses(known)) return;
    known.content = content_of(known.params);
    if (known_.size() >= kMostCalls) known_.clear();
    known_.insert_or_assign(raw_.hash(), std::move(known));
  }

 private:
  static constexpr size_t kMostCalls = 1024;
  using Content = std::pair<int64_t, const void*>;

  // Where the address of tensor `tensor` goes: `offset` bytes into the parameters, or into the layers.
  struct Place {
    bool in_layers;
    size_t offset, tensor;
  };

  struct Known {
    std::vector<int64_t> key;
    Params params;
    std::vector<CacheLayer> layers;
    std::vector<Result> results;
    std::vector<Place> places;
    Content content;
  };

  bool look(PyObject* tuple) { return viewed.type && !watched() && raw_.read(tuple, HasNoise<Params>::value); }

  // The content that Python's checks look at.
  Content content_of(const Params& params) const {
    const bool on_host = !raw_.tensors.empty() && raw_.tensors.front().on_host();
    return {on_host ? depth_of(params, 0) : 0, map_of(params, 0)};
  }

  // Whether an output may share memory with another tensor. Rows that lie between another's rows count as shared here;
  // Python's checks decide about them.
  bool outputs_meet(const Known& known) const {
    for (const Result& result : known.results) {
      if (result.tensor < 0) continue;
      const Seen& output = raw_.tensors[static_cast<size_t>(result.tensor)];
      for (const Seen& other : raw_.tensors)
        if (&other != &output && output.meets(other)) return true;
    }
    return false;
  }

  // Makes the outputs that were not given, and appends them to raw_.tensors.
  void make_results(Known& known, Recalled<Params>& recalled) {
    recalled.results = py::tuple(known.results.size());
    for (size_t i = 0; i < known.results.size(); ++i) {
      PyObject* object;
      if (known.results[i].tensor >= 0) {
        object = raw_.tensors[static_cast<size_t>(known.results[i].tensor)].object;
        Py_INCREF(object);
      } else {
        raw_.tensors.push_back(known.results[i].make());
        object = raw_.tensors.back().object;
      }
      PyTuple_SET_ITEM(recalled.results.ptr(), static_cast<Py_ssize_t>(i), object);
    }
  }

  void place(const Known& known, Recalled<Params>& recalled) {
    if constexpr (HasNoise<Params>::value) {
      Per<int64_t>* counter[] = {&recalled.params.noise.seed, &recalled.params.noise.position,
                                 &recalled.params.noise.nonce};
      for (int i = 0; i < 3; ++i) counter[i]->value = raw_.counters[i];
    }
    if constexpr (HasLayers<Params>::value) recalled.params.layers.data = recalled.layers.data();
    for (const Place& place : known.places) {
      void* const whole = place.in_layers ? static_cast<void*>(recalled.layers.data()) : &recalled.params;
      *reinterpret_cast<void**>(static_cast<char*>(whole) + place.offset) = raw_.tensors[place.tensor].data();
    }
  }

  void add_result(Known& known, PyObject* object, PyObject* like) {
    for (size_t i = 0; i < raw_.tensors.size(); ++i)
      if (raw_.tensors[i].object == object) return void(known.results.push_back({static_cast<int>(i), {}}));
    raw_.tensors.push_back({object, {}});
    if (viewed.api->view_object(object, &raw_.tensors.back().view) != 0) throw py::error_already_set();
    known.results.push_back({-1, py::reinterpret_borrow<py::object>(like)});
  }

  // Finds the tensor of each address in the parameters. False if none fits, or more than one.
  bool find_addresses(Known& known) {
    bool fine = true;
    const auto find = [&](bool in_layers, const void* whole, void** pointer) {
      const auto offset = static_cast<size_t>(reinterpret_cast<char*>(pointer) - static_cast<const char*>(whole));
      if (!*pointer) return;
      int meant = 0;
      for (size_t i = 0; i < raw_.tensors.size(); ++i)
        if (raw_.tensors[i].data() == *pointer && ++meant == 1) known.places.push_back({in_layers, offset, i});
      fine &= meant == 1;
    };
    over_addresses(known.params, [&](void** pointer) { find(false, &known.params, pointer); });
    for (CacheLayer& layer : known.layers)
      find(true, known.layers.data(), reinterpret_cast<void**>(&layer.data));
    return fine;
  }

  std::unordered_map<size_t, Known> known_;
  // The call at hand. compact_kv's list of caches may be long: whether their memory overlaps was checked once for these
  // addresses, and is not checked again.
  RawCall raw_{HasLayers<Params>::value};
};

// The Python functions that every call uses.
inline void use_functions(py::object make_like, const py::list& tell_watched) {
  empty_like = make_like.release().ptr();
  for (const py::handle& function : tell_watched) watchers.push_back(py::reinterpret_borrow<py::object>(function).release().ptr());
}

// The calls of one op, which is known by its function. Never destroyed, because the tensors in them must not be freed
// after Python has ended.
template <auto op, class Params>
Calls<Params>& calls_of() {
  static auto& calls = *new Calls<Params>;
  return calls;
}

// ---- as functions of a module --------------------------------------------------------------------------------------

// recall_op(raw call, ...): runs launch(params, arguments) and returns the outputs. None if the call is not known, or
// launch returned false.
template <class Params, class Launch>
PyObject* recalled(Calls<Params>& calls, PyObject* const* arguments, Py_ssize_t count, Py_ssize_t wanted,
                   Launch&& launch) {
  return called(arguments, count, wanted, [&](PyObject* const* argument) {
    Recalled<Params> recalled;
    if (!calls.recall(argument[0], &recalled) || !launch(recalled.params, argument)) Py_RETURN_NONE;
    return recalled.results.release().ptr();
  });
}

// remember_op(raw call, call, results, likes).
template <class Params>
PyObject* remembered(Calls<Params>& calls, PyObject* const* arguments, Py_ssize_t count) {
  return called(arguments, count, 4, [&](PyObject* const* argument) {
    calls.remember(argument[0], argument[1], py::reinterpret_borrow<py::tuple>(argument[2]),
                   py::reinterpret_borrow<py::tuple>(argument[3]));
    Py_RETURN_NONE;
  });
}

}  // namespace python
}  // namespace specdec
