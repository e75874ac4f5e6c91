"""An op is declared once, as an ``Op``: named arguments, each of a kind.

From that come the tuple that backends get (``Op.Call``), the op's schema in torch with its CPU, CUDA and meta
implementations, and the making and checking of outputs. Every table of ops comes from ``OPS``.
"""

import collections
import math
import string
from typing import NamedTuple

import torch
from torch._C import _functorch, _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import _profiler_enabled, forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling

from specdec_kernels import _C, backends
from specdec_kernels.backends import block
from specdec_kernels.layout import InputPositions, Packing
from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._memory import check_apart
from specdec_kernels.sampling import Draft

OPS = {}  # name -> Op
_all_viewed = _C.use_tensors(torch.Tensor, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
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
    """How an argument is written in a schema, how a value becomes the schema's arguments and comes back, and what a
    call may have there.

    ``shown`` is its public name, if that differs. ``(!)`` in a schema marks what the op writes. ``role`` and ``shape``
    say what csrc/python/direct.cpp reads. A letter of a shape names a size of the op: the first tensor sets it, all
    others must have it. E is how many entries numbers and draft rows have, * stands for all leading dimensions, ~ for
    these with E in the place of the first. Behind a bar stands the shape where requests are packed, behind a colon: o
    optional, c contiguous, u with unit stride along the last dimension, w int64, r with contiguous rows,
    s of any strides.
    """

    def __init__(self, schema, shown=None, role="tensor", shape="", least=-math.inf, most=math.inf):
        self._schema = schema
        self.shown = shown
        self.written = schema is not None and "(!)" in schema
        self.role, self.shape, self.least, self.most = role, shape, least, most

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
    """One number for all, or a tensor of them, of a shape that broadcasts to this one.

    In a ``Group`` its number stands in a list with the group's others of its type: torch takes at most 64 arguments.
    """

    def __init__(self, type_, nothing, shape, least, most, role="number"):
        super().__init__(f"Tensor? {{0}}s, {type_} {{0}}", None, role, shape, least, most)
        self.type, self._nothing = type_, nothing

    def flat(self, value):
        return [value, self._nothing] if isinstance(value, torch.Tensor) else [None, value]

    def whole(self, flat):
        tensor, number = next(flat), next(flat)
        return number if tensor is None else tensor


class Group(Kind):
    """A value of several parts, a NamedTuple."""

    def __init__(self, type_, role, shape, shown=None, /, **kinds):
        super().__init__(None, shown, role, shape)
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

    def __init__(self, dtype, shown=None, shape="", optional=False, by_rows=False, given_as=(), role=None):
        if role is None and shown is not None:
            role = shown.split(".")[0] if "." in shown else "status" if optional else "output"
        marks = "r" * by_rows + "s" * bool(given_as)
        marks += "o" * optional
        super().__init__("Tensor(!)? {}" if optional else "Tensor(!) {}", shown, role, f"{shape}:{marks}")
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


def tensor(shape="", shown=None, optional=False, role="tensor"):
    if optional:
        shape += "o" if ":" in shape else ":o"
    return Kind("Tensor? {}" if optional else "Tensor {}", shown, role, shape)


def number(shape="", least=0.0, most=math.inf, role="number"):
    """A float, or float32."""
    return Either("float", 0.0, shape, least, most, role)


def counter(shape="", least=-math.inf, most=math.inf):
    """An int, or int64 or int32."""
    return Either("SymInt", 0, shape, least, most)


def choice(*words):
    """One of these, in the order of their numbers in specdec.h."""
    return Kind("str {}", None, "choice", words)


def size(shape="", least=-math.inf, most=math.inf, role="int"):
    """An int. As an argument that is only a size it has a letter, and perhaps that of the size it may be at most."""
    return Kind("SymInt {}", None, role, shape, least, most)


def law(shape="", role="law", shown=None):
    """``shown`` stands before the names of its arguments."""
    return Group(
        Law, role, shape, shown, space=choice(), temperature=number(), top_k=counter(), top_p=number(), min_p=number(),
        rules=size(),
    )  # fmt: skip


def noise(shape=""):
    return Group(Noise, "noise", shape, seed=counter(), position=counter(), nonce=counter())


FLAG = Kind("bool {}", None, "flag")
_LISTS = Kind("Tensor? {}")


def edits(shape=""):
    """``shape`` is that of its numbers, where no law of the op has it."""
    return Group(
        Edit, "edits", shape, allowed=_LISTS, bias_tokens=_LISTS, bias_values=_LISTS, bias_spans=_LISTS,
        repetition=number(), frequency=number(), presence=number(), prompt_mask=_LISTS, output_mask=_LISTS,
        output_counts=_LISTS, pending=_LISTS, by_row=size(), seen_index=_LISTS, allowed_index=_LISTS,
    )  # fmt: skip


EDITS = edits()
WRITTEN_TENSORS = Kind("Tensor(!)[] {}", shown="cache", role="layers")


class Op:
    """An op: called with its arguments in order, it has the active backend run it.

    The dispatcher costs a call about 2 µs, and 0.1 µs more for each argument (``torch.library.custom_op``: 14 µs). If
    no compiler, mode, tensor subclass or profiler has to see the call, it goes to the backend directly.

    Parameters
    ----------
    name : str
        Of the op, and of every backend's function for it.
    figures : bool
        Whether it writes figures, of which one could want derivatives; tokens have none.
    backward : int
        Of how many of the function's first arguments they have gradients.
    result : type, optional
        The NamedTuple of outputs that the function returns; without, it returns its first output.
    sizes : dict of str to Kind
        Arguments of the function that are sizes of outputs, and no arguments of the op.
    names : sequence of str
        Of the function's arguments, where C++ does not read calls of it directly.
    arguments : Kind
        In the order of ``SPECDEC_FIELDS`` in csrc/include/specdec.h. The schema returns nothing: every output is an
        argument that the op writes.

    Attributes
    ----------
    Call : type
        The NamedTuple of the arguments' names, which a backend's function gets.
    plan : tuple or None
        What C++ reads of a direct call, item by item: (role, places of the op's arguments, how many of the function's,
        shapes, least, most).
    names : list of str
        The function's arguments as ``direct`` has them.
    """

    def __init__(self, name, figures=False, backward=0, result=None, sizes=None, names=None, **arguments):
        self.name, self.arguments, self.figures, self._backward, self.result = (
            name,
            arguments,
            figures,
            backward,
            result,
        )
        self.Call = collections.namedtuple(name, arguments)
        self.plan, self.names = (None, names) if names else _plan(arguments, sizes or {})
        self._kinds = tuple(arguments.values())
        self._place = next(place for place, kind in enumerate(self._kinds) if kind.is_tensor)
        OPS[name] = self

        _library.define(f"{name}({self.schema()}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, lambda *flat: backends.run(self, self.whole(flat), "cpu"), "CPU")
        _library.impl(name, lambda *flat: backends.run(self, self.whole(flat), "cuda"), "CUDA")
        _library.impl(name, lambda *flat: None, "Meta")
        self._watched_call = getattr(torch.ops.specdec, name).default
        self.ran = backends.ran.setdefault(name, {})

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

    def outputs(self, out, device, *shapes):
        """Outputs of these shapes as the op's NamedTuple, whose fields name them: new, or those of ``out``."""
        names = self.result._fields
        if out is None:
            out = (None,) * len(names)
        elif not isinstance(out, (tuple, list)) or len(out) != len(names):
            raise TypeError(f"out: expected ({', '.join(names)}); got {inputs.shown(out)}")
        made = [
            self.arguments[name].made(given, shape, device)
            for name, given, shape in zip(names, out, shapes, strict=True)
        ]
        return self.result(*made)

    def direct(self, check, *raw):
        """Run a call as its caller made it, if it keeps to the declaration; not one whose status the caller ``check``s.

        ``raw`` are the function's arguments in the order of ``names``. Returns what the function does, or None: then it
        was not run.
        """
        if self.figures:
            self.refuse_derivatives(raw)
        if is_dynamo_compiling():
            return None
        if not check:
            for run in self.ran.get(block().name, ()):
                try:
                    if (found := run(raw)) is not None:
                        return found
                except RuntimeError:
                    if _functorch.peek_interpreter_stack() is None:
                        raise  # else a new output has no memory of its own: the call goes through torch
        self.refuse_unreadable(raw)
        return None

    def refuse_unreadable(self, raw):
        """Raise if the memory of a tensor does not hold its values."""
        if is_compiling() or _all_viewed(raw):
            return
        transforms = _functorch.peek_interpreter_stack() is not None
        for x in _tensors_in(raw):
            if (
                x.layout is not torch.strided or x.is_nested or x.is_neg() or x._is_zerotensor()
                or (transforms and (torch._is_functional_tensor(x) or _is_batched(x)))
            ):  # fmt: skip
                what, instead = _unreadable(x)
                raise ValueError(
                    f"{self._name_of(x, raw)}: expected a tensor whose values {self.name} finds in its memory "
                    f"({instead}); got {what}"
                )

    def refuse_derivatives(self, raw):
        """Raise if autograd wants a derivative that this op does not have; it would silently get none."""
        reverse, forward = torch.is_grad_enabled(), forward_ad._current_level >= 0
        if not (reverse or forward):
            return
        for x in _tensors_in(raw):
            wanted = reverse and x.requires_grad
            if not (wanted or forward):
                continue
            known = any(x is (y.rows if isinstance(y, Draft) else y) for y in raw[: self._backward])
            if wanted and not known:
                raise ValueError(
                    f"{self._name_of(x, raw)}: expected no gradient to be wanted, since {self.name} has none for it "
                    "(detach() it, or call under torch.no_grad()); got a tensor that requires grad"
                )
            dual = forward and x.is_floating_point() and forward_ad.unpack_dual(x).tangent is not None
            if dual or (wanted and not is_compiling() and _functorch.is_functorch_wrapped_tensor(x)):
                raise ValueError(
                    f"{self._name_of(x, raw)}: expected no derivative of torch.func or forward mode to be wanted, "
                    f"since {self.name} has {'those of backward() alone' if known else 'none'} (detach() it); got "
                    "a tensor that carries one"
                )

    def _name_of(self, x, raw):
        """The name of the argument that has this tensor."""
        place = _place_of(x, raw)
        if isinstance(raw[place], (Draft, InputPositions, Packing)):
            return f"{self.names[place]}.{raw[place]._fields[_place_of(x, raw[place])]}"
        return self.names[place]

    def __call__(self, *values, given=False):
        """Run the op. ``given`` says that an output came from the caller, so its memory has to be checked."""
        call = self.Call(*values)
        place = values[self._place]
        if _watched(place) or _transformed(values):
            self._watched_call(*self.flat(call))
            return
        if given:
            check_apart(self.arguments, call)
        backends.run(self, call, "cpu" if place.is_cpu else place.device.type)


_GROUPED = (
    "draft",
    "packing",
    "noise",
    "mask",
    "out",
    "form",
)  # several arguments of an op that come in one, or together
_NAMES = {
    "law": ("space", "temperature", "sampling"), "noise": Noise._fields, "mask": ("layout", "dtype", "columns", "out"),
}  # fmt: skip


def _plan(arguments, sizes):
    """(An op's plan, the names of its function's arguments)."""
    items, names, read = [], [], set()

    def add_sizes(limited):
        for name, kind in sizes.items():
            if (len(kind.shape.split(":")[0]) > 1) == limited:
                items.append(("size", (-1,), 1, (kind.shape,), kind.least, kind.most))
                names.append(name)

    add_sizes(limited=False)
    places = {name: place for place, name in enumerate(arguments)}
    for name, kind in arguments.items():
        if kind.role is None or kind.role in read:
            continue
        if kind.role in ("out", "output", "status"):
            add_sizes(limited=True)
            sizes = {}
        group = {name: kind}
        if kind.role in _GROUPED:
            group = {name: other for name, other in arguments.items() if other.role == kind.role}
            read.add(kind.role)
        shapes = kind.shape if kind.role == "choice" else tuple(other.shape for other in group.values())
        own = tuple(f"{kind.shown}_{part}" if kind.shown else part for part in _NAMES.get(kind.role, ()))
        own = own or ((kind.role if kind.role in _GROUPED else kind.shown or name),)
        fields = tuple(places[name] for name in group)
        items.append((kind.role, fields, len(own), shapes, kind.least, kind.most))
        names += own
    return tuple(items), names


def _place_of(x, values):
    """Which of the values has this tensor."""
    return next(place for place, given in enumerate(values) if any(x is y for y in _tensors_in((given,))))


def _watched(tensor):
    return (
        is_compiling()
        or type(tensor) is not torch.Tensor
        or tensor.is_meta
        or _len_torch_dispatch_stack() > 0
        or _len_torch_function_stack() > 0
        or _profiler_enabled()
    )


def _transformed(values):
    """Whether one of torch.func's transforms has to see a call, because it wrapped a tensor."""
    if is_compiling() or _functorch.peek_interpreter_stack() is None:
        return False
    return any(map(_functorch.is_functorch_wrapped_tensor, _tensors_in(values)))


_SCALARS = frozenset((type(None), str, int, float, bool))


def _tensors_in(values):
    """All tensors in some values, in tuples and lists among these, too."""
    found = []
    for given in values:
        kind = type(given)
        if kind in _SCALARS:
            continue
        if kind is torch.Tensor or isinstance(given, torch.Tensor):
            found.append(given)
        elif isinstance(given, (tuple, list)):
            found += _tensors_in(given)
    return found


def _is_batched(x):
    """Whether a tensor is one of vmap, below what other transforms made of it."""
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def _unreadable(x):
    """What a tensor is whose memory does not hold its values, and what to do instead."""
    if x.is_nested:
        return "a nested tensor", "pad it, or pack its rows where the op takes them so"
    if x.layout is not torch.strided:
        return f"one of layout {x.layout}", "to_dense()"
    if x.is_neg():
        return "one with the negative bit", "resolve_neg()"
    if x._is_zerotensor():
        return "zeros without memory", "clone()"
    if _is_batched(x):
        return "one of vmap", "the op takes batches: give rows, numbers and counters a dimension for them"
    return "one of functionalize", "call the op outside of it"
