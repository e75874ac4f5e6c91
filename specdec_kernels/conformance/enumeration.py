"""The exact law of what a function returns: the function runs once for each way that its random draws can go.

A random number is a `Cell`, a monotone function of a whole number that is uniform; each comparison splits that number's
range. In memory a cell is a mark, a NaN with a number in its payload (or its bits in int64), so what moves elements
moves cells. A `TorchDispatchMode` gives other ops their meaning; one that it does not have is an error.
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
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

FINE = 1 << 20  # points of a uniform number from which on it counts as continuous
LARGEST_GRID = 4096  # values of a whole number
TINY = 1e-6  # how far from exponential the noise of a race may be: 1e-10 is often added before a logarithm
TWICE = 16  # ways that run twice, to see random sources without a stand-in
MASK = (1 << 22) - 1  # of a mark's number, the upper bits of a NaN's payload
MARKS: dict[torch.dtype, tuple[int, int, torch.dtype]] = {  # a NaN's bits, where the payload is, and a dtype for bits
    torch.float64: (0xFFF << 51, 29, torch.int64), torch.int64: (0xFFF << 51, 29, torch.int64),
    torch.float32: (0x7FC00000, 0, torch.int32), torch.bfloat16: (0x7FC0, -16, torch.int16),
    torch.float16: (0x7E00, -13, torch.int16),
}  # fmt: skip
WIDE = (torch.float32, torch.float64)
MOVES = set(
    "clone index index_select gather cat stack where masked_fill constant_pad_nd repeat flip roll scatter index_put "
    "masked_select take select_scatter slice_scatter fill zero masked_scatter lift_fresh index_copy index_fill "
    "_unsafe_view tril triu _to_copy copy".split()
)
COMPARISONS = {"lt": (False, False), "le": (False, True), "gt": (True, False), "ge": (True, True)}  # swapped, inclusive
STEPS: dict[str, Callable[[float, Any], float]] = {
    "add": lambda x, c: x + c, "sub": lambda x, c: x - c, "rsub": lambda x, c: c - x, "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c if c else x * math.inf, "rdiv": lambda x, c: c / x if x else c * math.inf if c else 0.0,
    "pow": lambda x, c: x**c if x else math.inf if c < 0 else 0.0, "log1p": lambda x, _: STEPS["log"](x + 1, _),
    "log": lambda x, _: math.log(x) if x > 0 else -math.inf,
    "exp": lambda x, _: math.exp(min(x, 709.0)),
    "floor": lambda x, _: float(math.floor(x)) if math.isfinite(x) else x,
    "neg": lambda x, _: -x, "abs": lambda x, _: x,
    "sqrt": lambda x, _: math.sqrt(x), "reciprocal": lambda x, _: STEPS["rdiv"](x, 1.0), "maximum": max, "minimum": min,
    "to": lambda x, dtype: torch.tensor(x, dtype=dtype, device="cpu").item(),
}  # fmt: skip
BINARY = {  # by which side the random number is on
    "add": ("add", "add"), "sub": ("sub", "rsub"), "rsub": ("rsub", "sub"), "mul": ("mul", "mul"),
    "div": ("div", "rdiv"), "pow": ("pow", ""), "maximum": ("maximum", "maximum"), "minimum": ("minimum", "minimum"),
    "clamp_min": ("maximum", "maximum"), "clamp_max": ("minimum", "minimum"),
}  # fmt: skip
LEAST = {
    "abs": 0.0,
    "log": 0.0,
    "sqrt": 0.0,
    "pow": 0.0,
    "rdiv": 0.0,
    "reciprocal": 0.0,
    "log1p": -1.0,
}  # of what a step takes
ESCAPES = {"data_ptr", "untyped_storage", "__dlpack__", "__reduce_ex__"}  # to memory
READS = {"item", "tolist", "numpy", "__array__", "__int__", "__float__", *ESCAPES}
OPERANDS = {"self", "other", "min", "max", "exponent"}
TOLIST = torch.Tensor.tolist
Steps = tuple[tuple[str, Any], ...]


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
    """A random number: monotone steps from its noise on."""

    noise: Noise
    steps: Steps


Value = Cell | float


def value_at(steps: Steps, x: float) -> float:
    for name, constant in steps:
        x = STEPS[name](x, constant)
    return x


@functools.lru_cache(maxsize=1 << 16)
def ends(steps: Steps, points: int) -> tuple[float, float]:
    """The values where the noise is lowest and highest, just within (0, points) if it is fine."""
    low, high = (points * 2.0**-60, points * (1 - 2.0**-53)) if points >= FINE else (0, points - 1)
    return value_at(steps, low), value_at(steps, high)


@functools.lru_cache(maxsize=1 << 16)
def first_beyond(steps: Steps, low: int, high: int, bound: float, inclusive: bool, rising: bool) -> int:
    """From which whole number on a cell is beyond a bound, or within it if the cell is falling."""

    def turned(k: int) -> bool:
        x = value_at(steps, k)
        return (x <= bound if inclusive else x < bound) != rising

    return low + bisect_left(range(low, high), True, key=turned)


@functools.lru_cache(maxsize=1 << 12)
def race_rates(cells: tuple[tuple[Steps, int], ...], plain: bool) -> tuple[list[float], float]:
    """The rates of exponential noises that cells are one function of, up to a factor; how far from that they are.

    Cell i is g(E / rate i), where E = -log(k / points), or -log(1 - k / points) if not plain.
    """

    def at(cell: tuple[Steps, int], noise: float) -> float:
        return value_at(cell[0], cell[1] * (math.exp(-noise) if plain else -math.expm1(-noise)))

    def same(cell: tuple[Steps, int], value: float) -> float:
        """The noise where a cell has this value."""
        low, high, falling = -40.0, 7.0, at(cell, 1.0) > at(cell, 2.0)
        for _ in range(52):
            middle = (low + high) / 2
            low, high = (low, middle) if (at(cell, math.exp(middle)) < value) == falling else (middle, high)
        return math.exp(high)

    falling, rates, off = at(cells[0], 1.0) > at(cells[0], 2.0), [], 0.0
    likely = (max if falling else min)(cells, key=lambda cell: at(cell, 1.0))
    for cell in cells:
        rates.append(same(cell, at(likely, 0.7)) / 0.7)
        for noise in (1e-6, 1e-4, 0.01, 0.1, 2.0, 5.0, 9.0, 14.0):
            ratio = same(cell, at(likely, noise)) / noise
            off = max(off, abs(ratio - rates[-1]) * min(noise, math.exp(-noise)))  # by their probability
    return rates, off


class Race:
    """Bounds ``{winner: {another: ratio}}`` of exponential noises: another arrives after ratio times the winner."""

    def __init__(self, plain: bool, races: Iterable[Race], winner: Noise, ratios: dict[Noise, float]) -> None:
        self.plain, self.bounds = plain, dict[Noise, dict[Noise, float]]()
        for one, others in [*(x for race in races for x in race.bounds.items()), (winner, ratios)]:
            bounds = self.bounds.setdefault(one, {})
            bounds |= {noise: max(ratio, bounds.get(noise, 0.0)) for noise, ratio in others.items()}

    def probability(self) -> float:
        """Of all bounds, with at most two winners."""
        if len(self.bounds) == 1:
            return 1 / (1 + sum(sum(ratios.values()) for ratios in self.bounds.values()))
        (one, to_one), (two, to_two) = self.bounds.items()
        low, back = to_one.get(two, 0.0), to_two.get(one, 0.0)  # of t = E_two / E_one
        high = 1 / back if back else math.inf
        rest = [(to_one.get(x, 0.0), to_two.get(x, 0.0)) for x in {*to_one, *to_two} - {one, two}]
        turns = {a / b for a, b in rest if b and low < a / b < high}  # E_x is above max(a, b t) E_one
        total = 0.0
        for t, end in itertools.pairwise(
            sorted({low, high, *turns}) if low < high else []
        ):  # of (alpha + beta t) ** -2
            middle = t + 1 if end == math.inf else (t + end) / 2
            alpha = 1 + sum(a for a, b in rest if a >= b * middle)
            beta = 1 + sum(b for a, b in rest if a < b * middle)
            total += (1 / beta if end == math.inf else (end - t) / (alpha + beta * end)) / (alpha + beta * t)
        return total


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Ops on tensors without random elements, which need not be followed."""
    with torch._C._DisableTorchDispatch():
        yield


