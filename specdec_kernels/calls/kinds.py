"""Kinds of arguments: how each is written in torch's schema, and which values a call may have there."""

import functools
import math
from collections.abc import Sequence

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import Edit, Law, Noise

_ANNOTATIONS = {
    "Tensor": torch.Tensor, "Tensor?": torch.Tensor | None,
    "Tensor(!)": torch.Tensor, "Tensor(!)?": torch.Tensor | None,
    "Tensor(!)[]": Sequence[torch.Tensor], "bool": bool, "str": str, "SymInt": int,
}  # fmt: skip


class Kind:
    """How an argument is written in a schema, how a value becomes the schema's arguments and back, and the values that
    are allowed.

    ``shown`` is its public name, if that differs. ``(!)`` in a schema marks outputs. ``Op.check`` checks ``shape``;
    csrc/python/direct.cpp reads ``role`` and ``dims``, and leaves sizes to csrc/c_api/checks.cpp.

    A letter of a shape names a size of the op: the first tensor sets it, all others must have it; N is one at least.
    Without letters any shape is allowed. E is the number of entries of numbers and draft rows, * stands for all leading
    dimensions, ~ for these with E instead of the first. Behind a bar stands the shape where requests are packed, behind
    a colon: o optional, c contiguous, u with unit stride along the last dimension, r with contiguous rows, s of any
    strides.
    """

    def __init__(self, schema, shown=None, role="tensor", shape="", least=-math.inf, most=math.inf):
        self._schema = schema
        self.shown = shown
        self.written = schema is not None and "(!)" in schema
        self.role, self.shape, self.least, self.most = role, shape, least, most

    @property
    def is_tensor(self):
        """Whether the argument is a tensor in every call."""
        return self._schema in ("Tensor {}", "Tensor(!) {}")

    @property
    def dims(self):
        """What C++ reads of its shape: how many dimensions follow leading ones, how many if requests are packed, marks
        (``l`` for leading ones).
        """
        shape, _, marks = self.shape.partition(":") if isinstance(self.shape, str) else ("", "", "")
        padded, packed = (shape.split("|") * 2)[:2]
        leads = shape[:1] in ("*", "~")
        return len(padded) - leads, len(packed) - leads, marks + "l" * leads

    @property
    def annotation(self):
        """The type of its values in a call."""
        return _ANNOTATIONS[self._schema.split()[0]]

    def schema(self, name):
        return self._schema.format(name)

    def flat(self, value):
        return [value]

    def whole(self, flat):
        return next(flat)

    def check(self, name, x, sizes):
        """Raise unless ``x`` is one of the choices."""
        inputs.check_choice(name, x, self.shape)


class Given(Kind):
    """A tensor of the caller, with one of these dtypes."""

    def __init__(self, dtypes, shape="", shown=None, optional=False, role="tensor"):
        dims, _, marks = shape.partition(":")
        super().__init__("Tensor? {}" if optional else "Tensor {}", shown, role, f"{dims}:{marks}{'o' * optional}")
        self._dtypes, self._optional, self._contiguous = dtypes, optional, "c" in marks
        self._rows = dtypes is inputs.ROW_DTYPES
        self._padded, self._packed = ([(part, (part,)) for part in dims.split("|")] * 2)[:2]
        self._digits = {dim: int(dim) for dim in dims if dim.isdigit()}

    def check(self, name, x, sizes):
        """Raise unless ``x`` is such a tensor."""
        if x is None and self._optional:
            return
        (dims, key), name = self._packed if "packed" in sizes else self._padded, self.shown or name
        if not isinstance(x, torch.Tensor) or x.dtype not in self._dtypes:
            inputs.check_tensor(name, x, self._dtypes, None)
        shape, device = x.shape, x.device
        if dims == "*":
            inputs.check_shape(name, x, sizes[dims])
        elif dims:  # else of any shape
            new = shape != sizes.get(key)
            if new and len(shape) != len(dims):
                inputs.check_tensor(name, x, self._dtypes, len(dims))
            if self._rows and (shape[-1] == 0 or x.stride(-1) != 1):
                inputs.check_columns(name, x)
            if new:
                sizes.update(self._digits)
                for dim, size in zip(dims, shape, strict=True):
                    if sizes.setdefault(dim, size) != size or (size == 0 and dim == "N"):
                        self._refuse(name, x, dims, sizes)
                sizes[key] = shape
        if device != sizes.setdefault("device", device):
            inputs.check_device(name, x, sizes["device"])
        if self._contiguous and not x.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor; got strides {x.stride()}")

    def _refuse(self, name, x, dims, sizes):
        none = sizes.get("N") == 0
        wanted = [*dims] if none else [sizes.get(dim, size) for dim, size in zip(dims, x.shape, strict=True)]
        if self._rows:  # of any vocabulary
            wanted[-1] = dims[-1]
        shape = ", ".join(map(str, wanted))
        raise ValueError(f"{name}: expected shape [{shape}]{', N at least 1' * none}; got {inputs.shown(x)}")


class Either(Kind):
    """One number for all, or a tensor of them, of a shape that broadcasts to this one.

    In a ``Group`` its number is in a list with the group's others of its type: torch takes at most 64 arguments.
    """

    def __init__(self, type_, shape, least, most, role="number"):
        super().__init__(f"Tensor? {{0}}s, {type_} {{0}}", None, role, shape, least, most)
        self.type, self._nothing = type_, 0.0 if type_ == "float" else 0

    @property
    def annotation(self):
        return (float if self.type == "float" else int) | torch.Tensor

    def taken(self, name, x, shape, device, seen=None):
        """The checked number, or tensor of numbers as ``inputs.number`` returns it."""
        if self.type == "float":
            return inputs.number(name, x, shape, device, self.least, self.most, seen)
        return inputs.counter(name, x, shape, device, seen)

    def flat(self, value):
        return [value, self._nothing] if isinstance(value, torch.Tensor) else [None, value]

    def whole(self, flat):
        tensor, number = next(flat), next(flat)
        return number if tensor is None else tensor


