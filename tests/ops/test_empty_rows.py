"""Target rows in which no token has weight: they end the chain or branch, and the tokens before them keep their law.

Grammars write such rows behind a stop token. One rule holds for all methods: what is drafted at or behind such a row
counts as absent. So a call is compared with the same call whose drafts are -1 there, bit for bit.
"""

import random
from itertools import product

import pytest
import torch

from specdec_kernels import LogitEdits, Sampling, Status
from specdec_kernels.conformance import Contexts
from tests.support import enumeration, path_enumeration, traversal_enumeration
from tests.support.cases import chain_call
from tests.support.enumeration import PROBS, Given, emitted_law
from tests.support.ops import verify_chain, verify_tree
from tests.support.trees import leaves_of, shapes, tree_call

STOP = 2
METHODS = "rejection", "race", "block", "traversal", "paths"


def stopped(vocabulary, depth, seed, stop=STOP):
    """Contexts whose target allows nothing behind a stop token."""
    contexts = Contexts(vocabulary, depth, seed)
    for said in contexts.p:
        if stop in said:
            contexts.p[said] = torch.zeros(vocabulary, dtype=torch.float64)
    return contexts


def distance(contexts, law, length):
    """The total variation between texts and the target's, both up to the first row without weight."""
    found, expected = {}, {}
    for emitted, chance in law.items():
        for rest in product(range(contexts.vocabulary), repeat=max(0, length - len(emitted))):
            text, whole = emitted[:length] + rest, chance
            for i in range(len(text)):
                row = contexts.p[text[:i]]
                if not row.any():
                    text, whole = text[:i], whole / contexts.vocabulary ** max(0, length - max(i, len(emitted)))
                    break
                whole *= float(row[text[i]]) if i >= len(emitted) else 1.0
            found[text] = found.get(text, 0.0) + whole
    for text in product(range(contexts.vocabulary), repeat=length):
        end = next((i for i in range(length) if not contexts.p[text[:i]].any()), length)
        expected[text[:end]] = contexts.chance(contexts.p, text[:end])
    keys = {*found, *expected}
    return sum(abs(found.get(x, 0.0) - expected.get(x, 0.0)) for x in keys) / 2


@pytest.mark.one_backend
class TestExactly:
    """Every draft, uniform and draw of the oracle, enumerated."""

    def test_the_distance_sees_what_is_lost(self):
        contexts = stopped(3, 2, seed=0)
        assert distance(contexts, {(0,): 1.0}, 2) > 0.1

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("slots, draft_prob", [(1, 1.0), (2, 1.0), (3, 1.0), (2, 0.75)])
    def test_rejection(self, slots, draft_prob, seed):
        contexts = stopped(3, slots, seed)
        lengths = [0.0] * slots + [1.0]
        if draft_prob < 1:
            lengths = [0.25, 0.1875, 0.5625]
        law = enumeration.output_law(contexts, lengths, draft_prob)
        assert distance(contexts, law, slots + 1) < 1e-7

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("certain", [False, True], ids=["laws", "one-hot"])
    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_block(self, slots, certain, seed):
        contexts = stopped(3, slots, seed)
        chain, every = tuple(range(-1, slots)), [None]
        if certain:  # each chain of drafts keeps the law
            every = [[((-1, *drafts), 1.0)] for drafts in product(range(3), repeat=slots)]
        for drafted in every:
            law = traversal_enumeration.output_law(contexts, chain, op="verify_chain", certain=certain, drafted=drafted)
            assert distance(contexts, emitted_law(law), slots + 1) < 1e-11

    @pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])
    @pytest.mark.parametrize("method", ["rejection", "traversal"])
    def test_trees(self, method, replacement):
        run = {"rejection": enumeration.tree_law, "traversal": traversal_enumeration.output_law}[method]
        for nodes in range(2, 5):
            for parents in shapes(nodes):
                contexts = stopped(3, nodes, seed=nodes)
                law = emitted_law(run(contexts, parents, drawn_with_replacement=replacement))
                assert distance(contexts, law, 2) < 1e-11, parents

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("chains, length", [(2, 1), (2, 2), (3, 2)])
    def test_paths(self, chains, length, seed):
        contexts = stopped(3, length, seed)
        law = path_enumeration.oracle_law(contexts, chains, length)
        assert law == pytest.approx(path_enumeration.path_law(contexts, chains, length), abs=1e-9)
        assert distance(contexts, law, length + 1) < 1e-9

    def test_of_logits(self):
        contexts = stopped(3, 2, seed=5)
        given = Given(PROBS._replace(space="logits"), PROBS._replace(space="logits"))
        law = traversal_enumeration.output_law(contexts, (-1, 0, 1), op="verify_chain", given=given)
        assert distance(contexts, emitted_law(law), 3) < 1e-4


# ---- every backend ---------------------------------------------------------------------------------------------------


