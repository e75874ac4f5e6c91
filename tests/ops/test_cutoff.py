"""cutoff: which tokens filters keep, and their mass; equal in all figures on every backend."""

import math

import numpy as np
import pytest
import torch

from specdec_kernels import Sampling, cutoff
from specdec_kernels.backends.reference import mass
from tests.support import filters
from tests.support.cases import DTYPES, UNTOUCHED, by_the_oracle


@pytest.mark.interpreted
def test_rule_by_hand(backend):
    """The last token that the filters keep: its value and id, how many are kept, and the sum of their weights.

    Weights exp(v) are 8, 4, 4, 1, so probabilities 8/17, 4/17, 4/17, 1/17; the largest counts 1 in the mass. Tokens 1
    and 2 are a tie, of which the lower id comes first.
    """
    rows = torch.tensor([8.0, 4.0, 4.0, 1.0]).log()
    for sampling, last, count, weight in (
        (Sampling(top_k=2), 1, 2, 1.5),
        (Sampling(top_k=2, ties="all"), 2, 3, 2.0),
        (Sampling(top_p=0.45), 0, 1, 1.0),  # 8/17 = 0.47 is enough
        (Sampling(top_p=0.5), 1, 2, 1.5),  # 12/17 = 0.71 is
        (Sampling(min_p=0.4), 2, 3, 2.0),  # 4/8 of the largest is enough, 1/8 is not
        (Sampling(min_p=0.1), 3, 4, 2.125),
    ):
        cut = cutoff(rows, sampling=sampling)
        assert (cut.value, cut.last, cut.count, cut.max) == (rows[last], last, count, rows[0])
        assert cut.mass.item() == pytest.approx(weight * 2**42, rel=1e-6)


def rows_of(count, vocabulary, seed=0, dtype=torch.float32):
    return 2 * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)).to(dtype)


MIXED = Sampling(
    torch.tensor([1.0, 0.7, 0.0]),
    torch.tensor([5, 0, 2]),
    torch.tensor([1.0, 0.9, 0.5]),
    torch.tensor([0.0, 0.05, 0.0]),
)
CALLS = {
    "cutoff": (cutoff, {"rows": rows_of(3, 33), "sampling": MIXED}),
    "cutoff without filters": (cutoff, {"rows": rows_of(3, 33), "sampling": Sampling(0.5)}),
}

# filters.md 3.3: d, q, n, W.
WEIGHTS = [
    (0.0, 0x80000000, 0, 4398046511104),
    (-0.1, 0x73D1B600, 0, 3979516837888),
    (-0.34657359, 0x5A827800, 0, 3109887672320),
    (-1.0, 0x5E2D5A00, 1, 1617951195136),
    (-5.5, 0x85EA5400, 8, 17973813248),
    (-13.37, 0x68C6B600, 19, 6866614),
    (-21.0, 0x6836C400, 30, 3334),
    (-30.0, 0x695B8600, 43, 0),
]
KNOWN = torch.tensor([2, 1, 1, 0.5, -1, 3, -torch.inf, 0])


def cut_of(row, sampling, **options):
    """The figures of one row as Python's numbers."""
    return tuple(part.item() for part in cutoff(row, sampling=sampling, **options))


def assert_cut(row, sampling):
    """By the definition, token by token."""
    keep = filters.kept(row, sampling)
    assert cut_of(row, sampling) == pytest.approx(filters.figures(row, keep, sampling), rel=0, abs=0), sampling
    return keep


@pytest.mark.one_backend
def test_exponential_of_the_oracle():
    for d, q, n, weight in WEIGHTS:
        assert tuple(map(int, mass.exponential(np.float32(d), np.float32(0)))) == (q, n)
        assert int(mass.weights(np.float32(d), np.float32(0))) == weight


@pytest.mark.one_backend
@pytest.mark.parametrize("d", [-torch.inf, torch.nan, -3.4e38, -1e10, -5.9e6, -60.0, -1e-45, -0.0])
def test_weights_at_the_ends(d):
    assert int(mass.weights(np.float32(d), np.float32(0))) == (1 << 42 if d > -1 else 0)


