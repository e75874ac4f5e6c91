"""A race writes the text of plain sampling, whatever drafts, in whatever shape and under whatever law."""

import functools

import pytest

from specdec_kernels import DraftTree
from specdec_kernels.generate import (
    Controller,
    ModelDrafter,
    NgramDrafter,
    ParallelDrafter,
    TextEdits,
    TreeController,
    Watermark,
    early_exit,
    generate,
    load_model,
)
from tests.generate.laws import BATCH, LAWS, NEW, SHAPES, of_prompt, tokens_of

DRAFTERS = {
    "model": lambda pair: ModelDrafter(pair[1]),
    "itself": lambda pair: ModelDrafter(pair[0]),
    "early exit": lambda pair: ModelDrafter(early_exit(pair[0], 4)),
    "n-grams": lambda pair: NgramDrafter(),
    "none": lambda pair: None,
    "letters": lambda pair: ModelDrafter(pair[1], [*range(97, 123), 32, 44, 10]),
    "one pass": lambda pair: ParallelDrafter(load_model("embedded:parallel", dtype="float64")),
}
TREES = {
    "wide": SHAPES["wide"],
    "root alone": DraftTree.chain(0),
    "alternatives": DraftTree.alternatives(5),
    "optimal": DraftTree.optimal((0.5, 0.25, 0.12, 0.06), 12),
    "not by level": DraftTree.from_parents([-1, 0, 1, 2, 1, 0, 5, 2, 0]),
}
LENGTHS = ("model", 1), ("model", 3), ("model", 8), ("itself", 7), ("n-grams", 5), ("none", 5), ("letters", 3)
WAYS = (
    {f"{name}, k = {k}": (name, dict(k=k)) for name, k in (*LENGTHS, ("early exit", 2), ("one pass", 4))}
    | {f"model, {shape}": ("model", dict(tree=tree)) for shape, tree in TREES.items()}
    | {f"{name}, tree": (name, dict(tree=TREES["optimal"])) for name in ("itself", "letters", "one pass")}
    | {f"model, {kind.__name__}": ("model", dict(policy=kind(12))) for kind in (Controller, TreeController)}
)
LAWS = (
    LAWS
    | {f"T = {value}": dict(temperature=value) for value in (0.0, 0.6, 1.0, 1.7)}
    | {f"watermark of {window}": dict(watermark=Watermark([12345, 0, -9], window)) for window in (1, 4)}
)


@pytest.fixture(scope="module")
def plain(pair):
    """Plain generations of BATCH by the name of the law, each prompt on its own."""

    def written(name, index):
        law = {option: of_prompt(x, index) if isinstance(x, tuple) else x for option, x in LAWS[name].items()}
        return generate([BATCH[index]], pair[0], method="plain", seed=3 + index, max_new_tokens=NEW, **law)[0]

    return functools.cache(lambda name: [written(name, index) for index in range(len(BATCH))])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("way", WAYS)
def test_race_equals_plain(pair, plain, way, law):
    name, how = WAYS[way]
    drafter = DRAFTERS[name](pair)
    race = generate(BATCH, pair[0], drafter, seed=3, max_new_tokens=NEW, **how, **LAWS[law])
    assert tokens_of(race) == tokens_of(plain(law))
    assert [text.text for text in race] == [text.text for text in plain(law)]
    assert not any(text.status for text in race)
    calls = {text.target_calls for text in race}
    if name == "itself" and "k" in how:
        assert calls == {-(-NEW // (how["k"] + 1))}
    elif name not in ("none", "n-grams") and way != "model, root alone":
        assert max(calls) < NEW
    if "TreeController" in way:
        assert len({entry.tree.shape for entry in race[0].rounds}) > 1
    if name == "one pass":
        assert len(drafter.reader.passes) <= max(calls)


# Few tokens, so that drafts of a round repeat each other.
REPEATED = dict(edits=TextEdits(1.2, 1.0, 2.0, allowed=[97, 98, 101, 32]))
ACCEPTED = [
    ("race", "all filters", "tree"), ("race", "repeated", "chain"), ("race", "watermark of 1", "chain"),
    ("race", "watermark of 1", "tree"), ("rejection", "all filters", "chain"), ("rejection", "repeated", "tree"),
]  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED, ids="-".join)
def test_a_draft_equal_to_the_target_is_always_accepted(pair, case):
    """The drafter changes its rows itself, and the ops those of the target."""
    method, law, shape = case
    options = dict(k=3) if shape == "chain" else dict(tree=DraftTree.chain(3))
    options |= dict(method=method, max_new_tokens=NEW) | LAWS.get(law, REPEATED)
    assert all(text.acceptance == 1 for text in generate(BATCH, pair[0], ModelDrafter(pair[0]), **options))
