"""uniform: the contract's known answers, on every backend and of every shape."""

import pytest
import torch
from specdec_kernels._C import maths

import specdec_kernels
from specdec_kernels import uniform
from tests.support.cases import UNTOUCHED, seeds
from tests.support.laws import assert_law


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """u is the first word w of philox(seed; index, position, nonce, stream), as (w >> 8) / 2^24, and w / 2^32 where w <
    2^24. The first three w are those that Random123 publishes for its generator.
    """
    every_bit = 2**32 - 1
    assert uniform(0, 0, 0, stream=0, index=0) == 0x6627E8 / 2**24  # w = 6627e8d5
    assert uniform(-1, every_bit, every_bit, stream=every_bit, index=every_bit) == 0x408F27 / 2**24  # w = 408f276d
    of_pi = {"seed": 0x299F31D0_A4093822, "index": 0x243F6A88, "position": 0x85A308D3, "nonce": 0x13198A2E}
    assert uniform(**of_pi, stream=0x03707344) == 0xD16CFE / 2**24  # w = d16cfe09
    small = uniform(2, 0, index=342)
    assert small == 0x063240 / 2**32  # w = 00063240; the stream is 6
    assert (small.shape, small.dtype) == ((), torch.float32)


CALLS = {
    "uniform": (uniform, {"seed": seeds(3), "position": 5 + seeds(3), "nonce": seeds(3), "index": seeds(3)}),
    "uniform of numbers": (uniform, {"seed": 1, "position": 2, "out": torch.tensor(0.0)}),
    "uniform of slots": (
        uniform,
        {"seed": seeds(3)[:, None], "position": 2, "index": torch.arange(5, dtype=torch.int32)},
    ),
    "uniform out": (uniform, {"seed": seeds(3), "position": 2, "out": torch.full((3,), float(UNTOUCHED))}),
}


def shape_of(*shape, dtype=torch.int64):
    """Numbers of this shape, of any size and sign, in memory with gaps."""
    most = torch.iinfo(dtype).max
    wide = torch.randint(-most, most, (*shape, 2), dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))
    return wide[..., 0]


def spelt_out(seed, position, nonce, stream, index):
    """Each uniform by the headers' own function."""
    parts = torch.broadcast_tensors(*map(torch.as_tensor, (seed, index, position, nonce)))
    uniforms = [
        maths.uniform(s, *(word % 2**32 for word in words), stream)
        for s, *words in zip(*(part.flatten().tolist() for part in parts), strict=True)
    ]
    return torch.tensor(uniforms).view(parts[0].shape)


@pytest.mark.interpreted
@pytest.mark.usefixtures("backend")
class TestUniforms:
    def test_small_words_keep_their_last_bits(self):
        """One uniform in 256 is below 2^-8, where the word itself is exact."""
        position = torch.arange(2000)
        found = uniform(1, position)
        assert torch.equal(found, spelt_out(1, position, 0, 6, 0))
        assert ((found > 2**-9) & (found < 2**-8) & ((found * 2**24) % 1 != 0)).any()

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    @pytest.mark.parametrize(
        "seed, position, nonce, index",
        [
            ((7,), (7,), (7,), (7,)),
            ((3, 1), (), (1, 4), (3, 4)),
            ((300, 1), (), (), (3,)),
            ((2, 1, 3), (4, 1), (), (2, 4, 3)),
            ((0,), (), (), ()),
            ((0, 3), (3,), (), ()),
            ((3, 0), (3, 1), (), ()),
        ],
    )
    def test_shapes_and_types(self, seed, position, nonce, index, dtype):
        parts = [shape_of(*shape, dtype=dtype) for shape in (seed, position, nonce, index)]
        found = uniform(*parts[:3], stream=2**32 - 1, index=parts[3])
        assert torch.equal(found, spelt_out(*parts[:3], 2**32 - 1, parts[3]))

    def test_numbers_beside_tensors(self):
        seed = shape_of(5)
        for position, nonce, index in ((-1, 2**40, 3), (2**31, -5, -1)):
            found = uniform(seed, position, nonce, index=index)
            assert torch.equal(found, spelt_out(seed, position, nonce, 6, index))
        assert torch.equal(uniform(2**64 - 1, seed), spelt_out(-1, seed, 0, 6, 0))

    def test_out(self):
        room = torch.full((5, 4), float(UNTOUCHED))
        out = room[1:4]
        assert uniform(seeds(3)[:, None], 7, index=seeds(4), out=out) is out
        assert torch.equal(out, spelt_out(seeds(3)[:, None], 7, 0, 6, seeds(4)))
        assert (room[0] == UNTOUCHED).all()
        assert (room[4] == UNTOUCHED).all()


def test_uniform(quick_backend):
    """Pearson's chi-squared over 256 cells, one in a million right ones called wrong; and over pairs of neighbours."""
    cells = (256 * uniform(11, torch.arange(500_000))).long()
    assert_law(cells, [1] * 256)
    pairs = cells.view(-1, 2) // 16
    assert_law(16 * pairs[:, 0] + pairs[:, 1], [1] * 256)


def test_every_number_counts(backend):
    here = uniform(1, torch.arange(1000))
    for other in ({"seed": 2}, {"nonce": 1}, {"stream": 4}, {"index": 1}, {"seed": 1 << 32 | 1}):
        assert (here == uniform(**{"seed": 1, "position": torch.arange(1000)} | other)).float().mean() < 0.01


REFUSED = {
    "uniform": (uniform, {"seed": seeds(3), "position": 0}, [
        ({"seed": 1.0}, TypeError, "seed: expected an int or a tensor of int64 or int32; got 1.0"),
        ({"seed": 2**64}, ValueError, "seed: expected 64 bits"),
        ({"nonce": seeds(4)}, ValueError, r"nonce: expected a shape that broadcasts with .*3.*; got int64 .*4.*"),
        ({"index": None}, TypeError, "index: expected an int or a tensor of int64 or int32; got None"),
        ({"index": seeds(3).to("meta")}, ValueError, r"index: expected a tensor on cpu; got int64 \[3\] on meta"),
        ({"stream": 6.0}, TypeError, "stream: expected an int; got 6.0"),
        ({"stream": -1}, ValueError, r"stream: expected an int in \[0, 2\*\*32\); got -1"),
        ({"stream": 2**32}, ValueError, r"stream: expected an int in \[0, 2\*\*32\); got 4294967296"),
        ({"out": torch.zeros(6)[::2]}, ValueError, "out: expected contiguous; got strides"),
    ]),
}  # fmt: skip


@pytest.mark.one_backend
def test_where_the_tensors_are():
    assert uniform(1, seeds(3).to("meta")).device.type == "meta"
    with specdec_kernels.backend("reference"):
        assert uniform(1, 2).device.type == "cpu"
