"""The exact judge: what it follows, what it refuses, thirty wrong verifiers and ten right ones."""
# ruff: noqa: NPY002 (verifiers draw by numpy's old functions, too)

import itertools
import math
import os
import random
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import conformance, race_sample
from specdec_kernels.backends.reference import noise
from specdec_kernels.conformance import BudgetExceeded, Contexts, Unfollowed, exact, exact_texts, law, per_request

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
BY_P = dict(enumerate(P.tolist()))


def gumbel(dtype=torch.float32, eps=0.0):
    return -torch.log(-torch.log(torch.rand(3, dtype=dtype) + eps) + eps)


def filled(x, name, *numbers):
    getattr(x, name)(*numbers)
    return x


@torch.library.custom_op("conformance_tests::coin", mutates_args=())
def coin(p: torch.Tensor) -> torch.Tensor:
    return torch.rand((), generator=torch.Generator().manual_seed(3)) < p


# A function, and its law.
FOLLOWED = {
    "less": (lambda: bool(torch.rand(()) < 0.25), {True: 0.25}),
    "greater": (lambda: bool(torch.rand(1) >= 0.25), {True: 0.75}),
    "scaled": (lambda: bool(torch.rand((), dtype=torch.float64) * 0.5 < P[1]), {True: 0.6}),
    "one minus it": (lambda: (1 - torch.rand(1) < 0.25).tolist(), {(True,): 0.25}),
    "uniform_": (lambda: (filled(torch.empty(2), "uniform_", 1, 3) < 1.5).all(), {True: 0.0625}),
    "rand_like": (lambda: (torch.rand_like(P) < P).tolist()[0], {True: 0.5}),
    "an interval that shrinks": (
        lambda: (lambda u: [bool(u < x) for x in (0.5, 0.25, 0.75)].count(True))(torch.rand(())),
        {3: 0.25, 2: 0.25, 1: 0.25, 0: 0.25},
    ),
    "cumulative sum": (lambda: (P.cumsum(0) < torch.rand(1, dtype=torch.float64)).sum(), BY_P),
    "searchsorted": (lambda: torch.searchsorted(P.cumsum(0), torch.rand((), dtype=torch.float64)), BY_P),
    "elements that move": (
        lambda: (torch.cat((torch.rand(2, 3).gather(1, torch.tensor([[0], [2]]))[:, 0], torch.rand(1))) < 0.5).sum(),
        {0: 0.125, 1: 0.375, 2: 0.375, 3: 0.125},
    ),
    "written in place": (lambda: filled(torch.ones(2), "__setitem__", 0, torch.rand(())).lt(0.25).any(), {True: 0.25}),
    "multinomial": (lambda: torch.multinomial(P, 1).item(), BY_P),
    "without replacement": (lambda: torch.multinomial(P, 2)[1].item(), {0: 0.3 / 0.7 * 0.5 + 0.2 / 0.8 * 0.5}),
    "with replacement": (lambda: torch.multinomial(P, 2, replacement=True)[1], BY_P),
    "Categorical": (lambda: torch.distributions.Categorical(P).sample(), BY_P),
    "bernoulli": (lambda: torch.bernoulli(P)[1], {1.0: 0.3}),
    "randint": (lambda: torch.randint(0, 4, (1,)).item(), {3: 0.25}),
    "steps of 1/100": (lambda: bool(torch.randint(0, 100, ()) / 100 < 0.305), {True: 0.31}),
    "steps of 1/256": (lambda: bool((torch.rand(()) * 256).floor() / 256 < 0.3), {True: 77 / 256}),
    "one of four": (lambda: bool((torch.rand(()) * 4).floor() == 2), {True: 0.25}),
    "shifted": (lambda: bool(torch.randint(0, 1 << 32, ()) >> 30 == 3), {True: 0.25}),
    "a whole number": (lambda: (torch.rand(()) * 4).long().item(), {2: 0.25}),
    "bfloat16, from 1 on": (lambda: bool(torch.rand(()).bfloat16() >= 1), {True: 2.0**-9}),
    "exponential race": (lambda: (P / torch.empty_like(P).exponential_()).argmax(), BY_P),
    "race in place": (lambda: P.clone().div_(filled(torch.empty_like(P), "exponential_", 3)).max(-1)[1], BY_P),
    "the first to arrive": (lambda: (torch.empty(3).exponential_() / P).argmin(-1), BY_P),
    "Gumbel": (lambda: (P.log() + gumbel()).argmax(), BY_P),
    "Gumbel with 1e-10": (lambda: (P.log() + gumbel(eps=1e-10)).argmax(), BY_P),
    "Gumbel of torch": (lambda: (P.log() + torch.distributions.Gumbel(0.0, 1.0).sample((3,))).argmax(), BY_P),
    "exponential": (lambda: bool(torch.empty(()).exponential_(2) < 1), {True: 1 - math.exp(-2)}),
    "seeded twice": (
        lambda: [bool(torch.rand((), generator=torch.Generator().manual_seed(5)) < 0.5) for _ in range(2)],
        {(True, True): 0.5, (False, False): 0.5},
    ),
    "item": (lambda: torch.rand(1).item() < 0.25, {True: 0.25}),
    "float": (lambda: float(torch.rand(1)) < 0.25, {True: 0.25}),
    "tolist": (lambda: [x < 0.5 for x in torch.rand(2).tolist()], {(True, True): 0.25}),
    "Python": (lambda: min(1.0, random.random()) < 0.25, {True: 0.25}),
    "Python's uniform": (lambda: random.uniform(1, 3) < 1.5, {True: 0.25}),
    "Python's choices": (lambda: random.choices([3, 4], weights=[1, 3])[0], {4: 0.75}),
    "Python's randint": (lambda: random.Random(3).randint(0, 3), {2: 0.25}),
    "Python's logarithm": (lambda: -math.log(random.random()) < 1, {True: 1 - math.exp(-1)}),
    "numpy": (lambda: (numpy.random.rand(2) < numpy.array([0.5, 0.25])).all(), {True: 0.125}),
    "numpy's generator": (lambda: numpy.random.default_rng(1).random() < 0.25, {True: 0.25}),
    "numpy's choice": (lambda: numpy.random.choice(3, p=P.numpy()), BY_P),
    "numpy's cumulative sum": (lambda: int((P.numpy().cumsum() < numpy.random.random()).sum()), BY_P),
    "numpy's searchsorted": (lambda: numpy.searchsorted(P.numpy().cumsum(), numpy.random.random()), BY_P),
    "numpy's race": (lambda: numpy.argmax(P.numpy() / numpy.random.exponential(size=3)), BY_P),
    "numpy's Gumbel": (lambda: numpy.argmax(P.log().numpy() + numpy.random.default_rng(0).gumbel(size=3)), BY_P),
    "squares": (lambda: bool(torch.rand(()) ** 2 < 0.25), {True: 0.5}),
    "U ** (1 / p)": (lambda: (torch.rand(3, dtype=torch.float64) ** (1 / P)).argmax(), BY_P),
    "the largest of three": (lambda: torch.rand(3).argmax(), {2: 1 / 3}),
    "a seventh of a hundred": (lambda: bool(torch.randint(0, 100, ()) / 100 < 0.07), {True: 0.07}),
    "bfloat16 times bfloat16": (
        lambda: bool(torch.rand((), dtype=torch.bfloat16) * torch.tensor(0.5, dtype=torch.bfloat16) < 0.25),
        {True: 0.5009765625},
    ),
    "seeds of all kinds": (
        lambda: [f(1) for f in (torch.manual_seed, random.seed, numpy.random.seed)] and bool(torch.rand(()) < 0.25),
        {True: 0.25},
    ),
    "a generator without a seed": (lambda: bool(numpy.random.default_rng().random() < 0.25), {True: 0.25}),
    "numpy's functions": (
        lambda: (numpy.minimum(numpy.random.rand(2), 0.5) < numpy.array([0.25, 0.75])).tolist(), {(True, True): 0.25},
    ),
    "an op of one's own": (lambda: coin(torch.tensor(0.25)), {True: 0.25}),
    "dropout": (lambda: torch.nn.functional.dropout(torch.ones(2), 0.5).sum(), {2.0: 0.5}),
    "finite": (lambda: bool(torch.rand(()).isfinite() & (torch.rand(()) != 0)), {True: 1.0}),
    "numbers beyond 2 ** 16": (lambda: bool(torch.rand(1 << 14)[0] < 0.25), {True: 0.25}),  # of all ways together
    "numpy's astype": (lambda: (numpy.random.rand(2) * 4).astype(int)[1], {2: 0.25}),
    "numpy's repeat": (  # which is none of torch's
        lambda: (numpy.random.rand(2).repeat(2) < 0.5).tolist(), {(True, True, False, False): 0.25},
    ),
    "numpy's outer": (lambda: numpy.less.outer(numpy.random.rand(2), [0.5, 0.25]).sum(), {4: 0.0625, 3: 0.125}),
    "numpy's concatenate": (lambda: (numpy.concatenate((numpy.random.rand(2), [1])) < 0.5).sum(), {2: 0.25}),
    "numpy's nonzero": (lambda: (numpy.random.rand(2) < 0.5).nonzero()[0], {(0, 1): 0.25, (): 0.25}),
    "numpy's race of four": (lambda: numpy.random.exponential(size=(2, 4)).argmin(1)[1], {3: 0.25}),
    "numpy's item": (lambda: numpy.random.rand(2).item(1) < 0.25, {True: 0.25}),
    "a list of numbers": (lambda: (numpy.random.rand(2) < [0.5, 0.25]).all(), {True: 0.125}),
    "a float": (lambda: isinstance(random.random(), float) and (random.random() < 0.25) is True, {True: 0.25}),
    "a float in a tensor": (lambda: filled(torch.ones(2), "__setitem__", 0, random.random()).lt(0.25)[0], {True: 0.25}),
    "Python's race": (lambda: max(range(3), key=lambda i: BY_P[i] / random.expovariate(1)), BY_P),
    "numpy's uniforms of arrays": (
        lambda: (numpy.random.uniform([0, 1], [1, 2]) < [0.5, 1.25]).tolist(), {(True, True): 0.125},
    ),
    "one over -log(1 - u)": (lambda: (P / -torch.log(1 - torch.rand(3, dtype=P.dtype))).argmax(), BY_P),
    "a thread": (lambda: ThreadPoolExecutor(1).submit(lambda: random.random() < 0.25).result(), {True: 0.25}),
    "numpy to torch": (lambda: bool(torch.from_numpy(numpy.random.rand(1)) < 0.25), {True: 0.25}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_followed(name):
    function, expected = FOLLOWED[name]
    got = law(function)
    assert sum(got.values()) == pytest.approx(1)
    for outcome, probability in expected.items():
        assert got[outcome] == pytest.approx(probability, abs=1e-7), got


def test_two_races_of_the_same_numbers():
    """Against a simulation of 10^6 races: off by 5 standard deviations once in 10^5 runs."""

    def both():
        noise = torch.empty(3).exponential_()
        return int((Q / noise).argmax()), int((P / noise).argmax())

    got, noise = law(both), torch.empty(10**6, 3).exponential_(generator=torch.Generator().manual_seed(0))
    pairs = 3 * (Q / noise).argmax(-1) + (P / noise).argmax(-1)
    counts = pairs.bincount(minlength=9) / len(pairs)
    for one, two in itertools.product(range(3), repeat=2):
        assert got.get((one, two), 0.0) == pytest.approx(counts[3 * one + two].item(), abs=0.0025)
    assert [sum(got.get((i, j), 0) for i in range(3)) for j in range(3)] == pytest.approx(P.tolist(), abs=1e-12)


BEFORE, KEPT = numpy.random.default_rng(0), [random.random, numpy.random.rand]
REFUSED = {
    "normal": (lambda: bool(torch.randn(()) < 0.5), r"randn in torch.float32 has no stand-in \(.*test_exact.py:\d+\)"),
    "a sine": (lambda: bool(torch.rand(()).sin() < 0.5), r"sin of random numbers \(.*test_exact.py:\d+\)"),
    "a sum": (lambda: bool(torch.rand(2).sum() < 0.5), "sum of random numbers"),
    "the smaller of two": (  # which is no race of exponential numbers
        lambda: 0.5 / random.expovariate(1) < 0.3 / random.expovariate(1), "no race of exponential",
    ),
    "filled by numpy": (lambda: numpy.random.default_rng(0).random(out=numpy.zeros(1))[0] < 1e-6, "random with out"),
    "two numbers": (lambda: bool(torch.rand(()) < 0.5 * torch.rand(())), "no race of exponential"),
    "two whole numbers": (
        lambda: bool((torch.rand(()) * 4).floor() == (torch.rand(()) * 4).floor()), "eq of two random numbers",
    ),
    "a power of minus one": (lambda: bool((-1.0) ** torch.randint(0, 3, ()) < 0), "pow of two random numbers, or by"),
    "one over nothing": (
        lambda: bool((1 / (torch.rand(()) - 0.5).clamp(min=0)).isinf()), "isinf of random numbers that may be infinite",
    ),
    "the latest": (lambda: (P * torch.empty(3).exponential_()).argmax(), "no race of exponential"),
    "caught": (lambda: caught(lambda: torch.randn(()) < 0.5), "randn"),
    "returned": (lambda: torch.rand(()), "a random number that is returned"),
    "of sin": (lambda: math.sin(random.random()), "read as it is, by float or a function of math"),
    "bits": (lambda: random.getrandbits(3), "getrandbits or gauss"),
    # Each would show by chance in one of a million runs, if at all.
    "made before": (lambda: bool(BEFORE.random() < 1e-6), "a generator of numpy that was made before the call"),
    "kept before": (lambda: KEPT[0]() < 1e-6, "numbers of random that were drawn, or seeded, by what has no stand-in"),
    "numpy's, kept": (lambda: KEPT[1]() < 1e-6, "numbers of numpy.random that were drawn"),
    "a draw between": (lambda: [KEPT[0](), random.random() < 0.5][1], "was seeded, or drawn from, by what has no"),
    "the system's": (lambda: random.SystemRandom().random() < 1e-6, r"os.urandom, by random.SystemRandom or secrets"),
    "the system's choice": (lambda: random.SystemRandom().choices("ab", [1e-6, 1]), "os.urandom"),
    "secrets": (lambda: secrets.randbelow(10**6) == 0, "os.urandom"),
    "urandom": (lambda: os.urandom(3) == bytes(3), r"os.urandom.* has no stand-in \(.*test_exact.py:\d+\)"),
    "kept from way to way": (lambda: kept(torch.rand(())), "a random number of an earlier run"),
    "memory": (lambda: torch.rand(()).data_ptr() % 2, "the memory of random numbers, by data_ptr"),
    "text": (lambda: f"{torch.rand(()):.3f}", "the text of random numbers, by __format__"),
    "text of a float": (lambda: f"{torch.rand(()).item():.3f}", r"read as it is \(.*test_exact.py:\d+\)"),
    "rounded": (lambda: round(4 * random.random()), "a random number read as it is"),
    "a float's method": (lambda: random.random().hex(), "hex of a random number"),
    "an error of a stand-in": (
        lambda: numpy.isnan(numpy.random.rand(2)).any(),
        r"may be of what stands for random numbers: TypeError: ufunc 'isnan' .*test_exact.py:\d+\)",
    ),
    "numpy's normal": (lambda: numpy.random.normal(), "numpy's normal has no stand-in"),
    "seeded twice, two kinds": (
        lambda: [draw(3, generator=torch.Generator().manual_seed(5)) for draw in (torch.rand, torch.randperm)],
        "two different draws from one state",
    ),
    "three races": (
        lambda: (lambda e: [(row / e).argmax() for row in (Q, P, Q.roll(1), P.roll(1))])(torch.empty(3).exponential_()),
        "a third race",
    ),
    "16 bits": (lambda: torch.empty(3, dtype=torch.bfloat16).exponential_().argmin(), "exponential in torch.bfloat16"),
}  # fmt: skip


def kept(number, numbers=[]):  # noqa: B006
    numbers.append(number)
    return bool(numbers[0] < 0.5)


def caught(function):
    try:
        return bool(function())
    except Exception:
        return False


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, said = REFUSED[name]
    with pytest.raises(Unfollowed, match=said):
        law(function)


def test_budgets_and_errors():
    with pytest.raises(BudgetExceeded, match=r"^100 ways in \d+ s have 0.0977 of the probability; allowed are 100 in"):
        law(lambda: (torch.rand(10) < 0.5).tolist(), ways=100)
    with pytest.raises(BudgetExceeded, match=r"in 0\.05 s"):
        law(lambda: (torch.rand(20) < 0.5).tolist(), seconds=0.05)
    got = law(lambda: torch.multinomial(torch.tensor([1.0, -1.0]) if torch.rand(()) < 0.25 else P, 1))
    ((error, chance),) = ((x, p) for x, p in got.items() if x[0] == "raises")
    assert "RuntimeError" in error[1]
    assert chance == 0.25


def test_modules_that_may_not_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "absent", None)
    assert law(lambda: int(random.random() < 0.25)) == {0: 0.75, 1: 0.25}


def test_everything_is_put_back():
    names = (torch.from_numpy, random.random, numpy.random.rand, math.log, torch.Tensor.__lt__)
    held = []
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1]
    law(
        lambda: (
            float(torch.rand(1)) < numpy.random.rand() or random.random() < 0.5 if False else float(torch.rand(1)) < 0.5
        )
    )
    assert (torch.from_numpy, random.random, numpy.random.rand, math.log, torch.Tensor.__lt__) == names
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == states[2]).all()
    assert "float" not in globals()
    law(lambda: held.extend((torch.tensor, random.seed)))
    assert held[0]([2.0]).item() == 2.0  # what a module took from torch while ways were run
    held[1](3)


