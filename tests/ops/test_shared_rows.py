"""Rows that threads share: whatever part of a row is whose, a call says what it met (test_batch_invariance: it finds
what one thread does).
"""

import pytest
import torch

import specdec_kernels
from specdec_kernels import cutoff, logprobs, race_sample, race_topk
from specdec_kernels.sharded._parts import mass_tiles
from tests.conftest import NATIVE
from tests.support.ops import overlap, residual, verify_chain

pytestmark = pytest.mark.one_backend
VOCABULARY = 7 * 8 * 2048 + 300  # eight tiles for each of seven threads, and some more
THREADS = range(2, 8)
ROWS = torch.randn(2, 1, 2, VOCABULARY, generator=torch.Generator().manual_seed(1))
NOISE = {"seed": 5, "position": 3}
EACH = {"seed": 5, "position": torch.tensor([[3, 4]])}


def bits(like):
    return torch.zeros(like.shape[:-1], dtype=torch.int32)


def chain(target, drafts, **options):
    call = {"draft_tokens": torch.tensor([[VOCABULARY - 1]]), "target": target, "draft": drafts} | NOISE
    return list(verify_chain(**call | options))


def by_threads(call, *arguments):
    """What a call finds with one thread, then with each number of threads."""
    before = torch.get_num_threads()
    try:
        with specdec_kernels.backend(NATIVE):
            torch.set_num_threads(1)
            alone = call(*arguments)
            yield alone
            for threads in THREADS:
                torch.set_num_threads(threads)
                yield call(*arguments)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("part", range(8))
def test_each_part_says_what_it_met(part):
    """A NaN at the end of each part, and behind the last."""
    row = ROWS[0].clone()
    row[..., min((part + 1) * 8 * 2048, VOCABULARY) - 1] = torch.nan

    def statuses(row, draft):
        found = []
        for op, options in ((race_sample, EACH), (race_topk, EACH | {"k": 2}), (cutoff, {})):
            found.append(bits(row))
            op(row, **options, status=found[-1])
        found.append(bits(row))
        logprobs(row, torch.zeros(1, 2).long(), status=found[-1])
        for op in (residual, overlap):
            for pair in ((row, draft), (draft, row)):
                found.append(bits(row))
                op(*pair, status=found[-1])
        return [*found, chain(row, draft[:, :1])[2], chain(row, draft[:, :1], temperature=0.0)[2], mass_tiles(row)[1]]

    for found in by_threads(statuses, row, ROWS[1]):
        assert all((status == 1).all() for status in found), found


@pytest.mark.parametrize("part", [0, 3, 6])
def test_a_mapped_race_knows_all_parts(part):
    """The draft has half of the words; one of a part has all the weight, as far as it is kept."""
    column = part * 8 * 2048 + 77
    rows = torch.full((1, VOCABULARY), -20.0)
    rows[:, column] = 20.0
    words = torch.arange(VOCABULARY, dtype=torch.int32) * 2
    for found in by_threads(lambda: race_sample(rows, draft_map=words, **NOISE)):
        assert found == 2 * column
    for found in by_threads(lambda: race_topk(rows, 3, draft_map=words, **NOISE)):
        assert found[0, 0] == 2 * column
