"""The Triton copy of the maths gives the bits of the C++ headers."""

import numpy as np
import pytest
import torch
from specdec_kernels._C import maths

from tests.ops.test_noise import header_arrivals, mapped, sweep
from tests.support.triton_device import DEVICE

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from specdec_kernels.triton_kernels import _launch, _laws, _math, _races, _rows  # noqa: E402

SEEDS = (0, 1, -1, 0x0123456789ABCDEF, -(2**63), 2**63 - 1)
COUNT = 4096


def run(kernel, count, *tensors, **numbers):
    """One program over ``count`` elements; returns float32 or whatever the last tensor is."""
    _launch.launch(kernel, (1,), 4, **dict(zip("xyzw", tensors, strict=False)), **numbers, COUNT=count)
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
    noise = _math.Noise(seed, position.to(tl.uint32), nonce.to(tl.uint32))
    w = _math.words(noise, index, STREAM)
    for k in tl.static_range(4):
        tl.store(y + 4 * i + k, w[k].to(tl.int32, bitcast=True))


@_launch.kernel
def coin_kernel(x, y, seed: tl.int64, position: tl.int64, nonce: tl.int64, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    noise = _math.Noise(seed, position.to(tl.uint32), nonce.to(tl.uint32))
    tl.store(y + i, _math.accept_coin(noise, tl.load(x + i)))


@_launch.kernel
def coin_of_kernel(x, y, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(y + i, _math.coin_of(tl.load(x + i).to(tl.uint32, bitcast=True)))


@_launch.kernel
def uniform_kernel(x, y, z, w, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    a, b = tl.load(x + i).to(tl.uint32, bitcast=True), tl.load(y + i).to(tl.uint32, bitcast=True)
    tl.store(z + i, _math.group_uniform(a, b))
    tl.store(w + i, _math.first_arrival(a, b))


@_launch.kernel
def later_kernel(x, y, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(y + i, _math.later_by(tl.load(x + i).to(tl.uint32, bitcast=True)))


@_launch.kernel
def log_kernel(x, y, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(y + i, _math.log(tl.load(x + i)))


@_launch.kernel
def neg_log1p_neg_kernel(x, y, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(y + i, _math.neg_log1p_neg(tl.load(x + i)))


@_launch.kernel
def exp_kernel(x, y, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.store(y + i, _math.exp_or_zero(tl.load(x + i)))


@_launch.kernel
def scores_kernel(x, y, seed: tl.int64, position: tl.int64, nonce: tl.int64, STREAM: tl.constexpr, COUNT: tl.constexpr):
    at = _rows.tile_tokens(tl.cast(0, tl.int32), COUNT)
    start = tl.load(x)
    noise = _math.Noise(seed, position.to(tl.uint32), nonce.to(tl.uint32))
    a, b = _math.group_words(noise, start // 64, STREAM, COUNT // 64)
    zero = (at * 0).to(tl.float32)
    tl.store(y + at, _races.tile_scores(zero, a, b, start, noise, _laws.Law(1.0, None), STREAM))


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


def test_coins():
    index = np.arange(COUNT)
    out = torch.zeros(COUNT, device=DEVICE)
    found = run(coin_kernel, COUNT, device(index, np.uint32), out, seed=-5, position=2**31, nonce=9)
    expected = [maths.coin(-5, i, 2**31, 9, 4) for i in range(COUNT)]
    assert (bits(found) == bits(expected)).all()
    words = padded(sweep(COUNT))
    found = run(coin_of_kernel, COUNT, words, torch.zeros(COUNT, device=DEVICE))
    assert (bits(found) == bits([maths.coin_of(int(w)) for w in words.cpu().numpy().view(np.uint32)])).all()


def test_uniforms_and_first_arrivals():
    a, b = padded(sweep(COUNT)), padded(reversed(sweep(COUNT, seed=1)))
    uniform = torch.zeros(COUNT, device=DEVICE)
    found = run(uniform_kernel, COUNT, a, b, uniform, torch.zeros(COUNT, device=DEVICE))
    pairs = list(zip(*(w.cpu().numpy().view(np.uint32).tolist() for w in (a, b)), strict=True))
    assert (bits(uniform.cpu()) == bits([maths.group_uniform(*pair) for pair in pairs])).all()
    assert (bits(found) == bits([maths.first_arrival(*pair) for pair in pairs])).all()


def test_later_arrivals():
    words = padded(sweep(COUNT))
    found = run(later_kernel, COUNT, words, torch.zeros(COUNT, device=DEVICE))
    assert (bits(found) == bits([maths.later_by(int(w)) for w in words.cpu().numpy().view(np.uint32)])).all()


def test_logarithms():
    generator = np.random.default_rng(0)
    spread = 2.0 ** generator.uniform(-126, 127, COUNT // 2)
    near_one = 1 + generator.uniform(-0.3, 0.45, COUNT // 2)
    x = np.concatenate([spread, near_one]).astype(np.float32)
    found = run(log_kernel, COUNT, device(x, np.float32), torch.zeros(COUNT, device=DEVICE))
    assert (bits(found) == bits(mapped(maths.log, x))).all()
    u = np.concatenate([2.0 ** -generator.uniform(0, 57, COUNT // 2), 1 - 2.0 ** -generator.uniform(1, 24, COUNT // 2)])
    u = np.minimum(u.astype(np.float32), np.float32(1 - 2**-24))
    found = run(neg_log1p_neg_kernel, COUNT, device(u, np.float32), torch.zeros(COUNT, device=DEVICE))
    assert (bits(found) == bits(mapped(maths.neg_log1p_neg, u))).all()


def test_exponential():
    x = np.concatenate([np.linspace(-90, 0, COUNT - 3), [-np.inf, np.nan, -87.3]]).astype(np.float32)
    found = run(exp_kernel, COUNT, device(x, np.float32), torch.zeros(COUNT, device=DEVICE))
    expected = mapped(maths.exp_or_zero, x)
    assert (bits(found) == bits(expected)).all()


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