# Verifiers.


def power(p, exponent):
    p = p**exponent
    return p / p.sum(-1, keepdim=True)


def multinomial(weights):
    return torch.multinomial(weights, 1)[:, 0]


def verifier(
    uniform=lambda size: torch.rand(size), accept=lambda u, p, q: u * q < p, residual=lambda p, q: (p - q).clamp(min=0),
    bonus=lambda p, q: p[:, -1], sample=multinomial, judged=lambda p: p, seen=lambda q: q, row=0,
):  # fmt: skip
    """The textbook's rule for two drafts, with parts that may be others."""

    def verify(batch):
        p, q, drafts = batch.target.softmax(-1), seen(batch.draft), batch.drafts[..., None]
        px, qx = judged(p)[:, row : row + 2].gather(-1, drafts)[..., 0], q.gather(-1, drafts)[..., 0]
        accepted = accept(uniform(px.shape), px, qx).long().cumprod(-1)
        last = accepted.sum(-1)
        weights = torch.cat((residual(p[:, :2], q), bonus(p, q)[:, None]), 1)[torch.arange(len(last)), last]
        tokens = torch.nn.functional.pad(batch.drafts, (0, 1)).masked_fill(torch.arange(3) > last[:, None], -1)
        tokens[torch.arange(len(last)), last] = sample(weights)
        return tokens

    return verify


