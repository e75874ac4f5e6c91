"""An op is declared once, as an ``Op``: named arguments, each of a kind.

From that come the tuple that backends get (``Op.Call``), the op's schema in torch with its CPU, CUDA and meta
implementations, and the making and checking of outputs. Every table of ops comes from ``OPS``.
"""

import collections
import string
from typing import NamedTuple

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import _profiler_enabled
from torch.compiler import is_compiling

from specdec_kernels import backends
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._memory import check_apart

OPS = {}  # name -> Op
_library = torch.library.Library("specdec", "DEF")  # kept for as long as the module lives


class Law(NamedTuple):
    """From a raw value of a row to a weight.

    ``rules`` is a sum of bits: 1 top_p after top_k, 2 top_p after min_p, 4 ties stay together, 8 filters before the
    temperature, 16 filters may be on: none of them if every filter is a plain number that means off, 0, 1.0 and 0.0.
    32: logits are divided by the temperature already.
    """

    space: str
    temperature: "float | torch.Tensor"
    top_k: "int | torch.Tensor" = 0
    top_p: "float | torch.Tensor" = 1.0
    min_p: "float | torch.Tensor" = 0.0
    rules: int = 0


class Edit(NamedTuple):
    """What becomes of a target row's logits before its law sees them: ``specdec_kernels.Edits``, as backends get it.

    Tensors but ``bias_tokens`` and ``bias_values`` are [S, R, items]: one list for each entry S and, in ops on rows,
    each row R; elsewhere R is 1. Bits 1 and 2 of ``by_row`` say that ``allowed`` and ``bias_spans`` are like the
    target's rows instead, ragged ones [1, rows, items]. A span is a begin and an end in ``bias_tokens``. Lists that an
    index points to are [n, 1, items], and the index is what they would be, with one item.
    """

    allowed: "torch.Tensor | None" = None
    bias_tokens: "torch.Tensor | None" = None
    bias_values: "torch.Tensor | None" = None
    bias_spans: "torch.Tensor | None" = None
    repetition: "float | torch.Tensor" = 1.0
    frequency: "float | torch.Tensor" = 0.0
    presence: "float | torch.Tensor" = 0.0
    prompt_mask: "torch.Tensor | None" = None
    output_mask: "torch.Tensor | None" = None
    output_counts: "torch.Tensor | None" = None
    pending: "torch.Tensor | None" = None
    by_row: int = 0
    seen_index: "torch.Tensor | None" = None
    allowed_index: "torch.Tensor | None" = None

    def on(self):
        """Whether it may change anything."""
        return any(isinstance(x, torch.Tensor) or x != off for x, off in zip(self, Edit(), strict=True))

    def by_entry(self):
        """The tensors that have one list or number for each entry."""
        allowed = self.allowed if self.allowed_index is None else self.allowed_index
        seen = (self.prompt_mask, self.output_mask, self.output_counts)
        lists = [self.pending, *(seen if self.seen_index is None else [self.seen_index])]
        lists += [] if self.by_row & ALLOWED_BY_ROW else [allowed]
        lists += [] if self.by_row & BIAS_BY_ROW else [self.bias_spans]
        return [x for x in (*self[4:7], *lists) if isinstance(x, torch.Tensor)]


ALLOWED_BY_ROW, BIAS_BY_ROW = 1, 2


class Noise(NamedTuple):
    """Which random numbers a call uses."""

    seed: "int | torch.Tensor"
    position: "int | torch.Tensor"
    nonce: "int | torch.Tensor"


class Kind:
    """How an argument is written in a schema, and how a value becomes the schema's arguments and comes back.

    ``shown`` is its public name, if that differs. ``(!)`` in a schema marks what the op writes.
    """

    def __init__(self, schema, shown=None):
        self._schema = schema
        self.shown = shown
        self.written = schema is not None and "(!)" in schema

    @property
    def is_tensor(self):
        """Whether every call has a tensor here."""
        return self._schema in ("Tensor {}", "Tensor(!) {}")

    def schema(self, name):
        return self._schema.format(name)

    def flat(self, value):
        return [value]

    def whole(self, flat):
        return next(flat)


