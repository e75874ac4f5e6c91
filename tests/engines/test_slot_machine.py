"""What plug-ins keep of requests over time: every text is that of its request alone, whatever is around it."""

import functools
import importlib
import sys
import types

import numpy as np
import pytest
import torch

from specdec_kernels.engines import sglang, transformers, vllm
from specdec_kernels.engines.llamacpp import LlamaModel
from tests.engines import (
    llama_stand_in,
    mlx_stand_in,
    sglang_server,
    sglang_stand_in,
    slot_adapters,
    slot_machine,
    vllm_stand_in,
    vllm_v1_stand_in,
)
from tests.engines.slot_machine import NUMBERS, check, plain, wishes
from tests.generate.small import llama

SEEDS = range(3)
METHODS = ["race", "rejection", "block"]


@pytest.fixture
def v2(monkeypatch):
    for name, module in vllm_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._vllm", raising=False)
    yield
    vllm.uninstall()
    sys.modules.pop("specdec_kernels.engines._vllm", None)


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("method", METHODS)
def test_vllm(method, mode):
    """And the scores of its tokens."""
    asked = wishes(14, slot_adapters.VOCABULARY, more=({}, {"forbidden": 7}, {}))

    def make(scores=None):
        return slot_adapters.VllmV2(method, mode, scores)

    check(make, asked, SEEDS, [plain(make(), wish) for wish in asked] if method == "race" else None)
    scores = {}
    _, told = slot_machine.played(make(scores), asked, 0)
    for name, wish in enumerate(asked):
        own = {}
        slot_machine.alone(make(own), wish, told[name])
        torch.testing.assert_close(torch.cat(scores.get(name, [])), torch.cat(own.get(0, [])))


@pytest.fixture
def v1(monkeypatch):
    for name in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", vllm_v1_stand_in.outputs())
    name = "specdec_kernels.engines._vllm_v1"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name)


@pytest.mark.parametrize("method", METHODS)
def test_vllm_v1(v1, method):
    more = {}, {"bad": [[7], [3, 4]]}, {"bias": {5: 2.5}}, {"allowed": range(5, 30)}, {"shortest": (9, {1, 11}, False)}
    asked = wishes(14, slot_adapters.VOCABULARY, more=more)

    def make():
        return slot_adapters.VllmV1(v1, method)

    check(make, asked, SEEDS, [plain(make(), wish) for wish in asked] if method == "race" else None)


def test_vllm_v1_function():
    asked = wishes(14, slot_adapters.VOCABULARY, ({}, {"temperature": 0.7}, {"temperature": 0.0}))
    check(slot_adapters.VllmV1Function, asked, SEEDS)


@pytest.fixture
def sglang_plugin(monkeypatch):
    for _ in sglang_stand_in.installed(monkeypatch):
        monkeypatch.setenv("SPECDEC_SGLANG", "race")
        sglang.register()
        yield sys.modules["specdec_kernels.engines._sglang"]


SGLANG = wishes(14, 40, more=({}, {"least": 4, "stop": (0, 1, 2)}, {}))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("tree", sglang_server.TREES)
def test_sglang(sglang_plugin, tree, overlap, mixed):
    """When tokens become known depends on the others, with overlap."""
    expected = [plain(slot_adapters.Sglang(sglang_plugin, "plain"), wish) for wish in SGLANG]
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


# Without penalties of the output alone: what comes back is a prompt to these.
STREAMS = [each for each in NUMBERS if not {"frequency", "presence"} & each.keys()]


@pytest.mark.parametrize("how", [{"k": 3}, {"tree": [-1, 0, 0, 1, 1, 2]}], ids=["chain", "tree"])
@pytest.mark.parametrize("method", ["race", "rejection"])
def test_llamacpp(monkeypatch, method, how):
    monkeypatch.setitem(sys.modules, "llama_cpp", llama_stand_in.MODULE)
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._llamacpp", raising=False)
    models = [LlamaModel(llama_stand_in.Llama(table)) for table in tables()]

    def make():
        return slot_adapters.Llama(models, method, **how)

    asked, expected = wishes(10, 40, STREAMS), None
    if method == "race":
        expected = [plain(slot_adapters.Llama((models[0], None), "plain"), wish) for wish in asked]
    check(make, asked, SEEDS, expected)


@pytest.mark.parametrize("method", METHODS)
def test_mlx_lm(monkeypatch, method):
    for name, module in mlx_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._mlx_lm", raising=False)
    models = [mlx_stand_in.Model(table) for table in tables()]
    asked = wishes(10, 40, [each for each in STREAMS if "repetition" not in each])
    expected = None
    if method == "race":
        expected = [plain(slot_adapters.Mlx((models[0], None), method), wish) for wish in asked]
    check(functools.partial(slot_adapters.Mlx, models, method), asked, SEEDS, expected)


FILTERS = {"temperature": 0.8, "top_k": 4, "repetition_penalty": 1.2}


@pytest.mark.parametrize("options", [{}, FILTERS], ids=["plain", "filters"])
@pytest.mark.parametrize("method", ["race", "rejection"])
def test_transformers(method, options):
    """Calls one after the other, of texts in any order and of any length, in float64."""
    models = [llama(7, seed=seed, spread=0.5).model for seed in (1, 2)]
    asked = wishes(8, 40, [{}])
    make = functools.partial(slot_adapters.Transformers, *models, method, transformers.generate, **options)
    expected = None
    if method == "race":
        play = functools.partial(slot_adapters.Transformers, models[0], None, "plain", transformers.generate)
        expected = [plain(play(**options), wish) for wish in asked]
    check(make, asked, SEEDS, expected)
