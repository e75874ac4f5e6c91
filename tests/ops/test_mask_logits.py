"""mask_logits: rows with -inf in the place of what filters drop."""

import pytest
import torch

import specdec_kernels
from specdec_kernels import Sampling
from specdec_kernels.ops import Cut, cutoff, mask_logits
from tests.support.cases import DTYPES, adversarial_rows, poisoned

pytestmark = pytest.mark.interpreted


def test_rule_by_hand(backend):
    """A token stays if its logit is above the cut's value, or equal to it with an id up to ``last``.

    The cut is 1, at id 1: 2 is above it, the first 1 is equal with id 1, the second has id 2, and -1 is below it.
    """
    rows = torch.tensor([[2.0, 1.0, 1.0, -1.0]])
    cut = Cut(torch.tensor([1.0]), torch.tensor([1]), torch.tensor([2]), torch.tensor([0]), torch.tensor([2.0]))
    assert mask_logits(rows, cut).tolist() == [[2.0, 1.0, -torch.inf, -torch.inf]]
    assert mask_logits(rows, cut._replace(last=torch.tensor([2]))).tolist() == [[2.0, 1.0, 1.0, -torch.inf]]


ROWS = torch.randn(2, 3, 33, generator=torch.Generator().manual_seed(0))
CUT = cutoff(ROWS, sampling=Sampling(top_k=5))
CALLS = {"mask_logits": (mask_logits, {"rows": ROWS, "cut": CUT, "temperature": torch.ones(2, 3)})}


def kept(rows, cut):
    """How many tokens of each row are left."""
    return ((rows > -torch.inf) & ~rows.isnan()).sum(-1) == cut.count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 4100])
def test_what_is_kept_stays_as_it_is(backend, dtype, size):
    """Rows with NaN, infinities and ties, at strides; as many tokens are left as the cut counts."""
    rows = poisoned(torch.stack(list(adversarial_rows(size).values())).to(dtype))
    rows[0] = rows[0].round()
    temperature = torch.tensor([0.7, 1.0, 2.0])[torch.arange(len(rows)) % 3]
    for sampling in (
        Sampling(temperature, top_k=torch.arange(len(rows)) % 5 + 1),
        Sampling(temperature, top_p=0.8, min_p=0.01, ties="all"),
    ):
        with specdec_kernels.backend("reference"):
            cut = cutoff(rows, sampling=sampling)
        found = mask_logits(rows, cut, temperature=temperature)
        left = found > -torch.inf
        assert found.dtype == dtype
        assert torch.equal(found[left], rows[left])
        numbers = ~rows.isnan().any(-1) & (cut.value > -torch.inf)
        assert kept(found, cut)[numbers].all()
        assert torch.equal(found.isnan(), rows.isnan())
        off = mask_logits(rows, cut._replace(value=torch.full_like(cut.value, -torch.inf), last=cut.last * 0 - 1))
        assert torch.equal(off.nan_to_num(7), rows.nan_to_num(7))


def test_into_the_rows_themselves_or_others(backend):
    rows = ROWS.repeat(1, 1, 130)[..., :4099].contiguous()
    cut = cutoff(rows, sampling=Sampling(top_k=40, ties="all"))
    expected = mask_logits(rows, cut)
    assert kept(expected, cut).all()
    apart = torch.full((2, 3, 4200), 9.0)
    out = apart[..., 50:4149]
    for _ in range(2):  # the second call is recognised
        assert mask_logits(rows, cut, out=out) is out
        assert torch.equal(out, expected)
    assert (apart[..., :50] == 9).all()
    assert (apart[..., 4149:] == 9).all()
    for _ in range(2):
        own = rows.clone()
        assert mask_logits(own, cut, out=own) is own
        assert torch.equal(own, expected)


REFUSED = {
    "mask_logits": (mask_logits, {"rows": ROWS, "cut": CUT}, [
        ({"cut": CUT.value}, TypeError, "cut: expected a Cut"),
        (
            {"rows": ROWS[:, :2], "out": ROWS[:, 1:]}
            | {"cut": CUT._replace(value=CUT.value[:, :2].contiguous(), last=CUT.last[:, :2].contiguous())},
            ValueError, "out: expected memory of its own",
        ),
        ({"temperature": -1.0}, ValueError, "temperature: expected a number at least 0"),
    ]),
}  # fmt: skip
