"""Generation with several chains, and with drafts whose laws do not depend on each other."""

import pytest
import torch

from specdec_kernels import DraftTree
from specdec_kernels.generate import (
    ModelDrafter,
    ParallelDrafter,
    PathController,
    generate,
    load_model,
    stream,
)
from specdec_kernels.generate.drafters import path_to
from specdec_kernels.generate.noise import Noise, Sampling
from specdec_kernels.generate.protocols import Drafts
from specdec_kernels.generate.trees import merged
from tests.generate.laws import PROMPT, PROMPTS, VOCAB, tokens_of
from tests.generate.small import llama, raced


def test_one_chain_writes_as_block(pair):
    options = dict(k=4, seed=3, max_new_tokens=20)
    one = generate(PROMPTS, pair[0], ModelDrafter(pair[1]), method="paths", paths=1, **options)
    assert tokens_of(one) == tokens_of(generate(PROMPTS, pair[0], ModelDrafter(pair[1]), method="block", **options))


def test_rounds_are_trees_of_chains(pair):
    """Greedy as plain; drawn, no node has two children of one token, and some are shared."""
    options = dict(method="paths", paths=4, k=3)
    rounds = list(stream(PROMPTS[:2], pair[0], ModelDrafter(pair[1]), max_new_tokens=24, **options))
    for entry in rounds:
        shape, tokens = entry.tree.shape, entry.tree.tokens
        drafts = list(zip(shape.parents[1:], tokens[1:], strict=True))
        assert len(set(drafts)) == len(drafts) == entry.drafted
        assert [shape.parents[node] for node in entry.tree.path[1:]] == entry.tree.path[:-1]
        assert [tokens[node] for node in entry.tree.path[1:]] == entry.tokens[: entry.accepted]
        assert entry.status == 0
    assert 3 < max(entry.drafted for entry in rounds) <= 12
    assert len({entry.drafted for entry in rounds}) > 3  # some share more than others
    raced(PROMPTS[:2], pair[0], ModelDrafter(pair[1]), options, temperature=0, max_new_tokens=24)


class Checked(ModelDrafter):
    """Reads each text anew before it believes its cache."""

    def propose_tree(self, text, length, *how):
        drafts = super().propose_tree(text, length, *how)
        for row, end in enumerate(length if drafts.logits is not None else []):
            whole = self.language_model.model(input_ids=text[row : row + 1, :end]).logits[0, -1].float()
            torch.testing.assert_close(drafts.logits[row, 0], whole, rtol=1e-5, atol=1e-5)
        return drafts


def test_the_draft_goes_on_from_the_path_taken_whichever_chain_it_was_of(small_pair):
    options = dict(method="paths", paths=3, k=3, max_new_tokens=20)
    texts = generate([PROMPT] * 4, small_pair[0], Checked(small_pair[1]), **options)
    assert any(entry.tree.path[1:] > [3] for text in texts for entry in text.rounds)  # not of the first


def test_what_begins_alike_has_one_row_to_the_bit():
    """In bfloat16 a text rounds elsewhere when it is read among other entries of the cache."""
    drafter, tree = ModelDrafter(llama(VOCAB, seed=2, dtype=torch.bfloat16)), DraftTree.chains(8, 4)
    drafter.start(1, 64, VOCAB)
    text, noise = torch.zeros(1, 64, dtype=torch.int64), Noise(torch.tensor([3]), torch.tensor([8]), 2**16)
    drafts = drafter.propose_tree(text, [8], tree, [4], noise, Sampling(torch.ones(1)), True)
    rows = {}
    for node in filter(tree.children.__getitem__, range(1, 33)):
        said = tuple(drafts.tokens[0, path_to(node, tree)].tolist())
        assert torch.equal(rows.setdefault(said, drafts.logits[0, node]), drafts.logits[0, node])
    assert len(rows) < 20


