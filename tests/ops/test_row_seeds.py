"""Races whose rows have seeds of their own: those of chains and trees are those of race_sample."""

import pytest
import torch

from specdec_kernels import race_sample
from specdec_kernels.ops import verify_chain as plain_chain
from tests.ops.test_input_rows import COUNTS, FILTERED, TREES, in_rows, padded, tree_of
from tests.support.cases import ragged
from tests.support.ops import verify_chain, verify_tree

B, K, N = 6, 4, 7


def row_seeds(rows, dtype=torch.int64, seed=0):
    """Any numbers, in memory with gaps."""
    generator = torch.Generator().manual_seed(seed)
    most = torch.iinfo(dtype).max
    return torch.randint(-most, most, (B, rows, 2), dtype=dtype, generator=generator)[..., 0]


def with_rows(call, given):
    return {name: x for name, x in call.items() if name != "position.positions"} | {"seed": given, "position": 0}


def winners(call, given):
    """The race of each row, by race_sample."""
    law = {name: call[name][:, None] if isinstance(call[name], torch.Tensor) else call[name]
           for name in ("temperature", "sampling") if call.get(name) is not None}  # fmt: skip
    return race_sample(call["target"], seed=given, position=0, **law)


def agreed(drafts, won):
    """Tokens of chains: the winners up to the first that is not drafted."""
    accepted = (drafts == won[:, :-1]).long().cumprod(1).sum(1)
    return won.masked_fill(torch.arange(K + 1) > accepted[:, None], -1), accepted.int()


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
class TestChains:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    @pytest.mark.parametrize("law", [{}, FILTERED])
    def test_rows_race_for_themselves(self, law, dtype):
        """Half of the drafts are winners."""
        call, given = padded("race") | law, row_seeds(K + 1, dtype)
        won = winners(call, given)
        lucky = torch.rand(B, K, generator=torch.Generator().manual_seed(1)) < 0.7
        call["draft_tokens"] = torch.where(lucky, won[:, :-1], call["draft_tokens"])
        expected, accepted = agreed(call["draft_tokens"], won)
        verdict = verify_chain(**with_rows(call, given))
        assert torch.equal(verdict.tokens, expected)
        assert torch.equal(verdict.num_accepted, accepted)
        assert 0 < accepted.sum() < B * K

    def test_packed(self):
        """Seeds are padded where rows are not; those of an idle request are not read."""
        call, given = padded("race"), row_seeds(K + 1)
        expected = verify_chain(**with_rows(call, given))
        counts = torch.full((B,), K)
        packed = ragged(call | {"draft": None}, counts)
        assert torch.equal(verify_chain(**with_rows(packed, given)).tokens, expected.tokens)
        rows = in_rows(call | {"draft": None}, counts)
        assert torch.equal(verify_chain(**with_rows(rows, given)).tokens, expected.tokens)
        short = verify_chain(**with_rows(ragged(call | {"draft": None}, COUNTS), given), **{"packing.max_drafts": K})
        assert torch.equal(short.tokens[:, 0], expected.tokens[:, 0])

    def test_many_rows(self, backend):
        """More rows than a device takes at once, and few. Triton's programs are alike for all."""
        for batch in (1, 2 if backend == "triton" else 64):
            target = torch.randn(batch, K + 1, 67, generator=torch.Generator().manual_seed(batch))
            given = torch.arange(batch * (K + 1)).view(batch, -1)
            won = race_sample(target, seed=given, position=0)
            verdict = plain_chain(won[:, :K], target, method="race", seed=given, position=0)
            assert torch.equal(verdict.tokens, won)


@pytest.mark.usefixtures("backend")
@pytest.mark.interpreted
@pytest.mark.parametrize("method", [name for name in TREES if name.startswith("race")])
def test_trees(method):
    """The token after each node of the path is its own row's winner."""
    call, given = tree_of(method), row_seeds(N)
    won = winners(call, given)
    verdict = verify_tree(**with_rows(call, given))
    there = verdict.path >= 0
    assert torch.equal(verdict.tokens[there], won.gather(1, verdict.path.clamp(min=0).long())[there])
    assert torch.equal(there.sum(1), verdict.num_accepted + 1)


CALL, TREE = with_rows(padded("race"), row_seeds(K + 1)), with_rows(tree_of("race"), row_seeds(N))
REFUSED = {
    "seeds of rows": (verify_chain, CALL, [
        ({"method": "block"}, ValueError,
         r"seed: expected \[B\] but with method='race', position=0 and nonce=0; got int64 .*with 'block', 0"),
        ({"position": 1}, ValueError, r"seed: expected \[B\] but with .* with 'race', 1 and 0"),
        ({"nonce": 1}, ValueError, r"seed: expected \[B\] but with .* with 'race', 0 and 1"),
        ({"position": torch.zeros(B).long()}, ValueError, r"seed: expected \[B\] but with"),
        ({"nonce": torch.zeros(B).long()}, ValueError, r"seed: expected \[B\] but with"),
        ({"seed": row_seeds(K)}, ValueError, r"seed: expected shape \[6, 5\]; got int64 \[6, 4\]"),
    ]),
    "seeds of nodes": (verify_tree, TREE, [
        ({"method": "rejection"}, ValueError, r"seed: expected \[B\] but with .* with 'rejection', 0 and 0"),
        ({"seed": row_seeds(N + 1)}, ValueError, r"seed: expected shape \[6, 7\]; got int64 \[6, 8\]"),
    ]),
}  # fmt: skip
