"""What `generate` is given: taken in every form that means the same, refused by name before the first token."""

import numpy as np
import pytest
import torch

from specdec_kernels import DraftTree, Sampling
from specdec_kernels.generate import (
    Controller,
    FixedLength,
    FixedTree,
    LanguageModel,
    ModelDrafter,
    NgramDrafter,
    RandomLength,
    TreeController,
    generate,
    load_model,
    stream,
)
from tests.generate.small import llama

PROMPT, CHAIN = [1, 4], DraftTree.chain(2)


@pytest.fixture(scope="module")
def target():
    return llama(seed=1, spread=0.25)


@pytest.fixture(scope="module")
def embedded():
    return load_model("embedded:draft")


def written(target, prompts=(PROMPT,), **options):
    return [text.tokens for text in generate(list(prompts), target, **(dict(max_new_tokens=8) | options))]


def test_numbers_of_numpy_and_torch_are_numbers(target):
    drafter = ModelDrafter(target)
    expected = written(target, drafter=drafter, seed=3, k=2, temperature=0.5)
    for number in (np.int64, np.uint8, torch.tensor):
        options = dict(seed=number(3), k=number(2), max_new_tokens=number(8), temperature=np.float32(0.5))
        assert written(target, drafter=drafter, **options) == expected
    assert written(target, drafter=drafter, seed=np.array([3]), k=2, temperature=torch.tensor([0.5])) == expected
    assert written(target, [np.array(PROMPT)], drafter=drafter, seed=3, k=2, temperature=0.5) == expected
    assert written(target, [torch.tensor(PROMPT)], drafter=drafter, seed=3, k=2, temperature=0.5) == expected
    assert FixedLength(np.int64(3)).max_k == 3
    assert Controller(np.int64(3)).max_k == TreeController(np.int64(3)).max_k == 3


