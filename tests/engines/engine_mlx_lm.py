"""mlx-lm itself, on its CPU backend, beside ours: `make test-engines` runs this file."""

import importlib
import inspect
import os
import re
import shutil
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_map
from mlx_lm import generate, load, stream_generate
from mlx_lm.models import cache as caches
from mlx_lm.models import llama
from mlx_lm.sample_utils import make_logits_processors, make_sampler

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.conformance import chi_squared
from specdec_kernels.engines import _mlx_lm, mlx_lm
from specdec_kernels.engines.mlx_lm import generate_step
from tests.engines import mlx_stand_in as stand_in
from tests.engines.parameters import asked, compared
from tests.engines.servers import alone_and_at_once, answered, serving
from tests.support.laws import assert_law, assert_rate

MODELS = Path(specdec.__file__).parent / "models"
PROMPTS = ("ROMEO:", "First Citizen:\nBefore we", "KING HENRY:\n", "What say you")
NEW, K, SEED = 120, 4, 7
SAMPLING = Sampling(0.8, top_k=40, top_p=0.95, min_p=0.02)
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@pytest.fixture(scope="session")
def embedded():
    found = [load(str(MODELS / name)) for name in ("target", "draft")]
    return [(model, tokenizer, model.parameters()) for model, tokenizer in found]


@pytest.fixture
def pair(embedded, request):
    """The embedded pair, in float32 if nothing else is asked for."""
    for model, _, weights in embedded:
        model.update(weights)  # an earlier test may have rounded them
        model.set_dtype(DTYPES[getattr(request, "param", "float32")])
    return [model for model, *_ in embedded]


@pytest.fixture
def prompts(embedded):
    return [embedded[0][1].encode(prompt) for prompt in PROMPTS]


def small(seed):
    """One layer of random weights, eight tokens."""
    mx.random.seed(seed)
    sizes = dict(hidden_size=32, num_hidden_layers=1, intermediate_size=32, num_attention_heads=2)
    model = llama.Model(llama.ModelArgs("llama", **sizes, rms_norm_eps=1e-5, vocab_size=8))
    mx.eval(model.parameters())
    return model