class Either(Kind):
    """One number for all, or a tensor of them.

    In a ``Group`` its number stands in a list with the group's others of its type: torch takes at most 64 arguments.
    """

    def __init__(self, type_, nothing):
        super().__init__(f"Tensor? {{0}}s, {type_} {{0}}")
        self.type, self._nothing = type_, nothing

    def flat(self, value):
        return [value, self._nothing] if isinstance(value, torch.Tensor) else [None, value]

    def whole(self, flat):
        tensor, number = next(flat), next(flat)
        return number if tensor is None else tensor


class Group(Kind):
    """A value of several parts, a NamedTuple."""

    def __init__(self, type_, **kinds):
        super().__init__(None)
        self._type, self._kinds = type_, kinds
        self._numbers = list(dict.fromkeys(kind.type for kind in kinds.values() if isinstance(kind, Either)))

    def schema(self, name):
        parts = [
            f"Tensor? {name}_{part}s" if isinstance(kind, Either) else kind.schema(f"{name}_{part}")
            for part, kind in self._kinds.items()
        ]
        return ", ".join(parts + [f"{type_}[] {name}_{type_.lower()}s" for type_ in self._numbers])

    def flat(self, value):
        flat, numbers = [], {type_: [] for type_ in self._numbers}
        for kind, part in zip(self._kinds.values(), value, strict=True):
            first, *number = kind.flat(part)
            flat.append(first)
            if number:
                numbers[kind.type] += number
        return flat + list(numbers.values())

    def whole(self, flat):
        parts = [next(flat) for _ in self._kinds]
        numbers = {type_: iter(next(flat)) for type_ in self._numbers}
        for i, kind in enumerate(self._kinds.values()):
            if isinstance(kind, Either):
                number = next(numbers[kind.type])
                parts[i] = number if parts[i] is None else parts[i]
        return self._type(*parts)


class Output(Kind):
    """A tensor that the op writes. It is contiguous; with ``by_rows`` only its rows are, and may lie apart.

    With ``given_as`` the caller's may have one of these dtypes, and any strides.
    """

    def __init__(self, dtype, shown=None, optional=False, by_rows=False, given_as=()):
        super().__init__("Tensor(!)? {}" if optional else "Tensor(!) {}", shown)
        self.dtype, self._by_rows, self._given_as = dtype, by_rows, given_as

    def made(self, given, shape, device, dtype=None):
        """A new one, or the one ``given`` once it is found fit."""
        dtype = self.dtype if dtype is None else dtype
        if given is None:
            return torch.empty(shape, dtype=dtype, device=device)
        if self._given_as:
            inputs.strided_output(self.shown, given, self._given_as, shape, device)
        else:
            inputs.output(self.shown, given, dtype, shape, device, self._by_rows)
        return given


TENSOR, OPTIONAL = Kind("Tensor {}"), Kind("Tensor? {}")
NUMBER, COUNTER = Either("float", 0.0), Either("SymInt", 0)  # float32; int32 or int64
CHOICE, FLAG, SIZE = Kind("str {}"), Kind("bool {}"), Kind("SymInt {}")
LAW = Group(Law, space=CHOICE, temperature=NUMBER, top_k=COUNTER, top_p=NUMBER, min_p=NUMBER, rules=SIZE)
EDITS = Group(
    Edit, allowed=OPTIONAL, bias_tokens=OPTIONAL, bias_values=OPTIONAL, bias_spans=OPTIONAL, repetition=NUMBER,
    frequency=NUMBER, presence=NUMBER, prompt_mask=OPTIONAL, output_mask=OPTIONAL, output_counts=OPTIONAL,
    pending=OPTIONAL, by_row=SIZE, seen_index=OPTIONAL, allowed_index=OPTIONAL,
)  # fmt: skip
NOISE = Group(Noise, seed=COUNTER, position=COUNTER, nonce=COUNTER)
WRITTEN_TENSORS = Kind("Tensor(!)[] {}", shown="cache")


