"""An op's declaration, an ``Op``: named arguments, each of a kind.

It yields the tuple that backends get (``Op.Call``), the op's schema in torch with its CPU, CUDA and meta
implementations, and the allocation and checks of outputs. ``OPS`` has all ops by name, those of
``specdec_kernels.sharded`` once that is imported.
"""

import functools
import string
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling

from specdec_kernels import _C, backends
from specdec_kernels.backends import block
from specdec_kernels.calls import inputs, torch_names
from specdec_kernels.calls.kinds import Output
from specdec_kernels.calls.memory import SCALARS, check_apart
from specdec_kernels.calls.tensors import use_tensors
from specdec_kernels.calls.values import Noise
from specdec_kernels.layout import InputPositions, OutputFormat, Packing
from specdec_kernels.sampling import Draft, LogitEdits

OPS = {}  # name -> Op
use_tensors(_C)
_library = torch.library.Library("specdec", "DEF")  # without a reference torch would drop the ops


class Op:
    """An op: called with its arguments in order, it runs on the active backend.

    The dispatcher costs a call about 2 µs, and 0.1 µs more for each argument (``torch.library.custom_op``: 14 µs).
    Unless a compiler, mode, tensor subclass or profiler must see the call, it goes to the backend directly.

    Parameters
    ----------
    name : str
        The name of the op, and of every backend's function for it.
    figures : bool
        Whether its outputs are figures, which could have derivatives; tokens have none.
    backward : int
        How many of the function's first arguments have gradients.
    result : type, optional
        The NamedTuple of outputs that the function returns; without, it returns its first output.
    sizes : dict of str to Kind
        Arguments of the function that are sizes of outputs, and no arguments of the op.
    direct : bool
        Whether C++ reads its calls directly.
    names : sequence of str
        Names of the function's arguments, where they do not follow from those of the op.
    arguments : Kind
        In the order of ``SPECDEC_FIELDS`` in csrc/include/specdec.h. The schema returns nothing: every output is an
        argument that the op writes.

    Attributes
    ----------
    Call : type
        The NamedTuple of the arguments, which a backend's function gets; ``calls/typed.pyi`` has all for type checkers.
    plan : tuple or None
        What C++ reads of a direct call, in its order: (role, index of the function's argument, least, most, parts,
        choices), a part being (index of the op's argument, dimensions, those if requests are packed, marks).
    names : list of str
        The function's arguments in the order of ``direct``.
    """

    def __init__(self, name, figures=False, backward=0, result=None, sizes=None, direct=True, names=None, **arguments):
        self.name, self.arguments, self.result = name, arguments, result
        self.figures, self._backward, self.sizes = figures, backward, sizes or {}
        self.Call: Any = NamedTuple(name, [(each, kind.annotation) for each, kind in arguments.items()])
        plan, self.names = (None, names) if names else _plan(arguments, self.sizes)
        self.plan = plan if direct else None
        self.first, self._kinds = next(iter(arguments)), tuple(arguments.values())
        self._fields = getattr(result, "_fields", ())
        self._outputs = [
            (name, kind, self._fields.index(name) if name in self._fields else None)
            for name, kind in arguments.items()
            if isinstance(kind, Output)
        ]
        self._results = [arguments[name] for name in self._fields]
        self._written = bytes(kind.written for kind in self._kinds)
        self._first_tensor = next(index for index, kind in enumerate(self._kinds) if kind.is_tensor)
        OPS[name] = self
        if self._fields:
            saved_by_name(result)

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
        """The device of a call's tensors."""
        return call[self._first_tensor].device

    def check(self, sizes, **given):
        """Raise unless arguments keep to the declaration. Returns ``sizes``."""
        # ``sizes`` holds sizes by their letters, "*" for leading dimensions, and the ``device``. The first tensor with
        # a letter sets it. The key ``packed`` marks packed requests.
        for name, x in given.items():
            self.arguments[name].check(name, x, sizes)
        return sizes

    def number(self, name, x, shape, device, seen=None):
        """The number or tensor of numbers, checked."""
        return self.arguments[name].taken(name, x, shape, device, seen)

    def size(self, name, x, expected, most=None, step=1):
        """An int that is not below an argument's range, checked by ``inputs.whole``."""
        kind = self.arguments.get(name) or self.sizes[name]
        return inputs.whole(name, x, expected, kind.least, most, step)

    def output(self, name, given, shape, device, dtype=None):
        """One output of this shape: new, or the one given."""
        return self.arguments[name].made(given, shape, device, dtype)

    def given_outputs(self, out):
        """An item of ``out`` for each field of the op's NamedTuple: None, or the caller's."""
        return inputs.outputs(self._fields, out)

    def outputs(self, out, device, *shapes):
        """Outputs of these shapes as the op's NamedTuple, whose fields name them: new, or those of ``out``."""
        each = zip(self._results, self.given_outputs(out), shapes, strict=True)
        made = [
            torch.empty(*shape, dtype=kind.dtype, device=device) if x is None else kind.made(x, shape, device)
            for kind, x, shape in each
        ]
        return self.result(*made)

    def make(self, sizes, given, check=False):
        """(Outputs by name, new or the checked ones of ``given``; whether any was given).

        An optional output that is not given is None, except a status that the caller will ``check``.
        """
        out = inputs.outputs(self._fields, given.get("out")) if self._fields else ()
        made, some, device = {}, False, sizes["device"]
        for name, kind, field in self._outputs:
            x = given.get(kind.shown) if field is None else out[field]
            if x is None and kind.role == "status" and not (check and name == "status"):
                made[name] = None
                continue
            some = some or x is not None
            made[name] = kind.made(x, kind.sized(sizes), device)
        return made, some

    def finish(self, sizes, given, **values):
        """Run a call with these inputs and new outputs; returns the function's result."""
        made, some = self.make(sizes, given)
        self.run(self.Call(**values, **made), some)
        return self.returned(made)

    def returned(self, made):
        """The function's result, from all outputs by name."""
        if self.result is None:
            return next(iter(made.values()))
        if self.result is tuple:
            return tuple(made.values())
        return self.result(*[made[name] for name in self._fields])

    def new(self, sizes, wanted):
        """New outputs; None instead of one that is not ``wanted``."""
        return [
            kind.new(sizes) if is_wanted else None
            for (_, kind, _), is_wanted in zip(self._outputs, wanted, strict=True)
        ]

    def direct(self, check, *raw):
        """Run a call as its caller made it, if it keeps to the declaration; not one whose status is to be ``check``ed.

        ``raw`` are the function's arguments in the order of ``names``. Returns the function's result. ``read`` takes
        the calls that the C++ fast path declined.
        """
        if self.figures:
            self.refuse_derivatives(raw)
        if is_dynamo_compiling():
            return self.read(check, raw)
        if not check:
            for run in self.ran.get(block().name, ()):
                try:
                    if (outputs := run(raw)) is not None:
                        return outputs
                except RuntimeError:
                    if torch_names.transforms() is None:
                        raise  # under a transform a new output has no memory, so the call goes through torch
        self.refuse_unreadable(raw)
        return self.read(check, raw)

    def read(self, check, raw):
        """Fallback for calls that the C++ fast path declined: it returns None, and the Python body runs."""
        return None

    def refuse_unreadable(self, raw):
        """Raise if the memory of a tensor does not hold its values."""
        if is_compiling() or _C.all_viewed(raw):
            return
        transforms = torch_names.transforms() is not None
        for x in _tensors_in(raw):
            if refusal := _unreadable(x, transforms):
                what, instead = refusal
                raise ValueError(
                    f"{self._name_of(x, raw)}: expected a tensor whose values {self.name} finds in its memory "
                    f"({instead}); got {what}"
                )

    def refuse_derivatives(self, raw):
        """Raise if autograd wants a derivative that this op does not have; it would silently get none."""
        reverse, forward = torch.is_grad_enabled(), torch_names.forward_mode()
        if not (reverse or forward):
            return
        for x in _tensors_in(raw):
            wanted = reverse and x.requires_grad
            if not (wanted or forward):
                continue
            has_one = any(x is (y.rows if isinstance(y, Draft) else y) for y in raw[: self._backward])
            if wanted and not has_one:
                raise ValueError(
                    f"{self._name_of(x, raw)}: expected no gradient to be wanted, since {self.name} has none for it "
                    "(detach() it, or call under torch.no_grad()); got a tensor that requires grad"
                )
            dual = forward and x.is_floating_point() and forward_ad.unpack_dual(x).tangent is not None
            if dual or (wanted and not is_compiling() and torch_names.is_wrapped(x)):
                raise ValueError(
                    f"{self._name_of(x, raw)}: expected no derivative of torch.func or forward mode to be wanted, "
                    f"since {self.name} has {'those of backward() alone' if has_one else 'none'} (detach() it); got "
                    "a tensor that carries one"
                )

    def _name_of(self, x, raw):
        """The name of the argument that is or holds this tensor."""
        index = _index_of(x, raw)
        if isinstance(raw[index], (Draft, InputPositions, Packing)):
            return f"{self.names[index]}.{raw[index]._fields[_index_of(x, raw[index])]}"
        return self.names[index]

    def __call__(self, *values, given=False, **named):
        """Run the op on these arguments."""
        self.run(self.Call(*values, **named), given)

    def run(self, call, given=False):
        """Run a call. ``given``: an output is the caller's, so its memory has to be checked."""
        first = call[self._first_tensor]
        if _watched(first) or _transformed(call):
            self._watched_call(*self.flat(call))
            return
        if given and not _C.apart(call, self._written):
            check_apart(self.arguments, call)
        backends.run(self, call, "cpu" if first.is_cpu else first.device.type)


