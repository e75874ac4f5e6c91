"""Models that give no law: said with what came, of which model and where, and no token of it."""

import re

import pytest
import torch

from specdec_kernels import DraftTree
from specdec_kernels.generate import ModelDrafter, generate, stream
from tests.generate.small import llama

V = 50
TREE = DraftTree.specinfer((2, 1))
METHODS = [
    dict(method="plain"),
    dict(method="race"),
    dict(method="rejection"),
    dict(method="race", tree=TREE),
    dict(method="rejection", tree=TREE),
]
every_method = pytest.mark.parametrize(
    "method", METHODS, ids=["plain", "race", "rejection", "race of trees", "rejection of trees"]
)


def spoilt(seed, number, token=None):
    """A model whose logits hold `number`: all of them or, with `token`, those at and after that token."""
    model = llama(V, seed=seed, spread=0.25)
    with torch.no_grad():
        weight = model.model.lm_head.weight if token is None else model.model.get_input_embeddings().weight
        weight[slice(None) if token is None else token] = number
    return model


def drafter_of(method):
    return None if method["method"] == "plain" else ModelDrafter(llama(V, seed=2, spread=0.25))


@every_method
@pytest.mark.parametrize("number, shown", [(float("nan"), "nan"), (float("inf"), "(nan|inf)")])
def test_a_target_without_a_law_is_named(method, number, shown):
    said = rf"^llama-1: expected finite logits; got {shown} after 3 tokens of prompts\[0\]$"
    with pytest.raises(FloatingPointError, match=said):
        generate([[1, 4, 2], [1]], spoilt(1, number), drafter_of(method), max_new_tokens=4, **method)


@every_method
def test_what_was_written_before_is_there(method):
    """A token that spoils all logits after it, in the middle of a text."""
    options = dict(seed=2, max_new_tokens=40, **method)
    (good,) = generate([[1, 4]], llama(V, seed=1, spread=0.25), drafter_of(method), **options)
    place = max(good.tokens.index(token) for token in set(good.tokens[:20]))
    written = []

    def write(model):
        for entry in stream([[1, 4]], model, drafter_of(method), **options):
            written.extend(entry.tokens)

    said = r"^llama-1: expected finite logits; got nan after (\d+) tokens of prompts\[0\]$"
    with pytest.raises(FloatingPointError, match=said) as error:
        write(spoilt(1, float("nan"), good.tokens[place]))
    assert written == good.tokens[: len(written)]
    # It is met where it stands, or in drafts of the round that meets it: what is masked has weight 0, and 0 NaN is NaN.
    after = int(re.match(said, str(error.value))[1])
    assert 8 < len(written) <= after - 2 <= place + 1
    assert method["method"] != "plain" or after - 2 == place + 1


@every_method
def test_the_text_that_is_without_a_law_is_named(method):
    """Its neighbours are well."""
    prompts = [[1, 4, 2], [V - 1], [3]]
    said = r"^llama-1: expected finite logits; got nan after 1 tokens of prompts\[1\]$"
    with pytest.raises(FloatingPointError, match=said):
        generate(prompts, spoilt(1, float("nan"), V - 1), drafter_of(method), max_new_tokens=4, **method)


def test_a_draft_without_a_law_is_named_where_its_law_is_used():
    target, drafter = llama(V, seed=1), ModelDrafter(spoilt(2, float("nan")))
    said = r"^llama-2: expected finite logits; got nan after 2 tokens of prompts\[0\]$"
    with pytest.raises(FloatingPointError, match=said):
        generate([[1, 4]], target, drafter, method="rejection", max_new_tokens=4)
    texts = [generate([[1, 4]], target, each, seed=3, max_new_tokens=9)[0].tokens for each in (None, drafter)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("shape", [dict(k=2), dict(tree=[-1, 0, 1], replacement=True)], ids=["chain", "tree"])
def test_a_draft_is_named_with_the_place_where_it_has_no_law(shape):
    """Behind its first draft, which is read then: by and large the likeliest token at this temperature."""
    target = llama(V, seed=2, spread=0.25)
    likely = int(target.model(torch.tensor([[1, 4]])).logits[0, -1].argmax())
    options = dict(method="rejection", temperature=1e-3, max_new_tokens=4, **shape)
    said = r"^llama-2: expected finite logits; got nan after 3 tokens of prompts\[0\]$"
    with pytest.raises(FloatingPointError, match=said):
        generate([[1, 4]], target, ModelDrafter(spoilt(2, float("nan"), likely)), **options)


def test_tokens_a_model_rules_out_are_no_failure():
    model = llama(V, seed=1)
    forward = model.model.forward

    def without_small_ids(*arguments, **named):
        found = forward(*arguments, **named)
        found.logits[..., : V // 2] = -torch.inf
        return found

    model.model.forward = without_small_ids
    for method in METHODS:
        (text,) = generate([[1, 4]], model, drafter_of(method), max_new_tokens=20, **method)
        assert min(text.tokens) >= V // 2
