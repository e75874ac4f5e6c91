"""Bounds hold: what the headers say of a number by bounds, beside the number. Each slack is needed: without it one of
these tests fails, or `support/survivors.txt` says why nothing changes."""

import ctypes
import shutil

import numpy as np
import pytest

from tests.backends.cpu_parts import COMPILER, compiled

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")
COUNT = 200_000
SMALLEST = 2.0**-126
# Where the cheap exponential 2^f is off the most, f in [0, 1): too large and too small by 0.00057.
TOO_LARGE, TOO_SMALL = 0.4773 * np.log(2), 0.8047 * np.log(2)


@pytest.fixture(scope="module")
def library():
    return compiled("bounds")


@pytest.fixture(scope="module")
def sums():
    return compiled()


def called(function, count, fields, outputs):
    """Calls a function with a struct of these fields, arrays and numbers; what it wrote, by name, and returns."""
    written = {name: np.empty(shape if shape else count, dtype) for name, (dtype, *shape) in outputs.items()}
    values = [*fields.values(), *written.values()]
    words = [x.ctypes.data_as(ctypes.c_void_p) if isinstance(x, np.ndarray) else ctypes.c_float(x) for x in values]
    struct = type("Fields", (ctypes.Structure,), {"_fields_": [(f"at{i}", type(x)) for i, x in enumerate(words)]})
    return written | {"returned": function(ctypes.byref(struct(*words)), ctypes.c_int64(count))}