@pytest.mark.one_backend
def test_fused_multiply_add_of_the_oracle():
    """Against exact fractions: ties of the last bit, sums that cancel, products far apart from what is added."""
    from fractions import Fraction

    generator = np.random.default_rng(0)
    a, b, c = generator.normal(size=(3, 2000)).astype(np.float32)
    a[:500] = np.round(a[:500] * 8) / 8
    b[:500] = 1 + 2.0 ** -generator.integers(1, 24, 500)
    c *= 2.0 ** generator.integers(-30, 12, 2000).astype(np.float32)
    # Just below a tie that float64 cannot tell from it: rounded twice, the result would be the even neighbour.
    a[-2:], b[-2:], c[-2:] = 2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23
    b[-1], c[-1] = -b[-1], -c[-1]
    for one, other, third, found in zip(a, b, c, mass.fma(a, b, c), strict=True):
        exact = Fraction(float(one)) * Fraction(float(other)) + Fraction(float(third))
        near = np.float32(float(exact))
        candidates = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
        distance, _, best = min((abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1, x) for x in candidates)
        assert found == best, (one, other, third, distance)


@pytest.mark.one_backend
@pytest.mark.parametrize("x", [1.2e-38, 0.05, 0.7, 1.0, 1.5, 3e38])
def test_logarithm_of_the_oracle(x):
    """Within one unit of the last place."""
    exact = math.log(np.float32(x))
    assert abs(mass.log(x) - exact) <= np.spacing(np.float32(abs(exact)))


