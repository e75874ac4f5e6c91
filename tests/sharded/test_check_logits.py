"""With check=True the sharded ops, too, say of a softmaxed row that it is none of logits: no slice of it sums to 1."""

import pytest
import torch

from specdec_kernels import sharded
from tests.ops.test_check_logits import CALLS, V
from tests.support.ranks import ROWS, on_ranks

WIDE = 2 * 1024 + V
SHARDED = ("verify_chain", "verify_tree", "race_sample", "race_topk", "logprobs")


@pytest.mark.parametrize("name, row", [(name, row) for name in SHARDED for row in CALLS[name][1]])
def test_probabilities_are_named(name, row):
    others, shapes = CALLS[name]
    generator = torch.Generator().manual_seed(7)
    rows = {each: 3 * torch.randn((*shape[:-1], WIDE), generator=generator) for each, shape in shapes.items()}
    op, begins = getattr(sharded, name), [0, 1024, 2048]
    assert set(rows) <= set(ROWS)
    on_ranks(op, begins, others | rows)
    one = rows[row].clone().flatten(0, -2)
    one[1] = one[1].softmax(-1).to(torch.bfloat16)
    wrong = others | rows | {row: one.view(rows[row].shape)}
    with pytest.raises(ValueError, match=rf"^{row}\[(0, )?1\]: expected logits; got probabilities, for none is "):
        on_ranks(op, begins, wrong)
    on_ranks(op, begins, wrong | {"check": False})