def race(weights):
    return (weights / torch.empty_like(weights).exponential_()).argmax(-1)


def gumbel_max(weights):
    return (weights.log() - torch.log(-torch.log(torch.rand_like(weights)))).argmax(-1)


def by_search(weights):
    sums = weights.cumsum(-1)
    return torch.searchsorted(sums, torch.rand(len(sums), 1, dtype=sums.dtype) * sums[:, -1:], right=True)[:, 0]


def by_sums(weights):
    sums = weights.cumsum(-1)
    return (sums <= torch.rand(len(sums), 1) * sums[:, -1:]).sum(-1)


def unscaled(weights):
    sums = weights.cumsum(-1)
    return torch.searchsorted(sums, torch.rand(len(sums), 1, dtype=sums.dtype), right=True)[:, 0].clamp(
        max=sums.shape[1] - 1
    )


def in_python(drafts, p, q):
    for i, x in enumerate(drafts.tolist()):
        if random.random() > min(1.0, (p[i, x] / q[i, x]).item()):
            rest = (p[i] - q[i]).clamp(min=0)
            return [*drafts[:i].tolist(), random.choices(range(len(rest)), weights=rest.tolist())[0]]
    return [*drafts.tolist(), random.choices(range(p.shape[1]), weights=p[-1].tolist())[0]]


