"""Whole vLLM on a CPU, with the embedded pair: texts, laws and accepted drafts by our plug-in.

Its V1 runner as it is; with ``VLLM_USE_V2_MODEL_RUNNER=1``, which is vLLM's own, its V2 runner, whose Triton code is
interpreted (`triton_cpu`). Engines of this process, and a server. Each check of a law calls a right one wrong with
probability `FALSE_ALARM`.
"""

import contextlib
import inspect
import itertools
import json
import os
import re
import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import specdec_kernels
from specdec_kernels import InputPositions
from specdec_kernels.engines import vllm as plugin
from specdec_kernels.watermark import detect
from tests.engines import parallel_drafters, vllm_process, vllm_ranks
from tests.engines.parameters import asked, compared
from tests.engines.servers import alone_and_at_once, serving
from tests.engines.step_parts import KERNELS, Parts
from tests.engines.text_laws import LAWS, LENGTH, MANY, OPEN, PARTS, TEMPERATURE, laws_after, p_values
from tests.support.laws import FALSE_ALARM

V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
if V2:
    from triton.runtime.interpreter import GridExecutor

    from tests.engines import triton_cpu

    triton_cpu.install()
vllm = pytest.importorskip("vllm")
from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what GPUs do in silence
ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFT = (str(ROOT / "specdec_kernels" / "models" / name) for name in ("target", "draft"))
WHAT = f"vLLM 0.32.0, {'V2' if V2 else 'V1'} runner, whole"
K = 4
SPECULATION = {
    "no drafts": None,
    "draft model": {"model": DRAFT, "num_speculative_tokens": K, "draft_sample_method": "probabilistic"},
    "n-grams": {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
}
BLOCKS = ("DFlash", "DSpark") if V2 else ()  # V1's DFlash has Triton code, and there is no DSpark
ENGINES = {}
settle_platform = CpuPlatform.check_and_update_config


def keep_asynchronous(config):
    """vLLM turns asynchronous scheduling off on a CPU, where it works."""
    asked = config.scheduler_config.async_scheduling
    settle_platform(config)
    config.scheduler_config.async_scheduling = asked


CpuPlatform.check_and_update_config = staticmethod(keep_asynchronous)
vllm_process.allow_many()
METHODS = ("race", "rejection", "block")
OWN = "vLLM's own"


def engine(drafts, method, **more):
    """A vLLM of these drafts and this method, loaded once."""
    name = drafts, method, str(more)
    found = ENGINES.get(name)
    if found is None:
        plugin.install()
        if drafts in BLOCKS and drafts not in SPECULATION:
            folder = parallel_drafters.write(Path(tempfile.mkdtemp()), drafts)
            SPECULATION[drafts] = SPECULATION["draft model"] | {"method": drafts.lower(), "model": str(folder)}
        given = {
            "model": TARGET, "speculative_config": SPECULATION[drafts] and dict(SPECULATION[drafts]),
            "distributed_executor_backend": "uni", "max_num_seqs": 128, "num_gpu_blocks_override": 160,
            "async_scheduling": False,
        }  # fmt: skip
        found = ENGINES[name] = vllm.LLM(
            max_model_len=256, enforce_eager=True, dtype="float32", max_logprobs=-1, seed=0, disable_log_stats=False,
            additional_config={} if method == OWN else {"specdec": method}, **given | more,
        )  # fmt: skip
    return found


def request(**more):
    return vllm.SamplingParams(**{"temperature": TEMPERATURE, "max_tokens": 48, "seed": 5} | more)


KINDS = {
    "greedy": dict(temperature=0.0),
    "plain": dict(),
    "hot": dict(temperature=1.5),
    "top-k, top-p": dict(top_k=20, top_p=0.9),
    "repetition": dict(repetition_penalty=1.3),
    "frequency": dict(frequency_penalty=0.7),
    "presence": dict(presence_penalty=0.7),
    "allowed tokens": dict(allowed_token_ids=[10, 32, *range(97, 123)]),
    "bad words": dict(bad_words=["e", "th", "you"]),
    "minimum of tokens": dict(min_tokens=30, stop_token_ids=[10, 32]),
    "grammar": dict(structured_outputs=StructuredOutputsParams(regex="[a-z ]{40}")),
    "three of one": dict(n=3),
    "stop string": dict(stop=["e "]),
    "log-probabilities": dict(logprobs=3),
    "min-p": dict(min_p=0.1),
    "bias": dict(logit_bias={101: 3.0, 32: -2.5}),
}
PROMPTS = ("ROMEO:", "JULIET: my lord, my lord,", "First Citizen:")


def written(llm, kinds, prompts=PROMPTS, **more):
    """Of each kind of request, all in one batch: tokens, and log-probabilities with ranks to three places."""
    given = [prompts[i % len(prompts)] for i in range(len(kinds))]
    outputs = llm.generate(given, [request(**kind | more) for kind in kinds.values()], use_tqdm=False)
    return {name: [spoken(text) for text in output.outputs] for name, output in zip(kinds, outputs, strict=True)}


def spoken(text):
    scores = [{token: (round(x.logprob, 3), x.rank) for token, x in row.items()} for row in text.logprobs or ()]
    return list(text.token_ids), scores


@pytest.mark.parametrize("drafts", ["draft model", "n-grams", *BLOCKS])
def test_race_writes_what_it_writes_without_drafts(drafts, table):
    plain, raced = (written(engine(each, "race"), KINDS) for each in ("no drafts", drafts))
    assert raced == plain
    lengths = {name: [len(tokens) for tokens, _ in texts] for name, texts in plain.items()}
    assert lengths["minimum of tokens"][0] >= 30
    assert lengths["stop string"][0] < 48
    assert len({tuple(tokens) for tokens, _ in plain["three of one"]}) == 3
    same = f"{len(KINDS)} of {len(KINDS)} kinds of request"
    table(texts_by(drafts), {"texts": f"race, {drafts}", "those of": "race, no drafts", "the same": same})


TEXTS = f"{WHAT}: texts of all kinds of request in one batch"


def texts_by(drafts):
    """The title of their table: random drafters of blocks have one of their own."""
    return TEXTS.replace(":", ", blocks:") if drafts in BLOCKS else TEXTS


@pytest.mark.parametrize(
    "drafts, method",
    [
        ("no drafts", "race"), ("n-grams", "rejection"), *(("draft model", each) for each in METHODS),
        *((each, "rejection") for each in BLOCKS),
    ],
)  # fmt: skip
def test_greedy_texts(drafts, method, table):
    """Penalties, bans, biases and grammars do to them what vLLM's own processors do."""
    ours, theirs = (written(each, KINDS, temperature=0.0, n=1) for each in (engine(drafts, method), plain_vllm()))
    assert ours == theirs
    same = f"{len(KINDS)} of {len(KINDS)}"
    row = {"texts": f"{method}, {drafts}, greedy", "those of": f"{OWN}, no drafts", "the same": same}
    table(texts_by(drafts), row)


@pytest.mark.parametrize("drafts", ["no drafts", "draft model"])
def test_log_probabilities_of_given_tokens(drafts, table):
    """Beside neighbours that want others, whose rows they leave alone."""
    kinds = {"given": dict(logprob_token_ids=[97, 32, 101]), "likeliest": dict(logprobs=4), "none": dict()}
    found = written(engine(drafts, "race"), kinds, ["O, "], temperature=0.0)
    ((text, scores),) = written(plain_vllm(), {"all": dict(logprobs=-1)}, ["O, "], temperature=0.0)["all"]
    for name, named in (("given", [97, 32, 101]), ("likeliest", None)):
        ((same, rows),) = found[name]
        assert same == text
        for token, row, every in zip(text, rows, scores, strict=True):
            wanted = named or sorted(every, key=lambda x: every[x][1])[:4]
            assert {x: y[0] for x, y in row.items()} == {x: every[x][0] for x in {*wanted, token}}
    assert found["none"] == [(text, [])]
    row = {"texts": f"race, {drafts}, greedy: log-probabilities of given tokens", "those of": f"{OWN}, of all tokens"}
    table(TEXTS, row | {"the same": f"{len(text)} of {len(text)} rows"})


def test_asynchronous_scheduling(table):
    """Tokens are known late, and lengths are a guess; some requests are thrown out and read again."""
    kinds = KINDS | {f"minimum of {n}": dict(min_tokens=n, stop_token_ids=[10, 32], seed=n) for n in range(4, 40, 5)}
    few = {"block_size": 32, "num_gpu_blocks_override": 20, "max_num_seqs": 16, "async_scheduling": True}
    llm = engine("draft model", "race", **few)
    assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    assert written(llm, kinds) == written(engine("no drafts", "race"), kinds)
    preempted, same = counters(llm)["vllm:num_preemptions"], f"{len(kinds)} of {len(kinds)}"
    assert preempted > 0
    row = {
        "texts": f"race, draft model, asynchronous scheduling, {preempted} preemptions",
        "those of": "race, no drafts",
    }
    table(TEXTS, row | {"the same": same})


OF_SAMPLING = {
    "n": 2, "presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.3, "temperature": 0.5,
    "watermarking": True, "top_p": 0.5, "top_k": 3, "min_p": 0.3, "seed": 7, "stop": ["e"], "stop_token_ids": [101],
    "ignore_eos": True, "max_tokens": 5, "min_tokens": 9, "logprobs": 2, "prompt_logprobs": 2,
    "prompt_logprob_token_ids": [[97], [98], [99]], "logprob_token_ids": [97], "flat_logprobs": True,
    "detokenize": False, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True, "structured_outputs": StructuredOutputsParams(regex="[0-9]{9}"),
    "logit_bias": {101: 9.0},
    "allowed_token_ids": [97, 101, 32], "extra_args": {"a": 1}, "bad_words": ["e", "o"],
    "thinking_token_budget": 4, "trace_decode_token_ids": [97, 98],
    "repetition_detection": RepetitionDetectionParams(max_pattern_size=1, min_count=3),
}  # fmt: skip
OF_TRANSPORT = {
    "output_kind", "stream_interval", "skip_clone", "output_text_buffer_length", "skip_reading_prefix_cache",
    "routed_experts_prompt_start", "prompt_logprob_start",
}  # fmt: skip
WITH = {"min_tokens": {"stop_token_ids": [32, 101]}, "include_stop_str_in_output": {"stop": ["e"]}}


def test_parameters(table):
    """Each of SamplingParams by itself. Of vLLM's own verification only what it says to a request."""
    fields = {name for name in vllm.SamplingParams.__struct_fields__ if not name.startswith("_")}
    assert fields == {*OF_SAMPLING} | OF_TRANSPORT
    given = {name: {name: value} | WITH.get(name, {}) for name, value in OF_SAMPLING.items()}

    def write(drafts):
        def texts(more):
            output = engine(drafts, "race").generate(["O, "], request(**{"max_tokens": 16} | more), use_tqdm=False)[0]
            prompt = [
                row and {token: round(x.logprob, 3) for token, x in row.items()} for row in output.prompt_logprobs or ()
            ]
            given = output.prompt_token_id_logprobs
            prompt.append(None if given is None else np.round(np.asarray(given, np.float64), 3).tolist())
            return [(text.text, *spoken(text)) for text in output.outputs], prompt

        return texts

    def own(more):
        processor = engine("draft model", OWN).llm_engine.input_processor
        processor._validate_params(request(**more), ("generate",))

    compared(WHAT, table, *(asked(each, given) for each in (write("no drafts"), write("draft model"), own)))


def test_watermark(monkeypatch, table):
    """The text of plain watermarked sampling, with a request's own key, with none, and with repeats; each is found."""
    monkeypatch.setenv("SPECDEC_WATERMARK", "77,3")
    kinds = {
        "key of all": dict(max_tokens=96),
        "own key": dict(max_tokens=160, temperature=1.2, extra_args={"watermark_key": 5}),
        "none": dict(max_tokens=96, extra_args={"watermark_key": 0}), "repeats": dict(temperature=0.3, max_tokens=120),
        "top-k": dict(max_tokens=96, top_k=20),
    }  # fmt: skip
    more = {"max_num_seqs": 100}  # an engine of its own
    plain, raced = (written(engine(drafts, "race", **more), kinds) for drafts in ("no drafts", "draft model"))
    assert raced == plain
    found = {name: detect(texts[0][0], 77, window=3).p_value for name, texts in plain.items()}
    assert max(found[name] for name in ("key of all", "top-k")) < 1e-6
    assert min(found[name] for name in ("own key", "none")) > 1e-3
    assert detect(plain["own key"][0][0], 5, window=3).p_value < 1e-6
    rate, _ = accepted(engine("draft model", "race", **more))
    assert rate > COUPLED
    few = {"block_size": 32, "num_gpu_blocks_override": 14, "max_num_seqs": 12, "async_scheduling": True}
    back = engine("draft model", "race", **few)
    assert back.llm_engine.vllm_config.scheduler_config.async_scheduling
    assert written(back, kinds) == plain
    preempted = counters(back)["vllm:num_preemptions"]
    assert preempted > 0
    for what in ("", f", asynchronous scheduling, {preempted} preemptions"):
        row = {"texts": f"race, draft model, watermark{what}", "those of": "race, no drafts, watermark"}
        table(TEXTS, row | {"the same": "5 of 5"})


def plain_vllm():
    return engine("no drafts", OWN)


def test_requests_that_join_wait_and_end(table):
    """Prompts in pieces, a shared prefix from the cache, requests thrown out and read again, uneven lengths."""
    small = {"block_size": 32, "num_gpu_blocks_override": 14, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    prefix = "What say you to my suit? " * 3  # two blocks and more
    prompts = [prefix + tail for tail in ("ROMEO:", "JULIET:", "Nurse: come,", "x" * 60)]
    kinds = {str(i): dict(seed=i, max_tokens=20 + 8 * i, presence_penalty=0.4 * (i % 2)) for i in range(8)}
    plain = written(engine("no drafts", "race"), kinds, prompts)
    llm = engine("draft model", "race", **small)
    assert written(llm, kinds, prompts) == plain
    seen = counters(llm)
    assert seen["vllm:num_preemptions"] > 0
    assert seen["vllm:prefix_cache_hits"] > 0
    table(TEXTS, {
        "texts": f"race, draft model, {seen['vllm:num_preemptions']} preemptions, prefix cache, prompts in pieces",
        "those of": "race, no drafts, all at once", "the same": "8 of 8",
    })  # fmt: skip


def counters(llm):
    """Numbers, and lists of those that are counted by position."""
    return {metric.name: getattr(metric, "value", getattr(metric, "values", None)) for metric in llm.get_metrics()}


def drawn(llm, shape, count=MANY, seeds=True):
    """Texts of requests, of which every second has a seed."""
    seeds = [i if seeds and i % 2 else None for i in range(count)]
    kinds = [request(max_tokens=LENGTH, ignore_eos=True, seed=seed, **shape) for seed in seeds]
    outputs = llm.generate([OPEN] * count, kinds, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


CHECKED = {
    ("draft model", "race"): ("three tokens allowed", "top-k 3"),
    ("draft model", "rejection"): tuple(LAWS),
    ("draft model", "block"): ("top-p 0.6",),
    ("n-grams", "rejection"): ("top-k 3",),
}
if V2:
    CHECKED |= {("draft model", "race"): ("top-k 3",), ("draft model", "rejection"): ("min-p 0.3, a bias",)}


@pytest.mark.parametrize("drafts, method, shape", [(*of, shape) for of, shapes in CHECKED.items() for shape in shapes])
def test_law(drafts, method, shape, table):
    llm = engine(drafts, method)
    with watched(llm) as seen:
        found = p_values(drawn(llm, LAWS[shape]), shape)
    assert MANY / 10 < seen[1] < K * seen[0]
    row = {"verification": f"{method}, {drafts}", "filter": shape}
    table(LAWS_TITLE, row | {part: f"{p:.2f}" for part, p in zip(PARTS, found, strict=True)})
    assert min(found) >= FALSE_ALARM


@pytest.mark.parametrize("drafts", BLOCKS)
def test_law_of_blocks(drafts, table):
    """Of drafts that a random drafter draws at once, or place by place, by rejection."""
    found = p_values(drawn(engine(drafts, "rejection"), LAWS["top-k 3"], MANY), "top-k 3")
    row = {"verification": f"rejection, {drafts}", "filter": "top-k 3"}
    table(
        f"{WHAT}, blocks: laws of {MANY} texts",
        row | {part: f"{p:.2f}" for part, p in zip(PARTS, found, strict=True)},
    )
    assert min(found) >= FALSE_ALARM


LAWS_TITLE = f"{WHAT}: laws of {MANY} texts, p by chi-squared"


@pytest.mark.skipif(not V2, reason="V1 has no such answer")
@pytest.mark.parametrize("drafts, method", [("no drafts", "race"), *(("draft model", each) for each in METHODS)])
def test_kept_sets(drafts, method, table):
    """Of each token that is emitted: what the filters kept of its row, and its probability among that."""
    shape, count = {"top_k": 12, "top_p": 0.9}, 12
    llm = engine(drafts, method, return_sampling_mask=True, logprobs_mode="processed_logprobs")
    kinds = [request(max_tokens=count, seed=i, ignore_eos=True, logprobs=0, **shape) for i in range(4)]
    for output in llm.generate([OPEN] * 4, kinds, use_tqdm=False):
        (text,) = output.outputs
        laws = (law for i in range(count) for law in laws_after([text.token_ids[:i]], shape))
        for token, kept, row, law in zip(
            text.token_ids, text.sampling_mask.token_ids, text.logprobs, laws, strict=True
        ):
            assert sorted(kept) == sorted(law)
            assert row[token].logprob == pytest.approx(np.log(law[token]), abs=1e-4)
    same = f"{4 * count} of {4 * count} tokens"
    table(TEXTS, {"texts": f"{method}, {drafts}: kept sets", "those of": "plain logits", "the same": same})


@contextlib.contextmanager
def watched(llm):
    """[chains that had drafts, drafts accepted] of what a vLLM verifies meanwhile."""
    runner = vllm_process.runner_of(llm)
    name, seen = "sample" if V2 else "_sample", [0, 0]
    sample = getattr(runner, name)

    def counted(rows, chains, *more):
        output = sample(rows, chains, *more)
        if chains is not None:
            counts = np.diff(chains.cu_num_logits_np) - 1 if V2 else np.array(chains.num_draft_tokens)
            emitted = output[1].numpy() if V2 else (output.sampled_token_ids >= 0).sum(1).numpy()
            seen[0] += int((counts > 0).sum())
            seen[1] += int((emitted[counts > 0] - 1).sum())
        return output

    setattr(runner, name, counted)
    try:
        yield seen
    finally:
        setattr(runner, name, sample)


def accepted(llm, count=96):
    """Drafts accepted a step, and tokens a second of the one thread that computes, of four texts."""
    kinds = [request(max_tokens=count, seed=i, ignore_eos=True) for i in range(4)]
    with watched(llm) as seen:
        begin = time.thread_time()
        llm.generate([*PROMPTS, "O, "], kinds, use_tqdm=False)
        seconds = time.thread_time() - begin
    return seen[1] / max(seen[0], 1), 4 * count / seconds


COUPLED = 1.5  # of `K` drafts, a race's with its noise shared: more; all else stays below
COMPARED = {
    "no drafts": ("race", OWN),
    "draft model": (*METHODS, OWN),
    "n-grams": ("rejection", OWN),
}


@pytest.mark.parametrize("drafts, method", [(drafts, method) for drafts, some in COMPARED.items() for method in some])
def test_accepted(drafts, method, table):
    llm = engine(drafts, method)
    accepted(llm, 4)
    rate, speed = accepted(llm)
    row = {"drafts": drafts, "verification": method, "accepted of 4": f"{rate:.2f}", "tokens/s": f"{speed:.0f}"}
    table(f"{WHAT}: four texts of 96 tokens, temperature 0.8", row)
    if drafts == "draft model" and method == "race":
        assert rate > COUPLED


POSITIONS = 2  # launches that place all drafts of a step
STEPS = {  # drafts, method, kind -> launches of a step of four requests, and copies to the device
    ("no drafts", "race", "plain"): (1, 0),
    ("no drafts", "race", "top-k, top-p"): (1, 0),
    ("no drafts", "race", "greedy"): (1, 0),
    ("no drafts", "race", "bias"): (1, 0),
    ("no drafts", "race", "repetition"): (2, 0),
    ("draft model", "race", "plain"): (1 + POSITIONS + K, 0),
    ("draft model", "race", "bias"): (1 + POSITIONS + K, 0),
    ("draft model", "race", "repetition"): (2 + POSITIONS + K, 0),
    ("draft model", "rejection", "plain"): (1 + POSITIONS + 2 * K, 0),  # a draft's row is copied
    ("draft model", "rejection", "greedy"): (1 + POSITIONS + K, 0),
    ("draft model", "block", "plain"): (1 + POSITIONS + 2 * K, 0),
}


if V2:  # with those of vLLM's around them
    STEPS = {
        ("no drafts", "race", "plain"): (6, 0),
        ("no drafts", "race", "top-k, top-p"): (6, 0),
        ("no drafts", "race", "bias"): (7, 0),
        ("no drafts", "race", "repetition"): (11, 0),
        ("draft model", "race", "plain"): (4 + K, 0),
        ("draft model", "race", "repetition"): (9 + K, 0),
        ("draft model", "rejection", "plain"): (4 + 2 * K, 0),
        ("draft model", "rejection", "greedy"): (4 + 2 * K, 0),
        ("draft model", "block", "plain"): (4 + 2 * K, 0),
    }


@pytest.mark.parametrize("drafts, method, kind", STEPS)
def test_launches_of_a_step(drafts, method, kind):
    """Launches and copies of sampling and draws, which wait for nothing, whatever machine runs them."""
    llm = engine(drafts, method)
    core, names = llm.llm_engine, [f"{drafts}, {method}, {kind}, {i}" for i in range(4)]
    with Parts() as parts:
        if V2:
            parts.wrap(GridExecutor, "__call__", KERNELS)
        vllm_process.wrap_parts(parts, vllm_process.runner_of(llm), "adapter")
        for i, name in enumerate(names):
            core.add_request(name, PROMPTS[0], request(**KINDS[kind] | {"seed": i, "ignore_eos": True}))
        for _ in range(3):
            core.step()
        with parts.counting() as counts:
            core.step()
    core.abort_request(names)
    core.step()
    launches, copies, waits = (count["adapter"] + count["ops"] for count in counts)
    assert (launches, copies, waits) == (*STEPS[drafts, method, kind], 0)


def test_counters_of_accepted_drafts():
    """Its metrics count ours, by position. They are those of the engine that was made last."""
    llm = engine("draft model", "race", max_num_seqs=99)
    rate, _ = accepted(llm, 48)
    seen = counters(llm)
    by_position = seen["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert [*by_position] == sorted(by_position, reverse=True)
    assert sum(by_position) / seen["vllm:spec_decode_num_drafts"] == pytest.approx(rate, abs=0.1)


@contextlib.contextmanager
def wrapped(owner, name, change):
    """A function of a module or class, of whose arguments ``change`` makes others, all by name."""
    function = getattr(owner, name)
    bind = inspect.signature(function).bind

    def changed(*given, **named):
        arguments = bind(*given, **named).arguments
        return function(**arguments | change(**arguments))

    setattr(owner, name, changed)
    try:
        yield
    finally:
        setattr(owner, name, function)


def chains_changed(change):
    return wrapped(specdec_kernels, "verify_chain", change)


def drafts_changed(place, seed):
    """A race whose drafts are drawn by the noise of another place, or of another seed."""
    if V2:
        from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

        where = DraftModelSpeculator, "sample_draft", "sample_src_positions", "seeds"
    else:
        where = specdec_kernels, "race_sample", "position", "seed"
    by = dict(zip(where[2:], (place, seed), strict=True))
    return wrapped(*where[:2], lambda **given: {name: given[name] + more for name, more in by.items()})


def one_later(draft_tokens, position, **_):
    if not draft_tokens.shape[-1]:
        return {}
    return {"position": InputPositions(position.positions + 1)}


class TestFaults:
    """Each is seen by one of the checks above, and by that alone it is found."""

    @pytest.mark.parametrize("place, seed", [(1, 0), (0, 1)], ids=["one place later", "noise that is not shared"])
    def test_drafts(self, place, seed):
        llm = engine("draft model", "race")  # before the change, for the plug-in reads signatures as it is installed
        with drafts_changed(place, seed):
            rate, _ = accepted(llm, 64)
        assert rate < COUPLED

    def test_chains_one_place_later(self):
        kinds = {"plain": KINDS["plain"]}
        plain = written(engine("no drafts", "race"), kinds)
        with chains_changed(one_later):
            assert written(engine("draft model", "race"), kinds) != plain

    @pytest.mark.parametrize(
        "change",
        [
            lambda sampling, **_: {"sampling": sampling._replace(top_k=0)},
            lambda seed, **_: {"seed": torch.zeros_like(seed)},
        ],
        ids=["filters of the draft alone", "one seed for all"],
    )
    def test_chains(self, change):
        with chains_changed(change):
            texts = drawn(engine("draft model", "rejection"), LAWS["top-k 3"], 400)
        assert min(p_values(texts, "top-k 3")) < FALSE_ALARM


def test_vllms_own_verification_on_a_cpu(table):
    """Why ours is worth having in V1: its stand-in for a kernel leaves the temperature of drafts' rows unwritten. With
    top-k it stops, and so it does with a seed where a prompt is read in pieces. V2's Triton code has the right law.
    """
    texts = drawn(engine("draft model", OWN), LAWS["three tokens allowed"], 500, seeds=False)
    found = p_values(texts, "three tokens allowed")
    assert (min(found) >= FALSE_ALARM) == V2
    row = {"verification": f"{OWN}, draft model, {len(texts)} texts", "filter": "three tokens allowed"}
    table(LAWS_TITLE, row | {part: f"{p:.2g}" for part, p in zip(PARTS, found, strict=True)})


def plugged_in(place, *more):
    """The folder, once our plug-in is installed there, and others for tests."""
    line = re.search(r'entry-points."vllm.general_plugins".*\n(.+)', (ROOT / "pyproject.toml").read_text())[1]
    installed = place / "specdec_kernels-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-kernels\nVersion: 0\n")
    lines = "[vllm.general_plugins]", line.replace('"', ""), *more
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return place


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """vLLM's server with a draft model and a race, which finds the plug-in by its entry point."""
    place = plugged_in(tmp_path_factory.mktemp("server"))
    if V2:
        (place / "sitecustomize.py").write_text("from tests.engines import triton_cpu\n\ntriton_cpu.install()\n")
    log = place / "log"
    environment = os.environ | {
        "SPECDEC_VLLM": "race", "PYTHONPATH": f"{place}:{ROOT}", "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }  # fmt: skip
    options = {
        "--model": TARGET, "--host": "127.0.0.1", "--port": "PORT", "--served-model-name": "pair",
        "--max-model-len": 256, "--dtype": "float32", "--num-gpu-blocks-override": 160,
        "--speculative-config": json.dumps(SPECULATION["draft model"]),
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [word for option in options.items() for word in option]
    with serving(command, log, "/health", env=environment, cwd=place) as port:
        yield types.SimpleNamespace(port=port, log=log)


def test_a_text_does_not_depend_on_its_neighbours(server, table):
    bodies = [
        {
            "model": "pair", "prompt": PROMPTS[i % 3], "max_tokens": 24 + i, "temperature": 0.8, "seed": i,
            "top_k": 40 * (i % 2), "presence_penalty": 0.5 * (i % 4 == 3), "min_p": 0.1 * (i % 3 == 1),
            "logit_bias": {"101": 2.0} if i % 5 == 4 else None,
        }
        for i in range(12)
    ]  # fmt: skip
    alone, at_once = alone_and_at_once(server.port, bodies)
    assert at_once == alone
    assert len(set(alone)) == 12
    said = server.log.read_text()
    reason = "VLLM_USE_V2_MODEL_RUNNER is set" if "VLLM_USE_V2_MODEL_RUNNER" in os.environ else "V2 needs a Triton"
    says = "V2 model runner" if V2 else f"V1 model runner ({reason}"
    assert f"specdec-kernels: method 'race', {says}" in said
    assert V2 or "), drafts of draft_model drawn by our noise" in said
    assert "triton_kernels" not in said  # a checkout's folder of that name is on the path
    table(TEXTS, {"texts": "server, race, draft model, 12 at once", "those of": "each alone", "the same": "12 of 12"})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """(one rank, two ranks that keep their slices of the logits), of the embedded pair in a wide vocabulary."""
    place = plugged_in(tmp_path_factory.mktemp("ranks"), "by_gloo = tests.engines.vllm_ranks:by_gloo")
    target, draft = (vllm_ranks.widened(Path(source), place / Path(source).name) for source in (TARGET, DRAFT))
    one = engine("no drafts", "race", model=target)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)  # which workers get, too
        patch.setenv("SPECDEC_VLLM", "race")
        patch.setenv("SPECDEC_VLLM_SHARDED", "1")
        two = engine(
            "draft model", "race", model=target, speculative_config=SPECULATION["draft model"] | {"model": draft},
            tensor_parallel_size=2, distributed_executor_backend="mp", async_scheduling=True,
        )  # fmt: skip
    yield one, two
    two.llm_engine.engine_core.shutdown()


def wide(kinds):
    """These kinds of request, by tokens of the wide vocabulary."""
    tokens = {
        "allowed_token_ids": lambda ids: [*map(vllm_ranks.moved, ids)],
        "stop_token_ids": lambda ids: [*map(vllm_ranks.moved, ids)],
        "logit_bias": lambda bias: {vllm_ranks.moved(token): x for token, x in bias.items()},
    }
    return {name: {key: tokens.get(key, lambda x: x)(x) for key, x in kind.items()} for name, kind in kinds.items()}


WIDE = wide(KINDS) | {"given": dict(logprob_token_ids=[vllm_ranks.moved(x) for x in (97, 32)])}
COUNTED = {
    "no filters": {name: WIDE[name] for name in ("greedy", "plain", "hot")},
    "one with top-k 20, top-p 0.9": {name: WIDE[name] for name in ("greedy", "plain", "top-k, top-p")},
}


@pytest.mark.skipif(V2, reason="of V1 alone")
class TestTwoRanks:
    """Each keeps its half of 128,256 logits, with asynchronous scheduling. One engine does all, in this order."""

    TITLE = f"{WHAT}: two ranks, draft model, 128,256 float32 logits a row, bytes that a rank sends for the logits"

    def row(self, table, what, texts, those, same, sent=None):
        sent = {"bytes": "", "gathered": "", "times fewer": ""} if sent is None else sent
        table(self.TITLE, {"what": what, "texts": texts, "those of": those, "the same": same, **sent})

    @pytest.mark.parametrize("method", ["race", "rejection", "block"])
    def test_texts(self, pairs, table, method):
        one, two = pairs
        two.collective_rpc(vllm_ranks.verify_by, args=(method,))
        same, greedy = f"{len(WIDE)} of {len(WIDE)} kinds", {} if method == "race" else {"temperature": 0.0, "n": 1}
        assert written(two, WIDE, **greedy) == written(one, WIDE, **greedy)
        if method == "race":
            metrics = counters(two)
            rate = metrics["vllm:spec_decode_num_accepted_tokens"] / metrics["vllm:spec_decode_num_drafts"]
            assert rate > COUPLED
        self.row(table, f"{method}{', greedy' if greedy else ''}", "two ranks", "one, race, no drafts", same)

    def test_prompts(self, pairs):
        """Their log-probabilities are read from rows that are gathered."""
        found = [
            [{token: round(x.logprob, 3) for token, x in row.items()} for row in output.prompt_logprobs[1:]]
            for llm in pairs for output in llm.generate(["O, "], request(prompt_logprobs=2), use_tqdm=False)
        ]  # fmt: skip
        assert found[0] == found[1]

    @pytest.mark.parametrize(
        "method, shape", [("rejection", "three tokens allowed"), ("rejection", "top-k 3"), ("block", "top-k 3")]
    )
    def test_law(self, pairs, table, method, shape):
        _, two = pairs
        two.collective_rpc(vllm_ranks.verify_by, args=(method,))
        back = {vllm_ranks.moved(token): token for token in range(258)}
        texts = drawn(two, wide({"": LAWS[shape]})[""], MANY)
        found = p_values([tuple(map(back.__getitem__, text)) for text in texts], shape)
        row = {"verification": f"{method}, draft model, two ranks", "filter": shape}
        table(
            f"{WHAT}, two ranks: laws of {MANY} texts",
            row | {part: f"{p:.2f}" for part, p in zip(PARTS, found, strict=True)},
        )
        assert min(found) >= FALSE_ALARM

    def test_bytes(self, pairs, table):
        """Of texts by both methods, and by the same engine once it gathers again: whose texts are the same."""
        _, two = pairs
        found = {}
        for gathered in (False, True):
            if gathered:
                two.collective_rpc(vllm_ranks.gather_again)
            for case in itertools.product(("race", "rejection"), COUNTED):
                two.collective_rpc(vllm_ranks.verify_by, args=case[:1])
                two.collective_rpc(vllm_ranks.count)
                texts = written(two, COUNTED[case[1]])
                sent = two.collective_rpc(vllm_ranks.counted)
                assert sent[0] == sent[1]
                found[case, gathered] = texts, sent[0]
        for case in itertools.product(("race", "rejection"), COUNTED):
            (texts, sent), (again, every) = found[case, False], found[case, True]
            assert texts == again
            assert 100 * sent <= every
            figures = {"bytes": f"{sent:,}", "gathered": f"{every:,}", "times fewer": f"{every / sent:,.0f}"}
            same = f"{len(texts)} of {len(texts)} kinds"
            self.row(table, ", ".join(case), "two ranks", "two ranks, gathered", same, figures)