def test_a_race_opens_all_that_may_win(library):
    """Words that are powers of two, where the cheap logarithm is right, and others; weights of all sizes."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 32, COUNT, dtype=np.uint32)
    some = [random.integers(0, 2**32, COUNT, dtype=np.uint32) >> bits for _ in range(3)]
    words = [np.where(random.random(COUNT) < 0.5, np.uint32(1) << bits, x).clip(1).astype(np.uint32) for x in some]
    words[1] = np.where(random.random(COUNT) < 0.5, np.uint32(0), words[1])  # as early as its group's first word allows
    weights = (random.uniform(-1, 1, COUNT) * 10.0 ** random.integers(-3, 3, COUNT)).astype(np.float32)
    floats = dict.fromkeys(("Score", "Reach", "Noted", "Needed", "LaterScore", "LaterNeeded"), (np.float32,))
    fields = dict(zip("w a b second".split(), (weights, *words), strict=True))
    found = called(library.race_bounds, COUNT, fields, floats | {"Limit": (np.uint32,)})
    assert (found["Reach"] >= found["Noted"]).all()  # the group is opened
    assert (words[0] <= found["Limit"]).all()
    assert (weights >= found["Needed"]).all()  # and the token is looked at
    assert (weights >= found["LaterNeeded"]).all()


@pytest.mark.parametrize("inverse", [1.0, 1 / 0.7, 20.0])
@pytest.mark.parametrize("top", [0.0, 30.0, 5e4])
def test_a_token_has_the_key_and_the_bound_of_its_weight(library, inverse, top):
    random = np.random.default_rng(1)
    raw = ((top - 90 * random.random(COUNT)) / inverse).astype(np.float32)
    fields = {"raw": raw, "inverse": inverse, "max": np.float32(top), "log_sum": np.float32(1.37)}
    names = dict.fromkeys(("Weight", "Bound", "Bounds", "Needed", "Key"), (np.float32,))
    found = called(library.logit_bounds, COUNT, fields, names)
    weighs = found["Weight"] > -np.inf
    assert weighs.mean() > 0.5
    assert (found["Weight"] <= found["Bound"]).all()
    assert (found["Weight"] <= found["Bounds"]).all()
    assert (found["Key"] >= found["Needed"])[weighs].all()


def test_a_probability_has_the_key_and_the_bound_of_its_weight(library):
    random = np.random.default_rng(2)
    exponent = random.uniform(-130, 120, COUNT)
    raw = np.exp2(np.where(random.random(COUNT) < 0.3, np.round(exponent), exponent)).astype(np.float32)
    names = dict.fromkeys(("Weight", "Bound", "Bounds", "Needed", "Key"), (np.float32,))
    found = called(library.prob_bounds, COUNT, {"raw": raw, "inverse": 1.0, "max": 0.0, "log_sum": 0.0}, names)
    weighs = raw >= SMALLEST
    assert (found["Weight"] <= found["Bound"]).all()
    assert (found["Weight"] <= found["Bounds"]).all()
    assert (found["Key"] >= found["Needed"])[weighs].all()


def some_ranges(random, width):
    """Ranges [n, 5] of numbers from 0 on, as wide as `width` says or from 0, and a number in each, often an end."""
    size = (COUNT, 5)
    middle = np.where(random.random(size) < 0.1, 0.0, random.random(size) * 10.0 ** random.integers(-6, 1, size))
    low = (middle * (1 - width * random.random(size))).astype(np.float32)
    high = np.maximum((middle * (1 + width * random.random(size))).astype(np.float32), low)
    low = np.where(random.random(size) < 0.03, np.float32(0.0), low)
    low[:, 0], high[:, 0] = low[:, 0].clip(0, 1), high[:, 0].clip(0, 1)  # a weight of a node
    inside = (low + random.random(size) * (high - low)).astype(np.float32).clip(low, high)
    for end in (low, high):
        inside = np.where(random.random(size) < 0.3, end, inside)
    return np.ascontiguousarray(low), np.ascontiguousarray(high), np.ascontiguousarray(inside)


FUNCTIONS = "weight_after draft_scale child_weight subtracted_after subtracted_after_weight untried_after same".split()


@pytest.mark.parametrize("width", [3e-7, 1e-3, 0.5])
def test_ranges_hold_what_is_in_them(library, width):
    random = np.random.default_rng(3)
    low, high, inside = some_ranges(random, width)
    seed = random.integers(0, 2**32, COUNT, dtype=np.uint32)
    fields = {"low": low, "high": high, "inside": inside, "seed": seed}
    of_seven = dict.fromkeys(("Low", "High", "Inside"), (np.float32, COUNT, 7))
    of_one = dict.fromkeys(("Decided", "Accepted", "Accepts"), (np.uint8,))
    found = called(library.ranges, COUNT, fields, of_seven | of_one)
    for k, name in enumerate(FUNCTIONS):
        some = np.ones(COUNT, bool)
        if name == "weight_after":
            some = inside[:, 2] <= inside[:, 1]  # less is left than there was before
        if name == "subtracted_after_weight":
            some = inside[:, 0] > 0
        value = found["Inside"][some, k]
        assert (found["Low"][some, k] <= value).all(), name
        assert (value <= found["High"][some, k]).all(), name
    decided = found["Decided"] == 1
    assert decided.mean() > (0.2 if width == 0.5 else 0.5)
    assert (found["Accepted"] == found["Accepts"])[decided].all()
    assert 0.1 < found["Accepts"][decided].mean() < 0.9


def steps(random, vocabulary):
    """Logits whose exponentials all have one error, or two: some multiples of ln 2 below a few numbers."""
    few = random.random(2) * np.log(2)
    return (few[random.integers(0, 2, vocabulary)] - np.log(2) * random.integers(0, 7, vocabulary)).astype(np.float32)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_sums_of_a_pair_lie_in_their_bounds(sums, top_p):
    """With a filter there are bounds of probabilities alone."""
    random, rough = np.random.default_rng(4), 0
    for _ in range(400 if top_p == 1.0 else 40):
        vocabulary = int(random.integers(100, 220) if top_p == 1.0 else random.integers(9000, 9500))
        target, draft = steps(random, vocabulary), steps(random, vocabulary)
        draft[random.random(vocabulary) < 0.5] = -np.inf
        low = 0.0 if random.random() < 0.2 else random.random() * 2
        tried = random.integers(0, vocabulary, 2, dtype=np.int32)
        high = low * (1 + (random.random() < 0.5) * 1e-3)
        fields = {"target": target, "draft": draft, "tried": tried, "top_p": top_p, "low": low, "high": high}
        outputs = {"Sums": (np.float32, 7), "Probs": (np.float32, vocabulary, 3)}
        found = called(sums.pair_bounds, vocabulary, fields, outputs)
        if not found["returned"]:
            continue
        rough += 1
        p_least, p_most, p = found["Probs"].T
        assert (p_least <= p).all()
        assert (p <= p_most).all()
        if top_p < 1.0:
            continue
        least, most, untried_least, untried_most, at_low, at_high, untried = found["Sums"]
        assert least <= at_high <= at_low <= most
        assert untried_least <= untried <= untried_most
    assert rough > (300 if top_p == 1.0 else 10)


@pytest.mark.parametrize(("of_target", "of_draft"), [(TOO_LARGE, TOO_SMALL), (TOO_SMALL, TOO_LARGE)])
def test_sums_of_laws_that_nearly_cancel(sums, of_target, of_draft):
    """Of half of the tokens T q is 0.9 p, so what both are off by is a large part of what is left. The exponentials of
    q are off as those of p are there, and as far the other way where most of q is."""
    target = np.full(128, of_target, np.float32)
    draft = np.where(np.arange(128) < 64, of_target, of_draft + np.log(2)).astype(np.float32)
    subtracted = 0.9 / 128 * (np.exp(draft, dtype=np.float64).sum() / np.exp(of_target))
    fields = {"target": target, "draft": draft, "tried": np.array([1, 100], np.int32), "top_p": 1.0}
    fields |= {"low": subtracted, "high": subtracted}
    found = called(sums.pair_bounds, 128, fields, {"Sums": (np.float32, 7), "Probs": (np.float32, 128, 3)})
    least, most, _, _, at_low, at_high, _ = found["Sums"]
    assert found["returned"]
    assert least <= at_high <= at_low <= most < 1.1 * least
