"""Generation with trees: tree forwards equal chain forwards, races equal plain sampling, texts have their law."""

import itertools
import random

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree
from specdec_kernels.generate import (
    ModelDrafter,
    VerifiedTree,
    generate,
    stream,
)
from specdec_kernels.generate.drafters import path_to
from specdec_kernels.generate.policies import FixedTree
from specdec_kernels.generate.trees import cut
from tests.generate.laws import NEW, PROMPT, PROMPTS, tokens_of
from tests.generate.small import llama, random_model
from tests.generate.test_models import CONFIGS, assert_near, whole

SHAPES = {
    "root alone": DraftTree.chain(0),
    "chain": DraftTree.chain(3),
    "alternatives": DraftTree.alternatives(5),
    "specinfer": DraftTree.specinfer((2, 1, 2)),
    "optimal": DraftTree.optimal((0.5, 0.25, 0.12, 0.06), 12),
    "not by level": DraftTree.from_parents([-1, 0, 1, 2, 1, 0, 5, 2, 0]),
}


def random_tree(rng, nodes):
    return DraftTree.from_parents([-1] + [rng.randrange(node) for node in range(1, nodes)])


def test_a_path_may_be_longer_than_a_stack():
    assert path_to(1100, DraftTree.chain(1100)) == list(range(1, 1101))


# Tree attention.


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tree_forward_equals_a_chain_forward_per_node(name):
    """Random trees after prefixes of different lengths, several rounds that each keep another path."""
    model, rng = random_model(CONFIGS[name], seed=1, spread=0.5), random.Random(name)
    generator = torch.Generator().manual_seed(3)
    length = [9, 1, 4]
    text = torch.randint(50, (3, 48), generator=generator)
    reader = model.reader(3, 48)
    for _ in range(4):
        tree = random_tree(rng, rng.randrange(1, 9))
        nodes = len(tree.parents)
        tokens = torch.randint(50, (3, nodes), generator=generator)
        tokens[:, 0] = text[range(3), torch.tensor(length) - 1]
        logits = reader.read_tree(text, length, tree.tensor(), tokens, torch.arange(nodes))
        for row, node in itertools.product(range(3), range(nodes)):
            chain = torch.cat([text[row, : length[row]], tokens[row, path_to(node, tree)]])
            assert_near(logits[row, node], whole(model, chain)[-1])
        paths = [[0, *path_to(rng.randrange(nodes), tree)] for _ in range(3)]
        padded = [path + [-1] * (tree.depth + 1 - len(path)) for path in paths]
        reader.keep_path(torch.tensor(padded, dtype=torch.int32), length, list(map(len, paths)))
        for row, path in enumerate(paths):
            kept = tokens[row, path[1:]]
            text[row, length[row] : length[row] + len(kept)] = kept
            length[row] += len(kept) + 1  # and a new token, which the text holds already


def test_reading_a_tree_depth_by_depth_equals_reading_it_at_once():
    model, tree = llama(vocab=50), SHAPES["not by level"]
    text, length = torch.randint(50, (2, 30), generator=torch.Generator().manual_seed(4)), [7, 12]
    tokens = torch.randint(50, (2, len(tree.parents)), generator=torch.Generator().manual_seed(5))
    parents, reader = tree.tensor(), model.reader(2, 30)
    at_once = model.reader(2, 30).read_tree(text, length, parents, tokens, torch.arange(len(tree.parents)))
    for depth in range(tree.depth + 1):
        nodes = torch.tensor([node for node, at in enumerate(tree.depths) if at == depth])
        logits = reader.read_tree(text, length, parents, tokens, nodes)
        torch.testing.assert_close(logits, at_once[:, nodes], rtol=1e-6, atol=1e-6)


def test_a_draft_equal_to_the_target_is_accepted_along_the_first_children(pair):
    tree = SHAPES["optimal"]
    for method in ("race", "rejection"):
        text = generate(PROMPTS[:1], pair[0], ModelDrafter(pair[0]), method=method, tree=tree, max_new_tokens=NEW)[0]
        first = [0]
        while tree.children[first[-1]]:
            first.append(tree.children[first[-1]][0])
        assert all(entry.tree.path == first for entry in text.rounds[:-1])


