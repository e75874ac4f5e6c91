"""Host side: how a call is split into programs, and the memory that they share."""

import contextlib
import functools
import hashlib
import inspect
import operator
import threading
from pathlib import Path

import torch
import triton
import triton.language as tl
from specdec_kernels.triton_kernels import _math, _versions
from triton.compiler import CompiledKernel, make_backend
from triton.runtime import driver

from specdec_kernels.calls.values import DIVIDED, FILTERED

INTERPRETED = triton.knobs.runtime.interpret
# Whether a ticket tells of what all threads of a program stored. On gfx942 a barrier waits for no stores of others.
TICKETS_ORDER_STORES = torch.version.hip is None

ANY_NUMBER = 2**31
# All that code may depend on, by their names; in tuples, too.
POINTERS, SIZES = ("target", "draft", "rows", "probs", "mask"), ("vocab", "draft_vocab")
_here = contextlib.nullcontext()
_workspaces = threading.local()
_interpreter = threading.RLock()  # to interpret a kernel Triton changes its own functions, for all threads


@functools.cache
def text_of_package():
    """A digest of all that kernels may use."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()


class Kernel(triton.JITFunction):
    """A kernel that Triton's cache does not keep longer than this package's text.

    Triton's own key has no constants that are reached through a module, as ``_math.GROUP``.
    """

    @property
    def cache_key(self):
        return super().cache_key + text_of_package()


def kernel(function):
    """``triton.jit`` for a kernel that compiles once for each vocabulary: no other number changes the code."""
    parameters = inspect.signature(function).parameters.values()
    varying = [p.name for p in parameters if p.annotation is not tl.constexpr and p.name not in (*POINTERS, *SIZES)]
    compiled = (triton.jit if INTERPRETED else Kernel)(function, do_not_specialize=varying)
    compiled.programs, compiled.most_registers = Programs(parameters), lambda arguments: None
    return compiled


class Anywhere:
    """A tensor of this type, wherever it lies."""

    def __init__(self, dtype):
        self.dtype = dtype

    def data_ptr(self):
        return 1


ANY = {int: 2**62 + 1, bool: 2**62 + 1, float: 0.5}


def any_like(name, value):
    """What Triton is to see of an argument in a tuple. It would compile in a 1, and that 16 divides a number."""
    # All numbers of a type look alike to it, and all tensors but ``POINTERS``.
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
    """The dotted names of the fields of a class of tuples, and of those in it, of which ``wanted(name, type)``."""
    for name, own in kind.__annotations__.items():
        if is_tuple(own):
            yield from (f"{name}.{leaf}" for leaf in leaves(own, wanted))
        elif wanted(name, own):
            yield name


def is_tuple(kind):
    return hasattr(kind, "_fields")


@functools.cache
def constants(kind, *values):
    """A tuple of what is compiled in. It is kept for good, so that it stands for its values in keys."""
    return kind(*map(tl.constexpr, values))


class Programs:
    """What Triton has compiled of a kernel, by all that decides what is compiled.

    Triton's own launch looks at each argument anew. But a program depends on these only: the device, the warps, the
    constants, the vocabularies, which tensors there are and their types, and what Triton wants to know of ``POINTERS``
    (on NVIDIA GPUs whether an address is a multiple of 16). Other numbers have the types that they are annotated with.
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
        """What decides which program a launch needs."""
        seen = seen_of(device)
        key = (
            device, num_warps, self._constants(arguments), self._sizes(arguments), *map(id, self._fixed(arguments)),
            *[getattr(x, "dtype", x) for x in self._tensors(arguments)],
            *[None if x is None else seen(x, align=True) for x in self._pointers(arguments)],
        )  # fmt: skip
        for name, off, tensors in self._at_times:
            if arguments[name] is not off:
                key += tuple(getattr(x, "dtype", x) for x in tensors(arguments))
        return key

    def launch(self, kernel, grid, num_warps, arguments):
        device = driver.active.get_current_device()
        key = self.key(device, num_warps, arguments)
        program = self.programs.get(key)
        if program is None:
            program = program_of(kernel, grid, num_warps, arguments)
            if not isinstance(program, CompiledKernel):  # somebody's hook compiles it
                return
            self.programs[key] = program
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(device)
        program.run(
            x, y, z, stream, program.function, program.packed_metadata, None, None, None, *self.values(arguments)
        )


