"""Texts have the target's law, whatever drafts and verifies them; known faults are caught by the same checker."""

import functools

import pytest
import torch

from specdec_kernels import Draft, DraftTree
from specdec_kernels.generate import (
    Controller,
    DraftPlan,
    ModelDrafter,
    NgramDrafter,
    PathController,
    RandomLength,
    drafters,
    protocols,
)
from specdec_kernels.generate.edits import before
from tests.generate.laws import FILTERS, SMALL, drawn, edited, filtered, text_law
from tests.support.laws import follows_law

BRANCHES, BEAMS = DraftTree.specinfer((2, 2)), DraftTree.specinfer((3, 1))
SEVEN = DraftTree.specinfer((7,))  # two of the children are absent
SMALL_LAWS = {"filters": dict(sampling=FILTERS), "edits": dict(edits=SMALL)}


@pytest.fixture(scope="module")
def law_of(small_pair):
    """The exact law of all texts, by what changes the rows or by their temperature."""
    target = small_pair[0]
    changes = {"filters": (FILTERS.temperature, filtered), "edits": (1.0, edited)}
    return functools.cache(lambda name: text_law(target, *changes.get(name, (name, None))))


def slow(**options):
    return pytest.param(options, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "options",
    [
        dict(method="race", k=2),
        slow(method="rejection", k=1),
        dict(method="rejection", k=2),
        slow(method="rejection", k=2, temperature=0.6),
        dict(method="rejection", drafter=NgramDrafter()),
        slow(method="rejection", k=1, draft_prob=0.5),
        dict(method="rejection", k=2, draft_prob=0.7, temperature=1.5),
        dict(method="rejection", policy=RandomLength(2, 0.6, "token")),
        slow(method="rejection", policy=RandomLength(2, 0.9, "uniform")),
        slow(method="block", k=2),
        dict(method="block", k=3, temperature=1.5),
        dict(method="block", drafter=NgramDrafter()),
        slow(method="block", policy=Controller(3, block=True)),
        dict(method="rejection", tree=SEVEN),
        dict(method="traversal", tree=BRANCHES),
        dict(method="rejection", tree=BEAMS, replacement=True),
        slow(method="rejection", tree=BRANCHES),
        slow(method="traversal", tree=SEVEN),
        slow(method="traversal", tree=BEAMS, replacement=True),
        dict(method="paths", paths=3, k=2),
        # A draft that writes some tokens alone.
        dict(vocabulary=[4, 1, 2], method="rejection", k=2),
        slow(vocabulary=[4, 1, 2], method="rejection", policy=Controller(3, randomised=True)),
        dict(vocabulary=[4, 1, 2], method="block", policy=Controller(3, block=True)),
        slow(vocabulary=[4, 1, 2], method="rejection", tree=DraftTree.specinfer((2, 1))),
        dict(vocabulary=[4, 1, 2], method="rejection", tree=DraftTree.specinfer((2, 1)), replacement=True),
        # Drafts of one pass, whose laws do not depend on each other.
        slow(drafter="parallel", method="paths", paths=4, k=2, temperature=1.5),
        slow(drafter="parallel", method="paths", policy=PathController(2, (1, 3))),
    ],
    ids=lambda options: " ".join(
        f"{key}={x if isinstance(x, (str, int, float)) else type(x).__name__}" for key, x in options.items()
    ),
)
def test_texts_have_the_target_law(small_pair, small_parallel, law_of, options):
    options = dict(options)
    if "vocabulary" in options:
        options["drafter"] = ModelDrafter(small_pair[1], options.pop("vocabulary"))
    elif options.get("drafter") == "parallel":
        options["drafter"] = small_parallel
    assert follows_law(drawn(small_pair, **options), law_of(options.get("temperature", 1.0)))


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [
        dict(method="race", k=2),
        dict(k=2),
        dict(k=2, draft_prob=0.6),
        dict(drafter=NgramDrafter()),
        dict(tree=DraftTree.specinfer((4, 2))),
        dict(tree=BRANCHES, replacement=True),
        dict(method="block", k=2),
        dict(method="traversal", tree=BRANCHES),
    ],
    ids=["race", "rejection", "randomised", "ngram", "tree", "with replacement", "block", "traversal"],
)
@pytest.mark.parametrize("name", SMALL_LAWS)
def test_texts_have_the_law_of_changed_rows(small_pair, law_of, name, options):
    assert follows_law(drawn(small_pair, **(dict(method="rejection") | SMALL_LAWS[name] | options)), law_of(name))


class Overstated(RandomLength):
    """Drafts with probability 1/4 and declares 3/4."""

    def __init__(self):
        super().__init__(1, 0.25)

    def plan(self, noise, limit):
        count, h = super().plan(noise, limit)
        return DraftPlan(count, torch.where(h == 0.25, 0.75, h))


class Greedy(ModelDrafter):
    """Drafts the likeliest token but hands out the law of a sampled one."""

    def propose(self, text, length, count, slots, noise, sampling, record=None):
        return super().propose(text, length, count, slots, noise, greedy(sampling), record)


class Unedited(ModelDrafter):
    """Draws from the rows as they were, and hands out edited ones."""

    def propose(self, text, length, counts, slots, noise, sampling, record=None):
        drafts = super().propose(text, length, counts, slots, noise, sampling)
        return drafts._replace(logits=record.edited(drafts.logits, before(drafts.tokens)) if slots else None)


def greedy(sampling):
    return sampling._replace(temperature=torch.zeros_like(sampling.temperature))


def greedy_children(logits, width, noise, sampling, map, draw=drafters.draw_children):
    return draw(logits, width, noise, greedy(sampling), map)


def one_chain(logits, width, *how, draw=drafters.draw_independent):
    return draw(logits[:, :1], 1, *how).expand(-1, logits.shape[1], width)


UNFILTERED = protocols, "Draft", lambda rows, sampling, map: Draft(rows, map=map)
FAULTS = {  # what changes the rows, options, what is replaced
    "overstated drafting probability": (1.0, dict(policy=Overstated()), None),
    "a draft not sampled from its law": (1.0, dict(drafter=Greedy, k=1), None),
    "children not sampled from their law": (1.0, dict(tree=BRANCHES), (drafters, "draw_children", greedy_children)),
    "chains that share their noise": (
        1.0, dict(method="paths", paths=3, k=2), (drafters, "draw_independent", one_chain)
    ),
    "filtered drafts read as unfiltered": ("filters", dict(k=2), UNFILTERED),
    "filtered children read as unfiltered": ("filters", dict(tree=BRANCHES), UNFILTERED),
    "drafts of unedited rows": ("edits", dict(drafter=Unedited, k=2), None),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(small_pair, law_of, monkeypatch, fault):
    name, options, replaced = FAULTS[fault]
    options = dict(method="rejection") | SMALL_LAWS.get(name, {}) | options
    if "drafter" in options:
        options["drafter"] = options["drafter"](small_pair[1])
    if replaced:
        monkeypatch.setattr(*replaced)
    assert not follows_law(drawn(small_pair, **options), law_of(name))