@functools.cache
def saved_by_name(kind):
    """This NamedTuple, registered so that ``torch.export`` can save and load programs that take or return it."""
    torch_names.save_by_name(kind, serialized_type_name=f"specdec_kernels.{kind.__name__}")
    torch.serialization.add_safe_globals([kind])
    return kind


# Not Sampling: torch (2.13) makes invalid Python of `top_p` and `top_p_after` in an argument.
for _kind in (Draft, LogitEdits, OutputFormat, InputPositions, Packing):
    saved_by_name(_kind)


# Roles whose arguments of an op are one argument of its function, or adjacent there, and what C++ reads of each, in its
# order; None: all of the op.
_GROUPED = {
    "draft": ("draft", "draft_map"), "packing": ("cu_drafts", "tokens_by_row"), "mask": None, "out": None,
    "noise": ("noise", "input_positions", "input_nonces", "row_seeds"),
    "output_format": ("output_format", "index", "path", "num_passed", "bonus"),
}  # fmt: skip
_NAMES = {
    "law": ("space", "temperature", "sampling"), "noise": Noise._fields, "mask": ("layout", "dtype", "columns", "out"),
}  # fmt: skip
_FIRST = ("packing", "request_index", "output_format")  # arguments that C++ reads first: others depend on them


def _plan(arguments, sizes):
    """(An op's plan, the names of its function's arguments)."""
    items, names, read = [], [], set()
    indices = {name: index for index, name in enumerate(arguments)}
    law = arguments.get("target_law", arguments.get("law"))

    def part(name):
        kind = arguments.get(name)  # None: the op has no such argument
        if kind is None:
            return -1, 0, 0, ""
        of_edits = law if kind.role == "edits" and law else kind  # their numbers are like those of a law
        return indices[name], *of_edits.dims

    def add(role, kind, parts, of_function, choices=()):
        items.append((role, len(names), kind.least, kind.most, tuple(map(part, parts)), choices))
        names.extend(of_function)

    def add_sizes(limited):
        for name, kind in sizes.items():
            if (len(kind.shape.split(":")[0]) > 1) == limited:
                add("depth" if ":o" in kind.shape else "size", kind, (None,), (name,))

    add_sizes(limited=False)
    for name, kind in arguments.items():
        role = kind.role
        if role is None or role in read:
            continue
        if role in ("out", "output", "status"):
            add_sizes(limited=True)
            sizes = {}
        parts = (name,)
        if role in _GROUPED:
            of_role = [each for each, other in arguments.items() if other.role == role]
            parts = [each if each in of_role else None for each in _GROUPED[role] or of_role]
            read.add(role)
        elif name == "target_law":
            parts = (name, "draft_law")
        of_function = tuple(f"{kind.shown}_{each}" if kind.shown else each for each in _NAMES.get(role, ()))
        of_function = of_function or ((role if role in _GROUPED else kind.shown or name),)
        add(role, kind, parts, of_function, kind.shape if role == "choice" else ())
    return tuple(sorted(items, key=lambda item: names[item[1]] not in _FIRST)), names