def test_merging_says_which_draft_a_node_was():
    """The second chain ends early; of the first and the third one a node is shared."""
    tokens, laws = torch.tensor([[9, 5, 7, 6, -1, 5, 8]]), torch.arange(7.0).view(1, 7, 1)
    tree = DraftTree.chains(3, 2)
    drafts, parents, leaves, drafted = merged(Drafts(tokens, laws), tree)
    assert drafts.tokens.tolist() == [[9, 5, 7, 6, 8]]
    assert parents.tolist() == [[-1, 0, 1, 0, 1]]
    assert leaves.tolist() == [[2, 3, 4]]
    assert drafted.tolist() == [[0, 1, 2, 3, 6]] == drafts.logits[..., 0].long().tolist()
    with pytest.raises(ValueError, match=r"^tree: expected chains of one length with method paths; got parents"):
        merged(Drafts(tokens, laws), DraftTree.specinfer((2, 2)))


# Drafters whose laws do not depend on what is drafted.


def test_look_ahead_rows_are_those_of_one_pass(small_parallel):
    """Of texts of different lengths, each read alone; deeper rows repeat the last; nothing read ahead is kept."""
    text = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))
    small_parallel.start(2, 12, VOCAB)
    for length in ([3, 7], [6, 8]):
        small_parallel.look(text, length, 5)
        for row, end in enumerate(length):
            read = torch.cat([text[row, :end], torch.tensor([VOCAB, VOCAB + 1])])[None]
            whole = small_parallel.language_model.model(input_ids=read).logits[0, end - 1 :].float()
            torch.testing.assert_close(small_parallel.rows[row], whole, rtol=1e-5, atol=1e-5)
        assert small_parallel.rows.shape[1] == 3
        for slot, own in enumerate((0, 1, 2, 2, 2)):
            assert torch.equal(small_parallel.row(text, length, slot), small_parallel.rows[:, own])
        assert small_parallel.reader.cached == length


def test_no_row_is_read_that_nobody_asked_for(small_parallel):
    text = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))
    for count in (1, 2, 3):
        small_parallel.start(2, 12, VOCAB)
        small_parallel.look(text, [3, 7], count)
        assert small_parallel.rows.shape[1] == count


@pytest.mark.parametrize("how", [dict(k=4), dict(tree=DraftTree.specinfer((2, 2, 1)))], ids=["chain", "tree"])
def test_a_race_with_parallel_drafts_equals_plain(pair, how):
    drafter = ParallelDrafter(load_model("embedded:parallel", dtype="float64"))
    race = raced(PROMPTS[:2], pair[0], drafter, how, seed=3, max_new_tokens=24)
    assert max(text.tokens_per_call for text in race) > 1.2
    assert len(drafter.reader.passes) <= max(text.target_calls for text in race)  # one pass a round


# What is learnt, and what is refused.


@pytest.mark.parametrize("rates, cost", [({1: 0.6, 2: 0.75, 4: 0.8}, 0.02), ({1: 0.3, 2: 0.35, 4: 0.4}, 0.1)])
def test_the_controller_ends_near_the_best_chains(rates, cost):
    rng, controller, charged = torch.Generator().manual_seed(0), PathController(8, (1, 2, 4)), []

    def tokens(n, k):
        return sum(rates[n] ** i for i in range(k + 1))

    for _ in range(1000):
        tree = DraftTree.from_parents(controller.plan_tree())
        n, k = len(tree.children[0]) or 1, tree.depth
        misses = torch.rand(k, generator=rng) >= rates[n]
        accepted = int(misses.int().argmax()) if misses.any() else k
        controller.observe_tree([0] * (accepted + 1), 1 + cost * n * k)
        charged.append((tokens(n, k), 1 + cost * n * k))
    written, seconds = map(sum, zip(*charged[500:], strict=True))
    best = max(tokens(n, k) / (1 + cost * n * k) for n in rates for k in range(9))
    assert written / seconds >= 0.95 * best


def test_a_model_without_look_ahead_tokens_is_named(small_pair):
    with pytest.raises(ValueError, match="expected look_ahead_token_ids in its config; got none"):
        ParallelDrafter(small_pair[1])
