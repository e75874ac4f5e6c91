"""A machine that runs the programs of a launch at the same time, with the weak memory of a GPU, in the interpreter.

    with interleaved(seed):
        ...  # launches of Triton's kernels

Programs are threads of which one runs. At every atomic a seeded choice selects the next. Rules of memory:

- A store stays in its program's buffer. Others are sure to see it once the program has passed a barrier and then
  releases: an atomic with ``sem="acq_rel"``. Before that they may see it at any time, or not until the launch ends.
- A load returns its first value until the program acquires; one with ``cache_modifier=".cg"`` always reads memory.
- Vector clocks order events. Accesses of a word by two programs, one of them a write and not both of
  them atomic, are a ``Race`` if neither came before the other. So are atomics of a scope that leaves programs out.
- A block smaller than a program's threads is replicated: all threads load it, each at another time, and one of them
  stores it. In larger ones each element has its thread. Where one thread loads a word and another stores it, in either
  order, a barrier has to stand between.

Values of ``ROWS``, and tensors of edits, are only read: they are not watched.
"""

import contextlib
import ctypes
import importlib
import inspect
import linecache
import pkgutil
import random
import sys
import threading

import numpy as np
import torch
import triton.language as tl
from specdec_kernels.triton_kernels import _launch
from torch.utils._pytree import tree_leaves
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from specdec_kernels import triton_kernels
from tests.support.triton_device import interpreted_language

