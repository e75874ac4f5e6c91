"""The theory against the kernels: what the ops do on the CPU, seeded; a check raises a false alarm once in 1e6."""

import numpy as np
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import theory
from specdec_kernels.studies.plan import accepted_of_chains
from specdec_kernels.theory.trees import optimal_nodes
from tests.support.laws import assert_law, assert_rate, has_rate
from tests.theory.enumeration import P, Q, random_laws

DRAWS = 100_000
PAIRS = [(P, Q), random_laws(np.random.default_rng(2), 16, zeros=3)]


def rows(law, *shape):
    """The law as float32 rows [*shape, V], stored once."""
    return torch.tensor(law, dtype=torch.float32).expand(*shape, -1)


def seeds():
    return torch.arange(DRAWS)


def drafts(law, k, nonce=0):
    """Tokens [DRAWS, k] as a draft model draws them."""
    position = torch.arange(k).expand(DRAWS, k)
    return specdec.race_sample(
        rows(law, DRAWS, k), seed=seeds()[:, None].expand(DRAWS, k), position=position, nonce=nonce, space="probs"
    )


def verified(p, q, k, tokens=None, **options):
    """The verdict on k drafts of law q at every position."""
    tokens = drafts(q, k) if tokens is None else tokens
    if options.get("method") != "race":
        options["draft"] = rows(q, DRAWS, k)
    return specdec.verify_chain(tokens, rows(p, DRAWS, k + 1), seed=seeds(), position=0, space="probs", **options)


@pytest.mark.parametrize("p, q", PAIRS)
def test_acceptance_and_expected_tokens(p, q):
    verdict = verified(p, q, 3)
    alpha = theory.acceptance(p, q)
    for slot in range(3):
        reached = verdict.num_accepted >= slot
        assert_rate((verdict.num_accepted > slot)[reached], alpha)
    mean = 1 + verdict.num_accepted.double().mean().item()
    spread = 5 * verdict.num_accepted.double().std().item() / DRAWS**0.5  # 5 deviations: 6e-7
    assert abs(mean - theory.expected_tokens(alpha, 3)) < spread
    assert not has_rate(verdict.num_accepted > 0, theory.race_acceptance(p, q))  # the checker can tell them apart


@pytest.mark.parametrize("p, q", PAIRS)
def test_race_acceptance_and_rank_law(p, q):
    winner = specdec.race_sample(rows(p, DRAWS), seed=seeds(), position=0, space="probs")
    assert_rate(verified(p, q, 1, method="race").num_accepted > 0, theory.race_acceptance(p, q))
    arrivals = specdec.race_topk(rows(q, DRAWS), len(p), seed=seeds(), position=0, space="probs")
    found = arrivals == winner[:, None]
    law = theory.race_rank_law(p, q)
    rank = torch.where(found.any(1), found.int().argmax(1), len(p))  # len(p): a token the draft never gives
    assert_law(rank, np.append(law, max(0.0, 1 - law.sum())))


@pytest.mark.parametrize("nodes", [4, 8, 12])
def test_expected_tokens_of_the_best_tree(nodes):
    """A race tree drafted as the first arrivals of every node: the rank law is its acceptance by child index."""
    best = optimal_nodes(theory.race_rank_law(P, Q), nodes)
    parents = torch.tensor(best.parents)
    depth, rank = torch.zeros(nodes + 1, dtype=torch.int64), torch.zeros(nodes + 1, dtype=torch.int64)
    for node in range(1, nodes + 1):
        depth[node], rank[node] = depth[parents[node]] + 1, (parents[:node] == parents[node]).sum()
    levels = int(depth.max())
    clock = dict(seed=seeds()[:, None].expand(DRAWS, levels), position=torch.arange(levels).expand(DRAWS, levels))
    arrivals = specdec.race_topk(rows(Q, DRAWS, levels), best.children, **clock, space="probs")
    tokens = torch.full((DRAWS, nodes + 1), -1)
    tokens[:, 1:] = arrivals[:, depth[1:] - 1, rank[1:]]
    verdict = specdec.verify_tree(
        tokens, rows(P, DRAWS, nodes + 1), parents=parents, method="race", seed=seeds(), position=0, space="probs"
    )
    emitted = 1 + verdict.num_accepted.double()
    assert abs(emitted.mean().item() - (1 + best.values.sum())) < 5 * emitted.std().item() / DRAWS**0.5


def test_expected_tokens_of_paths():
    accepted = accepted_of_chains(rows(P, DRAWS, 3), rows(Q, DRAWS, 3), n=3)
    assert abs(accepted.mean() - theory.paths_expected_accepted(P, Q, 3, 3)) < 5 * accepted.std() / DRAWS**0.5
