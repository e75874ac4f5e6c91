"""Whole SGLang on a CPU, with the embedded pair: texts and accepted drafts by our plug-in, and by its own verification.

What SGLang lacks there is in `sglang_cpu`: PYTHONPATH names that folder. One engine at a time, for one that ends takes
all others of its process along.
"""

import functools
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1", TORCHDYNAMO_DISABLE="1")

import pytest

from specdec_kernels.watermark import detect
from tests.engines import sglang_process
from tests.engines.parameters import asked, compared
from tests.engines.text_laws import LAWS, LENGTH, MANY, OPEN, PARTS, TEMPERATURE, p_values
from tests.support.laws import FALSE_ALARM

sglang = pytest.importorskip("sglang")
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

MODELS = Path(__file__).resolve().parents[2] / "specdec_kernels" / "models"
K, NEW, OWN = 4, 48, "SGLang's own"
DRAFT_MODEL = dict(speculative_algorithm="STANDALONE", speculative_draft_model_path=str(MODELS / "draft"))
DRAFTS = {
    "no drafts": {},
    "chains": DRAFT_MODEL | dict(
        speculative_num_steps=K, speculative_eagle_topk=1, speculative_num_draft_tokens=K + 1
    ),
    "trees": DRAFT_MODEL | dict(speculative_num_steps=3, speculative_eagle_topk=2, speculative_num_draft_tokens=7),
    "n-grams": dict(
        speculative_algorithm="NGRAM", speculative_num_draft_tokens=6, speculative_ngram_max_bfs_breadth=2
    ),
}  # fmt: skip
# Whose laws are checked. Without deterministic inference a seed is not looked at.
CHECKED = {
    ("chains", "race"): ("top-k 3",),
    ("trees", "race"): ("top-p 0.6",),
    ("chains", "rejection"): ("top-k 3", "top-p 0.6"),
    ("n-grams", "race"): ("top-k 3",),
}
ASKED = (("no drafts", "race"), ("chains", "race"), ("chains", OWN))  # for each parameter
TAGS = '{"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a>"]}'
OF_SAMPLING = {
    "max_new_tokens": 5, "stop": ["e"], "stop_token_ids": [101], "stop_regex": "e", "temperature": 0.5, "top_p": 0.5,
    "top_k": 3, "min_p": 0.3, "frequency_penalty": 0.9, "presence_penalty": 0.9, "repetition_penalty": 1.6,
    "min_new_tokens": 9, "n": 2, "beam_width": 2, "json_schema": '{"type": "integer"}', "regex": "[0-9]{9}",
    "ebnf": 'root ::= "no"', "structural_tag": TAGS, "ignore_eos": True,
    "skip_special_tokens": False, "spaces_between_special_tokens": False, "no_stop_trim": True, "stream_interval": 2,
    "logit_bias": {"101": 9.0}, "sampling_seed": 7, "custom_params": {"a": 1}, "watermark": {"enabled": True},
}  # fmt: skip
INTERNAL = {
    "stop_strs",
    "stop_regex_strs",
    "stop_str_max_len",
    "stop_regex_max_len",
    "is_normalized",
    "ebnf_full_assistant",
}
BESIDE = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [97]}
WITH = dict.fromkeys(("top_logprobs_num", "token_ids_logprob"), ("return_logprob", True))
WITH |= {"min_new_tokens": ("stop_token_ids", [32, 101]), "no_stop_trim": ("stop", ["e"])}
PROMPTS = ("ROMEO:", "JULIET: my lord, my lord,", "First Citizen:")
KINDS = {
    "greedy": dict(temperature=0.0),
    "plain": dict(),
    "hot": dict(temperature=1.5),
    "top-k, top-p": dict(top_k=20, top_p=0.9),
    "min-p": dict(min_p=0.1),
    "repetition": dict(repetition_penalty=1.3),
    "frequency": dict(frequency_penalty=0.7),
    "presence": dict(presence_penalty=0.7),
    "bias": dict(logit_bias={"101": -5.0}),
    "minimum of tokens": dict(min_new_tokens=30, stop_token_ids=[10, 32]),
    "grammar": dict(regex="[a-z ]{40}"),
    "stop string": dict(stop=["e "]),
}


MARKED = {
    "own key": dict(temperature=1.5, custom_params={"watermark_key": 5}),
    "no key": dict(temperature=1.5, custom_params={"watermark_key": 0}),
}


def started(method, fault="", mark="", **given):
    """A new engine that verifies so, with the fault that this file names."""
    of_processes = {"SPECDEC_SGLANG": method, "WHOLE_SGLANG_FAULT": fault, "SPECDEC_WATERMARK": mark}
    os.environ.update(of_processes | ({"SPECDEC_SGLANG": ""} if method == OWN else {}))
    usual = {"model_path": str(MODELS / "target"), "enable_deterministic_inference": method == "race"}  # else no seeds
    return sglang.Engine(
        device="cpu", dtype="float32", context_length=256, max_total_tokens=4096, max_running_requests=16,
        disable_cuda_graph=True, mem_fraction_static=0.3, log_level="error",
        # These are what runs; of the first alone is asked whether it knows an instruction set, and whether it is exact.
        attention_backend="triton", prefill_attention_backend="intel_amx", decode_attention_backend="intel_amx",
        speculative_draft_attention_backend="intel_amx", **usual | given,
    )  # fmt: skip


