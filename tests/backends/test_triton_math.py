"""The Triton copy of the maths gives the bits of the C++ headers."""

import ctypes
import shutil

import numpy as np
import pytest
import torch
from specdec_kernels._C import maths

from tests.backends.cpu_parts import COMPILER, compiled
from tests.ops.test_noise import header_arrivals, mapped, sweep
from tests.support.triton_device import DEVICE

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from specdec_kernels.triton_kernels import _launch, _laws, _math, _races, _rows  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")
SEEDS = (0, 1, -1, 0x0123456789ABCDEF, -(2**63), 2**63 - 1)
COUNT = 4096


def run(kernel, count, *tensors, **numbers):
    """One program over ``count`` elements; returns float32 or whatever the last tensor is."""
    _launch.launch(kernel, (1,), 4, dict(zip("xyzw", tensors, strict=False)) | numbers | {"COUNT": count})
    return tensors[-1].cpu().numpy()


def device(values, dtype):
    """Words as an int32 tensor, floats as they are."""
    values = np.asarray(values)
    if dtype == np.uint32:
        return torch.from_numpy(values.astype(np.uint32).view(np.int32)).to(DEVICE)
    return torch.from_numpy(values.astype(np.float32)).to(DEVICE)


def padded(values, dtype=np.uint32):
    values = list(values)[:COUNT]
    return device(values + [values[-1]] * (COUNT - len(values)), dtype)


def bits(values):
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