def taken(names, tuples, wanted):
    """A function that takes from a dict of arguments those with some names, and fields of tuples."""
    # It is made of text: this is half as long as going through tuples at each launch.
    names = [*(name for name in names if wanted(name, tl.tensor))]
    expressions = [f"a[{name!r}]" for name in names]
    expressions += [f"a[{p.name!r}].{leaf}" for p in tuples for leaf in leaves(p.annotation, wanted)]
    return eval(f"lambda a: ({''.join(f'{each}, ' for each in expressions)})")


def tuple_of(names):
    """A function that takes the values of these names from a dict, as a tuple."""
    get = operator.itemgetter(*names) if names else lambda values: ()
    return get if len(names) != 1 else lambda values: (get(values),)


@functools.cache
def seen_of(device):
    """The function by which Triton's backend for a device tells tensors of one type apart."""
    with torch.cuda.device(device):
        return make_backend(driver.active.get_current_target()).get_tensor_specialization


def is_watched(kernel):
    """Whether somebody wants to see launches, or to have kernels compiled otherwise."""
    knobs = triton.knobs.runtime
    return (
        has_hooks(knobs.launch_enter_hook) or has_hooks(knobs.launch_exit_hook) or kernel.pre_run_hooks
        or knobs.add_stages_inspection_hook or knobs.debug or triton.knobs.compilation.instrumentation_mode
    )  # fmt: skip


def has_hooks(hook):
    return hook is not None and getattr(hook, "calls", True)  # of a chain, or one function


def options_of(kernel, arguments, backend):
    """How a kernel is compiled. Without contraction each multiply and add rounds on its own, as ``_math`` needs."""
    most = kernel.most_registers(arguments) if backend == "cuda" else None
    return {"enable_fp_fusion": False} | ({"maxnreg": most} if most else {})


def program_of(kernel, grid, num_warps, arguments):
    """The program that Triton compiles for such arguments, or has compiled."""
    backend = driver.active.get_current_target().backend
    options = options_of(kernel, arguments, backend)
    compiled = kernel.run(grid=grid, warmup=True, **seen_by_triton(arguments), num_warps=num_warps, **options)
    return compiled.result() if hasattr(compiled, "result") else compiled


def jit_launch(kernel, grid, num_warps, arguments):
    """Triton's own launch."""
    if INTERPRETED:
        with _interpreter:
            return kernel[grid](**arguments, num_warps=num_warps, **options_of(kernel, arguments, None))
    program = program_of(kernel, grid, num_warps, arguments)
    return None if program is None else program[(*grid, 1, 1)[:3]](*kernel.programs.values(arguments))


def launch(kernel, grid, num_warps, arguments):
    """Every launch of this package; none of no programs."""
    if 0 in grid:
        return
    if INTERPRETED or not _versions.KNOWN_LAUNCH or kernel.programs is None or is_watched(kernel):
        jit_launch(kernel, grid, num_warps, arguments)
    else:
        kernel.programs.launch(kernel, grid, num_warps, arguments)


def on_device(tensor):
    """A context in which launches go to the tensor's device."""
    if tensor.is_cuda:
        return _here if tensor.device.index == torch.cuda.current_device() else torch.cuda.device(tensor.device)
    if not INTERPRETED:
        raise RuntimeError(
            f"backend 'triton': expected CUDA tensors, got {tensor.device}; for CPU tensors set TRITON_INTERPRET=1 "
            "before specdec_kernels.triton_kernels is first imported"
        )
    return _here