@pytest.mark.parametrize("of_chain, of_tree", [("rejection", "rejection"), ("block", "traversal")])
def test_a_tree_that_is_a_chain_writes_as_a_chain(pair, of_chain, of_tree):
    options = dict(seed=3, max_new_tokens=NEW)
    chain = generate(PROMPTS, pair[0], ModelDrafter(pair[1]), k=4, method=of_chain, **options)
    tree = generate(PROMPTS, pair[0], ModelDrafter(pair[1]), tree=DraftTree.chain(4), method=of_tree, **options)
    assert tokens_of(tree) == tokens_of(chain)
    for ours, theirs in zip(tree, chain, strict=True):
        assert [entry.pieces for entry in ours.rounds] == [entry.pieces for entry in theirs.rounds]
        assert [entry.tested for entry in ours.rounds] == [entry.tested for entry in theirs.rounds]


@pytest.mark.parametrize("case", [("traversal", False), ("traversal", True), ("rejection", False), ("rejection", True)])
def test_branches_have_noise_of_their_own_where_several_are_tried(small_pair, monkeypatch, case):
    """Else a branch refused would tell of the next one: tests/ops/test_traversal_laws.py has the law."""
    method, replacement = case
    races, op = [], "race_sample" if replacement else "race_topk"
    real = getattr(specdec, op)

    def listening(logits, *arguments, **noise):
        if logits.ndim == 3:
            shape = logits.shape[:2]
            places = (torch.as_tensor(noise[name]).expand(shape)[0].tolist() for name in ("position", "nonce"))
            races.extend(zip(*places, strict=True))
        return real(logits, *arguments, **noise)

    monkeypatch.setattr(specdec, op, listening)
    tree = DraftTree.specinfer((2, 2, 2))
    options = dict(method=method, tree=tree, replacement=replacement, max_new_tokens=12)
    generate([PROMPT], small_pair[0], ModelDrafter(small_pair[1]), **options)
    assert (len(set(races)) == len(races)) == (method == "traversal")


# Rounds and statistics.


def test_rounds_add_up(pair):
    tree = SHAPES["optimal"]
    rounds = list(
        stream(PROMPTS[:2], pair[0], ModelDrafter(pair[1]), method="rejection", tree=tree, max_new_tokens=NEW)
    )
    assert [sum(len(entry.tokens) for entry in rounds if entry.request == index) for index in (0, 1)] == [NEW, NEW]
    for entry in rounds:
        path, tokens = entry.tree.path, entry.tree.tokens
        assert entry.accepted == len(path) - 1 <= entry.tested <= entry.drafted <= tree.size
        assert [entry.tree.shape.parents[node] for node in path[1:]] == path[:-1]
        assert [tokens[node] for node in path[1:]] == entry.tokens[: entry.accepted]
        kinds = [kind for kind, _ in entry.pieces]
        last = "replaced" if entry.tree.offers()[-1][0] else "bonus"
        assert kinds == ["accepted"] * (entry.accepted > 0) + [last] * (len(entry.tokens) > entry.accepted)


def test_offers_of_a_path():
    """The root offers 3 children, of which the second is accepted; that one has a child that is absent."""
    tree = VerifiedTree(DraftTree.from_parents([-1, 0, 0, 0, 2]), [9, 7, 8, 6, -1], [0, 2])
    assert tree.offers() == [(3, 1), (0, None)]
    assert (tree.drafted, tree.tested) == (3, 2)
    assert VerifiedTree(tree.shape, tree.tokens, [0]).tested == 3


def test_a_policy_sees_whole_trees_alone(small_pair):
    """Where a text's end cut the tree, what was accepted tells of another one."""
    seen = []
    policy = FixedTree(DraftTree.chain(3))
    policy.observe_tree = lambda path, seconds: seen.append(path)
    texts = generate([PROMPT] * 2, small_pair[0], ModelDrafter(small_pair[1]), policy=policy, max_new_tokens=9)
    rounds = [entry for text in texts for entry in text.rounds]
    whole = [entry.tree.path for entry in rounds if entry.tree.drafted == 3]
    assert sorted(seen) == sorted(whole)
    assert 0 < len(whole) < len(rounds)


def test_cutting_a_tree():
    tree = SHAPES["not by level"]
    assert cut(tree, 0).parents == (-1,)
    assert cut(tree, 2).parents == (-1, 0, 1, 1, 0, 4, 0)
    assert cut(tree, 9) == tree
