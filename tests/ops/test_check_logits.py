"""With check=True every op says of a softmaxed row that it is none of logits, and says so of no logits."""

import inspect

import pytest
import torch

import specdec_kernels
from specdec_kernels import Draft
from specdec_kernels.calls.op import OPS
from tests.support.calls import reads_rows
from tests.support.cases import DTYPES

pytestmark = pytest.mark.one_backend  # nothing of it is a backend's
V = 500
NOISE = {"seed": torch.arange(2), "position": 3, "check": True}
PAIR = {"target": (2, 3, V), "draft": (2, 2, V)}
CALLS = {  # function, other arguments, shapes of the rows by argument
    "verify_chain": ({"draft_tokens": torch.tensor([[1, 2], [3, 4]])} | NOISE, PAIR),
    "verify_tree": (
        {"draft_tokens": torch.tensor([[0, 1, 2], [0, 3, 4]]), "parents": torch.tensor([-1, 0, 1])} | NOISE,
        {"target": (2, 3, V), "draft": (2, 3, V)},
    ),
    "race_sample": (NOISE, {"target": (2, V)}),
    "race_topk": ({"k": 3} | NOISE, {"draft": (2, V)}),
    "residual": ({"check": True}, {"target": (2, V), "draft": (2, V)}),
    "overlap": ({"check": True}, {"target": (2, V), "draft": (2, V)}),
    "cutoff": ({"check": True}, {"rows": (2, V)}),
    "logprobs": ({"tokens": torch.tensor([1, 2]), "check": True}, {"rows": (2, V)}),
}
SCALES = [0.1, 3.0]  # nearly uniform, and peaked


def made(shapes, dtype, scale=3.0):
    generator = torch.Generator().manual_seed(7)
    return {name: (scale * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def each_row():
    return [(name, row) for name, (_, shapes) in CALLS.items() for row in shapes]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, row", each_row())
def test_probabilities_are_named(name, row, dtype, scale):
    others, shapes = CALLS[name]
    op, rows = getattr(specdec_kernels, name), made(shapes, dtype, scale)
    op(**others, **rows)
    softmaxed = rows[row].softmax(-1)
    with pytest.raises(ValueError, match=rf"^{row}\[0(, 0)?\]: expected logits; got probabilities, for none is "):
        op(**others, **rows | {row: softmaxed})
    op(**others, **rows | {row: softmaxed.log()})
    op(**others, **rows | {row: softmaxed - 1})
    op(**others | {"check": False}, **rows | {row: softmaxed})


def test_the_row_is_named_and_where_to_say_what_it_is():
    others, shapes = CALLS["verify_chain"]
    rows = made(shapes, torch.float32)
    mixed = rows["target"].clone()
    mixed[1, 2] = mixed[1, 2].softmax(-1)
    with pytest.raises(ValueError, match=r"^target\[1, 2\]: "):
        specdec_kernels.verify_chain(**others, **rows | {"target": mixed})
    laws = {name: value.softmax(-1) for name, value in rows.items()}
    specdec_kernels.verify_chain(**others, **laws, space="probs")
    specdec_kernels.verify_chain(**others, **rows | {"draft": Draft(laws["draft"], space="probs")})
    with pytest.raises(ValueError, match=r"^draft.rows\[0, 0\]: "):
        specdec_kernels.verify_chain(**others, **rows | {"draft": Draft(laws["draft"])})


def softmaxed(tokens=V, dtype=torch.float32):
    return made({"rows": (2, tokens)}, dtype)["rows"].softmax(-1)


def left_by_a_filter(law):
    left = torch.where(law >= law.topk(40).values[:, -1:], law, 0.0)
    return left / left.sum(-1, keepdim=True)


PROBABILITIES = {
    "left by a filter": left_by_a_filter(softmaxed()),
    "widened since": softmaxed(dtype=torch.bfloat16).float(),  # its sum is off by more than 2^-13
    **{f"{tokens} tokens": softmaxed(tokens) for tokens in (8, 33, 64)},
}


@pytest.mark.parametrize("rows", PROBABILITIES.values(), ids=PROBABILITIES)
def test_other_probabilities(rows):
    with pytest.raises(ValueError, match=r"^target\[0\]: "):
        specdec_kernels.race_sample(rows, **NOISE)


LEGAL = {
    "zeros": torch.zeros(1, V),
    "uniform": torch.full((1, V), 1 / V),  # the same law either way
    "one-hot": torch.eye(V)[:2],
    "0 to 1": torch.rand(3, V, generator=torch.Generator().manual_seed(1)),
    "log-probabilities": torch.randn(2, V, generator=torch.Generator().manual_seed(2)).log_softmax(-1),
    "after a ReLU": torch.randn(2, V, generator=torch.Generator().manual_seed(3)).relu(),
    "a toy": torch.tensor([0.5, 0.3, 0.2])[None],
    "seven tokens": torch.randn(2, 7, generator=torch.Generator().manual_seed(4)).softmax(-1),
    "the rest forbidden": torch.tensor([0.5, 0.3, 0.2, *[-torch.inf] * (V - 3)])[None],
}


@pytest.mark.parametrize("rows", LEGAL.values(), ids=LEGAL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_not(rows, dtype):
    specdec_kernels.race_sample(rows.to(dtype), seed=torch.arange(len(rows)), position=0, check=True)


def test_every_op_that_checks_and_reads_logits_is_here():
    public = {name: getattr(specdec_kernels, name) for name in specdec_kernels.__all__ if name in OPS}
    assert set(CALLS) == {
        name
        for name, function in public.items()
        if reads_rows(name) and "check" in inspect.signature(function).parameters
    }
