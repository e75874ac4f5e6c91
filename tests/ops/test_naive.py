"""The oracle decides as the rules on one page do, and those keep the target's law exactly."""

import numpy as np
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels._constants import LEAF_UNIFORMS
from specdec_kernels.backends.reference import naive, noise
from specdec_kernels.calls.values import Noise
from specdec_kernels.conformance import Contexts
from tests.support.enumeration import Scaled, Uniform, drafts, emitted_law, page_law
from tests.support.trees import depths, random_parents

pytestmark = pytest.mark.one_backend
REQUESTS, NODES = 625, 6  # of each rule and vocabulary: 10,000 cases
RULES = ("race", "rejection", "replacement", "block")


def random_rows(generator, *shape):
    """Rows of probabilities, flat and sharp, with zeros, and some without any weight."""
    spread = 1 + 3 * torch.rand(*shape[:-1], 1, generator=generator)
    rows = (torch.randn(*shape, generator=generator) * spread).softmax(-1)
    rows = rows * (torch.rand(*shape, generator=generator) > 0.2)
    return rows * (torch.rand(*shape[:-1], 1, generator=generator) > 0.03)


def noise_of(parents, vocabulary, rule):
    """(u [B, N], arrivals [B, depths, V]): the noise of calls whose requests have seeds 0, 1, … and position 0."""
    everyone = torch.arange(len(parents))
    counters = Noise(everyone, everyone * 0, everyone * 0)
    depth = torch.tensor([depths(row) for row in parents.tolist()])
    first, stream = LEAF_UNIFORMS if rule == "block" else 0, noise.RACE if rule == "race" else noise.RESIDUAL
    u = torch.zeros(parents.shape, dtype=torch.float64)
    for node in range(1, NODES):
        step = (depth[:, node] - 1).clamp(min=0)
        u[:, node] = noise.uniforms(noise.at(counters, everyone, step), noise.UNIFORM, first + node - 1)
    arrivals = [noise.arrivals(noise.at(counters, everyone, step), stream, vocabulary) for step in range(NODES)]
    return u, torch.stack(arrivals, dim=1), depth


def decide(rule, p, q, tokens, parents, u, draw):
    if rule == "race":
        return naive.race(p, tokens, parents, draw)
    if rule == "block":
        return naive.block(p, q, tokens, u, draw)
    return naive.rejection(p, q, tokens, parents, u, draw, replacement=rule == "replacement")


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("vocabulary", [2, 3, 5, 8])
@pytest.mark.parametrize("rule", RULES)
def test_the_oracle_decides_as_the_page_says(rule, vocabulary, certain):
    generator = torch.Generator().manual_seed(RULES.index(rule) * 10 + vocabulary)
    chain = torch.arange(NODES) - 1
    parents = random_parents(REQUESTS, NODES, generator, absent=0.05)
    if rule == "block":
        parents = chain.expand(REQUESTS, -1)
    target, draft = (random_rows(generator, REQUESTS, NODES, vocabulary) for _ in range(2))
    tokens = torch.randint(vocabulary, (REQUESTS, NODES), generator=generator)
    tokens[torch.rand(REQUESTS, NODES, generator=generator) < 0.05] = -1
    seed = torch.arange(REQUESTS)
    laws = None if certain or rule == "race" else draft
    with specdec.backend("reference"):
        if rule == "block":
            laws = None if laws is None else laws[:, :-1]
            verdict = specdec.verify_chain(
                tokens[:, 1:], target, laws, method="block", space="probs", seed=seed, position=0
            )  # fmt: skip
            path = torch.where(verdict.tokens >= 0, torch.arange(NODES), -1)
        else:
            verdict = specdec.verify_tree(
                tokens, target, laws, parents=parents, method="race" if rule == "race" else "rejection", space="probs",
                seed=seed, position=0, replacement=rule == "replacement",
            )  # fmt: skip
            path = verdict.path
    accepted, (u, arrivals, depth) = 0, noise_of(parents, vocabulary, rule)
    for b in range(REQUESTS):

        def draw(weights, node, b=b):
            return int((np.log(weights) - np.log(arrivals[b, depth[b, node]].numpy())).argmax())

        p, q = target[b].double().numpy(), draft[b].double().numpy()
        q = None if certain or rule == "race" else q
        with np.errstate(divide="ignore"):
            nodes, token = decide(rule, p, q, tokens[b].tolist(), parents[b].tolist(), u[b].tolist(), draw)
        assert [node for node in path[b].tolist() if node >= 0] == nodes, b
        emitted = [int(tokens[b, node]) for node in nodes[1:]]
        assert verdict.tokens[b, : len(nodes)].tolist()[:-1] == emitted
        if p[nodes[-1]].any():  # of a row without weight any token may come
            assert int(verdict.tokens[b, len(nodes) - 1]) == token, b
        accepted += len(nodes) - 1
    assert accepted > REQUESTS / 20


TREES = [(-1, 0), (-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 1), (-1, 0, 1, 0)]
SHAPES = [("block", chain) for chain in TREES[:2]] + [(rule, x) for rule in ("rejection", "replacement") for x in TREES]


def distance(rule, parents, vocabulary):
    """Of a rule's law, over every draft that could be drawn, every uniform and every token, from the target's."""
    depth = max(depths(parents))
    contexts = Contexts(vocabulary, depth)

    def decides(p, q, tokens, u, draw):
        return decide(rule, p, q, tokens, parents, u, draw)

    law = page_law(contexts, parents, drafts(contexts, parents, rule == "replacement"), decides)
    return contexts.distance(emitted_law(law), depth + 1)


@pytest.mark.parametrize("vocabulary", [2, 3])
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_the_page_keeps_the_targets_law(case, vocabulary):
    assert distance(*case, vocabulary) < 1e-12


def test_a_wrong_rule_is_seen(monkeypatch):
    """A residual of q - p, and a uniform that is compared with p alone."""
    assert distance("rejection", (-1, 0), 3) < 1e-12
    with monkeypatch.context() as patch:
        patch.setattr(naive, "norm", lambda weights: np.ones_like(weights) / len(weights))
        assert distance("rejection", (-1, 0), 3) > 1e-2
    monkeypatch.setattr(Uniform, "__mul__", lambda self, q: Scaled(self, 1.0))
    assert distance("rejection", (-1, 0), 3) > 1e-2


def test_every_race_emits_the_targets_winner():
    p = [np.array([0.2, 0.5, 0.3]), np.array([0.1, 0.1, 0.8])]
    assert naive.race(p, [-1, 2], [-1, 0], lambda row, node: 2 if node == 0 else 1) == ([0, 1], 1)
    assert naive.race(p, [-1, 2], [-1, 0], lambda row, node: 0) == ([0], 0)
