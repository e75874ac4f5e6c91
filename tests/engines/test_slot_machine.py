"""What plug-ins keep of requests over time: every text is that of its request alone, whatever is around it."""

import functools
import sys

import numpy as np
import pytest
import torch

from specdec_kernels import Sampling
from specdec_kernels.engines import sglang, transformers, vllm
from specdec_kernels.engines.llamacpp import LlamaModel
from tests.engines import llama_stand_in, mlx_stand_in, sglang_server, slot_adapters
from tests.engines.slot_machine import NUMBERS, by_hand, check, wishes
from tests.generate.small import llama

SEEDS = range(2)
METHODS = ["race", "rejection", "block"]
LEAST = {"shortest": (9, {1, 11}, False)}  # a minimum of tokens before stop tokens


def of_vllm(wish):
    """What a race writes, by vLLM's rules."""

    def edit(row, said):
        forbidden = [word[-1] for word in wish.more.get("bad", ()) if said[len(said) - len(word) + 1 :] == word[:-1]]
        least, ends, _ = wish.more.get("shortest", (0, (), False))
        if len(said) < least:
            forbidden += ends
        if "allowed" in wish.more:
            forbidden += {*range(len(row))} - {*wish.more["allowed"]}
        row[forbidden] = -torch.inf
        return row

    sampling = Sampling.vllm(wish.temperature, wish.top_k, wish.top_p, wish.min_p)
    return by_hand(wish, lambda text: slot_adapters.TARGET[text[-1]], sampling, vllm.TARGET, edit)


def expected_of(method, asked):
    """The text of each request of a race, and of greedy ones whatever verifies them."""
    return [of_vllm(wish) if method == "race" or not wish.temperature else None for wish in asked]


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize("method", METHODS)
def test_vllm(method):
    more = {}, {"bad": [[7], [4]]}, {"bias": {5: 2.5}}, LEAST
    asked = wishes(20, slot_adapters.VOCABULARY, more=more)
    check(functools.partial(slot_adapters.VllmV2, method), asked, SEEDS, expected_of(method, asked))


@pytest.mark.parametrize("method", METHODS)
def test_vllm_v1(v1, method):
    likely = [[token, int(slot_adapters.TARGET[token].argmax())] for token in range(0, slot_adapters.VOCABULARY, 2)]
    more = (
        {}, {"bad": [*likely, [9], [9, 9, 2]]}, {"bias": {5: 2.5, 31: 4.0}}, {"allowed": range(5, 30)},
        {"shortest": (9, {31, 11}, False), "bias": {31: 9.0}},
    )  # fmt: skip
    asked = wishes(24, slot_adapters.VOCABULARY, more=more)
    check(functools.partial(slot_adapters.VllmV1, v1, method), asked, SEEDS, expected_of(method, asked))


@pytest.fixture
def sglang_plugin(engine, monkeypatch):
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    return sys.modules["specdec_kernels.engines._sglang"]


SGLANG = wishes(18, 40, (*NUMBERS, {"presence": -1.25}), more=({}, {"least": 4, "stop": (0, 1, 2)}, {}))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("tree", sglang_server.TREES)
def test_sglang(sglang_plugin, tree, overlap, mixed):
    """When tokens become known depends on the others, with overlap."""
    server = slot_adapters.Sglang(sglang_plugin, "plain")
    expected = [server.begun(wish).expected[: wish.length] for wish in SGLANG]
    make = functools.partial(slot_adapters.Sglang, sglang_plugin, tree, overlap, mixed)
    check(make, SGLANG, SEEDS, expected, replay=False)


@pytest.mark.parametrize("tree", ["chain", "tree"])
def test_sglang_by_rejection(sglang_plugin, monkeypatch, tree):
    monkeypatch.setenv("SPECDEC_SGLANG", "rejection")
    check(functools.partial(slot_adapters.Sglang, sglang_plugin, tree), SGLANG, SEEDS)


def tables(vocabulary=6):
    generator = np.random.default_rng(5)
    target = generator.normal(size=(vocabulary,) * 3) * 1.5
    return target, target + generator.normal(size=(vocabulary,) * 3) * 0.7


def after(table, text):
    return torch.from_numpy(np.asarray(table[text[-2] if len(text) > 1 else 0, text[-1]], np.float32))


# Without penalties of the output alone: what comes back is a prompt to these.
STREAMS = [each for each in NUMBERS if not {"frequency", "presence"} & each.keys()]


@pytest.mark.parametrize(
    "method, how",
    [
        ("plain", {}),
        ("race", {"k": 3}),
        ("race", {"k": 6}),
        ("race", {"tree": [-1, 0, 0, 1, 1, 2]}),
        ("rejection", {"k": 3}),
        ("rejection", {"tree": [-1, 0, 0, 1, 1, 2]}),
    ],
    ids=["plain", "race", "race of 6", "race of trees", "rejection", "rejection of trees"],
)
@pytest.mark.usefixtures("llama_cpp")
def test_llamacpp(method, how):
    models = [LlamaModel(llama_stand_in.Llama(table)) for table in tables()]

    def written(wish):
        sampling = Sampling.llamacpp(wish.temperature, wish.top_k, wish.top_p, wish.min_p)
        return by_hand(wish, functools.partial(after, tables()[0]), sampling)

    asked = wishes(10, 6, STREAMS)
    expected = [written(wish) if method != "rejection" or not wish.temperature else None for wish in asked]
    models[1] = None if method == "plain" else models[1]
    check(functools.partial(slot_adapters.Llama, models, method, **how), asked, SEEDS, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("mlx")
def test_mlx_lm(method):
    models = [mlx_stand_in.Model(table) for table in tables()]

    def written(wish):
        sampling = Sampling(wish.temperature, wish.top_k, wish.top_p, wish.min_p)
        return by_hand(wish, functools.partial(after, models[0].table), sampling)

    asked = wishes(10, 6, [each for each in STREAMS if "repetition" not in each])
    expected = [written(wish) for wish in asked] if method == "race" else None
    check(functools.partial(slot_adapters.Mlx, models, method), asked, SEEDS, expected)


FILTERS = {"temperature": 0.8, "top_k": 4, "repetition_penalty": 1.2}


@pytest.mark.parametrize("method, options", [("race", FILTERS), ("rejection", {})], ids=["race", "rejection"])
def test_transformers(method, options):
    """Calls one after the other, of texts in any order and of any length, in float64."""
    target, draft = (llama(7, seed=seed, spread=0.5).model for seed in (1, 2))

    @torch.no_grad()
    def after(text):
        return target(torch.tensor([text])).logits[0, -1]

    asked, expected = wishes(8, 7, [{"repetition": options.get("repetition_penalty", 1.0)}]), None
    if method == "race":
        sampling = Sampling.huggingface(options.get("temperature", 1.0), options.get("top_k", 0))
        expected = [by_hand(wish, after, sampling) for wish in asked]
    make = functools.partial(slot_adapters.Transformers, target, draft, method, transformers.generate, **options)
    check(make, asked, SEEDS, expected)