@pytest.mark.usefixtures("backend")
class TestKnownAnswers:
    @pytest.mark.interpreted
    @pytest.mark.parametrize("d, q, n, weight", WEIGHTS)
    def test_weight(self, d, q, n, weight):
        row = torch.tensor([0.0, d, -torch.inf])
        assert cut_of(row, Sampling(top_k=2))[2:] == (2, (1 << 42) + weight, 0.0)

    @pytest.mark.interpreted
    def test_mass_of_a_row(self):
        assert cut_of(KNOWN, Sampling()) == (-torch.inf, -1, 7, 7866951909376, 3.0)

    @pytest.mark.interpreted
    def test_top_p(self):
        assert cut_of(KNOWN, Sampling(top_p=0.9, top_p_after=())) == (1.0, 2, 4, 7206419300352, 3.0)

    @pytest.mark.interpreted
    def test_what_top_p_keeps_is_rounded_up(self):
        """A quarter of four tokens and of the smallest weight there is, which has a tile of its own: more than one."""
        row = torch.full((1025,), -torch.inf)
        row[:4], row[1024] = 0.0, -28.8
        assert cut_of(row, Sampling())[2:4] == (5, 4 * (1 << 42) + 1)
        assert cut_of(row, Sampling(top_p=0.25))[1:4] == (1, 2, 2 << 42)

    @pytest.mark.interpreted
    @pytest.mark.parametrize(
        "sampling", [Sampling(0.0), Sampling(0.0, top_k=2, ties="all"), Sampling(0.0, top_p=0.5, at_temperature=False)]
    )
    def test_one_of_equal_tokens_is_the_argmax(self, sampling):
        assert cut_of(torch.tensor([0.0, 5.0, 5.0]), sampling) == (5.0, 1, 1, 1 << 42, 5.0)

    @pytest.mark.parametrize("vocabulary", [1, 7, 1000, 1025, 5000])
    @pytest.mark.parametrize("p", [0.5, 0.9, 2.0**-32, 1e-3, 1 - 2.0**-24])
    @pytest.mark.parametrize("after", [(), ("top_k",)])
    def test_equal_rows_are_exact(self, vocabulary, p, after):
        """top_p = p keeps ceil(P V / 2^32) of V equal tokens, or all of them where ties stay together."""
        row = torch.full((vocabulary,), 1.5)
        count = -(-int(float(np.float32(p)) * 2**32) * vocabulary >> 32)
        sampling = Sampling(top_p=p, top_p_after=after)
        assert cut_of(row, sampling) == (1.5, count - 1, count, count << 42, 1.5)
        together = sampling._replace(ties="all")
        assert cut_of(row, together) == (1.5, vocabulary - 1, vocabulary, vocabulary << 42, 1.5)

    def test_equal_tokens_of_a_long_row_do_not_overflow(self):
        vocabulary = 1 << 20
        row = torch.zeros(vocabulary)
        assert cut_of(row, Sampling()) == (-torch.inf, -1, vocabulary, vocabulary << 42, 0.0)
        assert cut_of(row, Sampling(top_p=0.75)) == (0.0, 3 * vocabulary // 4 - 1, 3 * vocabulary // 4, 3 << 60, 0.0)


KINDS = {
    "top_k": {"top_k": 4},
    "top_k 1": {"top_k": 1},
    "top_p": {"top_p": 0.8},
    "top_p 0": {"top_p": 0.0},
    "top_p tiny": {"top_p": 2.0**-33},
    "top_p nearly 1": {"top_p": 1 - 2.0**-24},
    "min_p": {"min_p": 0.1},
    "min_p 1": {"min_p": 1.0},
    "top_k, top_p": {"top_k": 6, "top_p": 0.7},
    "top_k, min_p": {"top_k": 6, "min_p": 0.2},
    "top_p, min_p": {"top_p": 0.9, "min_p": 0.05},
    "all": {"top_k": 9, "top_p": 0.85, "min_p": 0.03},
}
AFTER = {"joint": (), "top_k": ("top_k",), "min_p": ("min_p",), "both": ("top_k", "min_p")}
# What top_p comes after matters where there is another filter beside it.
IN_ORDER = [
    pytest.param(kind, after, id=f"{name}, {order}")
    for name, kind in KINDS.items()
    for order, after in AFTER.items()
    if order == "joint" or (len(kind) > 1 and "top_p" in kind)
]


def small_rows():
    """(row, temperature): random and rounded ones, of each type, ties across a boundary, forced tokens, extremes."""
    for size in (1, 2, 5, 17):
        for row, temperature in zip(rows_of(3, size, seed=size), (1.0, 0.6, 1.7), strict=True):
            yield from ((row, temperature), ((2 * row).round() / 2, temperature))
    yield from (((rows_of(1, 65)[0] / 8).to(dtype), 1.0) for dtype in DTYPES)  # of 16 bits they tie often
    for tied in (2, 3, 40):
        row = torch.full((65,), -3.0)
        row[::2], row[5 : 5 + tied], row[60] = torch.linspace(-9, -4, 33), 1.0, 2.0
        yield row, 1.0
    for forced, temperature in ((1e9, 0.6), (1e9, 1.0), (3.4e38, 2.0)):  # beside which others vanish
        yield rows_of(1, 33, seed=2)[0].index_fill(0, torch.tensor([7, 20]), forced), temperature
    yield from ((rows_of(1, 33, seed=1)[0], temperature) for temperature in (1e-6, 1e6, 1.2e-38, 1e38))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("ties", ["first", "all"])
class TestByDefinition:
    """Rows of up to 65 tokens, looked at one by one."""

    @pytest.mark.parametrize("kind, after", IN_ORDER)
    def test_small_rows(self, kind, after, ties):
        for row, temperature in small_rows():
            assert_cut(row, Sampling(temperature, **kind, top_p_after=after, ties=ties))

    @pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
    def test_before_the_temperature(self, kind, ties):
        row = rows_of(1, 17, seed=3)[0]
        sampling = Sampling(0.25, **kind, ties=ties, at_temperature=False)
        keep = assert_cut(row, sampling)
        assert torch.equal(keep, filters.kept(row, sampling._replace(temperature=1.0)))

    def test_top_k_at_the_ends(self, ties):
        for size in (1, 5, 64, 65):
            row = rows_of(1, size)[0].round()
            for k in {1, 2, size - 1} - {0, size}:
                assert_cut(row, Sampling(top_k=k, ties=ties))
            unfiltered = cut_of(row, Sampling())
            for k in (0, -1, -(2**63), size, size + 1, 2**63 - 1, 2**64 - 1):
                assert cut_of(row, Sampling(top_k=k, ties=ties)) == unfiltered

    def test_two_equal_tokens_and_a_half(self, ties):
        """A mass that is reached exactly keeps no more."""
        row = torch.tensor([-torch.inf, 0.0, 0.0])
        assert cut_of(row, Sampling(top_p=0.5, ties=ties))[2] == (1 if ties == "first" else 2)


@pytest.mark.usefixtures("fast_backend")
@pytest.mark.parametrize("size", [63, 64, 1023, 1025, 50_257, pytest.param(262_144, marks=pytest.mark.slow)])
def test_ends_of_cells_tiles_and_members(size):
    """Up to 10,000 tokens tie across the boundary, the last of the row among them."""
    row = rows_of(1, size, seed=size)[0].bfloat16().clamp(max=2.0)
    row[torch.randperm(size, generator=torch.Generator().manual_seed(size))[: min(size // 4, 10_000)]] = 2.0
    row[-1] = 2.0
    tied = int((row == 2.0).sum())
    for ties in ("first", "all"):
        for kind in ({"top_k": tied - 1}, {"top_k": size - 1}, {"top_p": 0.3}, {"min_p": 1.0}):
            call = {"row": row, "sampling": Sampling(0.9, **kind, ties=ties)}
            assert cut_of(**call) == by_the_oracle(cut_of, **call)


@pytest.mark.usefixtures("backend")
class TestMass:
    def test_is_that_of_the_law(self):
        for size in (5, 1024, 1025, 5000):
            row = rows_of(1, size, seed=size)[0]
            law = (row.double() - row.double().max()).exp().sum()
            assert cut_of(row, Sampling())[3] * 2.0**-42 == pytest.approx(float(law), rel=1.3e-6)
            assert cut_of(row, Sampling(min_p=1e-30))[3] * 2.0**-42 == pytest.approx(float(law), rel=4e-7)

    def test_does_not_hang_on_the_order_within_tiles(self):
        row = rows_of(1, 3000)[0]
        mixed = torch.cat([tile[torch.randperm(len(tile))] for tile in row.split(1024)])
        assert cut_of(row, Sampling())[2:] == cut_of(mixed, Sampling())[2:]

    def test_a_cut_that_is_off_is_not_named(self):
        """Then top_p is a share of the row's mass, whose tiles round tiny weights to 0: here all but one token's."""
        row = torch.full((1024,), -22.0)
        row[0] = 0.0
        nearly = Sampling(top_p=1 - 2.0**-24)
        for after in AFTER.values():
            assert assert_cut(row, nearly._replace(top_p_after=after)).sum() == 1
        assert assert_cut(row, nearly._replace(top_k=1023)).sum() > 500
        assert assert_cut(row, nearly._replace(top_k=1023, top_p_after=("min_p",))).sum() == 1

    @pytest.mark.interpreted
    def test_top_p_is_of_what_other_cuts_keep(self):
        """Of 10 equal tokens 5 by top_k; half of the whole row are 5 again, half of those 3."""
        row = torch.zeros(10)
        half = Sampling(top_k=5, top_p=0.5)
        assert cut_of(row, half)[2] == 3
        assert cut_of(row, half._replace(top_p_after=("min_p",)))[2] == 5
        assert cut_of(row, half._replace(top_p_after=()))[2] == 5


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
class TestStatus:
    def status(self, rows, sampling=None, **options):
        bits = torch.full(rows.shape[:-1], UNTOUCHED, dtype=torch.int32)
        found = cutoff(rows, sampling=sampling, status=bits, **options)
        return bits.tolist(), found

    def test_rows_without_weight(self):
        rows = torch.full((3, 5), -torch.inf)
        rows[1], rows[2, 3] = torch.nan, 0.5
        for sampling in (Sampling(), Sampling(0.0), Sampling(0.0, top_k=2), Sampling(top_k=2), Sampling(top_p=0.5)):
            bits, found = self.status(rows, sampling)
            assert bits == [1, 1, 0]
            for one in (0, 1):
                assert [part[one].item() for part in found] == [-torch.inf, -1, 0, 0, -torch.inf]
            assert found.count[2] == 1

    def test_infinity_counts_as_the_largest(self):
        row = torch.tensor([[1.0, torch.inf, torch.inf, 2.0]])
        bits, found = self.status(row, Sampling(min_p=0.5))
        assert bits == [1]
        assert (found.count.item(), found.last.item(), found.max.item()) == (2, 2, filters.LARGEST)

    def test_numbers_out_of_range_are_off(self):
        rows = rows_of(6, 33)
        bad = torch.tensor([torch.nan, -0.5, -torch.inf, 0.5, 2.0, torch.inf])
        off = torch.tensor([1.0, 1.0, 1.0, 0.5, 1.0, 1.0])
        bits, found = self.status(rows, Sampling(top_p=bad))
        assert bits == [8, 8, 8, 0, 0, 0]
        for b in range(6):
            assert [part[b].item() for part in found] == list(cut_of(rows[b], Sampling(top_p=off[b].item())))
        bits, found = self.status(rows, Sampling(min_p=bad))
        assert bits == [8, 8, 8, 0, 0, 0]
        off = [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]
        for b in range(6):
            assert [part[b].item() for part in found] == list(cut_of(rows[b], Sampling(min_p=off[b])))


REFUSED = {
    "cutoff": (cutoff, {"rows": rows_of(3, 9)}, [
        ({"out": (torch.zeros(3),) * 2}, TypeError, r"out: expected \(value, last, count, mass, max\); got tuple"),
    ]),
}  # fmt: skip