@functools.cache
def multiprocessors(device):
    # The interpreter gains nothing from many programs: a few are enough for rows that several of them share.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def tile_of(vocab, edited=False):
    """(tokens of a tile, tiles of a row, warps). They depend on the vocabulary, and on whether there are edits."""
    # A thread has 32 tokens at once. Where they are edited it has 8, for it needs several numbers for each.
    tile = min(1024 if edited else 4096, max(128, triton.next_power_of_2(vocab)))
    return tile, -(-vocab // tile), max(1, tile // (256 if edited else 1024))


# Triton's functions are made for kernels, too: on the host they take microseconds, and integers are remembered.
power_of_2 = functools.cache(triton.next_power_of_2)


def mass_items_of(vocab):
    """float32 words of scratch memory for a pair of rows whose masses are learned: ``_rows.mass_items_of`` twice."""
    return 6 * -(-vocab // _math.MASS_TILE.value)


def splits_of(requests, tiles, device):
    """Programs for each row: eight on each multiprocessor, if there are tiles for them; at most eight tiles each."""
    wanted = 8 * multiprocessors(device) // max(1, requests)
    return max(1, min(tiles, max(wanted, -(-tiles // 8), 2)))


def chunks_of(requests, splits, width, device):
    """Groups of programs for each request: one for each row if the device has room; else each takes rows in order."""
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


def floats(words):
    """int32 words as kernels read a cut."""
    return None if words is None else words.view(torch.float32)


def is_greedy(law):
    """Whether the temperature is one number that means argmax."""
    return not isinstance(law.temperature, torch.Tensor) and not law.temperature >= 2.0**-126


def numbers_of(law):
    """The numbers of a law that may be tensors."""
    return law.temperature, law.top_k, law.top_p, law.min_p


def is_filtered(law):
    """Whether sampling filters may be on."""
    return law.rules & FILTERED != 0


def is_own(law, other):
    """Whether a law's temperature matters and may differ from another's. Over probabilities only 0 or not 0 matters."""
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


def is_learned(law):
    """Whether a row's probabilities need something of the whole row first: a sum, or an argmax."""
    return law.space == "logits" or isinstance(law.temperature, torch.Tensor) or is_greedy(law)


def scanned_sides(call, draft, both=True):
    """Whether the launch that finds cuts also learns what probabilities need: of target rows, and of draft rows."""
    # It does so for rows with filters. If ``both``, then for all from logits as soon as one side has filters.
    laws = call.target_law, None if draft is None else call.draft_law
    filtered = [law is not None and is_filtered(law) for law in laws]
    if not both or not any(filtered):
        return filtered
    return [law is not None and law.space == "logits" for law in laws]


def learns(call, draft, own_law, scanned):
    """Whether a launch has to go before the one that uses probabilities: for sums of logits, or a draft's argmax."""
    # Rows that were ``scanned_sides`` need none.
    return (call.target_law.space == "logits" and not scanned[0]) or (
        draft is not None and (call.draft_law.space == "logits" or own_law) and not scanned[1]
    )


def workspace(tensor, counters, scratch):
    """(int32 counters, float32 scratch) for one call. Counters are zero, and every call leaves them so."""
    # Kept for each thread, device and stream. A captured call gets its own, which the graph clears at every replay: it
    # may run beside others of its stream then.
    device = tensor.device
    stream, capturing = 0, False
    if tensor.is_cuda:
        stream = torch.cuda.current_stream(device).cuda_stream
        capturing = torch.cuda.is_current_stream_capturing()
    kept = _workspaces.__dict__
    memory = None if capturing else kept.get((device, stream))
    if memory is None or memory[0].numel() < counters or memory[1].numel() < scratch:
        if memory is not None:
            counters, scratch = max(counters, memory[0].numel()), max(scratch, memory[1].numel())
        memory = (
            torch.zeros(counters, dtype=torch.int32, device=device),
            torch.empty(scratch, dtype=torch.float32, device=device),
        )
        if not capturing:
            kept[device, stream] = memory
    return memory


class WholeCalls:
    """If a call fails between two launches, counters may not be zero. Then all workspaces are dropped."""

    def __enter__(self):
        pass

    def __exit__(self, kind, *_):
        if kind is not None:
            _workspaces.__dict__.clear()


whole_calls = WholeCalls()