def in_numpy(drafts, p, q, reuse=False):
    p, q = p.numpy(), q.numpy()
    for i, x in enumerate(drafts.tolist()):
        u = numpy.random.rand()
        if u > p[i, x] / q[i, x]:
            rest = numpy.maximum(p[i] - q[i], 0)
            again = u if reuse else numpy.random.rand()
            return [
                *drafts[:i].tolist(),
                min(int(numpy.searchsorted(numpy.cumsum(rest / rest.sum()), again)), len(rest) - 1),
            ]
    return [*drafts.tolist(), numpy.random.choice(p.shape[1], p=p[-1] / p[-1].sum())]


def hierarchical(drafts, p, q, capped=True):
    """The number of accepted drafts from the last one back, by block verification."""
    ratios = [float(p[i, x] / q[i, x]) for i, x in enumerate(drafts.tolist())]
    w = [1.0, min(1.0, ratios[0])]
    rest = [(w[i] * p[i] - q[i]).clamp(min=0) for i in range(2)]
    if torch.rand(()) < min(1.0, (w[1] if capped else ratios[0]) * ratios[1]):
        return [*drafts, torch.multinomial(p[2], 1)]
    mass = float(rest[1].sum())
    if torch.rand(()) < (mass / (mass + 1 - w[1]) if mass + 1 - w[1] > 0 else 1.0):
        return [drafts[0], torch.multinomial(rest[1], 1)]
    return [torch.multinomial(rest[0], 1)]


