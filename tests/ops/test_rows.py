"""Rows lie anywhere in memory, each has numbers of its own, and there may be none: of every op on rows."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from specdec_kernels import Sampling, cutoff, logprobs, race_sample, race_topk
from tests.support.cases import DTYPES, assert_same, poisoned, seeds
from tests.support.ops import overlap, residual

pytestmark = pytest.mark.interpreted

ROWS = ("target", "draft", "rows")


def calls(vocabulary=130, dtype=torch.float32):
    """Of 3 x 2 rows: (op, arguments). Tensors of one dimension less have a number for each row."""
    target, draft = 2 * torch.randn(2, 3, 2, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(dtype)
    temperature = torch.tensor([[1.0, 0.0], [0.5, 2.0], [0.7, 1.3]])
    noise = {"seed": seeds(6).view(3, 2), "position": 5 - seeds(6).view(3, 2)}
    filters = Sampling(temperature, torch.arange(6).view(3, 2), min_p=0.01)
    return [
        (race_sample, {"target": target, "temperature": temperature} | noise),
        (race_sample, {"target": target, "sampling": filters} | noise),
        (race_topk, {"draft": target, "k": min(5, vocabulary), "temperature": temperature} | noise),
        (residual, {"target": target, "draft": draft, "temperature": temperature, "draft_prob": temperature / 2}),
        (overlap, {"target": target, "draft": draft, "temperature": temperature}),
        (cutoff, {"rows": target, "sampling": filters}),
        (logprobs, {"rows": target, "tokens": seeds(6).view(3, 2) % vocabulary, "top": 1, "sampling": filters}),
    ]


def changed(call, change):
    """A call whose tensors are changed, those of its sampling too: ``change(name, tensor)``."""

    def with_change(name, x):
        if isinstance(x, Sampling):
            return Sampling(**changed(x._asdict(), change))
        return change(name, x) if isinstance(x, torch.Tensor) else x

    return {name: with_change(name, x) for name, x in call.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [130, 1, 2049])
def test_rows_lie_anywhere(backend, vocabulary, dtype):
    """With NaN around them, from an odd element on, and with the second dimension before the first."""
    for op, call in calls(vocabulary, dtype):
        expected = op(**call)
        for spread in (poisoned, lambda x: poisoned(x.transpose(0, 1)).transpose(0, 1)):
            assert_same(op(**changed(call, lambda name, x, f=spread: f(x) if name in ROWS else x)), expected)


@pytest.mark.parametrize("vocabulary", [130, 2049])
def test_each_row_has_its_own_numbers(backend, vocabulary):
    """A row alone gives what it gives among others."""
    for op, call in calls(vocabulary):
        together = tree_leaves(op(**call))
        for i, j in ((0, 0), (0, 1), (1, 1), (2, 0)):
            alone = op(**changed(call, lambda name, x, i=i, j=j: x[i, j]))
            assert_same(alone, [part[i, j] for part in together])


def test_no_rows(backend):
    for op, call in calls():
        none = tree_leaves(op(**changed(call, lambda name, x: x[:0])))
        for found, whole in zip(none, tree_leaves(op(**call)), strict=True):
            assert (found.shape, found.dtype) == ((0, *whole.shape[1:]), whole.dtype)