def test_a_sampling_takes_numbers_of_one_prompt_and_of_each(target):
    prompts, drafter = [PROMPT, PROMPT[:1]], ModelDrafter(target)
    one = Sampling(0.5, top_k=3, top_p=0.9, min_p=0.1)
    expected = written(target, prompts, drafter=drafter, sampling=one)
    each = Sampling(np.float32(0.5), torch.tensor([3, 3]), [0.9, 0.9], np.array([0.1, 0.1]))
    assert written(target, prompts, drafter=drafter, sampling=each) == expected
    assert expected != written(target, prompts, drafter=drafter, temperature=0.5)
    off = Sampling(0.5, top_k=[-1, 2**70], top_p=1, min_p=[0, 0.0])
    assert written(target, prompts, drafter=drafter, sampling=off) == written(target, prompts, temperature=0.5)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(seed=1.5), "seed: expected a whole number or one per prompt; got 1.5"),
        (dict(seed="1"), "seed: expected a whole number or one per prompt; got '1'"),
        (dict(seed=[1.5]), "seed: expected a whole number or one per prompt; got [1.5]"),
        (dict(k="auto"), "k: expected a whole number; got 'auto'"),
        (dict(k=2.0), "k: expected a whole number; got 2.0"),
        (dict(k=True), "k: expected a whole number; got True"),
        (dict(max_new_tokens=8.0), "max_new_tokens: expected a whole number; got 8.0"),
        (dict(temperature="hot"), "temperature: expected a number or one per prompt; got 'hot'"),
        (dict(temperature=["hot"]), "temperature: expected a number or one per prompt; got ['hot']"),
        (dict(sampling=0.5), "sampling: expected a Sampling; got 0.5"),
        (dict(sampling=Sampling("hot")), "sampling.temperature: expected a number or one per prompt; got 'hot'"),
        (dict(sampling=Sampling(top_k=2.5)), "sampling.top_k: expected a whole number or one per prompt; got 2.5"),
        (dict(sampling=Sampling(top_p="0.9")), "sampling.top_p: expected a number or one per prompt; got '0.9'"),
        (dict(sampling=Sampling(at_temperature=1)), "sampling.at_temperature: expected a bool; got 1"),
        (dict(logprobs="2"), "logprobs: expected a whole number; got '2'"),
        (dict(draft_prob="0.5"), "draft_prob: expected a number; got '0.5'"),
        (dict(eos_token_ids=5), "eos_token_ids: expected a list of token ids; got 5"),
        (dict(eos_token_ids="5"), "eos_token_ids: expected a list of token ids; got '5'"),
        (dict(eos_token_ids=[5.0]), "eos_token_ids: expected a list of token ids; got [5.0]"),
        (dict(stop="abc"), "stop: expected a list of strings; got 'abc'"),
        (dict(stop=[b"abc"]), "stop: expected a list of strings; got [b'abc']"),
        (dict(prompts="hello"), "prompts: expected a list of texts or of lists of token ids; got 'hello'"),
        (dict(prompts=5), "prompts: expected a list of texts or of lists of token ids; got 5"),
        (dict(prompts=PROMPT), "prompts[0]: expected a text or a list of token ids; got 1"),
        (dict(prompts=[PROMPT, [1.5]]), "prompts[1]: expected a text or a list of token ids; got [1.5]"),
        (dict(drafter=5), "drafter: expected a Drafter or None; got int"),
        (dict(policy=5), "policy: expected a ChainPolicy or a TreePolicy; got int"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_other_types_are_named(target, options, message):
    with pytest.raises(TypeError) as error:
        generate(**(dict(prompts=[PROMPT], target=target, max_new_tokens=4) | options))
    assert str(error.value) == message


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(k=-1), "k: expected at least 0; got -1"),
        (dict(max_new_tokens=0), "max_new_tokens: expected at least 1; got 0"),
        (dict(prompts=[PROMPT, []]), "prompts[1]: expected at least one token; got none"),
        (dict(prompts=[[1, 5]]), "prompts[0]: expected token ids from 0 to 4, which llama-1 reads; got 5"),
        (dict(prompts=[[-1]]), "prompts[0]: expected token ids from 0 to 4, which llama-1 reads; got -1"),
        (dict(prompts=["ab"]), "prompts[0]: expected token ids for llama-1, which has no tokenizer; got a text"),
        (dict(prompts=[PROMPT, [1] * 160]), "prompts[1]: expected at most 159 tokens (llama-1 ends at 160); got 160"),
        (dict(prompts=[[1] * 300]), "prompts[0]: expected at most 159 tokens (llama-1 ends at 160); got 300"),
        (
            dict(temperature=0.5, sampling=Sampling()),
            "temperature: expected None beside sampling=, which has one; got 0.5",
        ),
        (dict(sampling=Sampling(-1.0)), "sampling.temperature: expected finite numbers >= 0; got -1.0"),
        (
            dict(sampling=Sampling(divided=True)),
            "sampling.divided: expected False, for models give logits as they are; got True",
        ),
        (dict(sampling=Sampling(top_p=1.5)), "sampling.top_p: expected numbers from 0 to 1; got 1.5"),
        (dict(sampling=Sampling(min_p=[float("nan")])), "sampling.min_p: expected numbers from 0 to 1; got [nan]"),
        (
            dict(sampling=Sampling(top_k=[1, 2])),
            "sampling.top_k: expected a whole number or one per prompt (1); got 2",
        ),
        (dict(sampling=Sampling(ties="none")), "sampling.ties: expected one of 'first', 'all'; got 'none'"),
        (dict(logprobs=-1), "logprobs: expected at least 0; got -1"),
        (dict(logprobs=6), "logprobs: expected at most 5, the vocabulary of llama-1; got 6"),
        (dict(stop=["a"]), "stop: expected none with llama-1, which has no tokenizer; got ['a']"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_values_out_of_range_are_named(target, options, message):
    with pytest.raises(ValueError) as error:
        generate(**(dict(prompts=[PROMPT], target=target, max_new_tokens=4) | options))
    assert str(error.value) == message


# Drafter, options, error.
METHODS_AND_SHAPES = [
    ("model", dict(method="gumbel"), "method: expected one of plain, rejection, race, .*, paths; got 'gumbel'"),
    ("model", dict(method="block", draft_prob=0.5), "draft_prob: expected method rejection and a model as drafter"),
    ("model", dict(method="plain"), "drafter: expected None with method plain"),
    ("model", dict(method="race", draft_prob=0.5), "draft_prob: expected method rejection and a model as drafter"),
    ("model", dict(max_new_tokens=159),
     "max_new_tokens: expected at most 158 after a prompt of 2 tokens .llama-1 ends at 160.*159"),
    ("model", dict(temperature=-1), "temperature: expected finite numbers >= 0; got -1"),
    ("model", dict(temperature=[1.0, 1.0]), r"temperature: expected a number or one per prompt \(1\); got 2"),
    ("model", dict(seed=[1, 2]), r"seed: expected a number or one per prompt \(1\); got 2"),
    (None, dict(method="plain", tree=CHAIN), "tree: expected method rejection, race or traversal; got plain"),
    ("model", dict(method="block", tree=CHAIN), "tree: expected method rejection, race or traversal; got block"),
    ("model", dict(method="traversal"), "tree: expected one with method traversal .*; got None"),
    (None, dict(tree=CHAIN), "tree: expected a model as drafter"),
    ("ngram", dict(tree=CHAIN), "tree: expected a model as drafter"),
    ("model", dict(draft_prob=0.5, method="rejection", tree=CHAIN), "draft_prob: expected 1 with a tree; got 0.5"),
    ("model", dict(replacement=True, tree=CHAIN), "replacement: expected method rejection or traversal; got race"),
    ("model", dict(replacement=True, method="rejection"), "replacement: expected False without a tree"),
    ("model", dict(policy=RandomLength(2, 0.5), method="rejection", tree=CHAIN), "policy: expected None with a tree"),
    ("model", dict(tree=[-1, 2, 0]), r"parents\[1\]: expected a node before it, 0 to 0; got 2"),
    ("model", dict(method="paths"), "paths: expected a number of chains with method paths; got None"),
    ("model", dict(method="paths", paths=0), "paths: expected .*; got 0"),
    ("model", dict(paths=2), "paths: expected None with method race; got 2"),
    ("model", dict(method="paths", paths=2, tree=DraftTree.chains(2, 2)), "paths: expected None with a tree; got 2"),
    ("model", dict(method="paths", paths=2, policy=FixedTree(DraftTree.chains(2, 2))),
     "policy: expected None with paths"),
    ("model", dict(method="paths", paths=2, replacement=True), "replacement: expected method rejection or traversal"),
]  # fmt: skip


@pytest.mark.parametrize("drafter, options, message", METHODS_AND_SHAPES)
def test_methods_and_shapes_that_do_not_go_together_are_named(target, drafter, options, message):
    drafter = {"model": ModelDrafter(target), "ngram": NgramDrafter(), None: None}[drafter]
    with pytest.raises(ValueError, match=message):
        generate([PROMPT], target, drafter, **(dict(max_new_tokens=4) | options))


def test_texts_and_stop_strings_are_checked(embedded):
    with pytest.raises(ValueError, match=r"^stop\[1\]: expected a string that is not empty; got ''"):
        stream(["a"], embedded, stop=["b", ""])
    with pytest.raises(ValueError, match=r"^prompts\[0\]: expected text in UTF-8; got '\\udcff' in it"):
        stream(["a\udcff"], embedded)


def test_a_tokenizer_with_more_ids_than_the_model_reads_is_met_before_the_first_token(embedded):
    target = LanguageModel(llama(100).model, embedded.tokenizer, "mine")
    with pytest.raises(ValueError, match=r"^prompts\[0\]: expected token ids from 0 to 99, which mine reads; got 256"):
        stream(["ROMEO:"], target, max_new_tokens=4)
    assert len(written(target, [[65, 66]], seed=1)[0]) == 8


def test_policies_and_drafters_name_what_is_wrong():
    for call in (lambda: FixedLength(-1), lambda: RandomLength(-1, 0.5)):
        with pytest.raises(ValueError, match=r"^k: expected at least 0; got -1"):
            call()
    with pytest.raises(ValueError, match=r"^k: expected at most 1024 with a random length; got 1000000000"):
        RandomLength(10**9, 0.5)
    with pytest.raises(TypeError, match=r"^longest: expected a whole number; got 1\.5"):
        NgramDrafter(1.5)


def test_a_draft_may_be_longer_than_any_text(target):
    """No room is made for drafts that cannot be used."""
    expected = written(target, seed=1)
    assert written(target, drafter=ModelDrafter(target), k=10**9, seed=1) == expected