def texts_of(engine, kinds, new, prompts=PROMPTS, **more):
    """Tokens of each, all in one batch, and what SGLang says of them."""
    usual = {"temperature": TEMPERATURE, "max_new_tokens": new, "sampling_seed": 5}
    given = [usual | kind | more for kind in kinds]
    outputs = engine.generate([prompts[i % len(prompts)] for i in range(len(given))], given)
    return [output["output_ids"] for output in outputs], [output["meta_info"] for output in outputs]


def drawn_by(engine, shape, count=MANY):
    """Texts of a law, each with a seed."""
    seeds = (dict(sampling_seed=seed) for seed in range(count))
    texts, _ = texts_of(engine, seeds, LENGTH, [OPEN], ignore_eos=True, **LAWS[shape])
    return [tuple(text) for text in texts]


@functools.cache
def written(drafts, method, mark=""):
    """Of a new engine: tokens of each kind of request, and of those that are greedy; texts of laws; answers to each
    parameter; tokens a call, and a second. With a watermark the first alone."""
    kinds, greedy, drawn, answers, a_call, rate = KINDS | (MARKED if mark else {}), {}, {}, None, None, None
    engine = started(method, mark=mark, **DRAFTS[drafts])
    try:
        mixed = dict(zip(kinds, texts_of(engine, kinds.values(), NEW)[0], strict=True)) if method == "race" else {}
        if not mark:
            texts, _ = texts_of(engine, KINDS.values(), NEW, temperature=0.0)
            greedy = dict(zip(KINDS, texts, strict=True))
            start = time.perf_counter()
            long, infos = texts_of(engine, [dict(sampling_seed=seed) for seed in range(4)], 96)
            rate = sum(map(len, long)) / (time.perf_counter() - start)
            calls = sum(info.get("spec_verify_ct", 0) for info in infos)
            a_call = 4 * 95 / calls if calls else 1.0
            if calls:  # SGLang's counters of accepted drafts, by round: they are of ours
                counted = [info["spec_correct_drafts_histogram"] for info in infos]
                accepted = sum(many * rounds for each in counted for many, rounds in enumerate(each))
                assert sum(map(sum, counted)) == calls
                assert 0 <= calls + accepted - 4 * 95 <= 4 * K  # what is emitted behind an end
            drawn = {shape: drawn_by(engine, shape) for shape in CHECKED.get((drafts, method), ())}
        given = {
            name: dict([(name, value), WITH.get(name, (name, value))])
            for name, value in (OF_SAMPLING | BESIDE).items()
        }  # fmt: skip

        def write(more):
            usual = {"temperature": TEMPERATURE, "max_new_tokens": 16, "sampling_seed": 5}
            around = {name: value for name, value in more.items() if name in BESIDE}
            sampling = {name: value for name, value in more.items() if name not in BESIDE}
            found = engine.generate("O, ", usual | sampling, **around)
            found = found if isinstance(found, list) else [found]
            return [(one["output_ids"], one["text"], scores_of(one["meta_info"])) for one in found]

        if not mark and (drafts, method) in ASKED:
            answers = asked(write, given)
    finally:
        engine.shutdown()
    return mixed, greedy, drawn, answers, a_call, rate


def scores_of(info):
    """Log-probabilities to three places."""
    names = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
    return [[round(x, 3) for x in flat(info.get(name)) if isinstance(x, float)] for name in names]


def flat(value):
    return [x for part in value for x in flat(part)] if isinstance(value, (list, tuple)) else [value]


TITLE = "SGLang, whole: texts of all kinds of request in one batch"
ALL = f"{len(KINDS)} of {len(KINDS)} kinds of request"


@pytest.mark.parametrize("drafts", ["chains", "trees", "n-grams"])
def test_race_writes_what_it_writes_without_drafts(drafts, table):
    plain, raced = (written(each, "race")[0] for each in ("no drafts", drafts))
    assert raced == plain
    assert len(plain["minimum of tokens"]) >= 30
    assert len(plain["stop string"]) < NEW
    table(TITLE, {"texts": f"race, {drafts}", "those of": "race, no drafts", "the same": ALL})