def _index_of(x, values):
    """The index of the value that is or holds this tensor."""
    return next(index for index, given in enumerate(values) if any(x is y for y in _tensors_in((given,))))


def _watched(tensor):
    return (
        is_compiling()
        or type(tensor) is not torch.Tensor
        or tensor.is_meta
        or torch_names.dispatch_modes() > 0
        or torch_names.function_modes() > 0
        or torch_names.profiles()
    )


def _transformed(values):
    """Whether one of torch.func's transforms has to see a call, because it wrapped a tensor."""
    watching = torch_names.transforms() is not None
    return watching and any(map(torch_names.is_wrapped, _tensors_in(values)))


def _tensors_in(values):
    """The tensors among some values, those inside tuples and lists included."""
    tensors = []
    for given in values:
        kind = type(given)
        if kind in SCALARS:
            continue
        if kind is torch.Tensor or isinstance(given, torch.Tensor):
            tensors.append(given)
        elif isinstance(given, (tuple, list)):
            tensors += _tensors_in(given)
    return tensors


def _is_batched(x):
    """Whether a tensor is one of vmap, inside the wrappers of other transforms."""
    while torch_names.is_wrapped(x):
        if torch_names.is_batched(x):
            return True
        x = torch_names.unwrapped(x)
    return False


def _unreadable(x, transforms):
    """(kind, remedy) of a tensor whose memory does not hold its values; None for any other."""
    if x.is_nested:
        return "a nested tensor", "pad it, or pack its rows where the op takes them so"
    if x.layout is not torch.strided:
        return f"one of layout {x.layout}", "to_dense()"
    if x.is_neg():
        return "one with the negative bit", "resolve_neg()"
    if torch_names.is_zeros(x):
        return "zeros without memory", "clone()"
    if transforms and _is_batched(x):
        return "one of vmap", "the op takes batches: give rows, numbers and counters a dimension for them"
    if transforms and torch_names.is_functional(x):
        return "one of functionalize", "call the op outside of it"
    return None
