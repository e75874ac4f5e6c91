"""Whole SGLang on a CPU, two ranks that keep their slices of the logits: texts, laws, and the bytes that they send.

The embedded pair stands in a wide vocabulary (`vllm_ranks`). `whole_sglang` says how SGLang runs here.
"""

import functools
import os

import pytest

from tests.engines import vllm_ranks
from tests.engines.text_laws import LAWS, LENGTH, MANY, OPEN, PARTS, TEMPERATURE, p_values
from tests.engines.whole_sglang import DRAFTS, KINDS, MODELS, NEW, PROMPTS, started
from tests.support.laws import FALSE_ALARM

WIDE = KINDS | {
    "bias": dict(logit_bias={str(vllm_ranks.moved(101)): -5.0}),
    "minimum of tokens": dict(min_new_tokens=30, stop_token_ids=[vllm_ranks.moved(10), vllm_ranks.moved(32)]),
}
COUNTED = {"no filters": ("greedy", "plain", "hot"), "top-k 20, top-p 0.9": ("top-k, top-p",)}
BYTES = "SGLang, two ranks: 128,256 float32 logits a row"


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    place = tmp_path_factory.mktemp("wide")
    for model in ("target", "draft"):
        vllm_ranks.widened(MODELS / model, place / model)
    return place


@functools.cache
def written(place, ranks, drafts, method, sharded=False):
    """Of a new engine: texts and bytes of what is counted, one request at a time; texts of all kinds at once, and of
    those that are greedy; the log-probabilities of one text; texts of a law."""
    sent = place / f"{ranks} {drafts} {method} {sharded}"
    os.environ.update(
        SPECDEC_SGLANG_SHARDED=str(int(sharded)), WHOLE_SGLANG_BYTES=str(sent),
        SGLANG_CPU_OMP_THREADS_BIND="|".join(map(str, range(ranks))),
    )  # fmt: skip
    changed = {"speculative_draft_model_path": str(place / "draft")} if "chains trees".count(drafts) else {}
    engine = started(method, model_path=str(place / "target"), tp_size=ranks, random_seed=7, **DRAFTS[drafts] | changed)

    def texts(kinds, new, prompts=PROMPTS, **more):
        usual = {"temperature": TEMPERATURE, "max_new_tokens": new, "sampling_seed": 5}
        given = [usual | kind | more for kind in kinds]
        asked = [prompts[i % len(prompts)] for i in range(len(given))]
        return [output["output_ids"] for output in engine.generate(asked, given)]

    def total():
        """Of each rank, so far; nothing of one that has not sent any."""
        return {file: sum(map(int, file.read_text().split())) for file in place.glob(f"{sent.name}.*")}

    try:
        counted = {}
        for name, kinds in COUNTED.items() if drafts == "chains" else ():
            before = total()
            found = [texts([WIDE[kind]], NEW) for kind in kinds]
            counted[name] = found, [after - before.get(file, 0) for file, after in total().items()]
        mixed, greedy = texts(WIDE.values(), NEW), texts(WIDE.values(), NEW, temperature=0.0)
        info = engine.generate(
            "O, ", {"temperature": TEMPERATURE, "max_new_tokens": 16, "sampling_seed": 5}, return_logprob=True,
            top_logprobs_num=2, token_ids_logprob=[vllm_ranks.moved(97)], logprob_start_len=0,
        )["meta_info"]  # fmt: skip
        scores = {name: value for name, value in info.items() if name.endswith(("logprobs", "ids_logprobs"))}
        drawn = {}
        for shape in ("top-k 3", "top-p 0.6") if method == "rejection" and sharded else ():
            drawn[shape] = texts([{}] * MANY, LENGTH, [OPEN], ignore_eos=True, **LAWS[shape])
    finally:
        engine.shutdown()
    return counted, mixed, greedy, rounded(scores), drawn


def rounded(value):
    """Numbers to three places, however deep."""
    if isinstance(value, dict):
        return {name: rounded(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(x) for x in value]
    return round(value, 3) if isinstance(value, float) else value


def row(table, what, same):
    texts = f"{same} of {same} kinds"
    table("SGLang, two ranks: texts", {"texts": what, "those of": "one rank, race, no drafts", "the same": texts})


@pytest.mark.parametrize("drafts", ["no drafts", "chains", "trees"])
def test_race(wide, drafts, table):
    _, mixed, _, scores, _ = written(wide, 2, drafts, "race", True)
    assert mixed == written(wide, 1, "no drafts", "race")[1]
    assert scores == written(wide, 1, "no drafts", "race")[3]
    row(table, f"race, {drafts}", len(mixed))


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_greedy(wide, method, table):
    greedy = written(wide, 2, "chains", method, True)[2]
    assert greedy == written(wide, 1, "no drafts", "race")[2]
    row(table, f"{method}, chains, all kinds greedy", len(greedy))


@pytest.mark.parametrize("shape", ["top-k 3", "top-p 0.6"])
def test_law(wide, shape, table):
    back = {vllm_ranks.moved(token): token for token in range(vllm_ranks.OWN)}
    texts = [tuple(map(back.__getitem__, text)) for text in written(wide, 2, "chains", "rejection", True)[4][shape]]
    found = p_values(texts, shape)
    parts = {part: f"{p:.2f}" for part, p in zip(PARTS, found, strict=True)}
    table(f"SGLang, two ranks: laws of {MANY} texts, p by chi-squared", {"filter": shape} | parts)
    assert min(found) >= FALSE_ALARM


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_bytes(wide, method, table):
    """Of texts that the ranks write as well where rows are gathered."""
    mine, theirs = (written(wide, 2, "chains", method, sharded)[0] for sharded in (True, False))
    for name, (texts, sent) in mine.items():
        again, every = theirs[name]
        assert texts == again
        assert len(sent) == 2
        assert 100 * max(sent) <= min(every)
        figures = {"bytes": f"{sent[0]:,}", "gathered": f"{every[0]:,}", "times fewer": f"{every[0] / sent[0]:,.0f}"}
        table(f"{BYTES}, of which a rank sends", {"chains": f"{method}, {name}", "texts": str(len(texts))} | figures)