@pytest.mark.parametrize("drafts", ["chains", "trees", "n-grams"])
def test_watermark(drafts, table):
    """The text of plain watermarked sampling, with a request's own key and with none; each is found by its own."""
    plain, raced = (written(each, "race", mark="77,3")[0] for each in ("no drafts", drafts))
    assert raced == plain
    assert detect(plain["hot"], 77, window=3).p_value < 1e-5
    assert detect(plain["own key"], 5, window=3).p_value < 1e-5
    assert min(detect(plain[name], 77, window=3).p_value for name in MARKED) > 1e-3
    same = f"{len(plain)} of {len(plain)} kinds of request"
    table(TITLE, {"texts": f"race, {drafts}, watermark", "those of": "race, no drafts, watermark", "the same": same})


@pytest.mark.parametrize(
    "drafts, method", [("chains", "race"), ("trees", "race"), ("chains", "rejection"), ("n-grams", "race")]
)
def test_greedy_texts_are_those_without_drafts(drafts, method, table):
    assert written(drafts, method)[1] == written("no drafts", OWN)[1]
    row = {"texts": f"{method}, {drafts}, all kinds greedy", "those of": f"{OWN}, no drafts", "the same": ALL}
    table(TITLE, row)


@pytest.mark.parametrize("drafts, method, shape", [(*of, shape) for of, shapes in CHECKED.items() for shape in shapes])
def test_law(drafts, method, shape, table):
    texts = written(drafts, method)[2][shape]
    found = p_values(texts, shape)
    row = {"verification": f"{method}, {drafts}", "filter": shape}
    title = f"SGLang, whole: laws of {MANY} texts, p by chi-squared"
    table(title, row | {part: f"{p:.2f}" for part, p in zip(PARTS, found, strict=True)})
    assert min(found) >= FALSE_ALARM
    (other,) = {"top-k 3", "top-p 0.6"} - {shape}
    assert min(p_values(texts, other)) < FALSE_ALARM


def test_parameters(table):
    """Each of SamplingParams by itself, and what a request says of log-probabilities."""
    assert {*SamplingParams.__struct_fields__} == {*OF_SAMPLING} | INTERNAL
    compared("SGLang, whole", table, *(written(*way)[3] for way in ASKED))


def test_tokens_a_call(table):
    """Four texts of 96 tokens. Its own verification is greedy on a CPU at any temperature: it has another law."""
    for drafts, method in (("no drafts", OWN), ("chains", OWN), ("no drafts", "race"), ("chains", "race"),
                           ("trees", "race"), ("chains", "rejection"), ("n-grams", "race")):  # fmt: skip
        *_, a_call, rate = written(drafts, method)
        row = {"drafts": drafts, "verification": method, "tokens a call": f"{a_call:.2f}"}
        table("SGLang, whole: 4 texts of 96 tokens at once", row | {"tokens/s": f"{rate:.0f}"})


# Launches and copies to the device of a step's sampling and verification, for each kind of request, and its waits for
# the device. The op that builds a chain or a tree is among the launches. Rejection reads a seed from the CPU's
# generator: two launches and a wait, which a GPU has not.
COUNTED = {name: KINDS[name] for name in ("plain", "top-k, top-p", "bias")} | {
    "penalties": KINDS["repetition"] | KINDS["frequency"] | KINDS["presence"]
}
STEPS = {
    ("no drafts", "race"): (((2, 0), (2, 0), (3, 0), (45, 1)), 0),
    ("chains", "race"): (((2, 0), (2, 0), (3, 0), (59, 1)), 0),
    ("chains", "rejection"): (((4, 0), (4, 0), (5, 0), (61, 1)), 1),
    ("trees", "race"): (((3, 0), (3, 0), (4, 0), (59, 1)), 0),
    ("n-grams", "race"): (((2, 0), (2, 0), (3, 0), (58, 1)), 0),
    ("n-grams", "rejection"): (((4, 0), (4, 0), (5, 0), (60, 1)), 1),
}


@pytest.mark.parametrize("drafts, method", STEPS)
def test_launches_of_a_step(drafts, method):
    """Exactly, whatever machine runs them."""
    options = {"model_path": str(MODELS / "target"), "context_length": 256, "max_total_tokens": 4096}
    options |= {"max_running_requests": 16, "enable_deterministic_inference": method == "race"} | DRAFTS[drafts]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(sglang_process.counted, method, COUNTED, **options).result()
    steps, waits = STEPS[drafts, method]
    assert found == {kind: (*step, waits) for kind, step in zip(COUNTED, steps, strict=True)}


def test_planted_faults(tmp_path):
    """Each is seen by one of the checks above, and by that alone it is found."""
    usual, fault = written("chains", "race")[0], tmp_path / "fault"
    fault.write_text("one place later")
    engine = started("race", str(fault), **DRAFTS["chains"])
    try:
        assert texts_of(engine, KINDS.values(), NEW)[0] != [*usual.values()]
        for name in ("filters of the draft alone", "one seed for all"):
            fault.write_text(name)
            assert min(p_values(drawn_by(engine, "top-k 3", 400), "top-k 3")) < FALSE_ALARM
        fault.write_text("")
        assert texts_of(engine, KINDS.values(), NEW)[0] == [*usual.values()]
    finally:
        engine.shutdown()