SMALL = dict(hidden_size=32, vocab_size=8, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
FAMILIES = {
    "mamba": dict(
        vocab_size=8, hidden_size=16, intermediate_size=32, state_size=4, num_hidden_layers=2, conv_kernel=4,
        use_bias=True, use_conv_bias=True, time_step_rank=2,
    ),
    "qwen3_next": dict(
        SMALL, num_hidden_layers=2, intermediate_size=32, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=32, linear_value_head_dim=8, linear_conv_kernel_dim=4, num_experts=0, num_experts_per_tok=1,
        decoder_sparse_step=1, shared_expert_intermediate_size=16, mlp_only_layers=[0, 1], moe_intermediate_size=16,
        rms_norm_eps=1e-5, rope_theta=1e4, partial_rotary_factor=0.5, head_dim=8, full_attention_interval=2,
    ),
    "lfm2": dict(
        SMALL, num_hidden_layers=2, norm_eps=1e-5, conv_bias=False, conv_L_cache=3, block_dim=32, block_multiple_of=8,
        block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=False, intermediate_size=32,
        layer_types=["conv", "full_attention"],
    ),
    "nemotron_h": dict(
        SMALL, intermediate_size=32, attention_bias=False, mamba_num_heads=4, mamba_head_dim=8, mamba_proj_bias=False,
        ssm_state_size=8, conv_kernel=4, n_groups=2, mlp_bias=False, layer_norm_epsilon=1e-5, use_bias=False,
        use_conv_bias=True, hybrid_override_pattern=["M", "-", "*"], num_hidden_layers=3, head_dim=8,
    ),
}  # fmt: skip


def recurrent(name, near=0.0):
    """A model of random weights with recurrent layers, or one near it."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    model = module.Model(module.ModelArgs(model_type=name, **FAMILIES[name]))
    for seed, scale in ((1, 0.4), (2, near)):
        mx.random.seed(seed)
        model.update(tree_map(
            lambda x, seed=seed, scale=scale: x if x.ndim < 2 else (seed > 1) * x + scale * mx.random.normal(x.shape),
            model.parameters(),
        ))  # fmt: skip
    mx.eval(model.parameters())
    return model


def written(prompt, *models, **options):
    options = dict(max_tokens=NEW, num_draft_tokens=K, sampling=SAMPLING, seed=SEED) | options
    return [token for token, _, _ in generate_step(prompt, *models, **options)]


def test_the_stand_in_has_its_names():
    for name in ("KVCache", "RotatingKVCache", "ArraysCache", "CacheList"):
        ours, theirs = getattr(stand_in, name), getattr(caches, name)
        for method in ("is_trimmable", "trim"):
            if hasattr(theirs, method):
                assert inspect.signature(getattr(ours, method)) == inspect.signature(getattr(theirs, method))
    known = stand_in.modules()
    assert all(hasattr(mx, name) for name in vars(known["mlx.core"]) if not name.startswith("__"))
    assert all(hasattr(mx.random, name) for name in vars(known["mlx.core"].random))
    theirs = importlib.import_module("mlx_lm.generate")
    assert all(hasattr(theirs, name) for name in vars(known["mlx_lm.generate"]) if not name.startswith("__"))
    ours, theirs = (inspect.signature(x).parameters for x in (generate_step, theirs.speculative_generate_step))
    assert {*theirs} <= {*ours}
    assert list(ours)[:4] == list(theirs)[:4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_looked_at_where_they_lie(dtype):
    array = mx.random.normal((1, 5, 1000)).astype(DTYPES[dtype])[0, -3:]
    found = _mlx_lm.to_torch(array)
    assert found.dtype == getattr(torch, dtype)
    assert found.data_ptr() == torch.from_dlpack(array).data_ptr()
    assert found.float().tolist() == array.astype(mx.float32).tolist()


@pytest.mark.parametrize("method", ["race", "rejection", "block"])
def test_greedy_texts_are_those_of_mlx_lm(pair, prompts, method):
    theirs = importlib.import_module("mlx_lm.generate").generate_step
    for prompt in prompts:
        plain = [token for token, _ in theirs(mx.array(prompt), pair[0], max_tokens=NEW)]
        assert written(prompt, *pair, method=method, sampling=Sampling(0.0)) == plain
        assert written(prompt, pair[0], method=method, sampling=Sampling(0.0)) == plain


KINDS = {
    "T = 0.8": {},
    "T = 1.5": dict(sampling=Sampling(1.5)),
    "top-k": dict(sampling=Sampling(1.0, top_k=5)),
    "top-p": dict(sampling=Sampling(1.0, top_p=0.8)),
    "min-p": dict(sampling=Sampling(1.0, min_p=0.1)),
    "penalties": dict(logits_processors=make_logits_processors({10: -2.0}, 1.3, 20, 0.3, 20, 0.2)),
    "8 drafts": dict(num_draft_tokens=8),
    "cache of 8 bits": dict(kv_bits=8, quantized_kv_start=0, kv_group_size=32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_race_is_a_race_without_drafts(pair, prompts, kind):
    for prompt in prompts:
        plain = written(prompt, pair[0], **KINDS[kind])
        assert written(prompt, *pair, **KINDS[kind]) == plain
        assert len(plain) == NEW


@pytest.mark.parametrize("pair", ["float16", "bfloat16"], indirect=True)
def test_a_race_in_16_bits(pair, prompts, table, request):
    """But for rounding: logits of several tokens at once may differ in last bits from those of one."""
    same = sum(written(prompt, *pair) == written(prompt, pair[0]) for prompt in prompts)
    row = {"model": request.node.callspec.params["pair"], "texts that are the same": f"{same} of {len(prompts)}"}
    table(f"mlx-lm: a race beside one without drafts, texts of {NEW} tokens", row)
    assert same


def test_a_race_without_drafts_is_race_sample(pair, prompts):
    """At the positions of the tokens, on logits of a forward without a cache."""
    text = list(prompts[0])
    for _ in range(20):
        row = torch.from_numpy(np.asarray(pair[0](mx.array([text]))[0, -1]))
        text.append(int(specdec.race_sample(row, seed=SEED, position=len(text), sampling=SAMPLING)))
    assert written(prompts[0], *pair, max_tokens=20) == text[-20:]


def law_of(model, tokens):
    """float64 [n, V]: after each of these texts of one length."""
    rows = torch.from_numpy(np.asarray(model(mx.array(tokens))[:, -1]))
    return specdec.residual(rows, rows, sampling=SAMPLING, draft_prob=0.0).probs.double()


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_law(method, table):
    """Of the first token and of the first two, by chi-squared, n = 3,000: a right law fails with probability 1e-6."""
    target, draft, prompt = small(0), small(1), [1, 2]
    options = dict(max_tokens=3, num_draft_tokens=2, sampling=SAMPLING, method=method)
    texts = [list(generate_step(prompt, target, draft, seed=seed, **options)) for seed in range(3000)]
    first = law_of(target, [prompt])[0]
    pairs = (first[:, None] * law_of(target, [[*prompt, token] for token in range(8)])).flatten()
    tokens = torch.tensor([[token for token, _, _ in text[:2]] for text in texts])
    row = {"method": method}
    for name, found, law in (("first", tokens[:, 0], first), ("pair", tokens @ torch.tensor([8, 1]), pairs)):
        assert_law(found, law)
        row[name] = f"p = {chi_squared(found.bincount(minlength=len(law)), law)[2]:.2f}"
    row["first draft accepted"] = f"{sum(text[0][2] for text in texts) / len(texts):.3f}"
    table(f"mlx-lm: laws by chi-squared, {len(texts):,} texts of small random models", row)
    if method == "rejection":
        both = torch.minimum(first, law_of(draft, [prompt])[0]).sum().item()
        assert_rate([text[0][2] for text in texts], both)


@pytest.mark.parametrize("fault", ["position by one", "another seed"])
def test_planted_faults_are_seen(pair, prompts, fault, monkeypatch):
    """A draft whose noise is not the target's leaves the texts as they are, and takes more calls."""

    def texts():
        found = [list(generate_step(prompt, *pair, num_draft_tokens=K, sampling=SAMPLING, seed=SEED, max_tokens=NEW))
                 for prompt in prompts]  # fmt: skip
        return [[each[0] for each in text] for text in found], sum(not each[2] for text in found for each in text)

    (good, calls), draw = texts(), specdec.race_sample

    def wrong(row, *, seed, position, **options):
        shift = fault == "position by one"
        return draw(row, seed=seed + (not shift), position=position + shift, **options)

    monkeypatch.setattr(specdec, "race_sample", wrong)
    bad, more = texts()
    assert bad == good
    assert calls < 0.85 * more, (calls, more)
    monkeypatch.setattr(_mlx_lm.Text, "position", property(lambda self: self.start + len(self.tokens) + 1))
    assert written(prompts[0], *pair) != good[0]


class TestCaches:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_states(self, name):
        """Greedily and by race, whatever may be pending."""
        target, draft = recurrent(name), recurrent(name, near=0.03)
        for sampling in (Sampling(0.0), Sampling()):
            plain = written([1, 2, 3], target, sampling=sampling, max_tokens=60)
            for most in (1, 16):
                options = dict(sampling=sampling, max_tokens=60, max_pending=most)
                found = list(generate_step([1, 2, 3], target, draft, num_draft_tokens=K, seed=SEED, **options))
                assert [token for token, *_ in found] == plain
                assert 10 < sum(drafted for *_, drafted in found) < 50
        assert written([1, 2, 3], small(1), target, max_tokens=30) == written([1, 2, 3], small(1), max_tokens=30)

    def test_a_window(self):
        """Theirs goes on when the window is full, and rewinds no more."""
        target, draft = small(0), small(1)

        def windows():
            return [caches.RotatingKVCache(max_size=32) for _ in (*target.layers, *draft.layers)]

        plain = written([1, 2], target, max_tokens=80, prompt_cache=windows()[: len(target.layers)])
        assert written([1, 2], target, draft, max_tokens=80, prompt_cache=windows()) == plain

    @pytest.mark.parametrize("stop", [1, 4, 7])
    def test_a_chat(self, pair, prompts, stop):
        """What was yielded is in the cache, wherever the caller stopped; the next call goes on."""
        one, two = prompts[:2]
        cache = [*caches.make_prompt_cache(pair[0]), *caches.make_prompt_cache(pair[1])]
        options = dict(sampling=SAMPLING, seed=SEED, prompt_cache=cache, num_draft_tokens=K)
        rounds = generate_step(one, *pair, **options)
        found = [next(rounds)[0] for _ in range(stop)]
        rounds.close()
        assert {each.offset for each in cache} == {len(one) + stop}
        assert written(two, *pair, prompt_cache=cache) == written(one + found + two, pair[0])


def test_mlx_lms_own_functions(embedded, pair):
    """``generate`` and ``stream_generate`` hand our arguments on."""
    tokenizer = embedded[0][1]
    options = dict(max_tokens=NEW, sampling=SAMPLING, seed=SEED)
    mlx_lm.install()
    try:
        text = generate(pair[0], tokenizer, PROMPTS[0], draft_model=pair[1], **options)
        entries = list(stream_generate(pair[0], tokenizer, PROMPTS[0], draft_model=pair[1], method="race", **options))
    finally:
        mlx_lm.uninstall()
    assert "".join(entry.text for entry in entries) == text
    plain = written(tokenizer.encode(PROMPTS[0]), pair[0])
    assert tokenizer.decode(plain).startswith(text.rstrip("\ufffd"))
    assert any(entry.from_draft for entry in entries)


OURS = "from specdec_kernels.engines import mlx_lm; mlx_lm.install(); "


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """``server(code)``: the port of a server with both models, before which this code was run."""
    folder = tmp_path_factory.mktemp("server")
    for name in ("target", "draft"):  # in float32
        file = shutil.copytree(MODELS / name, folder / name) / "model.safetensors"
        mx.save_safetensors(str(file), {key: value.astype(mx.float32) for key, value in mx.load(str(file)).items()})

    def started(code):
        command = [
            sys.executable, "-c", f"{code}from mlx_lm import server; server.main()", "--port", "PORT",
            "--model", folder / "target", "--draft-model", folder / "draft",
        ]  # fmt: skip
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        return serving(command, folder / "log", "/v1/models", env=environment, cwd=folder)

    return started


def test_its_server(server, embedded, pair, prompts, table):
    """A text does not depend on its neighbours, nor on what the server has read before: it is that of a race."""
    bodies = [
        {
            "prompt": PROMPTS[i % 4], "max_tokens": 24 + i, "seed": i, "temperature": 0.8 * (i != 5),
            "top_k": 40 * (i % 2), "top_p": 1.0 - 0.1 * (i % 3), "num_draft_tokens": 1 + i % 5,
        }
        for i in range(12)
    ]  # fmt: skip
    with server(OURS) as port:
        alone, at_once = alone_and_at_once(port, bodies)
    plain = []
    for i, body in enumerate(bodies):
        mx.random.seed(i)
        law = Sampling(body["temperature"], body["top_k"], body["top_p"], 0.0, (), "all", False)
        tokens = written(prompts[i % 4], pair[0], max_tokens=body["max_tokens"], sampling=law, seed=None)
        plain.append(embedded[0][1].decode(tokens).removeprefix(" "))  # as they write a text
    assert alone == plain
    assert at_once == alone
    assert len(set(alone)) == len(bodies)
    row = {"texts": "server over HTTP, race, draft model, 12 requests at once", "those of": "each alone, no drafts"}
    table("mlx-lm: server", row | {"the same": "12 of 12"})


ASKED = {
    "max_completion_tokens": 5, "max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 2, "min_p": 0.4,
    "repetition_penalty": 1.8, "repetition_context_size": 2, "presence_penalty": 1.5, "presence_context_size": 2,
    "frequency_penalty": 1.5, "frequency_context_size": 2, "xtc_probability": 1.0, "xtc_threshold": 0.05,
    "logit_bias": {"101": 9.0}, "logprobs": True, "top_logprobs": 2, "seed": 8, "stop": ["e"], "num_draft_tokens": 2,
    "stream": False, "stream_options": {}, "chat_template_kwargs": {},
}  # fmt: skip
WITH = {f"{name}_context_size": {f"{name}_penalty": 1.8} for name in ("repetition", "presence", "frequency")}
WITH |= {"xtc_threshold": {"xtc_probability": 1.0}, "top_logprobs": {"logprobs": True}}


def test_parameters(server, table):
    """Each that its server reads, by itself, over HTTP. A request for no drafts has none beside a draft model, too."""
    source = inspect.getsource(importlib.import_module("mlx_lm.server").APIHandler.do_POST)
    read = {*re.findall(r'self.body.get\(\s*"(\w+)"', source)}
    assert {*ASKED} == read - {"model", "draft_model", "adapters"}
    given, found = {name: {name: value} | WITH.get(name, {}) for name, value in ASKED.items()}, []

    def write(port, drafts):
        usual = {"prompt": "O, ", "max_tokens": 16, "temperature": 0.8, "seed": 5, "num_draft_tokens": drafts}
        return lambda more: answered(port, usual | more)

    for code, drafts in ((OURS, 0), (OURS, K), ("", K)):
        with server(code) as port:
            found.append(asked(write(port, drafts), given))
    compared("mlx-lm's server", table, *found)


def test_tokens_a_call(pair, prompts, table):
    """One text after the other; wall-clock, for mlx has threads of its own."""
    theirs = importlib.import_module("mlx_lm.generate")
    filters = dict(temp=0.8, top_k=40, top_p=0.95, min_p=0.02)
    ways = {
        "its own, plain": lambda prompt: [
            (token, row, False)
            for token, row in theirs.generate_step(prompt, pair[0], max_tokens=NEW, sampler=make_sampler(**filters))
        ],
        "its own, draft": lambda prompt: list(theirs.speculative_generate_step(
            prompt, *pair, num_draft_tokens=K, max_tokens=NEW, sampler=make_sampler(**filters)
        )),
        "ours, no draft": lambda prompt: list(generate_step(
            prompt, pair[0], max_tokens=NEW, sampling=SAMPLING, seed=SEED
        )),
    }  # fmt: skip
    for method in ("race", "rejection", "block"):
        ways[f"ours, {method}"] = lambda prompt, method=method: list(generate_step(
            prompt, *pair, method=method, num_draft_tokens=K, max_tokens=NEW, sampling=SAMPLING, seed=SEED
        ))  # fmt: skip
    rate, a_call = {}, {}
    for _ in range(3):  # in turns
        for name, way in ways.items():
            mx.random.seed(SEED)
            start = time.perf_counter()
            texts = [way(mx.array(prompt)) for prompt in prompts]
            rate.setdefault(name, []).append(len(texts) * NEW / (time.perf_counter() - start))
            a_call[name] = len(texts) * NEW / sum(not drafted for text in texts for _, _, drafted in text)
    for name in ways:
        row = {"generation": name, "tokens a call": f"{a_call[name]:.2f}", "tokens/s": f"{max(rate[name]):.0f}"}
        table(f"mlx-lm: {len(prompts)} texts of {NEW} tokens, one after the other, {K} drafts", row)
    for method in ("race", "rejection", "block"):
        assert a_call[f"ours, {method}"] > a_call["its own, draft"]