ROWS = ("target", "draft", "draft_map", "map", "rows", "edits")
TILE = 128
ANYWHERE = -1
WORDS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32}
ACQUIRES = (ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
RELEASES = (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
SEEN_BY_ALL = (ir.MEM_SYNC_SCOPE.GPU, ir.MEM_SYNC_SCOPE.SYSTEM)


class Race(Exception):
    """Two accesses of a word of memory, in no order."""


class Abandoned(BaseException):
    """Another program failed."""


class Program:
    """A program of the grid: its clock, its buffer of stores, and the values of its loads."""

    def __init__(self, number, place, programs):
        self.number, self.place = number, place
        self.clock = [0] * programs  # by program: the epochs of it that happened before
        self.turn = threading.Semaphore(0)
        self.pending, self.ready = {}, set()  # word -> (size, value) not yet seen by others; those before a barrier
        self.kept = {}  # word -> value
        self.loaded, self.stored = {}, {}  # since the last barrier: word -> place in its block, ANYWHERE if replicated
        self.barrier()

    @property
    def epoch(self):
        """How many barriers this program has passed."""
        return self.clock[self.number]

    def barrier(self):
        self.clock[self.number] += 1
        self.ready.update(self.pending)
        self.loaded.clear()
        self.stored.clear()

    def released(self):
        """The events before a release: of this program those before its last barrier."""
        clock = list(self.clock)
        clock[self.number] -= 1
        return clock

    def follows(self, accesses):
        """Whether accesses, program -> epoch, all happened before now."""
        return all(self.clock[other] >= epoch for other, epoch in accesses.items() if other != self.number)


def alone(accesses, word, place):
    """Whether no other thread of the program accessed a word since the last barrier."""
    return word not in accesses or accesses[word] == place != ANYWHERE


class Machine:
    """One launch."""

    def __init__(self, order, grid, threads, rows, written, clocks=True):
        self.order, self.threads, self.rows, self.written, self.clocks = order, threads, rows, written, clocks
        places = [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]
        self.programs = [Program(number, place, len(places)) for number, place in enumerate(places)]
        self.waiting = list(self.programs)
        self.running = self.failure = None
        self.done = threading.Semaphore(0)
        self.loads, self.stores, self.atomics = {}, {}, {}  # word -> program -> its latest epoch
        self.releases = {}  # word -> clock

    # Programs

    def run(self, function, arguments):
        def body(program):
            program.turn.acquire()
            try:
                if self.failure is None:
                    function(**arguments)
            except Abandoned:
                pass
            except BaseException as error:
                self.failure = self.failure or error
            self.waiting.remove(program)
            self.next_turn()

        threads = [threading.Thread(target=body, args=(program,)) for program in self.programs]
        for thread in threads:
            thread.start()
        self.next_turn()
        self.done.acquire()
        for thread in threads:
            thread.join()
        for program in self.programs:
            self.drain(program, list(program.pending))
        if self.failure is not None:
            raise self.failure

    def next_turn(self):
        if not self.waiting:
            self.done.release()
            return
        self.running = self.order.choice(self.waiting)
        self.running.turn.release()

    def switch(self):
        """Another program, or the same one, goes on; some stores arrive."""
        for program in self.programs:
            if program.pending and self.order.random() < 0.2:
                self.drain(program, [word for word in program.pending if self.order.random() < 0.5])
        program = self.running
        self.next_turn()
        program.turn.acquire()
        if self.failure is not None:
            raise Abandoned

    # Memory

    def drain(self, program, words):
        for word in words:
            size, value = program.pending.pop(word)
            WORDS[size].from_address(word).value = value
        program.ready.difference_update(words)

    def check(self, sound, what, word):
        if not sound and self.clocks:
            self.fail(what, word)

    def fail(self, what, word):
        self.failure = Race(f"program {self.running.place}: {what}, word {word:#x}")
        raise self.failure

    def watched(self, pointers, mask, size):
        """(place in the block, word) of what is accessed; None if these are rows."""
        addresses = pointers.data.ravel()
        if any(first <= addresses[0] < end for first, end in self.rows):
            return None
        mask = np.broadcast_to(mask.data, pointers.data.shape).ravel()
        unit = min(size, 4)
        return [
            (i * (size // unit) + part, int(addresses[i]) + part * unit)
            for i in np.flatnonzero(mask)
            for part in range(size // unit)
        ]

    def load(self, found, pointers, mask, bypass):
        """A load that found these values in memory."""
        data = np.array(found.data)
        size = data.itemsize
        words = self.watched(pointers, mask, size)
        if words is None:
            return found
        program, flat, replicated = self.running, data.reshape(-1).view(f"u{min(size, 4)}"), data.size < self.threads
        for i, word in words:
            place = ANYWHERE if replicated else i
            self.check(alone(program.stored, word, place), "a thread may load before another has stored", word)
            self.check(program.follows(self.stores.get(word, {})), "a load beside a store", word)
            self.check(program.follows(self.atomics.get(word, {})), "a load beside an atomic", word)
            self.loads.setdefault(word, {})[program.number] = program.epoch
            program.loaded[word] = place if program.loaded.get(word, place) == place else ANYWHERE
            if word in program.pending:
                flat[i] = program.pending[word][1]
            elif not bypass:
                flat[i] = program.kept.setdefault(word, int(flat[i]))
        return TensorHandle(data, found.dtype)

    def store(self, pointers, value, mask):
        data = np.ascontiguousarray(np.broadcast_to(value.data, pointers.data.shape))
        size = data.itemsize
        words = self.watched(pointers, mask, size)
        assert words is not None, "rows are not written"
        program, unit, replicated = self.running, min(size, 4), data.size < self.threads
        flat = data.reshape(-1).view(f"u{unit}")
        for i, word in words:
            place = ANYWHERE if replicated else i
            if self.written is not None and not any(a <= word and word + unit <= b for a, b in self.written):
                self.fail("a store outside of the call's tensors", word)  # which would harm this process
            self.check(alone(program.loaded, word, place), "a thread may load after another has stored", word)
            for accesses, what in ((self.loads, "load"), (self.stores, "store"), (self.atomics, "atomic")):
                self.check(program.follows(accesses.get(word, {})), f"a store beside a {what}", word)
            self.stores.setdefault(word, {})[program.number] = program.epoch
            program.stored[word] = place if program.stored.get(word, place) == place else ANYWHERE
            program.ready.discard(word)
            program.pending[word] = unit, int(flat[i])

    def atomic(self, act, pointers, mask, size, sem, scope):
        self.switch()
        program, seen = self.running, scope in SEEN_BY_ALL
        words = [word for _, word in self.watched(pointers, mask, size)]
        self.drain(program, [word for word in dict.fromkeys(words) if word in program.pending])
        if seen and sem in RELEASES:
            self.drain(program, list(program.ready))
        for word in words:
            self.check(program.follows(self.loads.get(word, {})), "an atomic beside a load", word)
            self.check(program.follows(self.stores.get(word, {})), "an atomic beside a store", word)
            self.check(seen or program.follows(self.atomics.get(word, {})), "an atomic that others do not see", word)
            # A release publishes itself, too.
            self.atomics.setdefault(word, {})[program.number] = program.epoch - (seen and sem in RELEASES)
        found = act()
        for word in words if seen else ():
            clock = self.releases.setdefault(word, [0] * len(self.programs))
            if sem in ACQUIRES:
                program.kept.clear()
                program.clock[:] = map(max, program.clock, clock)
            if sem in RELEASES:
                clock[:] = map(max, clock, program.released())
        return found


@contextlib.contextmanager
def builder_of(machine):
    """Routes the interpreter's accesses through a machine."""
    builder = interpreter.interpreter_builder
    kind = type(builder)

    def load(pointers, mask, other, cache, *rest):
        found = kind.create_masked_load(builder, pointers, mask, other, cache, *rest)
        return machine.load(found, pointers, mask, cache == ir.CACHE_MODIFIER.CG)

    def store(pointers, value, mask, *_):
        machine.store(pointers, value, mask)

    def atomic(op, pointers, value, mask, sem, scope):
        def act():
            return kind.create_atomic_rmw(builder, op, pointers, value, mask, sem, scope)

        return machine.atomic(act, pointers, mask, value.data.itemsize, sem, scope)

    own = {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": atomic,
        "get_cache_policy": lambda cache, eviction: cache,  # Triton 3.9 puts both into one
        "create_barrier": lambda: machine.running.barrier(),
        "create_get_program_id": lambda axis: TensorHandle(
            np.array([machine.running.place[axis]], dtype=np.int32), tl.int32
        ),
    }
    vars(builder).update(own)
    try:
        yield builder
    finally:
        for name in own:
            delattr(builder, name)


def spans_of(values):
    """(first address, end) of the memory of all tensors among some values."""
    storages = [x.untyped_storage() for x in tree_leaves(values) if isinstance(x, torch.Tensor) and x.numel()]
    return [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]


def only_read(arguments):
    """Those of named arguments, and of what is in tuples, that kernels only read."""
    for name, x in arguments:
        if hasattr(x, "_fields") and name != "edits":
            yield from only_read(zip(x._fields, x, strict=True))
        elif name in ROWS:
            yield x


def launcher(seed, clocks):
    order = random.Random(seed)

    def launch(kernel, grid, num_warps, arguments):
        grid = (*grid, 1, 1)[:3]
        read = list(only_read(arguments.items()))
        fixed = {name for name, kind in kernel.fn.__annotations__.items() if kind is tl.constexpr}
        given = {name: x if name in fixed else interpreter._implicit_cvt(x) for name, x in arguments.items()}
        written = None if "caches" in arguments else spans_of(arguments)  # caches are addresses, of any size
        machine = Machine(order, grid, 32 * num_warps, spans_of(read), written, clocks)
        with interpreted_language(kernel.fn), builder_of(machine) as builder:
            builder.set_grid_dim(*grid)
            machine.run(kernel.rewrite(), given)

    return launch


def modules():
    """Those of the Triton backend."""
    names = (f"{triton_kernels.__name__}.{found.name}" for found in pkgutil.iter_modules(triton_kernels.__path__))
    return [importlib.import_module(name) for name in names]


@contextlib.contextmanager
def replaced(name, other, *where):
    """Replaces all objects of a name in these modules, or in any of the Triton backend's."""
    kept = [(module, getattr(module, name)) for module in where or modules() if hasattr(module, name)]
    assert kept, f"nobody has {name}"
    try:
        for module, _ in kept:
            setattr(module, name, other)
        yield
    finally:
        for module, value in kept:
            setattr(module, name, value)


def sources(text):
    """(name of its module, function) of all that Triton runs and whose source has a text."""
    for module in modules():
        for function in vars(module).values():
            if isinstance(function, interpreter.InterpretedFunction) and function.fn.__module__ == module.__name__:
                for _ in range(inspect.getsource(function.fn).count(text)):
                    yield module.__name__.rpartition(".")[2], function.__name__


@contextlib.contextmanager
def planted(module, name, text, other):
    """A function of the Triton backend with another text in its source."""
    module = importlib.import_module(f"{triton_kernels.__name__}.{module}")
    function = getattr(module, name).fn
    source = inspect.getsource(function)
    assert source.count(text) == 1, f"{name} has {text!r} {source.count(text)} times"
    source = source[source.index("def ") :].replace(text, other)
    file, found = f"<{name} with a fault>", {}
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), function.__globals__, found)
    with replaced(name, interpreter.InterpretedFunction(found[name])):
        yield


@contextlib.contextmanager
def small_tiles():
    """Tiles of 128 tokens, so that small rows have many programs; masses are summed by such tiles, too."""
    with (
        replaced("MASS_TILE", tl.constexpr(TILE)),
        replaced("tile_of", lambda vocab, edited=False: (TILE, -(-vocab // TILE), 4)),
        replaced("mass_items_of", lambda vocab: 6 * -(-vocab // TILE), _launch),
        replaced("MASS_TILE", TILE, sys.modules["specdec_kernels.ops._rows"]),
    ):
        yield


@contextlib.contextmanager
def interleaved(seed, clocks=True):
    """Launches go to machines whose choices follow from a seed; without ``clocks`` nothing is a ``Race``."""
    with replaced("launch", launcher(seed, clocks)):
        yield