def emptied(number, method, *, most=3000):
    """(op, a random call with rows that have no weight, the same call whose drafts are absent there)."""
    r, generator = random.Random(number), torch.Generator().manual_seed(number)
    tree = method in ("traversal", "paths") or (method != "block" and r.random() < 0.5)
    vocabulary = min(most, r.choice([r.randint(2, 9), r.randint(10, 140), 257, 1000, 2049]))
    requests, space = r.randint(1, 4), r.choice(["logits", "logits", "probs"])
    if tree:
        nodes = r.randint(2, 9)
        call = tree_call(number, requests, nodes, vocabulary, space=space,
                         replacement=method == "rejection" and r.random() < 0.3)  # fmt: skip
        parents = call["parents"]
    else:
        nodes = r.randint(2, 7)
        call = chain_call(number, requests, nodes - 1, vocabulary, space=space)
        parents = torch.arange(-1, nodes - 1).expand(requests, nodes)
    call["method"] = method
    if method == "paths":
        call["leaves"] = leaves_of(parents)
    if r.random() < 0.4:  # drafts that are likely, so that rows behind them are reached
        call["draft"].copy_(call["target"][:, : call["draft"].shape[1]])
    if space == "logits" and r.random() < 0.4:
        call.pop("temperature")
        call["sampling"] = Sampling(r.choice([1.0, 0.0, 0.7]), r.choice([0, 1, 5]), r.choice([1.0, 0.9, 0.3]))
    if space == "probs":
        call["temperature"] = call["temperature"].clamp(max=1.0).round()
    if method == "race" or (method != "paths" and r.random() < 0.3):
        call["draft"] = None
    elif method == "rejection" and not tree and r.random() < 0.4:
        call[r.choice(["draft_prob", "epsilon"])] = r.choice([0.3, 1.0])
    empty = torch.rand(requests, nodes, generator=generator) < 0.4
    ways = ["mask", "NaN", "-inf"] if space == "logits" else ["NaN", "zero"]
    if (way := r.choice(ways)) == "mask":
        allowed = torch.randint(-(2**31), 2**31, (requests, nodes, -(-vocabulary // 32)), generator=generator)
        call["edits"] = LogitEdits(allowed=torch.where(empty.unsqueeze(-1), 0, allowed | 3).int())
    call["target"][empty] = {"mask": call["target"][empty], "NaN": torch.nan, "-inf": -torch.inf, "zero": 0.0}[way]
    drafts = call["draft_tokens"].clone()
    if tree:
        below = empty.gather(1, parents.clamp(min=0)) & (parents >= 0)
        drafts[below] = -1
    else:
        drafts[empty.cummax(1).values[:, :-1]] = -1
    return verify_tree if tree else verify_chain, call, call | {"draft_tokens": drafts}


def assert_rows_end(numbers, method, **options):
    seen = 0
    for number in numbers:
        op, call, absent = emptied(number, method, **options)
        found, expected = op(**call), op(**absent)
        for name, one, other in zip(found._fields, found, expected, strict=True):
            assert torch.equal(one, other), (number, op.__name__, name, one, other)
        assert bool(((found.tokens >= -1) & (found.tokens < call["target"].shape[-1])).all())
        seen += int((expected.status & Status.NON_FINITE).ne(0).sum())
    assert seen


@pytest.mark.interpreted
@pytest.mark.parametrize("method", METHODS)
def test_drafts_at_such_a_row_count_as_absent(backend, method):
    if backend != "triton":
        assert_rows_end(range(12 if backend == "cuda-host" else 60), method)
        return
    for each in METHODS:  # the quick set has one test of those that are interpreted
        assert_rows_end(range(7), each, most=140)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_many(backend, method):
    assert_rows_end(range(1000, 3000 if backend == "cpu" else 1200), method)


def test_the_status_tells_of_the_row_that_was_asked_for_a_token(backend):
    """Of the row behind the stop token, if that was accepted; not of rows that the text never came to."""
    target = torch.tensor([0.0, 0.0, 50.0]).repeat(2, 3, 1)
    target[1, 0] = torch.tensor([50.0, 0.0, 0.0])
    target[:, 1:] = -torch.inf
    drafts, draft = torch.tensor([[STOP, 0], [STOP, 0]]), torch.zeros(2, 2, 3)
    for method in ("rejection", "race", "block"):
        for law in (draft, None) if method != "race" else (None,):
            found = verify_chain(drafts, target, law, method=method, seed=torch.arange(2), position=0)
            assert found.num_accepted.tolist() == [1, 0], method
            assert found.status.tolist() == [Status.NON_FINITE, 0], method
    tree = {"draft_tokens": torch.tensor([[-1, STOP, 0, 0]]), "parents": torch.tensor([-1, 0, 1, 0])}
    rows = torch.cat([target, target[:, 2:]], 1)
    rows[1, 3] = 0.0
    for method in ("rejection", "race", "traversal"):
        law = None if method == "race" else torch.zeros(2, 4, 3)
        both = {**tree, "draft_tokens": tree["draft_tokens"].repeat(2, 1)}
        found = verify_tree(target=rows, draft=law, method=method, seed=torch.arange(2), position=0, **both)
        assert found.num_accepted.tolist() == [1, 1], method
        assert found.status.tolist() == [Status.NON_FINITE, 0], method


@pytest.mark.interpreted
def test_a_draft_that_counts_as_absent_sets_no_bit(backend):
    """A row of probabilities without weight is found by the draw alone, once the draft there is refused."""
    target, draft = torch.zeros(2, 2, 3), torch.full((2, 1, 3), 1 / 3)
    target[:, 1] = 1 / 3
    for law in (draft, None):
        found = verify_chain(
            torch.tensor([[7], [1]]), target, law, method="rejection", space="probs", seed=torch.arange(2), position=0
        )
        assert found.num_accepted.tolist() == [0, 0]
        assert found.tokens[:, 0].tolist() == [0, 0]
        assert found.status.tolist() == [Status.NON_FINITE] * 2