class Shared:
    """A drafter and a verifier that see the same exponential numbers."""

    def __init__(self, residual=False):
        self.residual = residual

    def draw(self, probs, seed, position):
        noise = torch.empty_like(probs).exponential_()
        self.noise = [noise] if int(position[0]) == 0 else [*self.noise, noise]
        return (probs / noise).argmax(-1)

    def verify(self, batch):
        if self.residual:
            return verifier(
                sample=lambda w: (w / (self.noise[0] if (w == 0).any() else torch.empty_like(w).exponential_())).argmax(
                    -1
                )
            )(batch)
        p, row = batch.target.softmax(-1), []
        for i, x in enumerate(batch.drafts[0].tolist()):
            row.append(int((p[:, i] / self.noise[i]).argmax()))
            if row[-1] != x:
                break
        else:
            row.append(int(race(p[:, 2])))
        return torch.tensor([row + [-1] * (3 - len(row))])


def one_uniform(size):
    return torch.rand(size[0], 1).expand(size)


def seeded(size):
    return torch.rand(size, generator=torch.Generator().manual_seed(1))


def top_two(p):
    return p.where(p >= p.topk(2).values[..., 1:], 0.0)


RIGHT = {
    "textbook": verifier(),
    "ratio": verifier(accept=lambda u, p, q: u <= (p / q).clamp(max=1)),
    "race": verifier(sample=race),
    "Gumbel": verifier(sample=gumbel_max),
    "searchsorted": verifier(sample=by_search),
    "sums": verifier(sample=by_sums),
    "a logarithm": verifier(accept=lambda u, p, q: u.log() < p.log() - q.log()),
    "Python": per_request(in_python),
    "numpy": per_request(in_numpy),
    "block, from the last draft back": per_request(hierarchical),
}
WRONG = {
    "uniforms in steps of 1/100": verifier(lambda size: torch.randint(0, 100, size) / 100),
    "uniforms in steps of 1/256": verifier(lambda size: (torch.rand(size) * 256).floor() / 256),
    "uniforms drawn in bfloat16": verifier(lambda x: torch.rand(x, dtype=torch.bfloat16), lambda u, p, q: u < p / q),
    "uniforms rounded to bfloat16": verifier(lambda size: torch.rand(size).bfloat16(), lambda u, p, q: u < p / q),
    "1.02 p / q": verifier(accept=lambda u, p, q: u * q < 1.02 * p),
    "0.98 p / q": verifier(accept=lambda u, p, q: u * q < 0.98 * p),
    "1.00001 p / q": verifier(accept=lambda u, p, q: u * q < 1.00001 * p),
    "the root of p / q": verifier(accept=lambda u, p, q: u < (p / q).sqrt()),
    "p >= q": verifier(accept=lambda u, p, q: p >= q),
    "every draft": verifier(accept=lambda u, p, q: p >= 0),
    "p / (q + 1e-4)": verifier(accept=lambda u, p, q: u < p / (q + 1e-4)),
    "q / p": verifier(accept=lambda u, p, q: u * p < q),
    "p of the next row": verifier(row=1),
    "the product of all ratios": verifier(accept=lambda u, p, q: u < (p / q).cumprod(-1)),
    "p at T = 1 / 0.9 for drafts alone": verifier(judged=lambda p: power(p, 0.9)),
    "top-k for drafts alone": verifier(judged=top_two),
    "another law of the drafts": verifier(seen=lambda q: power(q, 0.95)),
    "one uniform for all drafts": verifier(one_uniform),
    "uniforms by one seed": verifier(lambda size: torch.cat([seeded((size[0], 1)) for _ in range(2)], 1)),
    "residual + 1e-6": verifier(residual=lambda p, q: (p - q).clamp(min=0) + 1e-6),
    "residual + 0.01": verifier(residual=lambda p, q: (p - q).clamp(min=0) + 0.01),
    "residual without clamp": verifier(residual=lambda p, q: (p - q).abs()),
    "residual q - p": verifier(residual=lambda p, q: (q - p).clamp(min=0)),
    "residual p": verifier(residual=lambda p, q: p),
    "residual at T = 1 / 0.9": verifier(residual=lambda p, q: power((p - q).clamp(min=0), 0.9).nan_to_num()),
    "residual of the next row": verifier(residual=lambda p, q: (p - q.flip(1)).clamp(min=0)),
    "bonus at T = 1 / 0.95": verifier(bonus=lambda p, q: power(p[:, -1], 0.95)),
    "bonus of the row before": verifier(bonus=lambda p, q: p[:, -2]),
    "bonus of the draft": verifier(bonus=lambda p, q: q[:, -1]),
    "bonus by argmax": verifier(bonus=lambda p, q: (p[:, -1] == p[:, -1].amax(-1, keepdim=True)).to(p)),
    "sums that are not scaled": verifier(sample=unscaled),
    "the uniform of the test draws the residual": per_request(lambda drafts, p, q: in_numpy(drafts, p, q, reuse=True)),
    "hierarchical without its cap": per_request(lambda drafts, p, q: hierarchical(drafts, p, q, capped=False)),
}  # fmt: skip


