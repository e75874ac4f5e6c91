"""Cuts in Triton against the CPU backend's, in all figures."""

import pytest
import torch

pytest.importorskip("triton")

from specdec_kernels.triton_kernels import _filters, _launch

import specdec_kernels
from specdec_kernels import Sampling, cutoff, race_sample
from tests.backends.test_triton_ops import both, on_device
from tests.support.cases import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LISTED = _filters.LISTED.value


def with_status(rows, sampling):
    status = torch.full(rows.shape[:-1], -77, dtype=torch.int32, device=rows.device)
    if rows.device.type != "cpu":
        sampling = Sampling(*map(on_device, sampling))
    return *cutoff(rows, sampling=sampling, status=status), status


def assert_same_cut(rows, sampling):
    for expected, found in zip(*both(with_status, rows, sampling), strict=True):
        assert torch.equal(found, expected), (sampling, expected, found)


def rows_of(count, vocabulary, seed=0):
    return 2 * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed))


def numbers(*each):
    """A Sampling of tensors, a row for each (top_k, top_p, min_p)."""
    top_k, top_p, min_p = zip(*each, strict=True)
    return Sampling(0.8, torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))


SOME = numbers((0, 1.0, 0.0), (4, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (9, 0.7, 0.0), (9, 0.85, 0.03))
AFTER = [(), ("top_k",), ("min_p",), ("top_k", "min_p")]


@pytest.mark.parametrize("ties", ["first", "all"])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_every_order_and_tie(after, ties):
    rows = (rows_of(6, 70).round() / 4).to(DTYPES[len(after)])
    assert_same_cut(rows, SOME._replace(top_p_after=after, ties=ties))


def test_filters_before_the_temperature():
    rows = rows_of(3, 70)
    assert_same_cut(rows, numbers((4, 0.9, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1))._replace(at_temperature=False))


@pytest.mark.parametrize("size", [1, 63, 128, 129, 1025, 4097])
def test_sizes(size):
    assert_same_cut(rows_of(6, size, seed=size), SOME)


@pytest.mark.parametrize("open_tokens", [LISTED, LISTED + 1])
def test_lists_that_are_full_and_one_over(open_tokens):
    rows = torch.full((3, 2500), -3.0)
    rows[:, torch.randperm(2500, generator=torch.Generator().manual_seed(1))[:open_tokens]] = 1.0
    assert_same_cut(rows, numbers((0, 1.0, 0.05), (1500, 0.5, 0.5), (0, 0.4, 0.0)))


def test_rows_that_no_list_holds():
    rows = torch.stack([rows_of(1, 2600)[0].round(), torch.zeros(2600)])
    assert_same_cut(rows, numbers((2400, 0.97, 0.0), (2500, 1.0, 0.9)))


def test_cuts_do_not_depend_on_the_number_of_programs(monkeypatch):
    rows = rows_of(2, 8200)
    sampling = numbers((50, 0.9, 0.0), (0, 0.3, 0.0))._replace(top_p_after=())
    for machine in (0, 10_000):
        monkeypatch.setattr(_launch, "multiprocessors", lambda device, machine=machine: machine)
        assert_same_cut(rows, sampling)


def test_what_knows_no_filters_says_so():
    with specdec_kernels.backend("triton"), pytest.raises(RuntimeError, match=r"sampling\.top_k: expected none"):
        race_sample(on_device(rows_of(1, 9)), sampling=Sampling(top_k=2), seed=1, position=0)