class Group(Kind):
    """A value of several parts, a NamedTuple."""

    annotation = None

    def __init__(self, type_, role, shape, shown=None, /, **kinds):
        super().__init__(None, shown, role, shape)
        self.annotation, self.kinds = type_, kinds
        self._numbers = list(dict.fromkeys(kind.type for kind in kinds.values() if isinstance(kind, Either)))

    def schema(self, name):
        parts = [
            f"Tensor? {name}_{part}s" if isinstance(kind, Either) else kind.schema(f"{name}_{part}")
            for part, kind in self.kinds.items()
        ]
        return ", ".join(parts + [f"{type_}[] {name}_{type_.lower()}s" for type_ in self._numbers])

    def flat(self, value):
        flat, numbers = [], {type_: [] for type_ in self._numbers}
        for kind, part in zip(self.kinds.values(), value, strict=True):
            first, *number = kind.flat(part)
            flat.append(first)
            if number:
                numbers[kind.type] += number
        return flat + list(numbers.values())

    def whole(self, flat):
        parts = [next(flat) for _ in self.kinds]
        numbers = {type_: iter(next(flat)) for type_ in self._numbers}
        for i, kind in enumerate(self.kinds.values()):
            if isinstance(kind, Either):
                number = next(numbers[kind.type])
                parts[i] = number if parts[i] is None else parts[i]
        return self.annotation(*parts)


class Output(Kind):
    """A tensor that the op writes. It is contiguous; with ``by_rows`` only its rows are, at any row stride.

    With ``given_as`` the caller's may have one of these dtypes, and any strides.
    """

    def __init__(self, dtype, shown=None, shape="", optional=False, by_rows=False, given_as=(), role=None):
        if role is None and shown is not None:
            role = shown.split(".")[0] if "." in shown else "status" if optional else "output"
        marks = "r" * by_rows + "s" * bool(given_as)
        marks += "o" * optional
        super().__init__("Tensor(!)? {}" if optional else "Tensor(!) {}", shown, role, f"{shape}:{marks}")
        self.dtype, self._dims, self._by_rows, self._given_as = dtype, shape, by_rows, given_as

    def sized(self, sizes):
        """Its shape, from the sizes of its letters."""
        if self._dims == "*":
            return sizes["*"]
        shape = []
        for dim in self._dims:
            shape += sizes["*"] if dim == "*" else [int(dim) if dim.isdigit() else sizes[dim]]
        return tuple(shape)

    def new(self, sizes):
        """A new output."""
        return self.made(None, self.sized(sizes), sizes["device"])

    def made(self, given, shape, device, dtype=None):
        """A new output, or the checked one that was ``given``."""
        dtype = self.dtype if dtype is None else dtype
        if given is None:
            return torch.empty(*(shape or ((),)), dtype=dtype, device=device)  # a tuple as the shape takes 0.4 µs more
        if self._given_as:
            inputs.strided_output(self.shown, given, self._given_as, shape, device)
        else:
            inputs.output(self.shown, given, dtype, shape, device, self._by_rows)
        return given


rows, tokens, counters, ints, floats = (
    functools.partial(Given, dtypes)
    for dtypes in (inputs.ROW_DTYPES, inputs.TOKEN_DTYPES, inputs.COUNTER_DTYPES, (torch.int32,), (torch.float32,))
)


def number(shape="", least=0.0, most=math.inf, role="number"):
    """A float, or float32."""
    return Either("float", shape, least, most, role)


def counter(shape="", least=-math.inf, most=math.inf):
    """An int, or int64 or int32."""
    return Either("SymInt", shape, least, most)


def choice(*words):
    """One of these, in the order of their numbers in specdec.h."""
    return Kind("str {}", None, "choice", words)


def size(shape="", least=-math.inf, most=math.inf, role="int"):
    """An int. An argument that is only a size has a letter, and perhaps the letter of its upper bound."""
    return Kind("SymInt {}", None, role, shape, least, most)


def law(shape="", role="law", shown=None):
    """``shown`` is the prefix of its arguments' names."""
    return Group(
        Law, role, shape, shown, space=choice(), temperature=number(), top_k=counter(), top_p=number(most=1.0),
        min_p=number(most=1.0), rules=size(),
    )  # fmt: skip


def noise(shape=""):
    return Group(Noise, "noise", shape, seed=counter(), position=counter(), nonce=counter())


REQUEST_INDEX = tokens("B:c", optional=True)
FLAG = Kind("bool {}", None, "flag")
_LISTS = Kind("Tensor? {}")


def edits(shape=""):
    """``shape`` is that of its numbers, where no law of the op has them."""
    return Group(
        Edit, "edits", shape, allowed=_LISTS, bias_tokens=_LISTS, bias_values=_LISTS, bias_spans=_LISTS,
        repetition=number(), frequency=number(least=-math.inf), presence=number(least=-math.inf), prompt_mask=_LISTS,
        output_mask=_LISTS, output_counts=_LISTS, pending=_LISTS, by_row=size(), seen_index=_LISTS,
        allowed_index=_LISTS,
    )  # fmt: skip


EDITS = edits()
WRITTEN_TENSORS = Kind("Tensor(!)[] {}", shown="cache", role="layers")