class Op:
    """An op: called with its arguments in order, it has the active backend run it.

    The dispatcher costs a call about 2 µs, and 0.1 µs more for each argument (``torch.library.custom_op``: 14 µs). If
    no compiler, mode, tensor subclass or profiler has to see the call, it goes to the backend directly.

    Parameters
    ----------
    name : str
        Of the op, and of every backend's function for it.
    arguments : Kind
        In the order of the ``fields()`` in csrc/include/specdec/params.h. The schema returns nothing: every output is
        an argument that the op writes.

    Attributes
    ----------
    Call : type
        The NamedTuple of the arguments' names, which a backend's function gets.
    """

    def __init__(self, name, **arguments):
        self.name, self.arguments = name, arguments
        self.Call = collections.namedtuple(name, arguments)
        self._kinds = tuple(arguments.values())
        self._place = next(place for place, kind in enumerate(self._kinds) if kind.is_tensor)
        OPS[name] = self

        _library.define(f"{name}({self.schema()}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, lambda *flat: backends.run(self, self.whole(flat), "cpu"), "CPU")
        _library.impl(name, lambda *flat: backends.run(self, self.whole(flat), "cuda"), "CUDA")
        _library.impl(name, lambda *flat: None, "Meta")
        self._watched_call = getattr(torch.ops.specdec, name).default
        self.recalls = {}  # name of a block -> the recall functions of the backends it may mean (backends.remember)

    def schema(self):
        """The schema's arguments, as torch writes them."""
        first, *written = ", ".join(kind.schema(name) for name, kind in self.arguments.items()).split("(!)")
        return first + "".join(f"({a}!){text}" for a, text in zip(string.ascii_lowercase, written, strict=False))

    def flat(self, call):
        """The schema's arguments for a call."""
        flat = []
        for kind, value in zip(self._kinds, call, strict=True):
            flat += kind.flat(value)
        return flat

    def whole(self, flat):
        """The call of a schema's arguments."""
        flat = iter(flat)
        return self.Call(*[kind.whole(flat) for kind in self._kinds])

    def device(self, call):
        """Where the tensors of a call are."""
        return call[self._place].device

    def output(self, name, given, shape, device, dtype=None):
        """One output of this shape: new, or the one given."""
        return self.arguments[name].made(given, shape, device, dtype)

    def outputs(self, group, out, device, *shapes):
        """Outputs of these shapes as the NamedTuple ``group``, whose fields name them: new, or those of ``out``."""
        names = group._fields
        if out is None:
            out = (None,) * len(names)
        elif not isinstance(out, (tuple, list)) or len(out) != len(names):
            raise TypeError(f"out: expected ({', '.join(names)}); got {inputs.shown(out)}")
        made = [
            self.arguments[name].made(given, shape, device)
            for name, given, shape in zip(names, out, shapes, strict=True)
        ]
        return group(*made)

    def recall(self, raw):
        """Run a call that looks like one that was checked and run before. Its outputs, or None if it looks like none.

        ``raw`` has all that the caller gave; seed, position and nonce come first (csrc/recall.h).
        """
        if is_compiling():
            return None
        for recall in self.recalls.get(backends.block().name, ()):
            if found := recall(raw):
                return found
        return None

    def __call__(self, *values, given=False, raw=None, results=()):
        """Run the op. ``given`` says that an output came from the caller, so its memory has to be checked.

        With ``raw`` the call is remembered: its checks then depend on nothing but what ``raw`` holds. ``results`` are
        the outputs as the caller gets them.
        """
        call = self.Call(*values)
        place = values[self._place]
        if _watched(place):
            self._watched_call(*self.flat(call))
            return
        if given:
            check_apart(self.arguments, call)
        device_type = "cpu" if place.is_cpu else place.device.type
        backends.run(self, call, device_type)
        if raw is not None:
            backends.remember(self, device_type, raw, call, results)


def _watched(tensor):
    return (
        is_compiling()
        or type(tensor) is not torch.Tensor
        or tensor.is_meta
        or _len_torch_dispatch_stack() > 0
        or _len_torch_function_stack() > 0
        or _profiler_enabled()
    )
