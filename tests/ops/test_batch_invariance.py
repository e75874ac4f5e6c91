"""A request's result is its own, bit for bit: whoever shares the batch, however it is laid out, split or computed."""

import pytest
import torch

from specdec_kernels import _C, backend, context_seeds, cutoff, logprobs, race_sample, race_topk, uniform
from specdec_kernels.sharded._parts import count_at_least, mass_tiles, residual_race, residual_sums, tile_laws
from tests.ops.test_verify_chain import OPTIONS as CHAINS
from tests.ops.test_verify_tree import OPTIONS as TREES
from tests.ops.test_verify_tree import made
from tests.support.cases import chain_call, seeds
from tests.support.edits import random_edits
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.trees import leaves_of

OPTIONS = {name: CHAINS[name] for name in ("rejection", "race", "one-hot", "randomised", "block")}


def assert_same(results, expected):
    for got, wanted in zip(results, expected, strict=True):
        assert torch.equal(got.nan_to_num(-1), wanted.nan_to_num(-1))


def rows_of(call, which):
    return {name: value[which] if isinstance(value, torch.Tensor) else value for name, value in call.items()}


@pytest.fixture
def threads():
    """Sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.usefixtures("backend")
class TestNeighbours:
    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    @pytest.mark.parametrize("space", ["logits", "probs"])
    def test_alone_as_in_a_batch(self, options, space):
        call = chain_call(1, vocabulary=2049, space=space) | options
        together = verify_chain(**call)
        for b in range(0, 32, 5):
            assert_same(verify_chain(**rows_of(call, slice(b, b + 1))), [part[b : b + 1] for part in together])

    @pytest.mark.parametrize("options", [*TREES.values(), {"method": "paths"}], ids=[*TREES, "paths"])
    def test_trees_alone_as_in_a_batch(self, options):
        call = made(31, options, vocabulary=2100, requests=6) | {"max_depth": 8}
        if options.get("method") == "paths":
            call["leaves"] = leaves_of(call["parents"])
        together = verify_tree(**call)
        for b in range(6):
            assert_same(verify_tree(**rows_of(call, slice(b, b + 1))), [part[b : b + 1] for part in together])

    def test_chunks_of_drafts(self):
        """A race may be cut into rounds anywhere: two drafts, then the rest from where they ended."""
        call = chain_call(5) | {"method": "race", "draft": None}
        whole = verify_chain(**call)
        head = verify_chain(**call | {"draft_tokens": call["draft_tokens"][:, :1], "target": call["target"][:, :2]})
        went_on = head.num_accepted == 1
        tail = verify_chain(
            **rows_of(call, went_on) | {
                "draft_tokens": call["draft_tokens"][went_on, 1:], "target": call["target"][went_on, 1:],
                "position": call["position"][went_on] + 1,
            }
        )  # fmt: skip
        assert (tail.tokens == whole.tokens[went_on, 1:]).all()
        assert (head.tokens[:, 0] == whole.tokens[:, 0]).all()


def of_parts(target, draft):
    """Of rows and of those of a draft, as ranks ask for them."""
    row_indices = torch.arange(2, dtype=torch.int32)
    tiles, status = mass_tiles(target)
    laws = [tile_laws(mass_tiles(rows)[0], rows[:, :1].contiguous())[0] for rows in (target, draft)]
    pair = {"target": target, "draft": draft, "row": row_indices, "draft_row": row_indices}
    pair["row_stats"] = torch.cat(laws, -1)
    found = [*residual_race(**pair, seed=seeds(2), position=3, vocab_start=0), *residual_sums(**pair)]
    return [tiles, status, *laws, *found, count_at_least(target, torch.tensor([1.0, 2.0]))]


@pytest.mark.one_backend
@pytest.mark.parametrize("vocabulary", [300, 128_256])
def test_threads(threads, vocabulary):
    """More threads take other requests, or other parts of a row; 128,256 tokens are 63 tiles."""
    with backend("cpu"):
        threads(1)
        call = chain_call(6, requests=5, vocabulary=vocabulary)
        row = {"target": call["target"][0], "draft": call["target"][1]}
        tree = made(32, vocabulary=vocabulary // 4, requests=1, nodes=4, parents=[-1, 0, 0, 0]) | {"temperature": 1.0}
        text = torch.arange(40).repeat(4, 1) % 3
        results = []
        for count in (1, 2, 3, 7):
            threads(count)
            parts = [result for options in OPTIONS.values() for result in verify_chain(**call | options)]
            for b in range(2):
                parts += verify_chain(**rows_of(call, slice(b, b + 1)))
            parts += [
                race_sample(row["target"][:1], seed=1, position=0),
                race_topk(row["target"][0], 9, seed=1, position=0),
            ]
            edits = random_edits(5, vocabulary=vocabulary, seed=1)
            parts += [*residual(**row, edits=edits), *overlap(**row, edits=edits)]
            parts += [race_sample(row["target"], seed=seeds(5), position=0, edits=edits), *residual(**row)]
            parts += [*overlap(**row), *cutoff(row["target"]), *logprobs(row["target"], seeds(5), top=4)]
            parts += of_parts(row["target"][:2], row["draft"][:2])
            parts += [part for options in TREES.values() for part in verify_tree(**tree | options)]
            parts += [uniform(1, torch.arange(5000)), context_seeds(text, text[:, :5], key=7, seed=3, position=20)]
            results.append(parts)
    for parts in results[1:]:
        assert_same(parts, results[0])


@pytest.mark.one_backend
def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="scalar"):
        _C.set_isa("mmx")