def torch_state(generator: torch.Generator | None = None) -> Hashable:
    with untracked():
        return bytes(TOLIST((generator or torch.default_generator).get_state()))


def numpy_state(bits: Any = None) -> Hashable:
    return pickle.dumps((bits or numpy.random.mtrand._rand._bit_generator).state)


SHARED: dict[str, Callable[[], Hashable]] = {  # states of generators
    "torch": torch_state, "numpy.random": numpy_state, "random": random.getstate
}  # fmt: skip
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
        self.first, self.slack, self.last, self.floats = True, 0.0, {False: 0, True: 0}, list[dict[str, Any]]()

    def start(self) -> None:
        self.depth, self.weight, self.making = 0, 1.0, False
        self.table: dict[int, Cell] = {}  # by the number of a mark
        self.drawn: dict[Hashable, tuple[Any, Any]] = {}  # by the state of a generator
        self.states = {read() for read in SHARED.values()}  # in which generators that all share may be

    def choose(self, weights: Sequence[float]) -> int:
        """The number of the outcome that this way takes."""
        total = math.fsum(weights)
        shares = [x / total for x in weights]
        if self.depth == len(self.path):
            self.path.append((next(i for i, x in enumerate(weights) if x > 0), shares))
        if shares != self.path[self.depth][1]:
            raise self.refuse("a random source without a stand-in: the same draws led to another choice")
        choice = self.path[self.depth][0]
        self.depth, self.weight = self.depth + 1, self.weight * shares[choice]
        return choice

    def choose_all(self, weights: Sequence[float], count: int, replacement: bool) -> list[int]:
        """Several outcomes, one after the other."""
        result: list[int] = []
        for _ in range(count):
            left = [0.0 if x in result and not replacement else weight for x, weight in enumerate(weights)]
            result.append(self.choose(left))
        return result

    def advance(self) -> bool:
        """To the next way; False after the last."""
        del self.path[self.depth :]
        while self.path:
            choice, shares = self.path.pop()
            if later := [i for i in range(choice + 1, len(shares)) if shares[i] > 0]:
                self.path.append((later[0], shares))
                return True
        return False

    def refuse(self, what: str) -> Unfollowed:
        """The error; `law` raises it even if the function catches it."""
        frame = sys._getframe(1)
        while frame.f_back and any(x in frame.f_code.co_filename for x in ("/torch/", __file__, "/random.py")):
            frame = frame.f_back
        self.refusal = self.refusal or Unfollowed(f"{what} ({frame.f_code.co_filename}:{frame.f_lineno})")
        return self.refusal

    def moved(self, read: Callable[[], Hashable], move: Callable[[], Any], shared: bool) -> tuple[Any, Hashable]:
        """What a generator gives, and the state in which it was; None if nothing was drawn."""
        state = read()
        if shared and state not in self.states:
            raise self.refuse("a generator that was seeded, or drawn from, by what has no stand-in")
        out = move()
        self.states.add(after := read())
        return out, None if after == state else state

    def step(self, x: Value, name: str, constant: Any = None) -> Value:
        if not isinstance(x, Cell):
            return STEPS[name](x, constant)
        if min(ends(x.steps, x.noise.points)) < LEAST.get(name, -math.inf):
            raise self.refuse(f"{name} of random numbers below {LEAST[name]}")
        one, two = ends(steps := (*x.steps, (name, constant)), x.noise.points)
        return one if one == two or math.isnan(one) else Cell(x.noise, steps)

    def combine(self, name: str, x: Value, y: Value | None = None, z: Value | None = None) -> Value:
        """An op on elements."""
        if name == "clamp":
            x = x if y is None else self.combine("maximum", x, y)
            return x if z is None else self.combine("minimum", x, z)
        if name not in BINARY:
            return self.step(x, name)
        step = BINARY[name][isinstance(y, Cell)]
        if (isinstance(x, Cell) and isinstance(y, Cell)) or not step:
            raise self.refuse(f"{name} of two random numbers, or by one")
        return self.step(y, step, x) if isinstance(y, Cell) else self.step(x, step, y)

    def below(self, x: Value, y: Value, inclusive: bool = False) -> bool:
        """Whether x < y, or x <= y."""
        if isinstance(y, Cell):
            if isinstance(x, Cell):
                return inclusive if x == y else self.winner([x, y], largest=False) == 0
            return not math.isnan(x) and not self.below(y, x, not inclusive)
        if not isinstance(x, Cell) or math.isnan(y):
            return x <= y if inclusive else x < y  # type: ignore[operator]
        noise, (low, high) = x.noise, ends(x.steps, x.noise.points)
        count = first_beyond(x.steps, noise.low, noise.high, y, inclusive, high > low)
        if noise.low < count < noise.high:
            if noise.race:
                raise self.refuse("a comparison of a number that was in a race")
            if self.choose([count - noise.low, noise.high - count]) == 0:
                noise.high = count
            else:
                noise.low = count
        return (count >= noise.high) == (high > low)

    def equal(self, x: Value, y: Value) -> bool:
        """Whether x = y, which a random number that is continuous never is."""
        x, y = (x, y) if isinstance(x, Cell) else (y, x)
        if not isinstance(x, Cell) or x == y:
            return x == y
        ends_of = [
            first_beyond(x.steps, 0, x.noise.points, y, z, True) for z in (False, True) if not isinstance(y, Cell)
        ]
        if x.noise.points < FINE or (ends_of and abs(ends_of[0] - ends_of[1]) > 1):
            raise self.refuse("a random number in steps that is compared by ==")
        return False

    def whole(self, x: Value) -> int:
        """The whole number that a cell is cut down to."""
        low, high = sorted(ends(x.steps, x.noise.points)) if isinstance(x, Cell) else (x, x)
        if self.first:  # modules are imported, which may draw names
            return math.floor(low)
        if low < 0 or high > LARGEST_GRID:
            raise self.refuse("a random number read as it is")
        return next(n for n in range(math.floor(low), LARGEST_GRID + 1) if self.below(x, n + 1))

    def winner(self, row: Sequence[Value], largest: bool) -> int:
        """The number of the largest, or smallest: the first to arrive of exponential numbers."""
        cells = {i: x for i, x in enumerate(row) if isinstance(x, Cell)}
        limits, noises = [ends(x.steps, x.noise.points) for x in cells.values()], [x.noise for x in cells.values()]
        rising, edge = {high > low for low, high in limits}, (min if largest else max)(x for y in limits for x in y)
        plain, races = (True in rising) == largest, {noise.race: None for noise in noises if noise.race}
        worse = all(x <= edge if largest else x >= edge for x in row if not isinstance(x, Cell))
        rates, off = race_rates(tuple((x.steps, x.noise.points) for x in cells.values()), plain)
        if len(rising) > 1 or not worse or off > TINY or any(x.points < FINE for x in noises):
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
        (bits, shift, _), short = MARKS[dtype], dtype.itemsize < 4  # numbers of 16 bits end in 16 zeros
        self.last[short] = self.last[short] % (63 if short else MASK - 1) + 1
        number = self.last[short] << 16 if short else self.last[False] + (self.last[False] % (1 << 16) == 0)
        if number in self.table:
            raise self.refuse(f"as many random numbers as this in {dtype}")
        self.table[number] = cell
        return bits | (number << shift if shift >= 0 else number >> -shift)

    def cells(self, x: Any) -> list[Cell | None]:
        """Of a tensor's elements, in order; empty where none is random."""
        if not self.table or not isinstance(x, torch.Tensor) or x.dtype not in MARKS or x.layout != torch.strided:
            return []
        with untracked():
            bits = x.detach() if x.dtype == torch.int64 else x.detach().double().view(torch.int64)
            numbers = (bits >> 29 & MASK).where(bits >> 51 == 0xFFF, 0).flatten()
            found = TOLIST(numbers) if numbers.any() else []
        if any(number and number not in self.table for number in found):
            raise self.refuse("a random number of an earlier run")
        return [self.table.get(number) for number in found]

    def values(self, x: Any, shape: Any = None) -> list[Any]:
        """The elements, cells where they are random."""
        if not isinstance(x, torch.Tensor):
            return [x] * math.prod(shape)
        x = x if shape is None else x.expand(shape)
        return [cell or y for cell, y in zip(self.cells(x) or [None] * x.numel(), TOLIST(x.flatten()), strict=True)]

    def write(self, x: torch.Tensor, values: Sequence[Value | None]) -> torch.Tensor:
        """Puts cells and numbers into a tensor; None leaves what is there."""
        if x.dtype not in MARKS and any(isinstance(value, Cell) for value in values):
            raise self.refuse(f"random numbers in {x.dtype}")
        with untracked():
            new = x.clone(memory_format=torch.contiguous_format).flatten()
            for i, value in enumerate(values):
                if isinstance(value, Cell):
                    new.view(MARKS[x.dtype][2])[i] = self.mark(value, x.dtype)
                elif value is not None:
                    new[i] = value
            return x.copy_(new.view(x.shape))

    def settle(self, x: torch.Tensor) -> None:
        """Whole numbers that an op reads."""
        self.write(x, [cell and self.whole(cell) for cell in self.cells(x)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, schema = kwargs or {}, func._schema
        name = schema.name.partition("::")[2].rstrip("_")
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self.source(func, name, args, kwargs)
        if func.namespace not in ("aten", "prim", "prims"):  # an op of one's own: what is in it is followed, too
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        if name.startswith(("empty", "new_empty")):
            return func(*args, **kwargs).zero_()  # memory that held marks
        marked = [x for x in flattened((args, kwargs)) if self.cells(x)] if self.table else []
        if not marked or name.endswith("_like") or name.startswith("new_"):
            return func(*args, **kwargs)
        if name in ("isnan", "isinf", "isfinite"):
            cells = self.cells(args[0])
            return self.write(func(*args, **kwargs), [None if x is None else name == "isfinite" for x in cells])
        if func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        real, bound = [x for x in marked if x.is_floating_point()], bind(schema, args, kwargs)
        odd = [x for x in ("out", "reduce", "accumulate", "rounding_mode", "sorter") if bound.get(x)]
        if real and (odd or schema.overload_name == "dtype" or bound.get("alpha", 1) != 1):
            raise self.refuse(f"{name} of random numbers with {', '.join(odd) or 'alpha, or as bits'}")
        if name in MOVES or any(x.alias_info and not x.alias_info.is_write for x in schema.returns):
            return self.move(func, name, args, kwargs, marked)
        if not odd and name in COMPARISONS:
            swapped, inclusive = COMPARISONS[name]
            short = [x.dtype for x in real if x.itemsize < 4]
            if short and not isinstance(args[1], torch.Tensor):  # a number of Python is rounded, too
                args = (args[0], STEPS["to"](args[1], short[0]))
            out = func(*args, **kwargs)
            pairs = zip(*(self.values(x, out.shape) for x in args), strict=True)
            return self.write(out, [self.below(*(y, x) if swapped else (x, y), inclusive) for x, y in pairs])
        if real and name in ("eq", "ne"):
            out = func(*args, **kwargs)
            pairs = zip(*(self.values(x, out.shape) for x in args), strict=True)
            return self.write(out, [self.equal(x, y) == (name == "eq") for x, y in pairs])
        if name in ("argmax", "argmin") or (name in ("max", "min") and schema.overload_name == "dim"):
            return self.race(func, name, args[0], bound.get("dim"), args, kwargs)
        if not odd and (name == "clamp" or name in BINARY or name in STEPS):
            operands = [bound[x.name] for x in schema.arguments if x.name in OPERANDS]
            shape = numpy.broadcast_shapes(*(x.shape for x in operands if isinstance(x, torch.Tensor)))
            rows = list(zip(*(self.values(x, shape) for x in operands), strict=True))
            values = [self.combine(name, *x) if any(isinstance(y, Cell) for y in x) else None for x in rows]
            out = func(*args, **kwargs)
            return self.write(out, [self.cast(x, out.dtype) if isinstance(x, Cell) else x for x in values])
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

    def cast(self, x: Cell, dtype: torch.dtype) -> Value:
        """A random number that is copied to a dtype."""
        if dtype in WIDE or (x.noise.points < FINE and dtype == torch.int64):
            return x
        if dtype == torch.bool:
            raise self.refuse("a random number as a bool")
        return self.step(x, "to", dtype) if dtype.is_floating_point else self.whole(x)

    def move(self, func: Any, name: str, args: Any, kwargs: Any, marked: Sequence[torch.Tensor]) -> Any:
        """An op that copies elements, or shows them."""
        copy = name in ("_to_copy", "copy")
        for x in marked:
            if not x.is_floating_point() and name in MOVES and name != "clone" and not copy:
                self.settle(x)
        out = func(*args, **kwargs)
        if copy:
            cells = self.cells(args[name == "copy"].expand(out.shape))
            return self.write(out, [cell and self.cast(cell, out.dtype) for cell in cells]) if cells else out
        dtypes = {x.dtype for x in marked if x.is_floating_point()}
        if isinstance(out, torch.Tensor) and dtypes and out.dtype not in WIDE and dtypes != {out.dtype}:
            raise self.refuse(f"{name} of random numbers to {out.dtype}")
        return out

    def race(self, func: Any, name: str, x: torch.Tensor, dim: int | None, args: Any, kwargs: Any) -> Any:
        rows = x.reshape(1, -1) if dim is None else x.movedim(dim, -1).reshape(-1, x.shape[dim])
        winners = [self.winner(self.values(row), "max" in name) if self.cells(row) else None for row in rows]
        if x.element_size() < 4:
            raise self.refuse(f"a race in {x.dtype}")
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return self.write(out, winners)
        best = [None if i is None else self.values(row)[i] for row, i in zip(rows, winners, strict=True)]
        self.write(out[0], best)
        self.write(out[1], winners)
        return out

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
        points, steps = 1 << (24 if out.dtype == torch.float32 or short else 53), list[tuple[str, Any]]()
        if on_cpu and name in ("rand", "rand_like", "uniform"):
            to = [("to", out.dtype)] if short else []
            steps = [("add", -torch.finfo(out.dtype).eps / 4), ("maximum", 0.0), *to] if short else []  # 1 comes as 0
            steps = [("mul", 1 / points), *steps, *([("mul", high - low), ("add", low), *to] if high else [])]
        elif on_cpu and name == "exponential" and not short:
            points, steps = 1 << 53, [("mul", 2.0**-53), ("log", None), ("div", -bound["lambd"])]
        elif name in ("randint", "random") and high is not None and not short:
            points, steps = high - low, [("add", low)]
        if steps:
            cells = [Cell(Noise(points), tuple(steps)) for _ in range(count)]
            return cells if out.dtype in MARKS else [self.whole(x) for x in cells]
        if name == "bernoulli":
            return [self.choose([1 - p, p]) for p in weights]
        if name == "multinomial" and bound["self"].itemsize > 2:
            size = bound["self"].shape[-1]
            rows = [weights[i : i + size] for i in range(0, len(weights), size)]
            return [x for row in rows for x in self.choose_all(row, count // len(rows), bound["replacement"])]
        if name == "randperm":
            return self.choose_all([1.0] * count, count, False)
        raise self.refuse(f"{name} in {out.dtype} has no stand-in")


def flattened(x: Any) -> Iterator[Any]:
    for y in x.values() if isinstance(x, dict) else x:
        if isinstance(y, (list, tuple, dict)):
            yield from flattened(y)
        else:
            yield y


def bind(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, with defaults."""
    values = {x.name: x.default_value for x in schema.arguments}
    names = [x.name for x in schema.arguments if not x.kwarg_only]
    return {"self": None, **values, **dict(zip(names, args, strict=False)), **kwargs}


def listed(x: torch.Tensor) -> Any:
    return [listed(y) for y in x.unbind()] if x.dim() else x.double()


def reader(name: str) -> Any:
    """A method by which numbers leave tensors for Python, where a random number stays a tensor."""
    plain = getattr(torch.Tensor, name)

    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        follower = ACTIVE[-1]
        if not follower.cells(x):
            return plain(x, *args, **kwargs)
        if name in ESCAPES or (name in ("numpy", "__array__") and x.is_floating_point()):
            raise follower.refuse(f"the memory of random numbers, by {name}")
        if not x.is_floating_point():
            follower.settle(x)
            return plain(x, *args, **kwargs)
        if name == "__int__":
            return follower.whole(follower.values(x)[0])
        return other_float() if name == "__float__" else listed(x if name == "tolist" else x.reshape(()))

    return call


def other_float() -> Any:
    """In a module that says ``float(u)``, that gets a ``float`` which leaves random numbers as they are."""
    frame: Any = sys._getframe(2)
    if "float" not in frame.f_code.co_names or "float" in frame.f_globals:
        raise ACTIVE[-1].refuse("a random number read as it is, by float or a function of math")
    frame.f_globals["float"] = Float
    ACTIVE[-1].floats.append(frame.f_globals)
    raise Restart


def factory(plain: Callable[..., Any]) -> Any:
    """A function that makes a tensor of numbers, random ones among them."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        items, follower = list(flattened(x)) if isinstance(x, (list, tuple)) else [], ACTIVE[-1]
        if not any(follower.cells(y) for y in items):
            return plain(x, *args, **kwargs)
        values = [follower.values(y)[0] if isinstance(y, torch.Tensor) else y for y in items]
        dtype = kwargs.get("dtype") or torch.float64
        out = torch.zeros(numpy.shape(numpy.array(x, dtype=object)), dtype=dtype, device="cpu")
        return follower.write(out, [follower.cast(y, dtype) if isinstance(y, Cell) else y for y in values])

    return call


class FloatType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, builtins.float)


class Float(builtins.float, metaclass=FloatType):
    """The ``float`` of modules that read random numbers by it."""

    def __new__(cls, x: Any = 0.0) -> Any:
        return listed(x.reshape(())) if isinstance(x, torch.Tensor) and ACTIVE[-1].cells(x) else builtins.float(x)


def generator_at(read: Callable[[], Hashable], move: Callable[[], Any], shared: bool) -> tuple[Any, torch.Generator]:
    """What another library's generator gives, and torch's generator for the state in which it was."""
    out, state = ACTIVE[-1].moved(read, move, shared)
    return out, torch.Generator().manual_seed(hash(state) & sys.maxsize)


class Generator:
    """A stand-in for numpy's generators, old and new, and for its functions: arrays of random numbers are tensors."""

    def __init__(self, real: Any) -> None:
        self.real, self.bits = real, getattr(real, "bit_generator", None) or real._bit_generator

    def __getattr__(self, name: str) -> Any:
        real, shared = getattr(self.real, name), self.real is numpy.random.mtrand._rand
        if name in ("seed", "get_state", "set_state", "spawn"):
            return seeded(lambda: numpy_state(self.bits), real)
        return lambda *args, **kwargs: self.draw(name, real, shared, args, kwargs)

    def draw(self, name: str, real: Any, shared: bool, args: Any, kwargs: Any) -> Any:
        out, generator = generator_at(lambda: numpy_state(self.bits), lambda: real(*args, **kwargs), shared)
        names = {"choice": "a size replace p", "integers": "low high", "randint": "low high", "uniform": "low high"}
        given: dict[str, Any] = dict(zip(names.get(name, "loc scale").split(), args, strict=False)) | kwargs
        options: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        shape, low, high = numpy.shape(out), given.get("low", 0), given.get("high")
        if name in ("random", "random_sample", "rand", "sample", "ranf", "uniform"):
            x = torch.rand(shape, generator=generator, **options)
            return x if name != "uniform" else x * ((1.0 if high is None else high) - low) + low
        plain = kwargs.keys() <= {"size"} and args[:2] in ((), (1.0,), (0.0, 1.0))
        if name.endswith(("exponential", "gumbel")) and (plain or (name.startswith("standard") and len(args) < 2)):
            x = torch.empty(shape, **options).exponential_(generator=generator)
            return -x.log() if name == "gumbel" else x
        if name == "choice":
            items = numpy.arange(given["a"]) if numpy.ndim(given["a"]) == 0 else numpy.asarray(given["a"])
            p = torch.tensor([1.0] * len(items) if given.get("p") is None else [*given["p"]], **options)
            index = torch.multinomial(p, max(1, numpy.size(out)), given.get("replace", True), generator=generator)
            return items[index.numpy()].reshape(shape + items.shape[1:])[()]
        if name in ("integers", "randint") and not given.get("endpoint"):
            low, high = (0, low) if high is None else (low, high)
            return torch.randint(low, high, shape, generator=generator, dtype=torch.int64, device="cpu").numpy()[()]
        raise ACTIVE[-1].refuse(f"numpy's {name} has no stand-in")


def seeded(read: Callable[[], Hashable], seed: Callable[..., Any]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = seed(*args, **kwargs)
        ACTIVE[-1].states.add(read())
        return result

    return call


def with_torch(name: str, plain: Callable[..., Any]) -> Any:
    """A function of numpy or math: torch's of the same name, where it gets random numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(ACTIVE[-1].cells(x) for x in args):
            return plain(*(x.numpy() if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        torchs = getattr(torch, {"power": "pow", "clip": "clamp"}.get(name, name), None)
        if kwargs.keys() - {"side", "axis"} or not torchs:
            raise ACTIVE[-1].refuse(f"{name} of numpy or math, of random numbers")
        tensors = [x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=None, device="cpu") for x in args]
        out = torchs(*tensors, **{"dim" if x == "axis" else x: y for x, y in kwargs.items()})
        return out if ACTIVE[-1].cells(out) else out.numpy()[()]

    return call


def stand_ins() -> dict[Any, dict[str, Any]]:
    """What is replaced while ways are run: ``{module or class: {name: value}}``."""
    legacy, inst = numpy.random.mtrand._rand, random._inst
    real, urandom, follower = random.Random.random, os.urandom, ACTIVE[-1]
    number: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    whole: dict[str, Any] = {"dtype": torch.int64, "device": "cpu"}

    def generator(self: random.Random) -> torch.Generator:
        if isinstance(self, random.SystemRandom):
            raise follower.refuse("os.urandom, by random.SystemRandom or secrets, has no stand-in")
        return generator_at(self.getstate, lambda: real(self), self is inst)[1]

    def choices(self: Any, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        if cum_weights is not None:
            weights = [b - a for a, b in itertools.pairwise([0, *cum_weights])]
        p = torch.tensor([1.0] * len(population) if weights is None else [*weights], **number)
        return [population[i] for i in torch.multinomial(p, k, True, generator=generator(self)).tolist()]

    def refused(self: Any, *_: Any) -> Any:
        raise follower.refuse("Python's getrandbits or gauss, which has no stand-in")

    def bytes_of(count: int) -> bytes:
        if not (follower.making or follower.first):
            raise follower.refuse("os.urandom, by random.SystemRandom or secrets, has no stand-in")
        return urandom(count)

    def maker(make: Any) -> Any:
        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            follower.making = True  # a generator without a seed takes one from os.urandom
            made = make(*args, **kwargs)
            follower.making = False
            return Generator(made)

        return type(make.__name__, (make if isinstance(make, type) else object,), {"__new__": staticmethod(new)})

    def missing(self: torch.Tensor, name: str) -> Any:
        if hasattr(numpy.ndarray, name) and follower.cells(self):
            raise follower.refuse(f"{name} of an array of random numbers")
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")

    methods = {
        "random": lambda self: torch.rand((), generator=generator(self), **number), "choices": choices,
        "_randbelow": lambda self, n: torch.randint(n, (), generator=generator(self), **whole).item(),
        "getrandbits": refused, "gauss": refused, "normalvariate": refused,
    }  # fmt: skip
    drawn = [x for x in dir(numpy.random) if getattr(getattr(numpy.random, x), "__self__", None) is legacy]
    return {
        math: {x: with_torch(x, getattr(math, x)) for x in ("log", "exp", "sqrt", "log1p", "floor")},
        os: {"urandom": bytes_of}, random.Random: methods, random.SystemRandom: {"random": methods["random"]},
        random: {x: method.__get__(inst) for x, method in methods.items() if hasattr(random, x)}
        | {"seed": seeded(random.getstate, random.seed)},
        torch: {x: factory(getattr(torch, x)) for x in ("tensor", "as_tensor", "asarray")}
        | {"from_numpy": torch.as_tensor, "manual_seed": seeded(torch_state, torch.manual_seed)},
        torch.Tensor: {x: reader(x) for x in READS} | {
            "__array_ufunc__": lambda _, f, how, *x, **y: with_torch(f.__name__, getattr(f, how))(*x, **y),
            "__array_function__": lambda _, f, types, x, y: with_torch(f.__name__, f)(*x, **y), "__getattr__": missing,
        },
        numpy.random: {x: maker(getattr(numpy.random, x)) for x in ("default_rng", "RandomState", "Generator")}
        | {x: getattr(Generator(legacy), x) for x in drawn} | {"seed": seeded(numpy_state, numpy.random.seed)},
    }  # fmt: skip


def swap(pairs: dict[int, Any]) -> None:
    """Puts other values where modules have these, whatever their names there are."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if id(value) in pairs:
                setattr(module, name, pairs[id(value)])


def key_of(x: Any) -> Any:
    """What a function returned, with tuples for tensors, arrays and lists."""
    if isinstance(x, torch.Tensor):
        if ACTIVE[-1].cells(x) and x.is_floating_point():
            raise ACTIVE[-1].refuse("a random number that is returned")
        ACTIVE[-1].settle(x)
    x = x.tolist() if isinstance(x, (torch.Tensor, numpy.ndarray, numpy.generic)) else x
    return tuple(key_of(y) for y in x) if isinstance(x, (list, tuple)) else x


@contextlib.contextmanager
def replaced() -> Iterator[Follower]:
    """Stand-ins, and states of generators that are put back."""
    legacy = numpy.random.mtrand._rand
    with contextlib.ExitStack() as stack:
        stack.callback(torch.default_generator.set_state, torch.default_generator.get_state())
        stack.callback(random.setstate, random.getstate())
        stack.callback(legacy.set_state, legacy.get_state())
        ACTIVE.append(follower := Follower())
        stack.callback(ACTIVE.pop)
        modules = []
        for owner, values in stand_ins().items():
            for name, new in values.items():
                if not isinstance(owner, type):
                    modules.append((getattr(owner, name), new))
                    continue
                old = (setattr, owner, name, vars(owner)[name]) if name in vars(owner) else (delattr, owner, name)
                stack.callback(*old)
                setattr(owner, name, new)
        stack.callback(swap, {id(new): old for old, new in modules})
        stack.callback(lambda: [x.pop("float") for x in follower.floats])
        swap({id(old): new for old, new in modules})
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
    result, covered, previous, begin = Law(), 0.0, [object()], time.monotonic()
    seeds = torch.default_generator.manual_seed, random.seed, numpy.random.seed
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # which hides objects
    made = [x for x in gc.get_objects() if issubclass(type(x), numpy.random.BitGenerator)]
    if frozen:
        gc.freeze()
    states = [(x, numpy_state(x)) for x in made if x is not numpy.random.mtrand._rand._bit_generator]
    with replaced() as follower:
        for run in itertools.count():
            for seed in seeds:  # another one each time, which shows what is drawn without a stand-in
                seed(0x5EED0000 + run)
            follower.start()
            try:
                with torch.no_grad(), follower:
                    value = key_of(function())
            except Restart:
                continue
            except Exception as error:
                value = ("raises", f"{type(error).__name__}: {error}"[:90])
            if run == 0:  # which may import what draws numbers
                follower.first, follower.refusal = False, None
                follower.path.clear()
                continue
            if drawn := [name for name, read in SHARED.items() if read() not in follower.states]:
                follower.refuse(f"numbers of {drawn[0]} that were drawn, or seeded, by what has no stand-in")
            if any(numpy_state(x) != state for x, state in states):
                follower.refuse("a generator of numpy that was made before the call")
            if len(previous) > 1 and value != previous[1]:
                follower.refuse("a random source without a stand-in: the same draws led to another result")
            if follower.refusal:
                raise follower.refusal
            previous = [*previous, value] if result.ways < TWICE else previous
            if len(previous) == 2:
                continue  # the same way once more
            previous, covered, result.ways = previous[:1], covered + follower.weight, result.ways + 1
            result[value] = result.get(value, 0.0) + follower.weight
            if not follower.advance():
                result.slack = follower.slack
                return result
            if result.ways >= ways or time.monotonic() - begin > seconds:
                raise BudgetExceeded(
                    f"{result.ways} ways in {time.monotonic() - begin:.0f} s have {covered:.3g} of the probability; "
                    f"allowed are {ways} in {seconds:g} s"
                )
    raise AssertionError
