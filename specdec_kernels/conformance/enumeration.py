"""The exact law of what a function returns: the function runs once for each way that its random draws can go.

A random number is a `Cell`, a monotone function of a whole number that is uniform; each comparison splits that number's
range. In memory a cell is a mark, a NaN with a number in its payload (or its bits in int64), so what moves elements
moves cells. A `TorchDispatchMode` gives other ops their meaning; one that it does not have is an error. numpy's and
Python's random numbers are drawn by torch, too; outside of it each one is a `Number`, in an array of objects or alone.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import itertools
import math
import os
import pickle
import random
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

FINE = 1 << 20  # points of a uniform number from which on it counts as continuous
LARGEST_GRID = 4096  # values of a whole number
TINY = 1e-6  # how far from exponential the noise of a race may be: 1e-10 is often added before a logarithm
TWICE = 16  # ways that run twice, to see random sources without a stand-in
MASK = (1 << 22) - 1  # of a mark's number, the upper bits of a NaN's payload
X = "x"  # where a step has the random number
MARKS = {  # a NaN's bits, where the payload is, and a dtype for bits
    torch.float64: (0xFFF << 51, 29, torch.int64), torch.int64: (0xFFF << 51, 29, torch.int64),
    torch.float32: (0x7FC00000, 0, torch.int32), torch.bfloat16: (0x7FC0, -16, torch.int16),
    torch.float16: (0x7E00, -13, torch.int16),
}  # fmt: skip
WIDE = (torch.float32, torch.float64)
NUMBER: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
MOVES = set(
    "clone index index_select gather cat stack where masked_fill constant_pad_nd repeat flip roll scatter index_put "
    "masked_select take select_scatter slice_scatter fill zero masked_scatter lift_fresh index_copy index_fill "
    "_unsafe_view tril triu".split()
)
TESTS = set("lt le gt ge eq ne isnan isinf isfinite".split())
MONOTONE = set(
    "add sub rsub mul div pow log log1p exp floor neg abs sqrt reciprocal maximum minimum clamp clamp_min "
    "clamp_max __rshift".split()
)
COPIES = ("_to_copy", "copy")
RISING = {("pow", 0), ("div", 1), ("reciprocal", 0), ("abs", 0)}  # or falling, but where that operand is not negative
MEMORY = "data_ptr untyped_storage __dlpack__ __reduce_ex__".split()  # what reads a tensor by its address
TEXT = "__repr__ __format__".split()
READS = ["item", "tolist", "numpy", "__array__", "__int__", "__float__", *MEMORY, *TEXT]
FUNCTIONS = "log exp sqrt log1p".split()  # of math, and of numpy's arrays of objects
MAKERS = "tensor as_tensor asarray from_numpy".split()  # of torch
OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg abs lt le gt ge eq ne".split()
)
OPS: dict[str, Callable[..., Any]] = {  # in float64, where they are none of torch's
    "to": lambda x, dtype: x.to(dtype).double(), "sign": lambda x, y: (x - y).sign(),
    "__rshift": lambda x, bits: (x / 2**bits).floor(),
    # A denominator that may not be negative may still be rounded to -0.0, as -log(1 - u) is.
    "div": lambda x, y: x / (y + 0.0), "reciprocal": lambda x: 1 / (x + 0.0), "pow": lambda x, y: (x + 0.0) ** y,
}  # fmt: skip
Steps = tuple[tuple[Any, ...], ...]
untracked: Any = torch._C._DisableTorchDispatch  # around ops on tensors without random elements
TO_NUMPY, TO_LIST = torch.Tensor.numpy, torch.Tensor.tolist  # before stand-ins replace them


class Unfollowed(Exception):
    """A use of random numbers that cannot be followed: its name, and the line that has it."""


class BudgetExceeded(Exception):
    """More ways, or seconds, than the budget has; the text says how much of the probability was covered."""


class Restart(BaseException):
    """The way has to run again: a module of the function got another ``float``."""


class Law(dict[Any, float]):
    """``{result: probability}``, the number of ``ways``, and how far off (``slack``) constants like 1e-10 put it."""

    ways: int = 0
    slack: float = 0.0


class Noise:
    """A whole number that is uniform in [low, high), of [0, points) before any comparison."""

    def __init__(self, points: int) -> None:
        self.points, self.low, self.high = points, 0, points
        self.race: Race | None = None


class Cell(NamedTuple):
    """A random number: monotone steps (function, operands with one `X`) from its noise on."""

    noise: Noise
    steps: Steps

    @property
    def ends(self) -> tuple[float, float]:
        """The values where the noise is lowest and highest."""
        return ends(self.steps, self.noise.points)


def value_at(steps: Steps, noise: torch.Tensor | float) -> Any:
    with untracked():
        x = noise if isinstance(noise, torch.Tensor) else torch.full((), noise, **NUMBER)
        for function, *operands in steps:
            tensors = [x.new_full((), y) if isinstance(y, (int, float)) else y for y in operands]
            x = function(*(x if y is X else y for y in tensors))
        return x


@functools.lru_cache(maxsize=1 << 16)
def ends(steps: Steps, points: int) -> tuple[float, float]:
    """The values where the noise is lowest and highest, just within (0, points) if it is fine."""
    low, high = (points * 2.0**-60, points * (1 - 2.0**-53)) if points >= FINE else (0, points - 1)
    return value_at(steps, low).item(), value_at(steps, high).item()


@functools.lru_cache(maxsize=1 << 16)
def parts(steps: Steps, low: int, high: int) -> list[tuple[int, int, float]]:
    """(begin, end, value) of the parts of [low, high) where steps are constant, the last of which goes by steps."""
    pieces = []
    while low < high:
        value, begin = value_at(steps, low).item(), low
        end = bisect_left(range(low + 1, high), True, key=lambda k: value_at(steps, k).item() != value)
        low += 1 + end
        pieces.append((begin, low, value))
    return pieces


@functools.lru_cache(maxsize=1 << 12)
def race_rates(cells: tuple[tuple[Steps, int], ...], plain: bool) -> tuple[list[float], float, bool]:
    """The rates of exponential noises that cells are one function of, up to a factor; how far from that they are.

    Cell i is g(E / rate i), where E = -log(k / points), or -log(1 - k / points) if not plain. The last result is
    whether g falls.
    """

    def at(cell: tuple[Steps, int], noise: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = value_at(cell[0], cell[1] * (torch.exp(-noise) if plain else -torch.expm1(-noise)))
        return value

    with untracked():
        noises = torch.tensor([0.7, 1e-6, 1e-4, 0.01, 0.1, 1.0, 2.0, 5.0, 9.0, 14.0], **NUMBER)
        likelihood = noises.clamp(max=1.0).minimum((-noises).exp())
        values = [at(cell, noises) for cell in cells]
        falling, rates, off = bool(values[0][5] > values[0][6]), [], 0.0
        goals = (max if falling else min)(values, key=lambda value: value[5].item())
        for cell in cells:
            low, high = torch.full_like(noises, -40.0), torch.full_like(noises, 7.0)
            for _ in range(52):  # the noise where the cell has the likeliest one's value
                middle = (low + high) / 2
                below = (at(cell, middle.exp()) < goals) == falling
                low, high = low.where(below, middle), middle.where(below, high)
            ratios = high.exp() / noises
            rates.append(ratios[0].item())
            off = max(off, ((ratios - ratios[0]).abs() * likelihood).max().item())
    return rates, off, falling


class Race:
    """Bounds ``{winner: {another: ratio}}`` of exponential noises: another arrives after ratio times the winner."""

    def __init__(self, plain: bool, races: Sequence[Race], winner: Noise, ratios: dict[Noise, float]) -> None:
        self.plain, self.bounds = plain, dict[Noise, dict[Noise, float]]()
        for one, others in [*(x for race in races for x in race.bounds.items()), (winner, ratios)]:
            bounds = self.bounds.setdefault(one, {})
            bounds |= {noise: max(ratio, bounds.get(noise, 0.0)) for noise, ratio in others.items()}

    def probability(self) -> float:
        """Of all bounds, with at most two winners."""
        if len(self.bounds) == 1:
            return 1 / (1 + sum(sum(ratios.values()) for ratios in self.bounds.values()))
        (one, to_one), (two, to_two) = self.bounds.items()
        low, back = to_one.get(two, 0.0), to_two.get(one, 0.0)
        rest = [(to_one.get(x, 0.0), to_two.get(x, 0.0)) for x in {*to_one, *to_two} - {one, two}]

        def rate(s: float) -> float:  # all arrive after (1 - s) t and s t of the winners: exp(-rate t)
            return 1 + sum(max(a * (1 - s), b * s) for a, b in rest)

        begin, end = low / (1 + low), 1 / (1 + back)
        turns = {s for s in (begin, end, *(a / (a + b) for a, b in rest)) if begin <= s <= end}
        return sum((t - s) / (rate(s) * rate(t)) for s, t in itertools.pairwise(sorted(turns)))  # of rate ** -2


ACTIVE: list[Follower] = []


class Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The choices of a run, and what ops make of random numbers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import all of torch's compiler

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path: list[tuple[int, list[float]]] = []
        self.refusal: Unfollowed | None = None
        self.first, self.slack, self.floats = True, 0.0, list[dict[str, Any]]()
        self.last, self.unseeded = {False: 0, True: 0}, itertools.count(0xF0000000)

    def start(self, states: Sequence[Hashable]) -> None:
        self.depth, self.weight = 0, 1.0
        self.table: dict[int, Cell] = {}  # by the number of a mark
        self.drawn: dict[Hashable, tuple[Any, Any]] = {}  # by the state of a generator
        self.outside = False  # whether there were random numbers outside of torch
        self.states = set(states)  # in which generators may be that were made before

    def choose(self, weights: Sequence[float]) -> int:
        """The number of the outcome that this way takes."""
        total = math.fsum(weights)
        shares = [x / total for x in weights]
        if self.depth == len(self.path):
            self.path.append((next(i for i, x in enumerate(weights) if x > 0), shares))
        choice, before = self.path[self.depth]
        if shares != before:
            raise self.refuse("a random source without a stand-in: the same draws led to another choice")
        self.depth, self.weight = self.depth + 1, self.weight * shares[choice]
        return choice

    def advance(self) -> bool:
        """To the next way; False after the last."""
        del self.path[self.depth :]
        while self.path:
            choice, shares = self.path.pop()
            if later := [i for i in range(choice + 1, len(shares)) if shares[i] > 0]:
                self.path.append((later[0], shares))
                return True
        return False

    def refuse(self, what: str, error: BaseException | None = None) -> Unfollowed:
        """The error; `law` raises it even if the function catches it."""
        frame, trace = sys._getframe(1), error and error.__traceback__
        while trace:
            frame, trace = trace.tb_frame, trace.tb_next
        while frame.f_back and any(x in frame.f_code.co_filename for x in ("/torch/", __file__, "/random.py")):
            frame = frame.f_back
        self.refusal = self.refusal or Unfollowed(f"{what} ({frame.f_code.co_filename}:{frame.f_lineno})")
        return self.refusal

    def step(self, name: str, function: Any, *operands: Any) -> Cell | float:
        """A monotone function of one random number."""
        (index, x), *more = [(i, y) for i, y in enumerate(operands) if isinstance(y, Cell)]
        if more or (name, index) == ("pow", 1):
            raise self.refuse(f"{name} of two random numbers, or by one")
        out = Cell(x.noise, (*x.steps, (function, *(X if i == index else y for i, y in enumerate(operands)))))
        one, two = out.ends
        if ((name, index) in RISING and min(x.ends) < 0) or math.isnan(one) != math.isnan(two):
            raise self.refuse(f"{name} of random numbers that may be negative")
        return one if one == two or math.isnan(one) else out

    def decide(self, x: Cell, *test: Any) -> float:
        """The value of a step function of a random number, by the part of its range that this way takes."""
        noise = x.noise
        pieces = parts((*x.steps, test), noise.low, noise.high)
        if len(pieces) > 1 and noise.race:
            raise self.refuse("a comparison of a number that was in a race")
        choice = self.choose([end - begin for begin, end, _ in pieces]) if len(pieces) > 1 else 0
        noise.low, noise.high, value = pieces[choice]
        return value

    def test(self, name: str, function: Any, x: Any, y: Any = 0.0) -> bool:
        cell, pair = x if isinstance(x, Cell) else y, [X if isinstance(z, Cell) else z for z in (x, y)]
        if name.startswith("is"):
            if any(map(math.isinf, cell.ends)):
                raise self.refuse(f"{name} of random numbers that may be infinite")
            return name == "isfinite"
        if pair == [X, X]:
            if x == y:
                return name in ("le", "ge", "eq")
            if name in ("eq", "ne"):
                raise self.refuse(f"{name} of two random numbers")
            return self.winner([x, y], largest=name in ("gt", "ge")) == 0
        if name not in ("eq", "ne"):
            return bool(self.decide(cell, function, *pair))
        pieces = parts((*cell.steps, (OPS["sign"], *pair)), cell.noise.low, cell.noise.high)
        if cell.noise.points >= FINE and all(end - begin < 2 for begin, end, sign in pieces if not sign):
            return name == "ne"  # a continuous number never equals another
        return (self.decide(cell, OPS["sign"], *pair) == 0) == (name == "eq")

    def whole(self, x: Any) -> int:
        """The whole number that a cell is cut down to."""
        low, high = sorted(x.ends) if isinstance(x, Cell) else (x, x)
        if self.first or not isinstance(x, Cell):  # modules are imported, which may draw names
            return math.floor(low)
        if low < 0 or high > LARGEST_GRID:
            raise self.refuse("a random number read as it is")
        return int(self.decide(x, torch.floor, X))

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        """A random number that is copied to a dtype."""
        if not isinstance(x, Cell) or dtype in WIDE or (x.noise.points < FINE and dtype == torch.int64):
            return x
        if dtype == torch.bool:
            raise self.refuse("a random number as a bool")
        return self.step("to", OPS["to"], x, dtype) if dtype.is_floating_point else self.whole(x)

    def winner(self, row: Sequence[Any], largest: bool) -> int:
        """The number of the largest, or smallest: the first to arrive of exponential numbers."""
        cells = {i: x for i, x in enumerate(row) if isinstance(x, Cell)}
        limits, noises = [x.ends for x in cells.values()], [x.noise for x in cells.values()]
        rising, edge = {high > low for low, high in limits}, (min if largest else max)(x for y in limits for x in y)
        plain, races = (True in rising) == largest, [*{noise.race: None for noise in noises if noise.race}]
        worse = all(x <= edge if largest else x >= edge for x in row if not isinstance(x, Cell))
        rates, off, falling = race_rates(tuple((x.steps, x.noise.points) for x in cells.values()), plain)
        exponential = len(rising) == 1 and falling == largest and off <= TINY
        if not exponential or not worse or any(x.points < FINE for x in noises):
            raise self.refuse("the largest of random numbers that are no race of exponential ones")
        if any(x.high - x.low < x.points for x in noises) or len({*noises}) < len(noises):
            raise self.refuse("a race of numbers that were compared before, or of one number with itself")
        after, self.slack = [], max(self.slack, off)
        for noise, rate in zip(noises, rates, strict=True):
            ratios = {x: r / rate for x, r in zip(noises, rates, strict=True) if x is not noise}
            after.append(Race(plain, races, noise, ratios))
        if any(race.plain != plain for race in races) or max(len(race.bounds) for race in after) > 2:
            raise self.refuse("a third race of the same numbers, or one by u and one by 1 - u")
        choice = self.choose([race.probability() for race in after])
        for one, others in after[choice].bounds.items():
            for noise in (one, *others):
                noise.race = after[choice]
        return [*cells][choice]

    def mark(self, cell: Cell, dtype: torch.dtype) -> int:
        """The bits of a new mark; numbers go on from way to way, so that a mark of an earlier way is seen."""
        (bits, shift, _), short = MARKS[dtype], dtype.itemsize < 4  # numbers of 16 bits end in 16 zeros, others are odd
        self.last[short] = self.last[short] % (63 if short else MASK // 2) + 1
        number = self.last[short] << 16 if short else 2 * self.last[short] - 1
        if number in self.table:
            raise self.refuse(f"as many random numbers as this in {dtype}")
        self.table[number] = cell
        return bits | (number << shift if shift >= 0 else number >> -shift)

    def cells(self, x: Any) -> list[Cell | None]:
        """Of a tensor's elements, in order; empty where none is random."""
        if not self.table or not isinstance(x, torch.Tensor) or x.dtype not in MARKS or x.layout != torch.strided:
            return []
        with untracked():
            bits = TO_NUMPY(x.detach() if x.dtype == torch.int64 else x.detach().double()).view(numpy.int64).ravel()
        marked = bits >> 51 == 0xFFF
        if not marked.any():
            return []
        numbers = (bits >> 29 & MASK) * marked
        if any(number and number not in self.table for number in numbers.tolist()):
            raise self.refuse("a random number of an earlier run")
        return [self.table.get(number) for number in numbers.tolist()] if numbers.any() else []

    def values(self, x: Any, shape: Any = None) -> list[Any]:
        """The elements, cells where they are random."""
        if not isinstance(x, torch.Tensor):
            return [x] * math.prod(shape)
        x = x if shape is None else x.expand(shape)
        return [cell or y for cell, y in zip(self.cells(x) or [None] * x.numel(), TO_LIST(x.flatten()), strict=True)]

    def write(self, x: torch.Tensor, values: Sequence[Any]) -> torch.Tensor:
        """Puts cells and numbers into a tensor; None leaves what is there."""
        if x.dtype not in MARKS and any(isinstance(value, Cell) for value in values):
            raise self.refuse(f"random numbers in {x.dtype}")
        with untracked():
            new = x.clone(memory_format=torch.contiguous_format).flatten()
            marks = {i: self.mark(value, x.dtype) for i, value in enumerate(values) if isinstance(value, Cell)}
            numbers = {i: value for i, value in enumerate(values) if i not in marks and value is not None}
            for row, at in ((new.view(MARKS[x.dtype][2]) if marks else new, marks), (new, numbers)):
                row[[*at]] = torch.tensor([*at.values()], dtype=row.dtype, device="cpu")
            return x.copy_(new.view(x.shape))

    def settle(self, x: torch.Tensor) -> None:
        """Whole numbers that an op reads."""
        self.write(x, [cell and self.whole(cell) for cell in self.cells(x)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, schema = kwargs or {}, func._schema
        name = schema.name.partition("::")[2].rstrip("_")
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self.source(func, name, args, kwargs)
        if func.namespace not in ("aten", "prim", "prims"):  # a custom op: what is in it is followed, too
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        if name.startswith(("empty", "new_empty")):
            return func(*args, **kwargs).zero_()  # memory that held marks
        leaves = [y for x in (*args, *kwargs.values()) for y in (x if isinstance(x, (list, tuple)) else [x])]
        marked = [x for x in leaves if self.cells(x)] if self.table else []
        if not marked or name.endswith("_like") or name.startswith("new_"):
            return func(*args, **kwargs)
        if func._can_decompose() and name not in TESTS:
            with self:
                return func.decompose(*args, **kwargs)
        real, bound = [x for x in marked if x.is_floating_point()], bind(schema, args, kwargs)
        odd = [x for x in ("out", "reduce", "accumulate", "rounding_mode", "sorter") if bound.get(x)]
        if real and (odd or schema.overload_name == "dtype" or bound.get("alpha", 1) != 1):
            raise self.refuse(f"{name} of random numbers with {', '.join(odd) or 'alpha, or as bits'}")
        if name in MOVES or any(x.alias_info and not x.alias_info.is_write for x in schema.returns):
            return self.move(func, name, args, kwargs, marked)
        if name in ("argmax", "argmin") or (name in ("max", "min") and schema.overload_name == "dim"):
            return self.race(func, name, bound, args, kwargs)
        if not odd and (name in (*MONOTONE, *COPIES) or (name in TESTS and (real or name not in ("eq", "ne")))):
            return self.elementwise(name, bound, real, lambda: func(*args, **kwargs))
        if real and name in ("searchsorted", "bucketize") and isinstance(x := bound["self"], torch.Tensor):
            less = torch.le if bound["right"] or bound.get("side") == "right" else torch.lt
            with self:
                sums = bound[schema.arguments[name == "bucketize"].name].unsqueeze(-2)
                return less(sums, x.unsqueeze(-1)).sum(-1).reshape(x.shape)
        if real:
            raise self.refuse(f"{name} of random numbers")
        for x in marked:
            self.settle(x)
        return func(*args, **kwargs)

    def move(self, func: Any, name: str, args: Any, kwargs: Any, marked: Sequence[torch.Tensor]) -> Any:
        """An op that moves elements, or shows them."""
        for x in marked:
            if not x.is_floating_point() and name in MOVES and name != "clone":
                self.settle(x)
        out = func(*args, **kwargs)
        dtypes = {x.dtype for x in marked if x.is_floating_point()}
        if isinstance(out, torch.Tensor) and dtypes and out.dtype not in WIDE and dtypes != {out.dtype}:
            raise self.refuse(f"{name} of random numbers to {out.dtype}")
        return out

    def elementwise(self, name: str, bound: dict[str, Any], real: Sequence[Any], run: Callable[[], Any]) -> Any:
        operands = [y for x, y in bound.items() if x in ("self", "other", "min", "max", "exponent")]
        operands = [bound["src"]] if name == "copy" else operands
        short = [x.dtype for x in real if x.itemsize < 4]
        if short and name in TESTS and not isinstance(operands[-1], torch.Tensor):  # Python's are rounded, too
            operands[-1] = OPS["to"](torch.full((), operands[-1], **NUMBER), short[0]).item()
        method: Any = self.test if name in TESTS else (lambda _, of, x: x) if name in COPIES else self.step
        of = OPS.get(name) or getattr(torch.ops.aten, name)
        shape = numpy.broadcast_shapes(*(x.shape for x in operands if isinstance(x, torch.Tensor)))
        rows = zip(*(self.values(x, shape) for x in operands), strict=True)
        values = [method(name, of, *row) if any(isinstance(y, Cell) for y in row) else None for row in rows]
        out = run()  # which may write to an operand
        whole = not real and out.dtype == torch.int64  # and stays it
        return self.write(out, values if whole else [self.cast(x, out.dtype) for x in values])

    def race(self, func: Any, name: str, bound: dict[str, Any], args: Any, kwargs: Any) -> Any:
        x, dim = bound["self"], bound.get("dim")
        if x.element_size() < 4:
            raise self.refuse(f"a race in {x.dtype}")
        rows = x.reshape(1, -1) if dim is None else x.movedim(dim, -1).reshape(-1, x.shape[dim])
        rows = [self.values(row) for row in rows]
        winners = [self.winner(row, "max" in name) if any(isinstance(y, Cell) for y in row) else None for row in rows]
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return self.write(out, winners)
        self.write(out[0], [None if i is None else row[i] for row, i in zip(rows, winners, strict=True)])
        self.write(out[1], winners)
        return out

    def moved(self, read: Callable[[], Hashable], move: Callable[[], Any], shared: bool) -> tuple[Any, Hashable]:
        """What a generator gives, and the state in which it was; None if nothing was drawn."""
        state = read()
        if shared and not self.expects(state):
            raise self.refuse("a generator that was seeded, or drawn from, by what has no stand-in")
        out = move()
        self.states.add(after := read())
        return out, None if after == state else state

    def expects(self, state: Hashable) -> bool:
        """Whether a stand-in, or a seed, put a generator into this state."""
        return state in self.states or state == torch_state(torch.Generator().manual_seed(torch.initial_seed()))

    def source(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A random op: numbers are drawn, so that errors come and the generator moves on, and forgotten."""
        bound, weights = bind(func._schema, args, kwargs), []
        generator, x, p = bound.get("generator") or torch.default_generator, bound["self"], bound.get("p")
        if name in ("multinomial", "bernoulli"):
            weights = self.values(x if p is None else p, None if name == "multinomial" else x.shape)
        if any(isinstance(weight, Cell) for weight in weights):
            raise self.refuse(f"{name} by random numbers")
        default = generator is torch.default_generator
        out, state = self.moved(lambda: torch_state(generator), lambda: func(*args, **kwargs), default)
        if state is None:
            return out  # as by a dropout of 0
        what = name, out.shape, out.dtype, weights, [x for x in bound.values() if isinstance(x, (int, float))]
        if state not in self.drawn:
            self.drawn[state] = what, self.draw(name, out, bound, weights)
        if self.drawn[state][0] != what:
            raise self.refuse("two different draws from one state of a generator, which was seeded twice")
        return self.write(out, self.drawn[state][1])

    def draw(self, name: str, out: torch.Tensor, bound: dict[str, Any], weights: Any) -> Sequence[Any]:
        count, short, on_cpu = out.numel(), out.is_floating_point() and out.itemsize < 4, out.device.type == "cpu"
        low, high = bound.get("low", bound.get("from", 0)), bound.get("high", bound.get("to"))
        points, steps = 1 << (24 if out.dtype == torch.float32 or short else 53), list[tuple[Any, ...]]()
        if on_cpu and name in ("rand", "rand_like", "uniform"):
            to = [(OPS["to"], X, out.dtype)] if short else []
            below = [(torch.sub, X, torch.finfo(out.dtype).eps / 4), (torch.clamp, X, 0.0), *to]  # 1 comes as 0
            steps = [(torch.mul, X, 1 / points), *(below if short else [])]
            steps += [(torch.mul, X, high - low), (torch.add, X, low), *to] if high else []
        elif on_cpu and name == "exponential" and not short:
            points, steps = 1 << 53, [(torch.mul, X, 2.0**-53), (torch.log, X), (torch.div, X, -bound["lambd"])]
        elif name in ("randint", "random") and high is not None and not short:
            points, steps = high - low, [(torch.add, X, low)]
        if steps:
            cells = [Cell(Noise(points), tuple(steps)) for _ in range(count)]
            return cells if out.dtype in MARKS else [self.whole(x) for x in cells]
        if name == "bernoulli":
            return [self.choose([1 - p, p]) for p in weights]
        if name == "randperm" or (name == "multinomial" and bound["self"].itemsize > 2):
            weights, each, drawn = weights or [1.0] * count, out.shape[-1], list[int]()
            for i in range(count):
                size, row = len(weights) * each // count, i // each
                before = () if bound.get("replacement") else drawn[row * each :]
                left = [0.0 if x in before else y for x, y in enumerate(weights[row * size : (row + 1) * size])]
                drawn.append(self.choose(left))
            return drawn
        raise self.refuse(f"{name} in {out.dtype} has no stand-in")

    def read(self, name: str, plain: Any, x: torch.Tensor, *args: Any) -> Any:
        """A method by which numbers leave tensors for Python, where a random number stays a tensor."""
        if name in MEMORY or (name in ("numpy", "__array__", *TEXT) and x.is_floating_point()):
            raise self.refuse(f"the {'text' if name in TEXT else 'memory'} of random numbers, by {name}")
        if not x.is_floating_point():
            self.settle(x)
            return plain(x, *args)
        if name == "__int__":
            return self.whole(self.values(x)[0])
        if name != "__float__":
            return listed(x if name == "tolist" else x.squeeze())
        frame: Any = sys._getframe(2)  # a module that says float(u) gets a float that leaves random numbers as they are
        if "float" not in frame.f_code.co_names or "float" in frame.f_globals:
            raise self.refuse("a random number read as it is, by float or a function of math")
        frame.f_globals["float"] = Float
        self.floats.append(frame.f_globals)
        raise Restart

    def made(self, plain: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """A tensor of numbers, random ones among them."""
        if isinstance(x, torch.Tensor):
            return plain(x, *args, **kwargs)
        x = x.tolist() if isinstance(x, numpy.ndarray) else x
        values = [self.values(y)[0] if isinstance(y, torch.Tensor) else y for y in map(tensor_of, tree_leaves(x))]
        shape, dtype = numpy.shape(numpy.array(x, dtype=object)), kwargs.get("dtype") or torch.float64
        out = torch.zeros(shape, dtype=dtype, device="cpu")
        return self.write(out, [self.cast(y, out.dtype) for y in values])

    def key_of(self, x: Any) -> Any:
        """What a function returned, with tuples for tensors, arrays and lists."""
        if isinstance(x, torch.Tensor) and self.cells(x):
            if x.is_floating_point():
                raise self.refuse("a random number that is returned")
            self.settle(x)
        if type(x) is Number:
            raise self.refuse("a random number that is returned")
        x = x.tolist() if isinstance(x, (torch.Tensor, numpy.ndarray, numpy.generic)) else x
        return tuple(map(self.key_of, x)) if isinstance(x, (list, tuple)) else x


def bind(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, with defaults."""
    values = {x.name: x.default_value for x in schema.arguments}
    names = [x.name for x in schema.arguments if not x.kwarg_only]
    return {"self": None, **values, **dict(zip(names, args, strict=False)), **kwargs}


class Number:
    """A random number outside of torch: for Python it is a float, and a comparison of it is a bool."""

    __class__ = builtins.float  # type: ignore[assignment]

    def __init__(self, x: torch.Tensor) -> None:
        self.x, ACTIVE[-1].outside = x.to(torch.float64, copy=True), True

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map(tensor_of, args), **tree_map(tensor_of, kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return lambda: Number(getattr(self.x, name)())
        if not name.startswith("_") and (hasattr(numpy, name) or hasattr(numpy.float64, name)):
            raise ACTIVE[-1].refuse(f"{name} of a random number")
        raise AttributeError(f"'float' object has no attribute '{name}'")

    def __int__(self) -> int:
        return ACTIVE[-1].whole(ACTIVE[-1].values(self.x)[0])

    def __float__(self) -> Any:
        return ACTIVE[-1].read("__float__", None, self.x)

    def read(self, *_: Any) -> Any:
        raise ACTIVE[-1].refuse("a random number read as it is")

    __trunc__ = __floor__ = floor = __int__
    __hash__ = __bool__ = __repr__ = __format__ = __round__ = __ceil__ = read


def operator_of(name: str) -> Callable[..., Any]:
    def operate(self: Number, *others: Any) -> Any:
        if any(isinstance(x, numpy.ndarray) for x in others):
            return NotImplemented  # numpy takes element by element
        out = getattr(self.x, name)(*map(tensor_of, others))
        if out is NotImplemented or any(isinstance(x, torch.Tensor) for x in others):
            return out
        return Number(out) if out.is_floating_point() else bool(out)

    return operate


for operation in OPERATORS:
    setattr(Number, f"__{operation}__", operator_of(f"__{operation}__"))


class Array(numpy.ndarray):
    """Random numbers of numpy, as objects; a race is torch's."""

    def race(self, name: str, axis: Any = None, out: Any = None) -> Any:
        if self.dtype != object or out is not None:
            return getattr(super(), name)(axis, out)
        return getattr(torch.tensor(self, dtype=torch.float64, device="cpu"), name)(axis).numpy()[()]

    argmax, argmin = functools.partialmethod(race, "argmax"), functools.partialmethod(race, "argmin")


def tensor_of(x: Any) -> Any:
    return x.x if type(x) is Number else x


def listed(x: torch.Tensor) -> Any:
    return [listed(y) for y in x.unbind()] if x.dim() else Number(x)


def array_of(x: torch.Tensor) -> Any:
    """numpy's array of a tensor's random numbers, or its scalar."""
    return numpy.array(listed(x), dtype=object).view(Array) if x.dim() else Number(x)


class FloatType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, builtins.float)


class Float(builtins.float, metaclass=FloatType):
    """The ``float`` of modules that read random numbers by it."""

    def __new__(cls, x: Any = 0.0) -> Any:
        return Number(tensor_of(x).squeeze()) if is_random(x) else builtins.float(x)


def is_random(x: Any) -> bool:
    return type(x) is Number or (isinstance(x, numpy.ndarray) and x.dtype == object) or bool(ACTIVE[-1].cells(x))


def where_random(plain: Callable[..., Any], special: Callable[..., Any]) -> Any:
    """A function, or what stands in for it where it gets random numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if ACTIVE and any(map(is_random, tree_leaves(args))):  # a stand-in may be held for good
            return special(plain, *args, **kwargs)
        return plain(*args, **kwargs)

    return call


def torch_state(generator: torch.Generator | None = None) -> Hashable:
    return TO_NUMPY((generator or torch.default_generator).get_state()).tobytes()


def numpy_state(bits: Any = None) -> Hashable:
    return pickle.dumps((bits or numpy.random.mtrand._rand._bit_generator).state)


def watched() -> dict[str, Callable[[], Hashable]]:
    """States of the generators that all share, and of those that numpy made before."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # frozen objects are hidden
    kinds = {*numpy.random.BitGenerator.__subclasses__()}
    made = [x for x in gc.get_objects() if type(x) in kinds]
    if frozen:
        gc.freeze()
    names = {id(x): f"a generator of numpy that was made before the call, at {id(x):x}" for x in made}
    names[id(numpy.random.mtrand._rand._bit_generator)] = "numpy.random"
    states = {names[id(x)]: functools.partial(numpy_state, x) for x in made}
    return {"torch": torch_state, "random": random.getstate, **states}


def seeded(read: Callable[[], Hashable], seed: Callable[..., Any]) -> Any:
    """A function that seeds a generator."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = seed(*args, **kwargs)
        for follower in ACTIVE:
            follower.states.add(read())
        return result

    return call


def generator_at(read: Callable[[], Hashable], move: Callable[[], Any], shared: bool) -> tuple[Any, torch.Generator]:
    """What another library's generator gives, and torch's generator for the state in which it was."""
    out, state = ACTIVE[-1].moved(read, move, shared)
    return out, torch.Generator().manual_seed(hash(state) & sys.maxsize)


class Generator:
    """A stand-in for numpy's generators, old and new, and for its functions."""

    make: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = any(x is not None for x in (*args, *kwargs.values()))
        self.real = self.make(*args, **kwargs) if given else self.make(next(ACTIVE[-1].unseeded))
        self.bits = getattr(self.real, "bit_generator", None) or self.real._bit_generator

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real, name)
        if name in ("seed", "get_state", "set_state", "spawn"):
            return seeded(lambda: numpy_state(self.bits), real)
        return functools.partial(self.draw, name, real)

    def draw(self, name: str, real: Any, *args: Any, **kwargs: Any) -> Any:
        shared = self.real is numpy.random.mtrand._rand
        out, generator = generator_at(lambda: numpy_state(self.bits), lambda: real(*args, **kwargs), shared)
        names = {"choice": "a size replace p", "gumbel": "loc scale", "exponential": "scale"}.get(name, "low high")
        given: dict[str, Any] = dict(zip(names.split(), args, strict=False)) | kwargs
        shape, low, high, scale = numpy.shape(out), given.get("low", 0), given.get("high"), given.get("scale", 1.0)
        if given.get("out") is not None:
            raise ACTIVE[-1].refuse(f"numpy's {name} with out")
        if name in ("random", "random_sample", "rand", "sample", "ranf", "uniform"):
            x = array_of(torch.rand(shape, generator=generator, **NUMBER))
            return x if name != "uniform" else x * numpy.subtract(1.0 if high is None else high, low) + low
        if name in ("exponential", "standard_exponential", "gumbel"):
            x = array_of(torch.empty(shape, **NUMBER).exponential_(generator=generator))
            return given.get("loc", 0.0) - numpy.log(x) * scale if name == "gumbel" else x * scale
        if name == "choice":
            items = numpy.arange(given["a"]) if numpy.ndim(given["a"]) == 0 else numpy.asarray(given["a"])
            p = torch.tensor([1.0] * len(items) if given.get("p") is None else [*given["p"]], **NUMBER)
            index = torch.multinomial(p, max(1, numpy.size(out)), given.get("replace", True), generator=generator)
            return items[index.numpy()].reshape(shape + items.shape[1:])[()]
        if name in ("integers", "randint") and not given.get("endpoint"):
            low, high = (0, low) if high is None else (low, high)
            return torch.randint(low, high, shape, generator=generator, dtype=torch.int64, device="cpu").numpy()[()]
        raise ACTIVE[-1].refuse(f"numpy's {name} has no stand-in")


def stand_ins(follower: Follower) -> dict[Any, dict[str, Any]]:
    """What is replaced while ways are run: ``{module or class: {name: value}}``."""
    legacy, inst, real, urandom = numpy.random.mtrand._rand, random._inst, random.Random.random, os.urandom
    thread = threading.Thread.run
    shared = type("RandomState", (Generator,), {"make": lambda _, x: x})(legacy)

    def generator(self: random.Random) -> torch.Generator:
        if isinstance(self, random.SystemRandom):
            self.random()  # by os.urandom
        return generator_at(self.getstate, lambda: real(self), self is inst)[1]

    def uniform(self: random.Random) -> Number:
        return Number(torch.rand((), generator=generator(self), **NUMBER))

    def below(self: random.Random, n: int) -> int:
        return int(torch.randint(n, (), generator=generator(self), dtype=torch.int64, device="cpu"))

    def refused(self: Any, *_: Any) -> Any:
        raise follower.refuse("Python's getrandbits or gauss, which has no stand-in")

    def in_thread(self: threading.Thread) -> None:
        with follower:  # modes are the thread's
            thread(self)

    def bytes_of(count: int) -> bytes:
        if not follower.first:
            raise follower.refuse("os.urandom, by random.SystemRandom or secrets, has no stand-in")
        return urandom(count)

    def method(name: str, plain: Any, x: Any, *base: Any) -> Any:
        return getattr(Number(tensor_of(x).squeeze()), name)(*base)

    def followed(owner: Any, names: Sequence[str], method: Callable[..., Any]) -> dict[str, Any]:
        return {x: where_random(getattr(owner, x), functools.partial(method, x)) for x in names}

    python = {"random": uniform, "getrandbits": refused}
    drawn = [x for x in dir(numpy.random) if getattr(getattr(numpy.random, x), "__self__", None) is legacy]
    makers = {x: getattr(numpy.random, x) for x in ("default_rng", "RandomState", "Generator")}
    return {
        math: followed(math, [*FUNCTIONS, "floor"], method),
        os: {"urandom": bytes_of},
        threading.Thread: {"run": in_thread},
        random.Random: {**python, "_randbelow": below},
        random: {x: method.__get__(inst) for x, method in python.items()}
        | {"seed": seeded(random.getstate, random.seed)},
        torch: {x: where_random(getattr(torch, x), follower.made) for x in MAKERS},
        torch.Tensor: followed(torch.Tensor, READS, follower.read),
        numpy.random: {x: type(x, (Generator,), {"make": staticmethod(make)}) for x, make in makers.items()}
        | {x: getattr(shared, x) for x in drawn} | {"seed": seeded(numpy_state, numpy.random.seed)},
    }  # fmt: skip


def swap(pairs: dict[int, Any]) -> None:
    """Puts other values where modules have these, whatever their names there are."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):  # None blocks an import
            if id(value) in pairs:
                setattr(module, name, pairs[id(value)])


@contextlib.contextmanager
def replaced() -> Iterator[Follower]:
    """Stand-ins, and states of generators that are put back."""
    legacy, follower, pairs = numpy.random.mtrand._rand, Follower(), []
    ACTIVE.append(follower)
    with contextlib.ExitStack() as stack, torch.random.fork_rng(devices=[]):
        stack.callback(ACTIVE.pop)
        stack.enter_context(numpy.errstate(invalid="ignore"))  # marks are NaN
        stack.callback(random.setstate, random.getstate())
        stack.callback(legacy.set_state, legacy.get_state())
        for owner, values in stand_ins(follower).items():
            for name, new in values.items():
                if isinstance(owner, type):
                    stack.enter_context(mock.patch.object(owner, name, new, create=True))
                else:
                    pairs.append((getattr(owner, name), new))
        stack.callback(swap, {id(new): old for old, new in pairs})
        stack.callback(lambda: [x.pop("float") for x in follower.floats])
        swap({id(old): new for old, new in pairs})
        yield follower


def law(function: Callable[[], Any], *, ways: int = 100_000, seconds: float = 60.0) -> Law:
    """The law of what a function returns, whose only randomness is torch's, numpy's or Python's.

    The function takes no arguments and returns numbers, tensors, arrays, lists or tuples of them: tuples in the law. An
    error that it raises is a result, too: ``("raises", text)``. It may run ``ways`` times, for so many ``seconds``.

    Raises
    ------
    Unfollowed
        For a use of random numbers that cannot be followed. It names the op, the file and the line.
    BudgetExceeded
        With the ways that were run, and the probability that they have.

    Examples
    --------
    >>> law(lambda: bool(torch.rand(()) * 0.5 < 0.125))
    {True: 0.25, False: 0.75}
    """
    result, covered, begin, number = Law(), 0.0, time.monotonic(), itertools.count(0x5EED0000)
    seeds, states = (torch.default_generator.manual_seed, random.seed, numpy.random.seed), watched()

    def run() -> Any:
        """The result of the way that `follower` has chosen."""
        seed = next(number)  # another one each time, which shows what is drawn without a stand-in
        for plant in seeds:
            plant(seed)
        follower.start([read() for read in states.values()])
        try:
            with torch.no_grad(), follower:
                value = follower.key_of(function())
        except Restart:
            return run()
        except Exception as error:
            value = ("raises", f"{type(error).__name__}: {error}"[:90])
            if follower.outside and isinstance(error, (TypeError, AttributeError)):
                follower.refuse(f"an error that may be of what stands for random numbers: {value[1]}", error)
        if drawn := [name for name, read in states.items() if not follower.expects(read())]:
            follower.refuse(f"numbers of {drawn[0]} that were drawn, or seeded, by what has no stand-in")
        return value

    with replaced() as follower:
        run()  # which may import what draws numbers
        follower.first, follower.refusal = False, None
        follower.path.clear()
        while True:
            value = run()
            if result.ways < TWICE and not follower.refusal and run() != value:
                follower.refuse("a random source without a stand-in: the same draws led to another result")
            if follower.refusal:
                raise follower.refusal
            covered, result.ways, result.slack = covered + follower.weight, result.ways + 1, follower.slack
            result[value] = result.get(value, 0.0) + follower.weight
            if not follower.advance():
                return result
            if result.ways >= ways or time.monotonic() - begin > seconds:
                raise BudgetExceeded(
                    f"{result.ways} ways in {time.monotonic() - begin:.0f} s have {covered:.3g} of the probability; "
                    f"allowed are {ways} in {seconds:g} s"
                )