QUICK = {
    "textbook",
    "Gumbel",
    "sums",
    "uniforms rounded to bfloat16",
    "1.00001 p / q",
    "residual + 1e-6",
    "uniforms by one seed",
}


def sorted_out(verifiers):
    """`make test` has some of them."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in verifiers]


@pytest.fixture
def small(monkeypatch):
    """Two kinds of requests that have few ways."""
    kinds = [
        (Contexts(3, seed=4), [conformance.Request()]),
        (Contexts.of([0.6, 0.4, 0.0], [0.0, 0.35, 0.65]), [conformance.Request("zeros")]),
    ]
    monkeypatch.setitem(conformance.KINDS, "chain", kinds)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", sorted_out(RIGHT))
def test_right_verifiers_pass(name):
    report = exact(RIGHT[name], ["chain"])
    assert report.passed, str(report)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", sorted_out(WRONG))
def test_wrong_verifiers_fail(name):
    report = exact(WRONG[name], ["chain"])
    assert "failed" in {finding.verdict for finding in report.findings}, str(report)
    assert "inconclusive" not in {finding.verdict for finding in report.findings}, str(report)


@pytest.mark.usefixtures("small")
def test_noise_shared_with_the_drafter():
    coupled, wrong = Shared(), Shared(residual=True)
    report = exact(coupled.verify, ["chain"], draw=coupled.draw)
    assert report.passed, str(report)
    report = exact(wrong.verify, ["chain"], draw=wrong.draw)
    assert report.findings[0].verdict == "failed", str(report)


def textbook(drafts, p, q=None):
    """Rejection for any number of drafts, certain ones too."""
    for i, x in enumerate(drafts.tolist()):
        row = torch.nn.functional.one_hot(drafts[i], p.shape[1]).to(p) if q is None else q[i]
        if torch.rand(()) * row[x] >= p[i, x]:
            return [*drafts[:i], torch.multinomial((p[i] - row).clamp(min=0), 1)]
    return [*drafts, torch.multinomial(p[-1], 1)]


def padded(batch):
    """Right for a row alone; a row that accepts fewer drafts than another takes its last token from a wrong row."""
    tokens = per_request(textbook)(batch)
    count = (tokens >= 0).sum(1)
    for row in (count < count.max()).nonzero()[:, 0].tolist():
        tokens[row, count[row] - 1] = torch.multinomial(batch.target[row, -1].softmax(-1), 1)[0]
    return tokens


def rounds_lost(batch):
    """Every round but the first takes the likeliest token."""
    if batch.output.shape[1] == 2:
        return per_request(textbook)(batch)
    first = batch.target[:, 0].argmax(-1, keepdim=True)
    return torch.nn.functional.pad(first, (0, batch.drafts.shape[1]), value=-1)


@pytest.mark.parametrize(
    "check", ["certain", "ends", "rounds", "batch", pytest.param("longer", marks=pytest.mark.slow)]
)
def test_every_kind_of_requests(check):
    report = exact(per_request(textbook), [check])
    assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("verify, check", [(padded, "batch"), (rounds_lost, "rounds")])
def test_what_one_kind_alone_shows(verify, check):
    assert [x.verdict for x in exact(verify, [check]).findings] == ["failed"]


@pytest.mark.slow
def test_all_that_a_batch_may_ask_for():
    """By a verifier that has the laws from the kit, and by one that leaves out temperatures."""

    def all_of_it(batch, temperature=True):
        request = conformance.Request(**{
            name: getattr(batch, name).tolist()[0] for name in conformance.Request._fields[2:]
        })  # fmt: skip
        request = request if temperature else request._replace(temperature=1.0)
        drafts = batch.drafts[0][batch.drafts[0] >= 0]
        rows = [
            conformance.law_of(batch.target[0, i], request, tuple(drafts[:i].tolist())) for i in range(len(drafts) + 1)
        ]
        tokens = textbook(drafts, torch.stack(rows), None if batch.draft is None else batch.draft[0])
        return torch.tensor([[*map(int, tokens), *[-1] * (batch.drafts.shape[1] + 1 - len(tokens))]])

    report = exact(all_of_it, ["temperatures", "filters", "penalties"])
    assert report.passed, str(report)
    report = exact(lambda batch: all_of_it(batch, temperature=False), ["temperatures"])
    verdicts = {x.name: x.verdict for x in report.findings}
    assert [verdicts[f"temperatures, T = {t}"] for t in (0.0, 0.5, 1.0, 2.0)] == [
        "failed",
        "failed",
        "passed",
        "failed",
    ]


def test_budgets_and_refusals_are_inconclusive():
    report = exact(per_request(textbook), ["chain"], ways=20)
    assert {x.verdict for x in report.findings[::2]} == {"inconclusive"}
    assert "BudgetExceeded: 20 ways in" in str(report)
    normal = verifier(lambda size: torch.randn(size))
    assert "inconclusive  chain, p and q reversed: Unfollowed: randn in torch.float32 has no stand-in (" in str(
        exact(normal, ["chain"])
    )
    refused = exact(per_request(lambda drafts, target, draft: 1 / 0), ["certain"])
    assert refused.findings[0].said == "refused: drafts without a law"
    raises = exact(per_request(lambda drafts, target, draft: 1 / 0), ["batch"])
    assert raises.findings[0].verdict == "failed"
    assert "ZeroDivisionError" in raises.findings[0].said


def test_per_request_refuses_what_it_does_not_take():
    def tempered(drafts, target, draft, temperature):
        return textbook(drafts, (target / temperature).softmax(-1), draft)

    checks = ["temperatures", "filters"]
    refused = {
        x.said for x in conformance.check(per_request(textbook), checks, trials=20).findings if x.p_value is None
    }
    assert refused == {
        f"refused: {name}, which is none of drafts, p, q" for name in ("temperature", "top_k", "top_p", "min_p")
    }
    passed = exact(per_request(tempered, logits=True), ["chain"])
    assert passed.passed, str(passed)


# Our ops by their reference. Philox's words are whole numbers of torch's. Arrivals, which are sums of logarithms of two
# words, are torch's exponential numbers. The same counters have the same ones.


@pytest.fixture
def reference(monkeypatch):
    def drawn(counters, rows, fill, *more):
        for row, *counter in zip(rows, *(x.flatten().tolist() for x in counters), strict=True):
            fill(row, torch.Generator().manual_seed(hash((*counter, *more)) & sys.maxsize))
        return rows.reshape(*counters.seed.shape, *rows.shape[1:])

    def words(counters, stream, index):
        assert stream == noise.UNIFORM  # the others are of arrivals
        rows = torch.zeros(counters.seed.numel(), 1, 1, dtype=torch.int64)
        return drawn(counters, rows, lambda row, generator: row.random_(2**32, generator=generator), stream, int(index))

    def arrivals(counters, stream, size):
        rows = torch.zeros(counters.seed.numel(), size, dtype=torch.float64)
        return drawn(counters, rows, lambda row, generator: row.exponential_(generator=generator), stream)

    monkeypatch.setattr(noise, "words", words)
    monkeypatch.setattr(noise, "arrivals", arrivals)
    with specdec.backend("reference"):
        yield


def ours(batch, method):
    draft = None if method == "race" or batch.draft is None else specdec.Draft(batch.draft, space="probs")
    return specdec.verify_chain(
        batch.drafts, batch.target, draft, method=method, seed=batch.seed, position=batch.position
    ).tokens


def race_draft(probs, seed, position):
    return specdec.race_sample(probs, seed=seed, position=position, space="probs")


@pytest.mark.usefixtures("small", "reference")
@pytest.mark.parametrize("method", ["rejection", pytest.param("block", marks=pytest.mark.slow),
                                    pytest.param("race", marks=pytest.mark.slow)])  # fmt: skip
def test_our_chains(method):
    draw = race_draft if method == "race" else None
    report = exact(lambda batch: ours(batch, method), ["chain"], draw=draw, dtype=torch.float32)
    assert report.passed, str(report)


@pytest.mark.usefixtures("small", "reference")
def test_a_fault_of_our_reference_is_seen(monkeypatch):
    """The uniforms of words below 2 ** 24 are 256 times as large."""
    monkeypatch.setitem(conformance.KINDS, "chain", conformance.KINDS["chain"][:1])
    wrong = lambda word: torch.where(word < 1 << 24, word.double(), (word >> 8).double()) * 2.0**-24  # noqa: E731
    monkeypatch.setattr(noise, "uniform_of", wrong)
    report = exact(lambda batch: ours(batch, "rejection"), ["chain"], dtype=torch.float32)
    assert report.findings[0].verdict == "failed", str(report)


def our_tree(contexts, parents, method):
    """What a round of our tree emits, whose nodes are drawn in order, or by the race that the verifier shares."""
    texts, same = [()], {"seed": torch.tensor([5]), "space": "probs"}
    for parent in parents[1:]:
        law = contexts.q[texts[parent]].float()[None]
        position = torch.tensor([len(texts[parent])])
        token = race_sample(law, position=position, **same) if method == "race" else torch.multinomial(law[0], 1)
        texts.append((*texts[parent], int(token)))
    target, draft = (torch.stack([laws[x] for x in texts]).float()[None] for laws in (contexts.p, contexts.q))
    given = {"leaves": torch.tensor([[len(parents) // 2, len(parents) - 1]])} if method == "paths" else {}
    verdict = specdec.verify_tree(
        torch.tensor([[-1, *(x[-1] for x in texts[1:])]]), target,
        None if method == "race" else specdec.Draft(draft, space="probs"),
        parents=torch.tensor([parents]), method=method, position=torch.tensor([0]), **same, **given,
    )  # fmt: skip
    return verdict.tokens[0][verdict.tokens[0] >= 0]


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("method, parents", [
    ("traversal", [-1, 0, 0]),
    *(pytest.param(method, [-1, 0, 0, 1], marks=pytest.mark.slow) for method in ("rejection", "traversal", "race")),
    pytest.param("paths", [-1, 0, 0], marks=pytest.mark.slow),
    pytest.param("paths", [-1, 0, 1, 0, 3], marks=pytest.mark.slow),
])  # fmt: skip
def test_our_trees(method, parents, monkeypatch):
    if len(parents) > 4:  # words below 2 ** 24 have a finer grid, which doubles the ways of each uniform number
        monkeypatch.setattr(noise, "uniform_of", lambda word: word.double() * 2.0**-32)
    contexts = Contexts(2, 3, seed=3)
    report = exact_texts(lambda: our_tree(contexts, parents, method), contexts.p.__getitem__, 3)
    assert report.passed, str(report)


TABLE = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def table(text, sharp):
    """The law of the next token after a text, by its last two tokens."""
    return (sharp * TABLE[3 * text[-2] + text[-1] if len(text) > 1 else text[-1]]).softmax(-1)


def written(start, length, lost=False):
    """A whole loop: it drafts, verifies and goes on until a text is long enough."""
    text = list(start)
    while len(text) < len(start) + length:
        drafts, laws = [], []
        for _ in range(2):
            laws.append(table([*text, *drafts], 1.0))
            drafts.append(int(torch.multinomial(laws[-1], 1)))
        p = torch.stack([table([*text, *drafts[:i]], 0.0 if lost and i == 2 else 2.0) for i in range(3)])
        text += [int(x) for x in textbook(torch.tensor(drafts), p, torch.stack(laws))]
    return text[len(start) :]


def test_a_whole_loop():
    report = exact_texts(lambda: written((1,), 1), lambda text: table((1, *text), 2.0), 3)
    assert report.passed, str(report)
    report = exact_texts(lambda: written((1,), 1, lost=True), lambda text: table((1, *text), 2.0), 3)
    assert report.findings[0].distance > 0.01


@pytest.mark.slow
def test_a_whole_loop_of_two_rows():
    rows = [lambda text, start=start: table((start, *text), 2.0) for start in (0, 1)]
    report = exact_texts(lambda: [written((0,), 1), written((1,), 1)], rows, 2)
    assert report.passed, str(report)
    assert not exact_texts(lambda: [written((0,), 2)] * 2, [rows[0]] * 2, 2).passed  # two rows that are one


def test_seeds_are_torchs_after_a_function_that_imports_dynamo():
    """Which wraps `torch.manual_seed` by itself, whatever stands there at that time."""
    code = (
        "import torch; from specdec_kernels.conformance.enumeration import law\n"
        "def draw():\n    import torch._dynamo\n    return bool(torch.rand(()) < 0.25)\n"
        "assert law(draw) == {True: 0.25, False: 0.75}\ntorch.manual_seed(3); print(torch.initial_seed())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr
