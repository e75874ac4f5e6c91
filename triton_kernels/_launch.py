"""Host side: how many programs a call has, how they are launched, and the memory that they share."""

import contextlib
import functools
import hashlib
import inspect
import operator
import threading
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _math, _versions
from triton.compiler import CompiledKernel, make_backend
from triton.runtime import driver

from specdec_kernels.calls.values import DIVIDED, FILTERED

INTERPRETED = triton.knobs.runtime.interpret
# Whether a ticket orders the stores of all threads of a program. On gfx942 a barrier does not wait for other waves'.
TICKETS_ORDER_STORES = torch.version.hip is None

ANY_NUMBER = 2**31
# Compiled code depends on these arguments and fields only, found by name.
POINTERS, SIZES = ("target", "draft", "rows", "probs", "mask"), ("vocab", "draft_vocab")
_no_switch = contextlib.nullcontext()
_workspaces = threading.local()
_interpreter = threading.RLock()  # the interpreter patches Triton's functions, for all threads


@functools.cache
def text_of_package():
    """A digest of the package's text."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()


class Kernel(triton.JITFunction):
    """A kernel whose cache key has the text of this package.

    Triton's key lacks constants that are reached through a module, as ``_math.GROUP``.
    """

    @property
    def cache_key(self):
        return super().cache_key + text_of_package()


def kernel(function):
    """``triton.jit``, but the vocabulary is the only number that is specialised."""
    parameters = inspect.signature(function).parameters.values()
    varying = [p.name for p in parameters if p.annotation is not tl.constexpr and p.name not in (*POINTERS, *SIZES)]
    compiled = (triton.jit if INTERPRETED else Kernel)(function, do_not_specialize=varying)
    compiled.programs, compiled.most_registers = Programs(parameters), lambda arguments: None
    return compiled


class Anywhere:
    """Stands for any tensor of a dtype; its address is aligned to nothing."""

    def __init__(self, dtype):
        self.dtype = dtype

    def data_ptr(self):
        return 1


ANY = {int: 2**62 + 1, bool: 2**62 + 1, float: 0.5}


def any_like(name, value):
    """What Triton's compiler sees of an argument in a tuple. It would specialise a 1, and multiples of 16."""
    # So all numbers of a type look alike, and all tensors but ``POINTERS``.
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        fields = map(any_like, names, value)
        return type(value)(*fields) if is_tuple(value) else tuple(fields)
    if name in POINTERS or name in SIZES:
        return value
    return Anywhere(value.dtype) if isinstance(value, torch.Tensor) else ANY.get(type(value), value)


def seen_by_triton(arguments):
    return {name: any_like(name, x) if isinstance(x, tuple) else x for name, x in arguments.items()}


def leaves(kind, wanted):
    """The dotted names of the fields of a NamedTuple, and of those in it, for which ``wanted(name, type)``."""
    for name, type_ in kind.__annotations__.items():
        if is_tuple(type_):
            yield from (f"{name}.{leaf}" for leaf in leaves(type_, wanted))
        elif wanted(name, type_):
            yield name


def is_tuple(kind):
    return hasattr(kind, "_fields")


@functools.cache
def constants(kind, *values):
    """A tuple of what is compiled in. The cache holds it for good, so its ``id`` stands for its values in keys."""
    return kind(*map(tl.constexpr, values))


class Programs:
    """The compiled programs of a kernel, by a key of all that specialises them.

    Triton's launch inspects each argument anew. But a program depends on these only: the device, the warps, the
    constants, the vocabularies, which tensors there are and their dtypes, and how Triton specialises ``POINTERS``
    (on NVIDIA GPUs whether an address is a multiple of 16). Other numbers have the types of their annotations.
    """

    def __init__(self, parameters):
        self.programs = {}
        self.values = tuple_of([p.name for p in parameters])
        tuples = [p for p in parameters if is_tuple(p.annotation)]
        fixed = [p for p in tuples if tl.constexpr in p.annotation.__annotations__.values()]
        untyped = [p.name for p in parameters if p.annotation is inspect.Parameter.empty]
        constant = [p.name for p in parameters if p.annotation is tl.constexpr]
        often, at_times = (
            [p for p in tuples if p not in fixed and hasattr(p.annotation, "OFF") == off] for off in (0, 1)
        )
        self._fixed, self._constants = tuple_of([p.name for p in fixed]), tuple_of(constant)
        self._tensors = taken(untyped, often, lambda _, kind: kind is tl.tensor)
        self._pointers = taken(untyped, tuples, lambda name, _: name in POINTERS)
        self._sizes = taken([p.name for p in parameters if p.name in SIZES], tuples, lambda name, _: name in SIZES)
        self._at_times = [
            (p.name, p.annotation.OFF, taken([], [p], lambda _, kind: kind is tl.tensor)) for p in at_times
        ]

    def key(self, device, num_warps, arguments):
        """The key of the program that a launch needs."""
        seen, named = seen_of(device), SimpleNamespace(**arguments)
        key = (
            device, num_warps, self._constants(arguments), self._sizes(named), *map(id, self._fixed(arguments)),
            *[getattr(x, "dtype", x) for x in self._tensors(named)],
            *[None if x is None else seen(x, align=True) for x in self._pointers(named)],
        )  # fmt: skip
        for name, off, tensors in self._at_times:
            if arguments[name] is not off:
                key += tuple(getattr(x, "dtype", x) for x in tensors(named))
        return key

    def launch(self, kernel, grid, num_warps, arguments):
        device = driver.active.get_current_device()
        key = self.key(device, num_warps, arguments)
        program = self.programs.get(key)
        if program is None:
            program = program_of(kernel, grid, num_warps, arguments)
            if not isinstance(program, CompiledKernel):  # a hook of Triton compiles it elsewhere
                return
            self.programs[key] = program
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(device)
        program.run(
            x, y, z, stream, program.function, program.packed_metadata, None, None, None, *self.values(arguments)
        )


def taken(names, tuples, wanted):
    """A function that takes attributes of an object by ``names``, and fields of its ``tuples`` that are ``wanted``."""
    paths = [name for name in names if wanted(name, tl.tensor)]
    paths += [f"{p.name}.{leaf}" for p in tuples for leaf in leaves(p.annotation, wanted)]
    return tuple_of(paths, operator.attrgetter)


def tuple_of(names, getter=operator.itemgetter):
    """A function that takes the values of ``names`` from a dict, or by ``attrgetter`` from an object, as a tuple."""
    get = getter(*names) if names else lambda values: ()
    return get if len(names) != 1 else lambda values: (get(values),)


@functools.cache
def seen_of(device):
    """The function by which Triton's backend for a device specialises tensors."""
    with torch.cuda.device(device):
        return make_backend(driver.active.get_current_target()).get_tensor_specialization


def is_watched(kernel):
    """Whether a hook or a knob of Triton watches launches, or changes how kernels are compiled."""
    knobs = triton.knobs.runtime
    return (
        has_hooks(knobs.launch_enter_hook) or has_hooks(knobs.launch_exit_hook) or kernel.pre_run_hooks
        or knobs.add_stages_inspection_hook or knobs.debug or triton.knobs.compilation.instrumentation_mode
    )  # fmt: skip


def has_hooks(hook):
    return hook is not None and getattr(hook, "calls", True)  # a chain of hooks, or one function


def options_of(kernel, arguments, backend):
    """Compiler options. Without contraction each multiply and add rounds alone, as ``_math`` needs."""
    most = kernel.most_registers(arguments) if backend == "cuda" else None
    return {"enable_fp_fusion": False} | ({"maxnreg": most} if most else {})


def program_of(kernel, grid, num_warps, arguments):
    """The program for these arguments, which Triton compiles if it is not in its cache."""
    backend = driver.active.get_current_target().backend
    options = options_of(kernel, arguments, backend)
    compiled = kernel.run(grid=grid, warmup=True, **seen_by_triton(arguments), num_warps=num_warps, **options)
    return compiled.result() if hasattr(compiled, "result") else compiled


def jit_launch(kernel, grid, num_warps, arguments):
    """Triton's launch."""
    if INTERPRETED:
        with _interpreter:
            return kernel[grid](**arguments, num_warps=num_warps, **options_of(kernel, arguments, None))
    program = program_of(kernel, grid, num_warps, arguments)
    return None if program is None else program[(*grid, 1, 1)[:3]](*kernel.programs.values(arguments))


def launch(kernel, grid, num_warps, arguments):
    """Launches a kernel, unless the grid is empty. Every launch of this package is made here."""
    if 0 in grid:
        return
    if INTERPRETED or not _versions.DIRECT_LAUNCH or kernel.programs is None or is_watched(kernel):
        jit_launch(kernel, grid, num_warps, arguments)
    else:
        kernel.programs.launch(kernel, grid, num_warps, arguments)


def on_device(tensor):
    """A context in which launches go to the tensor's device."""
    if tensor.is_cuda:
        return _no_switch if tensor.device.index == torch.cuda.current_device() else torch.cuda.device(tensor.device)
    if not INTERPRETED:
        raise RuntimeError(
            f"backend 'triton': expected CUDA tensors, got {tensor.device}; for CPU tensors set TRITON_INTERPRET=1 "
            "before specdec_kernels.triton_kernels is first imported"
        )
    return _no_switch


@functools.cache
def multiprocessors(device):
    # The interpreter gains nothing from many programs; a few still share rows.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def tile_of(vocab, edited=False):
    """(tokens of a tile, tiles of a row, warps)."""
    # A thread has 32 tokens at once, but 8 if they are edited, for each needs several registers then.
    tile = min(1024 if edited else 4096, max(128, triton.next_power_of_2(vocab)))
    return tile, -(-vocab // tile), max(1, tile // (256 if edited else 1024))


# Triton's function also works in kernels, so it takes microseconds on the host.
power_of_2 = functools.cache(triton.next_power_of_2)


def mass_items_of(vocab):
    """float32 words of scratch memory for the mass tiles of a pair of rows: ``_rows.mass_items_of`` twice."""
    return 6 * -(-vocab // _math.MASS_TILE.value)


def splits_of(requests, tiles, device):
    """How many programs share a row: up to eight a multiprocessor, each with one to eight tiles."""
    wanted = 8 * multiprocessors(device) // max(1, requests)
    return max(1, min(tiles, max(wanted, -(-tiles // 8), 2)))


def chunks_of(requests, splits, width, device):
    """Groups of programs for each request: one a row, or fewer that take rows in order if the device is full."""
    return max(1, min(width, 8 * multiprocessors(device) // (requests * splits)))


@functools.lru_cache(1024)
def starts_alike(shape, strides):
    """Whether all rows start on a multiple of 16 elements if the first does."""
    return all(stride % 16 == 0 for stride, size in zip(strides[:-1], shape[:-1], strict=True) if size > 1)


def aligned(*tensors):
    """Whether every row starts on a multiple of 16 elements, so that tiles load in whole vectors."""
    for tensor in tensors:
        if tensor is not None and (
            tensor.data_ptr() % (16 * tensor.element_size()) != 0 or not starts_alike(tensor.shape, tensor.stride())
        ):
            return False
    return True


def floats(ints):
    """An int32 tensor of cuts as float32, or None."""
    return None if ints is None else ints.view(torch.float32)


def is_greedy(law):
    """Whether the temperature is one number that means argmax."""
    return not isinstance(law.temperature, torch.Tensor) and not law.temperature >= 2.0**-126


def numbers_of(law):
    """The numbers of a law, each of which may be a tensor."""
    return law.temperature, law.top_k, law.top_p, law.min_p


def is_filtered(law):
    """Whether sampling filters may be on."""
    return law.rules & FILTERED != 0


def has_separate_temperature(law, other):
    """Whether a law's temperature may differ from another's. Over probabilities only whether it is 0 matters."""
    mine, others = law.temperature, other.temperature
    if isinstance(mine, torch.Tensor) or isinstance(others, torch.Tensor):
        same = mine is others or (
            isinstance(mine, torch.Tensor) and isinstance(others, torch.Tensor)
            and (mine.data_ptr(), mine.shape, mine.stride()) == (others.data_ptr(), others.shape, others.stride())
        )  # fmt: skip
    else:
        same = mine == others
    same = same and (law.rules ^ other.rules) & DIVIDED == 0
    return not same and (law.space == "logits" or isinstance(mine, torch.Tensor) or is_greedy(law))


def needs_row_stats(law):
    """Whether a row's probabilities need its ``RowStats``: a sum, or an argmax."""
    return law.space == "logits" or isinstance(law.temperature, torch.Tensor) or is_greedy(law)


def scanned_sides(call, draft, both=True):
    """Whether the launch that finds cuts scans (target rows, draft rows), and so stores their ``RowStats``."""
    # It scans rows with filters. With ``both`` it scans all rows of logits as soon as one side has filters.
    laws = call.target_law, None if draft is None else call.draft_law
    filtered = [law is not None and is_filtered(law) for law in laws]
    if not both or not any(filtered):
        return filtered
    return [law is not None and law.space == "logits" for law in laws]


def needs_stats(call, draft, separate_law, scanned):
    """Whether an earlier launch has to store ``RowStats``: of logits, or of a draft's argmax, that were not scanned."""
    return (call.target_law.space == "logits" and not scanned[0]) or (
        draft is not None and (call.draft_law.space == "logits" or separate_law) and not scanned[1]
    )


def workspace(tensor, counters, scratch):
    """(int32 counters, float32 scratch) for one call. Counters are zero, and every call leaves them so."""
    # Calls of a thread on a device and stream share one. A captured call gets another, which the graph clears at every
    # replay, for a replay may run beside other calls of that stream.
    device = tensor.device
    stream, capturing = 0, False
    if tensor.is_cuda:
        stream = torch.cuda.current_stream(device).cuda_stream
        capturing = torch.cuda.is_current_stream_capturing()
    workspaces = _workspaces.__dict__
    memory = None if capturing else workspaces.get((device, stream))
    if memory is None or memory[0].numel() < counters or memory[1].numel() < scratch:
        if memory is not None:
            counters, scratch = max(counters, memory[0].numel()), max(scratch, memory[1].numel())
        memory = (
            torch.zeros(counters, dtype=torch.int32, device=device),
            torch.empty(scratch, dtype=torch.float32, device=device),
        )
        if not capturing:
            workspaces[device, stream] = memory
    return memory


class WholeCalls:
    """Drops all workspaces if a call fails between two launches, for counters may not be zero then."""

    def __enter__(self):
        pass

    def __exit__(self, kind, *_):
        if kind is not None:
            _workspaces.__dict__.clear()


whole_calls = WholeCalls()