@_launch.kernel
def words_kernel(x, y, seed: tl.int64, position: tl.int64, nonce: tl.int64, STREAM: tl.constexpr, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    index = tl.load(x + i).to(tl.uint32, bitcast=True)
    noise = _math.Noise(seed, position.to(tl.uint32), nonce.to(tl.uint32), 0)
    w = _math.random_words(noise, index, STREAM)
    for k in tl.static_range(4):
        tl.store(y + 4 * i + k, w[k].to(tl.int32, bitcast=True))


@_launch.kernel
def uniform_kernel(x, y, seed: tl.int64, position: tl.int64, nonce: tl.int64, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    noise = _math.Noise(seed, position.to(tl.uint32), nonce.to(tl.uint32), 0)
    tl.store(y + i, _math.accept_uniform(noise, tl.load(x + i)))


@_launch.kernel
def each_kernel(x, y, z, FUNCTION: tl.constexpr, WORDS: tl.constexpr, COUNT: tl.constexpr):
    """FUNCTION of each element of x, or of x and y."""
    i = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    a = tl.load(x + i)
    if WORDS:
        a = a.to(tl.uint32, bitcast=True)
    if y is None:
        tl.store(z + i, FUNCTION(a))
    else:
        b = tl.load(y + i)
        tl.store(z + i, FUNCTION(a, b.to(tl.uint32, bitcast=True) if WORDS else b))


def of_each(function, x, y=None):
    """A function of each element, or of pairs: of words where x is int32, else of numbers of y's type."""
    z = torch.zeros(len(x), dtype=torch.float32 if x.dtype == torch.int32 else x.dtype, device=DEVICE)
    arguments = {"x": x, "y": y, "z": z, "FUNCTION": function, "WORDS": x.dtype == torch.int32, "COUNT": COUNT}
    _launch.launch(each_kernel, (len(x) // COUNT,), 4, arguments)
    return z.cpu().numpy()


@_launch.kernel
def integer_exp_kernel(x, y, z, w, COUNT: tl.constexpr):
    i = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    d = tl.load(x + i)
    q, n = _math.integer_exp(d)
    tl.store(y + i, q.to(tl.int32, bitcast=True))
    tl.store(z + i, n.to(tl.int32, bitcast=True))
    tl.store(w + i, _math.unit_weight(d).to(tl.int32, bitcast=True))


@_launch.kernel
def unit_sums_kernel(x, y, COUNT: tl.constexpr):
    row = tl.arange(0, COUNT // 512)
    at = row[:, None] * 512 + tl.arange(0, 512)[None, :]
    tl.store(y + row, _math.unit_sums(tl.load(x + at)))


@_launch.kernel
def scores_kernel(x, y, seed: tl.int64, position: tl.int64, nonce: tl.int64, STREAM: tl.constexpr, COUNT: tl.constexpr):
    at = _rows.tile_tokens(tl.cast(0, tl.int32), COUNT)
    start = tl.load(x)
    noise = _math.Noise(seed, position.to(tl.uint32), nonce.to(tl.uint32), 0)
    groups = start // 64 + tl.arange(0, COUNT // 64)
    tl.store(y + at, _races.group_scores((at * 0).to(tl.float32), groups, noise, _laws.Law(1.0, None), STREAM))


@_launch.kernel
def sets_kernel(x, y, z, COUNT: tl.constexpr, SETS: tl.constexpr):
    """The set of x, the groups that are taken from it at once, and what is left."""
    for i in range(SETS):
        at, out = x + 64 * i + tl.arange(0, 64), z + 2 * i
        found = _races.pack_groups(tl.load(at) != 0)
        groups, left = _races.next_groups(found, tl.cast(64, tl.int32), COUNT)
        tl.store(y + COUNT * i + tl.arange(0, COUNT), groups)
        tl.store(out, found.to(tl.int64, bitcast=True))
        tl.store(out + 1, left.to(tl.int64, bitcast=True))


@_launch.kernel
def keys_kernel(x, y, z, w, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    key = _math.key_of(tl.load(x + i), tl.load(y + i))
    tl.store(z + i, key.to(tl.int64, bitcast=True))
    tl.store(w + i, _math.key_score(key))
    tl.store(y + i, _math.key_token(key))


def test_words():
    index = np.asarray(sweep(COUNT)[:COUNT], dtype=np.uint32)
    for seed, (position, nonce, stream) in zip(
        SEEDS, [(0, 0, 0), (7, 1, 1), (2**32 - 1, 2**40 + 3, 4)] * 2, strict=True
    ):
        found = run(
            words_kernel, COUNT, device(index, np.uint32), torch.zeros(4 * COUNT, dtype=torch.int32, device=DEVICE),
            seed=seed, position=position, nonce=nonce, STREAM=stream,
        ).view(np.uint32).reshape(-1, 4)  # fmt: skip
        key = seed % 2**64
        for i in (*range(0, COUNT, 97), COUNT - 1):
            expected = maths.philox(key, int(index[i]), position % 2**32, nonce % 2**32, stream)
            assert found[i].tolist() == list(expected)


def test_uniforms():
    index = np.arange(COUNT)
    out = torch.zeros(COUNT, device=DEVICE)
    found = run(uniform_kernel, COUNT, device(index, np.uint32), out, seed=-5, position=2**31, nonce=9)
    expected = [maths.uniform(-5, i, 2**31, 9, 4) for i in range(COUNT)]
    assert (bits(found) == bits(expected)).all()


FUNCTIONS = "uniform_of later_by group_uniform first_arrival log neg_log1p_neg exp_or_zero".split()


@pytest.fixture(scope="module")
def cases():
    """name -> inputs, words, pairs of words or numbers; and what the headers give for each."""
    return {name: case for name, *case in of_headers()}


def of_headers():
    random = np.random.default_rng(0)
    words, others = padded(sweep(COUNT)), padded(reversed(sweep(COUNT, seed=1)))
    pairs = list(zip(*(w.cpu().numpy().view(np.uint32).tolist() for w in (words, others)), strict=True))
    for name in ("uniform_of", "later_by"):
        yield name, (words,), [getattr(maths, name)(word) for word, _ in pairs]
    for name in ("group_uniform", "first_arrival"):
        yield name, (words, others), [getattr(maths, name)(*pair) for pair in pairs]
    near_one = 1 + random.uniform(-0.3, 0.45, COUNT // 2)
    below = 2.0 ** -random.uniform(0, 57, COUNT // 2), 1 - 2.0 ** -random.uniform(1, 24, COUNT // 2)
    for name, x in (
        ("log", np.concatenate([2.0 ** random.uniform(-126, 127, COUNT // 2), near_one])),
        ("neg_log1p_neg", np.minimum(np.concatenate(below).astype(np.float32), np.float32(1 - 2**-24))),
        ("exp_or_zero", np.concatenate([np.linspace(-90, 0, COUNT - 3), [-np.inf, np.nan, -87.3]])),
    ):
        yield name, (device(x, np.float32),), mapped(getattr(maths, name), x.astype(np.float32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(cases, name):
    inputs, expected = cases[name]
    assert (bits(of_each(getattr(_math, name), *inputs)) == bits(expected)).all()


@pytest.fixture(scope="module")
def mass_header():
    return compiled("bounds")


def distances():
    """What a value may be below a maximum: 131,072 float32, nearly all at random."""
    generator = np.random.default_rng(0)

    def around(x):
        return (np.float32(x).view(np.uint32) + np.arange(-20, 21)).astype(np.uint32).view(np.float32)

    halves = -(np.arange(60) + 0.5) * np.log(2)  # where n steps
    special = [
        0.0, -0.0, -np.inf, np.nan, -1e-45, -1e-40, -(2.0**-126), -3.4e38, np.finfo(np.float32).min, -1e10, -1e30
    ]  # fmt: skip
    chosen = np.concatenate([special, around(-(2**23) * np.log(2)), *map(around, halves)]).astype(np.float32)
    count = (32 * COUNT - len(chosen)) // 3
    spread = [-generator.uniform(0, 50, count), -(2.0 ** generator.uniform(-149, 128, count))]
    spread.append(-generator.uniform(0, 1, 32 * COUNT - len(chosen) - 2 * count))
    return np.concatenate([chosen, *spread]).astype(np.float32)


def of_header(function, *arrays):
    function(arrays[0].ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(arrays[0])), *(
        ctypes.c_void_p(array.ctypes.data) for array in arrays[1:]
    ))  # fmt: skip


def test_integer_exponential(mass_header):
    d = distances()
    q, n, units = np.zeros((3, len(d)), dtype=np.uint32)
    of_header(mass_header.integer_exps, d, q, n, units)
    out = torch.zeros(3, len(d), dtype=torch.int32, device=DEVICE)
    arguments = dict(zip("xyzw", (device(d, np.float32), *out), strict=True))
    _launch.launch(integer_exp_kernel, (32,), 4, arguments | {"COUNT": COUNT})
    found_q, found_n, found_units = out.cpu().numpy().view(np.uint32)
    light = n >= 64  # weighs nothing, and may be a NaN, whose bits are the machine's
    assert (light == (found_n >= 64)).all()
    assert light[2:4].all()
    assert (found_units == units).all()
    assert ((found_q == q) | light).all()
    assert ((found_n == n) | light).all()
    assert light.mean() < 0.5
    assert (units[light] == 0).all()


def test_mass_of_tiles(mass_header):
    d = distances()
    generator = np.random.default_rng(1)
    units = (2.0 ** generator.uniform(30, 40, len(d))).astype(np.uint64)
    units[:2] = 2**40
    mass = np.zeros_like(units)
    of_header(mass_header.tile_masses, d, units, mass)
    found = of_each(_math.tile_mass, torch.from_numpy(units.view(np.int64)).to(DEVICE), device(d, np.float32))
    assert mass[0] == 2**52
    assert (found.view(np.uint64) == mass).all()


def test_sums_of_weights():
    """Each weight is clipped at 1 and rounded to 2^-42, ties to even."""
    generator = np.random.default_rng(2)
    ties = (np.arange(512) + 0.5) * 2.0**-42, (np.arange(512) + 0.5) * 2.0**-20
    near_one = 1 + (np.arange(512) - 256) * 2.0**-24
    same = [np.full(512, x) for x in (2.0**-21, 3 * 2.0**-21, 1.0, np.finfo(np.float32).max)]
    spread = 2.0 ** generator.uniform(-126, 1, 511)
    w = np.concatenate([*ties, near_one, *same, [0.0], spread]).astype(np.float32)
    units = np.rint(np.minimum(w, 1).astype(np.float64) * 2.0**42).astype(np.int64)
    out = torch.zeros(COUNT // 512, dtype=torch.int64, device=DEVICE)
    found = run(unit_sums_kernel, COUNT, device(w, np.float32), out)
    assert (found == units.reshape(-1, 512).sum(1)).all()


@pytest.mark.parametrize("count", [4, 8])
def test_groups_of_a_set(count):
    generator = np.random.default_rng(0)
    sets = np.stack([np.zeros(64), np.ones(64), *np.eye(64)[[0, 31, 32, 63]], *generator.integers(0, 2, (6, 64))])
    sets = np.concatenate([sets, generator.random((6, 64)) < 0.05]).astype(np.int32)
    groups = torch.zeros(len(sets), count, dtype=torch.int32, device=DEVICE)
    left = torch.zeros(len(sets), 2, dtype=torch.int64, device=DEVICE)
    sets_kernel[(1,)](device(sets, np.int32), groups, left, COUNT=count, SETS=len(sets))
    bits_of = lambda members: np.uint64(sum(1 << int(i) for i in members))  # noqa: E731
    for one, taken, numbers in zip(sets, groups.cpu().numpy(), left.cpu().numpy().view(np.uint64), strict=True):
        (members,) = one.nonzero()
        first = members[:count]
        assert taken.tolist() == [*(64 + first), *[_math.NO_GROUP.value] * (count - len(first))]
        assert numbers.tolist() == [bits_of(members), bits_of(members[count:])]


@pytest.mark.parametrize("start", [0, 4096, 128 * 1024])
@pytest.mark.parametrize("stream", [0, 2])
def test_scores_of_a_tile(start, stream):
    at = torch.tensor([start], dtype=torch.int32, device=DEVICE)
    found = run(
        scores_kernel, COUNT, at, torch.zeros(COUNT, device=DEVICE), seed=2**40 + 1, position=17, nonce=3, STREAM=stream
    )  # fmt: skip
    arrivals = header_arrivals(COUNT, 2**40 + 1, 17, 3, stream, start)
    assert (bits(found) == bits(0 - mapped(maths.log, arrivals))).all()


def test_keys_order_as_scores_and_tokens_do():
    special = [-np.inf, -3.4e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3.4e38, np.inf]
    generator = np.random.default_rng(0)
    score = np.concatenate([special, 10 * generator.standard_normal(118)]).astype(np.float32)
    token = generator.integers(0, 2**31 - 1, 128).astype(np.uint32)
    keys, back = torch.zeros(128, dtype=torch.int64, device=DEVICE), torch.zeros(128, device=DEVICE)
    tokens = device(token, np.uint32)
    back = run(keys_kernel, 128, device(score, np.float32), tokens, keys, back)
    keys = keys.cpu().numpy().view(np.uint64)
    nobody = score == -np.inf
    assert (keys[nobody] == 0).all()
    assert (tokens.cpu().numpy()[nobody] == 0).all()
    assert (back == score).all()
    assert (tokens.cpu().numpy()[~nobody] == token[~nobody]).all()
    order = sorted(range(128), key=lambda i: (score[i], -int(token[i])))
    assert (np.diff(keys[order][1:].astype(object)) >= 0).all()


@_launch.kernel
def group_tops_kernel(x, y, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(y + tl.arange(0, COUNT), _rows.group_tops(tl.load(x + at)))


@pytest.mark.parametrize("interpreted", [True, False])
def test_largest_of_a_group_shows_what_is_no_number(interpreted, monkeypatch):
    """The interpreter takes a quicker way than GPUs; here it takes theirs, too."""
    if DEVICE == "cpu":
        monkeypatch.setattr(_math, "INTERPRETED", tl.constexpr(interpreted))
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    x[0, 5], x[1, 63], x[2] = torch.nan, torch.inf, -torch.inf
    tops = run(group_tops_kernel, 4, x.to(DEVICE), torch.zeros(4, device=DEVICE))
    assert not tops[0] < np.inf  # NaN or +inf: both are impossible
    assert tops[1:].tolist() == x[1:].amax(1).tolist()
