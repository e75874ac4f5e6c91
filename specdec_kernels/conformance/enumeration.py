"""The exact law of what a function returns: the function runs once for each way that its random draws can go.

A uniform number is an interval that shrinks with each comparison; an exponential one is minus its logarithm. A
`TorchDispatchMode` follows both through torch's ops by the memory that holds them. What it does not follow is an error.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import pickle
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

AFFINE, POWER, LOG = range(3)  # of a Cell: a x + b, a E ** b, a log E + b, where E = -log x
TINY = 1e-6  # what code may add to a random number before its logarithm; Law.slack has the largest
LARGEST_GRID = 4096  # points of a whole number
TWICE = 16  # ways that run twice, to see random sources without a stand-in


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


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Ops on tensors without random elements, which need not be followed."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


class Noise:
    """k / points, where the whole number k is uniform in [low, high)."""

    def __init__(self, points: int, wrapped: int = 0) -> None:
        self.points, self.low, self.high, self.wrapped = points, 0, points, wrapped
        self.race: Race | None = None


class Cell(NamedTuple):
    """A random element: x is the noise, one minus it (mirrored), or it on a grid (a number of steps, or a dtype)."""

    noise: Noise
    form: int = AFFINE
    a: float = 1.0
    b: float = 0.0
    mirrored: bool = False
    grid: float | torch.dtype | None = None

    def points_below(self, bound: float, inclusive: bool) -> int:
        """How many k have an x below the bound."""
        points, grid = self.noise.points, self.grid
        if grid is None:
            bound = min(max(bound, -1.0), 2.0) * points
            return math.floor(bound) + 1 if inclusive else math.ceil(bound)

        def beyond(k: int) -> bool:
            x = max(0, k - self.noise.wrapped) / points
            if isinstance(grid, torch.dtype):
                unit = max(torch.finfo(grid).eps * 2.0 ** (math.frexp(x)[1] - 1), 2.0**-24)
                x = round(x / unit) * unit
            else:
                x = math.floor(x * grid) / grid
            return x > bound or (x == bound and not inclusive)

        return bisect_left(range(points), True, key=beyond)


Value = Cell | float


class Race:
    """Exponential noises with bounds ``{winner: {another: ratio}}``: another arrives after ratio times the winner."""

    def __init__(self, *races: Race) -> None:
        self.bounds: dict[Noise, dict[Noise, float]] = {}
        self.members: dict[Noise, bool] = {}  # whether they are mirrored
        for race in races:
            self.members |= race.members
            for winner, ratios in race.bounds.items():
                self.bind(winner, ratios)

    def bind(self, winner: Noise, ratios: dict[Noise, float]) -> None:
        bounds = self.bounds.setdefault(winner, {})
        bounds |= {noise: max(ratio, bounds.get(noise, 0.0)) for noise, ratio in ratios.items()}

    def probability(self) -> float:
        """Of all bounds, with at most two winners."""
        if len(self.bounds) == 1:
            return 1 / (1 + sum(sum(ratios.values()) for ratios in self.bounds.values()))
        (one, to_one), (two, to_two) = self.bounds.items()
        low, back = to_one.get(two, 0.0), to_two.get(one, 0.0)  # of t = E_two / E_one
        high = 1 / back if back else math.inf
        rest = [
            (to_one.get(x, 0.0), to_two.get(x, 0.0)) for x in {*to_one, *to_two} - {one, two}
        ]  # > max(a, b t) E_one
        ends = sorted({low, high, *(a / b for a, b in rest if b and low < a / b < high)}) if low < high else []
        total = 0.0
        for t, end in pairwise(ends):  # the integral of (alpha + beta t) ** -2
            middle = t + 1 if end == math.inf else (t + end) / 2
            alpha = 1 + sum(a for a, b in rest if a >= b * middle)
            beta = 1 + sum(b for a, b in rest if a < b * middle)
            total += (1 / beta if end == math.inf else (end - t) / (alpha + beta * end)) / (alpha + beta * t)
        return total


class Ways:
    """The choices of a run, the arithmetic of random numbers, and which way a comparison or a race goes."""

    def __init__(self) -> None:
        self.path: list[tuple[int, list[float]]] = []
        self.refusal: Unfollowed | None = None
        self.slack, self.floats = 0.0, list[dict[str, Any]]()
        self.start()

    def start(self) -> None:
        self.depth, self.weight = 0, 1.0
        self.memory: dict[int, tuple[torch.Tensor, dict[int, Cell]]] = {}  # {address of a storage: {offset: cell}}
        self.drawn: dict[Any, tuple[Any, Any]] = {}  # by the state of a generator

    def choose(self, weights: Sequence[float]) -> int:
        """The number of the outcome that this way takes."""
        total = math.fsum(weights)
        if self.depth == len(self.path):
            self.path.append((next(i for i, x in enumerate(weights) if x > 0), [x / total for x in weights]))
        choice, shares = self.path[self.depth]
        if [x / total for x in weights] != shares:
            raise self.refuse("a random source without a stand-in: the same draws led to another choice")
        self.depth += 1
        self.weight *= shares[choice]
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

    def refuse(self, what: str) -> Unfollowed:
        """The error; `law` raises it even if the function catches it."""
        frame = sys._getframe(1)
        while frame.f_back and any(x in frame.f_code.co_filename for x in ("/torch/", __file__, "/random.py")):
            frame = frame.f_back
        self.refusal = self.refusal or Unfollowed(f"{what} ({frame.f_code.co_filename}:{frame.f_lineno})")
        return self.refusal

    def draw(self, state: Any, signature: Any, make: Callable[[], Any]) -> Any:
        """What a generator gives in this state: the same again if it was seeded again."""
        if state not in self.drawn:
            self.drawn[state] = signature, make()
        if self.drawn[state][0] != signature:
            raise self.refuse("two different draws from one state of a generator, which was seeded twice")
        return self.drawn[state][1]

    def tiny(self, x: float) -> bool:
        small = abs(x) <= TINY
        self.slack = max(self.slack, abs(x) * small)
        return small

    def mul(self, x: Value, y: Value) -> Value:
        if isinstance(y, Cell) and not isinstance(x, Cell):
            x, y = y, x
        if not isinstance(x, Cell):
            return x * float(y)  # type: ignore[arg-type]
        if isinstance(y, Cell) or (not math.isfinite(y) and (x.form == LOG or (x.form == AFFINE and x.b))):
            raise self.refuse("a product of random numbers" if isinstance(y, Cell) else f"a random number times {y}")
        if y == 0 or not math.isfinite(y):
            return x.a * y
        return x._replace(a=x.a * y, b=x.b if x.form == POWER else x.b * y)

    def div(self, x: Value, y: Value) -> Value:
        if isinstance(y, Cell):
            if isinstance(x, Cell) or y.form != POWER:
                raise self.refuse("a division by a random number that is not exponential, or of two")
            return y._replace(a=x / y.a, b=-y.b) if x else 0.0
        return self.mul(x, 1 / y if y else math.inf)

    def add(self, x: Value, y: Value) -> Value:
        if isinstance(y, Cell) and not isinstance(x, Cell):
            x, y = y, x
        if not isinstance(x, Cell):
            return x + float(y)  # type: ignore[arg-type]
        if isinstance(y, Cell):
            if x._replace(a=0.0, b=0.0) != y._replace(a=0.0, b=0.0) or x.form != AFFINE:
                raise self.refuse("a sum of random numbers")
            return x._replace(a=x.a + y.a, b=x.b + y.b) if x.a + y.a else x.b + y.b
        if x.form == POWER and math.isfinite(y) and y and not (x.b == 1 and self.tiny(y / x.a)):
            raise self.refuse(f"an exponential number plus {y}")
        return y if not math.isfinite(y) else x if x.form == POWER else x._replace(b=x.b + y)

    def log(self, x: Value) -> Value:
        if not isinstance(x, Cell):
            return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan
        if x.form == POWER and x.a > 0:
            return x._replace(form=LOG, a=x.b, b=math.log(x.a))
        minus = x.a < 0
        if x.form != AFFINE or x.grid or not (self.tiny(abs(x.a) - 1) and self.tiny(x.b - minus)):
            raise self.refuse("a logarithm of a random number that is not of 0 to 1, nor exponential")
        return Cell(x.noise, POWER, -1.0, 1.0, x.mirrored != minus)

    def exp(self, x: Value) -> Value:
        if not isinstance(x, Cell):
            return math.exp(min(x, 709.0))
        if x.form != LOG and x[1:4] != (POWER, -1, 1):
            raise self.refuse("an exponential of a random number")
        return (
            x._replace(form=POWER, a=math.exp(x.b), b=x.a) if x.form == LOG else x._replace(form=AFFINE, a=1.0, b=0.0)
        )

    def clamp(self, x: Value, low: float | None, high: float | None) -> Value:
        """A clamp that few in a million numbers feel."""
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if not isinstance(x, Cell):
            return min(max(x, low), high)
        least, most = sorted((x.b, x.a + x.b)) if x.form == AFFINE else (0.0, math.inf)
        if x.form == LOG or x.a * x.b < 0 or not (low <= least or self.tiny(low - least)) or not (
            high >= most or self.tiny(high - most)
        ):  # fmt: skip
            raise self.refuse("a clamp of a random number")
        return x

    def floor(self, x: Value) -> Value:
        if isinstance(x, Cell) and (x.form != AFFINE or x.a < 1 or x.b or x.grid or x.mirrored):
            raise self.refuse("a random number rounded down")
        return x._replace(grid=x.a) if isinstance(x, Cell) else float(math.floor(x))

    def below(self, x: Value, y: Value, inclusive: bool = False) -> bool:
        """Whether x < y, or x <= y."""
        if isinstance(y, Cell):
            if not isinstance(x, Cell):
                return not self.below(y, x, not inclusive)
            if x.noise is not y.noise:
                return self.winner([x, y], largest=False) == 0
            x, y = self.add(x, self.mul(y, -1.0)), 0.0
        if not isinstance(x, Cell):
            return x <= y if inclusive else x < y
        bound, rising = (y - x.b) / x.a, x.a > 0  # in x
        if x.form == LOG:
            bound, rising = math.exp(-math.exp(min(bound, 700.0))), not rising
        elif x.form == POWER:
            if y / x.a <= 0:  # a power has the sign of its factor
                return x.a < 0
            bound, rising = math.exp(-(min(max(y / x.a, 1e-300), 1e300) ** (1 / x.b))), x.a * x.b < 0
        if math.isnan(bound):
            return False
        inclusive = inclusive == rising
        if x.mirrored:
            bound, rising, inclusive = 1 - bound, not rising, not inclusive
        noise, count = x.noise, x.points_below(bound, inclusive)
        if noise.low < count < noise.high:
            if noise.race:
                raise self.refuse("a comparison of a number that was in a race")
            if self.choose([count - noise.low, noise.high - count]) == 0:
                noise.high = count
            else:
                noise.low = count
        return (count >= noise.high) == rising

    def whole(self, x: Value) -> float:
        """The whole number that a cell rounds down to."""
        if not isinstance(x, Cell):
            return math.floor(x)
        low, high = sorted((x.b, x.a + x.b))
        if x.form != AFFINE or high - low > LARGEST_GRID or low < 0:
            raise self.refuse("a random number read as it is")
        numbers = range(math.floor(low), math.ceil(high))
        return next((n for n in numbers if self.below(x, n + 1)), math.ceil(high))

    def winner(self, row: Sequence[Value], largest: bool) -> int:
        """The number of the largest, or of the smallest: the first to arrive of exponential numbers."""
        cells = {i: x for i, x in enumerate(row) if isinstance(x, Cell)}
        kinds = {(x.form, x.b if x.form == POWER else x.a, x.a > 0) for x in cells.values()}
        form, slope, positive = min(kinds)
        falling = (slope < 0) == (positive or form == LOG)  # the sooner it arrives the larger
        worst = {-math.inf if largest else math.inf} | ({0.0} if form == POWER and positive == largest else set())
        if (
            len(kinds) > 1
            or form == AFFINE
            or falling != largest
            or not worst.issuperset(x for x in row if not isinstance(x, Cell))
        ):
            raise self.refuse("the largest of random numbers that are no race of exponential ones")
        rates = {x.noise: abs(x.a) ** (-1 / x.b) if form == POWER else math.exp(-x.b / x.a) for x in cells.values()}
        members = {x.noise: x.mirrored for x in cells.values()}
        races = {x.race for x in members if x.race}
        compared = any(x.high - x.low < x.points for x in members)
        if (
            compared
            or len(rates) < len(cells)
            or any(members[x] != r.members.get(x, members[x]) for r in races for x in members)
        ):
            raise self.refuse("a race of numbers that were compared before")
        after = []
        for noise, rate in rates.items():
            after.append(Race(*races))
            after[-1].bind(noise, {x: r / rate for x, r in rates.items() if x is not noise})
            after[-1].members |= members
            if len(after[-1].bounds) > 2:
                raise self.refuse("a third race of the same numbers")
        choice = self.choose([race.probability() for race in after])
        for noise in after[choice].members:
            noise.race = after[choice]
        return [*cells][choice]


MOVES = set(
    "clone _to_copy index index_select gather cat stack where masked_fill constant_pad_nd repeat flip roll scatter "
    "index_put masked_select take select_scatter slice_scatter copy fill zero masked_scatter lift_fresh index_copy "
    "index_fill _unsafe_view tril triu".split()
)
COMPARISONS = {"lt": (False, False), "le": (False, True), "gt": (True, False), "ge": (True, True)}  # swapped, inclusive


class Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows random elements of tensors, which are NaN in memory."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import all of torch's compiler

    def __init__(self, ways: Ways) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ways = ways
        self.pointwise: dict[str, tuple[int, Callable[..., Value]]] = {
            "add": (2, ways.add), "mul": (2, ways.mul), "div": (2, ways.div), "log": (1, ways.log),
            "sub": (2, lambda x, y: ways.add(x, ways.mul(y, -1.0))), "exp": (1, ways.exp),
            "rsub": (2, lambda x, y: ways.add(y, ways.mul(x, -1.0))),
            "neg": (1, lambda x: ways.mul(x, -1.0)), "reciprocal": (1, lambda x: ways.div(1.0, x)),
            "log1p": (1, lambda x: ways.log(ways.add(x, 1.0))), "floor": (1, ways.floor),
            "clamp": (1, ways.clamp), "clamp_min": (1, ways.clamp), "clamp_max": (1, ways.clamp),
        }  # fmt: skip

    def offsets(self, x: torch.Tensor) -> list[int]:
        offsets: list[Any] = [x.storage_offset()]
        for size, stride in zip(x.shape, x.stride(), strict=True):
            offsets = [offset + i * stride for offset in offsets for i in range(size)]
        return offsets

    def cells(self, x: Any) -> list[Cell | None]:
        """Of a tensor's elements, in order; empty where none is random."""
        if not self.ways.memory or not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            return []
        memory = self.ways.memory.get(x.untyped_storage().data_ptr())
        cells = [memory[1].get(offset) for offset in self.offsets(x)] if memory and memory[1] else []
        return cells if any(cells) else []

    def values(self, x: Any, shape: Any = None) -> list[Value]:
        """The elements, cells where they are random."""
        if not isinstance(x, torch.Tensor):
            return [x] * math.prod(shape)
        x = x if shape is None else x.expand(shape)
        return [
            cell or value for cell, value in zip(self.cells(x) or [None] * x.numel(), x.flatten().tolist(), strict=True)
        ]

    def write(self, x: torch.Tensor, values: Sequence[Value | None]) -> torch.Tensor:
        """Puts cells and numbers into a tensor; None leaves what is there."""
        address = x.untyped_storage().data_ptr()
        memory = self.ways.memory.get(address, (x, {}))[1]
        if any(isinstance(value, Cell) for value in values):
            memory = self.ways.memory.setdefault(address, (x, memory))[1]
        with untracked():
            flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            for offset, value in zip(self.offsets(x), values, strict=bool(values)):
                memory.pop(offset, None)
                if isinstance(value, Cell):
                    memory[offset] = value
                    value = math.nan if x.is_floating_point() else 0
                if value is not None:
                    flat[offset] = value
        return x

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, ways, schema = kwargs or {}, self.ways, func._schema
        name = schema.name.partition("::")[2].rstrip("_")
        if torch.Tag.nondeterministic_seeded in func.tags and "dropout" not in name:
            return self.source(func, name, args, kwargs)
        if not ways.memory:
            return func(*args, **kwargs)
        tensors = [x for x in flattened((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(self.cells(x) for x in tensors) or name.endswith("_like") or name.startswith("new_"):
            return func(*args, **kwargs)
        if any(x.alias_info and not x.alias_info.is_write for x in schema.returns) and schema.overload_name != "dtype":
            return func(*args, **kwargs)  # a view
        if (
            "out" in kwargs
            or schema.overload_name == "dtype"
            or kwargs.get("rounding_mode")
            or kwargs.get("alpha", 1) != 1
        ):
            raise ways.refuse(f"{name} of random numbers with out, alpha, rounding_mode or as bits")
        if name in MOVES:
            return self.move(func, name, args, kwargs)
        if name in COMPARISONS:
            out, (swapped, inclusive) = func(*args, **kwargs), COMPARISONS[name]
            pairs = zip(*(self.values(x, out.shape) for x in args[:2]), strict=True)
            answers = [ways.below(*(y, x) if swapped else (x, y), inclusive) for x, y in pairs]
            return out.copy_(torch.tensor(answers, dtype=out.dtype, device="cpu").reshape(out.shape))
        if name in ("argmax", "argmin") or (name in ("max", "min") and schema.overload_name == "dim"):
            return self.race(func, name, args, kwargs)
        if name == "searchsorted" and isinstance(args[1], torch.Tensor) and not self.cells(args[0]):
            return self.search(func, args, kwargs)
        if name in self.pointwise:
            arity, function = self.pointwise[name]
            shape = numpy.broadcast_shapes(*(x.shape for x in args[:arity] if isinstance(x, torch.Tensor)))
            limits = bind(schema, args, kwargs)
            ends = (limits.get("min"), limits.get("max")) if name.startswith("clamp") else ()
            values = [function(*x, *ends) for x in zip(*(self.values(x, shape) for x in args[:arity]), strict=True)]
            out = func(*args, **kwargs)
            if out.element_size() < 4 and any(isinstance(x, Cell) for x in values):
                raise ways.refuse(f"{name} of random numbers in {out.dtype}")
            return self.write(out, values)
        if any(x.is_floating_point() and self.cells(x) for x in tensors):
            raise ways.refuse(f"{name} of random numbers")
        for x in tensors:  # whole numbers, which the op reads
            self.settle(x)
        return func(*args, **kwargs)

    def settle(self, x: torch.Tensor) -> None:
        if cells := self.cells(x):
            self.write(x, [self.ways.whole(cell) if cell else None for cell in cells])

    def narrowed(self, cell: Cell | None, dtype: torch.dtype) -> Value | None:
        """A cell that is copied to a dtype."""
        if cell is None or (dtype.is_floating_point and dtype.itemsize >= 4):
            return cell
        if dtype.is_floating_point and cell[1:5] == (AFFINE, 1, 0, False) and cell.grid in (None, dtype):
            return cell._replace(grid=dtype)
        if dtype.is_floating_point or dtype == torch.bool:
            raise self.ways.refuse(f"a random number rounded to {dtype}")
        return cell if cell.a == cell.noise.points else self.ways.floor(cell)

    def move(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An op that copies elements: it runs a second time on marks in their place."""
        if name in ("_to_copy", "clone", "lift_fresh", "copy"):
            source = args[name == "copy"]
            out = func(*args, **kwargs)
            return self.write(
                out, [self.narrowed(x, out.dtype) for x in self.cells(source.expand(out.shape)) or [None] * out.numel()]
            )
        cells: dict[float, Cell] = {}

        def marked(x: Any, position: int) -> Any:
            if isinstance(x, (list, tuple)):
                return [marked(y, position) for y in x]
            if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or self.cells(x)):
                return x
            if position and not x.is_floating_point() and name not in ("where", "cat", "stack", "scatter", "index_put"):
                self.settle(x)
                return x
            double = torch.zeros(x.shape, dtype=torch.float64, device="cpu")
            for i, cell in enumerate(self.cells(x)):
                if cell:
                    double.view(-1)[i] = mark = 1e30 + 1e20 * len(cells)
                    cells[mark] = cell
            return double

        moved = func(*(marked(x, i) for i, x in enumerate(args)), **kwargs)
        return self.write(func(*args, **kwargs), [cells.get(x) for x in moved.flatten().tolist()])

    def race(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        x, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
        if x.element_size() < 4:
            raise self.ways.refuse(f"a race in {x.dtype}")
        rows = [
            self.values(row)
            for row in (x.reshape(1, -1) if dim is None else x.movedim(dim, -1).reshape(-1, x.shape[dim]))
        ]
        fixed = [not any(isinstance(v, Cell) for v in row) for row in rows]
        winners = [
            None if same else self.ways.winner(row, "max" in name) for row, same in zip(rows, fixed, strict=True)
        ]
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return self.write(out, winners)
        self.write(out[1], winners)
        self.write(out[0], [None if i is None else row[i] for row, i in zip(rows, winners, strict=True)])
        return out

    def search(self, func: Any, args: Any, kwargs: Any) -> Any:
        bounds, x = args[:2]
        right, size = bool(kwargs.get("right")) or kwargs.get("side") == "right", bounds.shape[-1]
        rows = bounds.reshape(-1, size).tolist()
        each = x.numel() // len(rows) if bounds.dim() > 1 else x.numel()  # inputs of a row
        result = [
            next((j for j, bound in enumerate(rows[i // each]) if self.ways.below(value, bound, not right)), size)
            for i, value in enumerate(self.values(x))
        ]
        return self.write(func(*args, **kwargs), result)

    def source(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A random op: numbers are drawn, so that errors come and the generator moves on, and forgotten."""
        bound = bind(func._schema, args, kwargs)
        generator = bound.get("generator") or torch.default_generator
        state = generator.get_state().numpy().tobytes()
        chances = bound.get("p") if bound.get("p") is not None else bound.get("self")
        if name not in ("multinomial", "bernoulli"):
            chances = None
        if self.cells(chances):
            raise self.ways.refuse(f"{name} by random numbers")
        out = func(*args, **kwargs)
        weights = None if chances is None else self.values(chances, None if name == "multinomial" else out.shape)
        numbers = [x for x in bound.values() if isinstance(x, (int, float))]
        signature = (name, out.shape, out.dtype, weights, numbers)
        return self.write(out, self.ways.draw(state, signature, lambda: self.drawn(name, out, bound, weights)))

    def drawn(self, name: str, out: torch.Tensor, bound: dict[str, Any], weights: Any) -> list[Value]:
        short, count = out.is_floating_point() and out.element_size() < 4, out.numel()
        low, high = bound.get("low", bound.get("from", 0)), bound.get("high", bound.get("to"))
        if name in ("rand", "rand_like", "uniform"):
            scale, shift = (high - low, low) if name == "uniform" else (1.0, 0.0)
            points = 1 << (53 if out.dtype == torch.float64 else 24)
            wrapped = int(points * torch.finfo(out.dtype).eps / 4) if short else 0  # what would round to 1 comes as 0
            grid = out.dtype if short else None
            return [Cell(Noise(points, wrapped), AFFINE, scale, shift, grid=grid) for _ in range(count)]
        if name == "exponential" and not short:
            return [Cell(Noise(1 << 53), POWER, 1 / bound["lambd"], 1.0) for _ in range(count)]
        if name in ("randint", "random") and high is not None:
            return [Cell(Noise(high - low), AFFINE, float(high - low), float(low)) for _ in range(count)]
        if name == "bernoulli":
            return [float(self.ways.choose([1 - p, p])) for p in weights]
        if name == "multinomial" and bound["self"].element_size() > 2:
            size = bound["self"].shape[-1]
            rows = [weights[i : i + size] for i in range(0, len(weights), size)]
            return [x for row in rows for x in self.indices(row, count // len(rows), bound["replacement"])]
        if name == "randperm":
            return [*self.indices([1.0] * count, count, False)]
        raise self.ways.refuse(f"{name} in {out.dtype} has no stand-in")

    def indices(self, weights: Sequence[float], count: int, replacement: bool) -> list[int]:
        """Several numbers of outcomes, one after the other."""
        result: list[int] = []
        for _ in range(count):
            result.append(
                self.ways.choose([0.0 if x in result and not replacement else w for x, w in enumerate(weights)])
            )
        return result

    def number(self, cell: Value) -> torch.Tensor:
        """A random number of Python: float64 []."""
        return self.write(torch.zeros((), dtype=torch.float64, device="cpu"), [cell])


def flattened(x: Any) -> Iterator[Any]:
    for y in x.values() if isinstance(x, dict) else x:
        if isinstance(y, (list, tuple, dict)):
            yield from flattened(y)
        else:
            yield y


def bind(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, with defaults."""
    values = {x.name: x.default_value for x in schema.arguments if x.has_default_value()}
    names = [x.name for x in schema.arguments if not x.kwarg_only]
    return {**values, **dict(zip(names, args, strict=False)), **kwargs}


class Noises(numpy.ndarray):
    """An array of random numbers, float64 tensors [], whose largest is the winner of a race."""

    def race(self, follower: Follower, largest: bool, axis: int | None) -> Any:
        rows = self.reshape(1, -1) if axis is None else numpy.moveaxis(self, axis, -1).reshape(-1, self.shape[axis])
        winners = [
            follower.ways.winner(
                [follower.values(torch.as_tensor(x, dtype=None, device="cpu"))[0] for x in row], largest
            )
            for row in rows
        ]
        shape = () if axis is None else numpy.moveaxis(self, axis, -1).shape[:-1]
        return numpy.array(winners).reshape(shape)[()]

    def argmax(self, axis: int | None = None, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return self.race(ACTIVE[-1], True, axis)

    def argmin(self, axis: int | None = None, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return self.race(ACTIVE[-1], False, axis)


ACTIVE: list[Follower] = []


def array_of(follower: Follower, values: Sequence[Value], shape: Any) -> Any:
    array = numpy.empty(len(values), dtype=object)
    array[:] = [follower.number(x) if isinstance(x, Cell) else x for x in values]
    return array.reshape(shape).view(Noises)


class Reader(TorchFunctionMode):
    """What leaves tensors for Python: a random element stays a tensor."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self.follower = follower

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        follower, kwargs, name = self.follower, kwargs or {}, getattr(func, "__name__", "")
        x = args[0] if args else None
        made = name in ("tensor", "as_tensor", "asarray") and isinstance(x, (Noises, list, tuple))
        if made and any(follower.cells(y) for y in flattened(numpy.ravel(x) if isinstance(x, Noises) else x)):
            array = numpy.array(x, dtype=object)
            out = torch.zeros(array.shape, dtype=kwargs.get("dtype") or torch.float64, device="cpu")
            cells = [follower.values(torch.as_tensor(y, dtype=None, device="cpu"))[0] for y in array.ravel()]
            return follower.write(out, [follower.narrowed(y, out.dtype) if isinstance(y, Cell) else y for y in cells])
        reads = name in ("item", "tolist", "numpy", "__array__", "__int__", "__trunc__", "__floor__", "__float__")
        return self.read(func, name, args, kwargs) if reads and follower.cells(x) else func(*args, **kwargs)

    def read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        follower, x = self.follower, args[0]
        if not x.is_floating_point():
            follower.settle(x)
            return func(*args, **kwargs)
        if name == "__float__":
            return self.float(x)
        values = follower.values(x)
        if name in ("__int__", "__trunc__", "__floor__"):
            return int(follower.ways.whole(values[0]))
        if name == "item":
            return follower.number(values[0])
        array = array_of(follower, values, x.shape)
        return array.tolist() if name == "tolist" else array

    def float(self, x: torch.Tensor) -> Any:
        """In a module that says ``float(u)``, that gets a ``float`` which leaves random numbers as they are."""
        frame: Any = sys._getframe(2)
        while "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__:
            frame = frame.f_back
        if "float" not in frame.f_code.co_names or "float" in frame.f_globals:
            raise self.follower.ways.refuse("a random number read as it is, by float or a function of math")
        frame.f_globals["float"] = Float
        self.follower.ways.floats.append(frame.f_globals)
        raise Restart


class FloatType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, builtins.float)


class Float(builtins.float, metaclass=FloatType):
    """The ``float`` of modules that read random numbers by it."""

    def __new__(cls, x: Any = 0.0) -> Any:
        return x.item() if isinstance(x, torch.Tensor) and ACTIVE[-1].cells(x) else builtins.float(x)


class Numbers:
    """A stand-in for numpy's generators, old and new, and for its functions."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real, name)
        if name in ("seed", "bit_generator", "spawn", "get_state", "set_state"):
            return real

        def draw(*args: Any, **kwargs: Any) -> Any:
            follower, bits = ACTIVE[-1], getattr(self.real, "bit_generator", None) or self.real._bit_generator
            state, out = pickle.dumps(bits.state), real(*args, **kwargs)
            make = lambda: self.values(follower, name, numpy.shape(out), args, kwargs)  # noqa: E731
            values = follower.ways.draw(state, (name, repr(args), repr(kwargs)), make)
            if all(not isinstance(x, Cell) for x in values):
                return numpy.array(values, dtype=numpy.asarray(out).dtype).reshape(numpy.shape(out))[()]
            return array_of(follower, values, numpy.shape(out)) if numpy.shape(out) else follower.number(values[0])

        return draw

    def values(self, follower: Follower, name: str, shape: Any, args: Any, kwargs: Any) -> list[Any]:
        count, ways = math.prod(shape), follower.ways
        if name in ("random", "random_sample", "rand", "sample", "ranf") or (
            name == "uniform" and not args and not kwargs.keys() - {"size"}
        ):
            return [Cell(Noise(1 << 53)) for _ in range(count)]
        if name == "uniform":
            low, high = (
                kwargs.get("low", args[0] if args else 0.0),
                kwargs.get("high", args[1] if len(args) > 1 else 1.0),
            )
            return [Cell(Noise(1 << 53), AFFINE, high - low, low) for _ in range(count)]
        plain = kwargs.keys() <= {"size"} and args[:2] in ((), (1.0,), (0.0, 1.0))
        if name.endswith(("exponential", "gumbel")) and (plain or (name.startswith("standard") and len(args) < 2)):
            cells = [Cell(Noise(1 << 53), POWER, 1.0, 1.0) for _ in range(count)]
            return [ways.mul(ways.log(x), -1.0) for x in cells] if name.endswith("gumbel") else cells
        if name == "choice":
            given = dict(zip(("a", "size", "replace", "p"), args, strict=False)) | kwargs
            items = numpy.arange(given["a"]) if numpy.ndim(given["a"]) == 0 else numpy.asarray(given["a"])
            weights = [1.0] * len(items) if given.get("p") is None else numpy.asarray(given["p"], dtype=float).tolist()
            return [items[i] for i in follower.indices(weights, count, given.get("replace", True))]
        if name in ("integers", "randint"):
            given = dict(zip(("low", "high"), args, strict=False)) | kwargs
            low, high = (0, given["low"]) if given.get("high") is None else (given["low"], given["high"])
            return [low + ways.choose([1.0] * (high - low)) for _ in range(count)]
        if name == "multinomial" and args[0] == 1 and len(shape) == 1:
            choice = ways.choose(numpy.asarray(args[1]).tolist())
            return [int(i == choice) for i in range(count)]
        raise ways.refuse(f"numpy's {name} has no stand-in")


def stand_ins() -> Iterator[tuple[Any, str, Any]]:
    """What is replaced while ways are run: (owner, name, value)."""
    legacy, real_random, real_log = numpy.random.mtrand._rand, random.Random.random, math.log

    def draw(generator: Any, signature: Any, make: Callable[[Ways], Any]) -> Any:
        state = generator.getstate()
        real_random(generator)
        return ACTIVE[-1].ways.draw(state, signature, lambda: make(ACTIVE[-1].ways))

    def choices(self: Any, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        if cum_weights is not None:
            weights = [b - a for a, b in zip([0, *cum_weights], cum_weights, strict=False)]
        weights = [1.0] * len(population) if weights is None else weights
        return [population[i] for i in draw(self, k, lambda _: ACTIVE[-1].indices(weights, k, True))]

    def refused(self: Any, *_: Any) -> Any:
        raise ACTIVE[-1].ways.refuse("Python's getrandbits or gauss, which has no stand-in")

    def log(x: Any, *base: Any) -> Any:
        return x.log() if isinstance(x, torch.Tensor) and not base else real_log(x, *base)

    def with_arrays(operator: Any) -> Any:
        return lambda self, x: (
            operator(self, torch.from_numpy(x)).numpy() if isinstance(x, numpy.ndarray) else operator(self, x)
        )

    methods = {
        "random": lambda self: ACTIVE[-1].number(draw(self, "random", lambda _: Cell(Noise(1 << 53)))),
        "_randbelow": lambda self, n: draw(self, n, lambda ways: ways.choose([1.0] * n)),
        "choices": choices, "getrandbits": refused, "gauss": refused, "normalvariate": refused,
    }  # fmt: skip
    replaced: dict[Any, dict[str, Any]] = {
        random: {"_log": log},
        math: {"log": log},
        random.Random: methods,
        numpy.random: {},
        torch: {"from_numpy": torch.tensor},
    }
    names = [f"__{x}__" for x in "lt le gt ge add radd sub rsub mul rmul truediv rtruediv".split()]
    replaced[torch.Tensor] = {name: with_arrays(getattr(torch.Tensor, name)) for name in names}
    replaced[random] |= {
        name: method.__get__(random._inst) for name, method in methods.items() if hasattr(random, name)
    }
    for name in dir(numpy.random):
        if getattr(getattr(numpy.random, name), "__self__", None) is legacy:
            replaced[numpy.random][name] = getattr(Numbers(legacy), name)
    for name in ("default_rng", "RandomState"):
        make = getattr(numpy.random, name)
        made = staticmethod(lambda cls, *args, make=make, **kwargs: Numbers(make(*args, **kwargs)))
        replaced[numpy.random][name] = type(name, (make if isinstance(make, type) else object,), {"__new__": made})
    originals = {id(getattr(owner, name)): x for owner, values in replaced.items() for name, x in values.items()}
    for owner, values in replaced.items():
        for name, value in values.items():
            yield owner, name, value
    for module in list(sys.modules.values()):  # where they were imported by name
        for name, value in (
            list(vars(module).items()) if module not in replaced and module is not sys.modules[__name__] else ()
        ):
            if id(value) in originals:
                yield module, name, originals[id(value)]


def key_of(x: Any, follower: Follower) -> Any:
    """What a function returned, with tuples for tensors, arrays and lists."""
    if isinstance(x, torch.Tensor):
        if follower.cells(x) and x.is_floating_point():
            raise follower.ways.refuse("a random number that is returned")
        follower.settle(x)
        return key_of(x.tolist(), follower)
    if isinstance(x, numpy.ndarray):
        x = x.tolist()
    if isinstance(x, (list, tuple)):
        return tuple(key_of(y, follower) for y in x)
    return x.item() if isinstance(x, numpy.generic) else x


def law(function: Callable[[], Any], *, ways: int = 100_000, seconds: float = 60.0) -> Law:
    """The law of what a function returns, whose only randomness is torch's, numpy's or Python's.

    Parameters
    ----------
    function : callable
        Without arguments. It returns numbers, tensors, arrays, lists or tuples of them. An error that it raises is a
        result, too: ``("raises", text)``.
    ways, seconds : int, float
        The budget: how often the function may run, and for how long.

    Returns
    -------
    Law
        ``{result: probability}``. Tensors are tuples in it.

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
    state, begin, result = Ways(), time.monotonic(), Law()
    follower, covered, again, previous, first = Follower(state), 0.0, False, None, True
    seeds = torch.default_generator.get_state(), random.getstate(), numpy.random.mtrand._rand.get_state()

    def restore() -> None:
        torch.default_generator.set_state(seeds[0])
        random.setstate(seeds[1])
        numpy.random.mtrand._rand.set_state(seeds[2])

    with contextlib.ExitStack() as stack:
        stack.callback(restore)
        stack.enter_context(numpy.errstate(invalid="ignore"))  # random elements are NaN in memory
        for owner, name, value in list(stand_ins()):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        ACTIVE.append(follower)
        stack.callback(ACTIVE.pop)
        stack.callback(lambda: [x.pop("float") for x in state.floats])
        while True:
            state.start()
            restore()
            try:
                with torch.no_grad(), Reader(follower), follower:
                    value = key_of(function(), follower)
            except Restart:
                continue
            except Exception as error:
                value = ("raises", f"{type(error).__name__}: {error}"[:90])
            if first:  # it may have imported what draws numbers
                first, state.refusal = False, None
                state.path.clear()
                continue
            if state.refusal:
                raise state.refusal
            if again and value != previous:
                raise Unfollowed("a random source without a stand-in: the same draws led to another result")
            if result.ways < TWICE and not again:
                again, previous = True, value
                continue
            again, covered = False, covered + state.weight
            result[value] = result.get(value, 0.0) + state.weight
            result.ways += 1
            if not state.advance():
                break
            if result.ways >= ways or time.monotonic() - begin > seconds:
                raise BudgetExceeded(
                    f"{result.ways} ways in {time.monotonic() - begin:.0f} s have {covered:.3g} of the probability; "
                    f"allowed are {ways} in {seconds:g} s"
                )
    result.slack = state.slack
    return result
