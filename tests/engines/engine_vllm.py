"""vLLM's own Triton code, in the interpreter, beside ours on the same inputs."""

import ast
import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines import vllm, vllm_v1
from tests.engines import vllm_stand_in as stand_in
from tests.engines.test_vllm import TARGET, K, arguments, drafted, metadata, prefix_law
from tests.engines.unpacked import differences, fields, functions, signature, strangers
from tests.engines.vllm_unpacked import load
from tests.support.laws import assert_law

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what GPUs do in silence
V2 = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
V1 = "vllm.v1.sample.rejection_sampler"
CONTEXT = "vllm.v1.worker.gpu.sample.logits_processor.interface"
TITLE = "vLLM: its Triton code in the interpreter, beside ours"
SURE = 40.0  # a logit above all others: the softmax of the rest is 0 in float32


@pytest.mark.parametrize(
    ("ours", "name", "path"),
    [
        (vllm, "rejection_sample", V2),
        (vllm, "gumbel_sample", "vllm.v1.worker.gpu.sample.gumbel"),
        (vllm, "apply_top_k_top_p", "vllm.v1.sample.ops.topk_topp_sampler"),
        (vllm_v1, "rejection_sample", V1),
    ],
)
def test_signature(ours, name, path):
    source = ast.parse(inspect.getsource(getattr(ours, name))).body[0]
    assert signature(source) == signature(functions(f"{path.replace('.', '/')}.py")[name])


SLOTS, WIDTH = 4, 40
PLACE = "vllm.v1.worker.gpu"


def of_vllm(config):
    """Its sampler and its samplers' verification, for requests of no kind, and a batch of three."""
    buffers = load(f"{PLACE}.buffer_utils")
    prompt, filled = (buffers.UvaBackedTensor(SLOTS, dtype=torch.int32) for _ in range(2))
    cpu = torch.device("cpu")
    texts, lengths = (buffers.StagedWriteTensor(size, torch.int32, cpu) for size in ((SLOTS, 128), SLOTS))
    requests = SimpleNamespace(
        device=cpu, max_num_reqs=SLOTS, vocab_size=WIDTH, prompt_len=prompt, prefill_len=filled,
        all_token_ids=texts, total_len=lengths,
    )  # fmt: skip
    sampler = load(f"{PLACE}.sample.sampler").Sampler(
        SimpleNamespace(reasoning_config=None), SLOTS, WIDTH, cpu, requests
    )
    config = SimpleNamespace(**vars(config), fly_entropy_threshold=0.3, fly_entropy_top_k=3)
    rejection = load(f"{PLACE}.spec_decode.rejection_sampler").RejectionSampler(sampler, config, cpu)
    batches = load(f"{PLACE}.input_batch")
    return sampler, rejection, batches.InputBatch.make_dummy(3, 3, batches.InputBuffers(SLOTS, SLOTS, cpu))


def test_the_stand_ins_have_its_types():
    config = stand_in.speculative(K)
    sampler, rejection, batch = of_vllm(config)
    ours = stand_in.Sampler(SLOTS, WIDTH)
    for one, theirs in (
        (ours, sampler), (stand_in.RejectionSampler(ours, config, None), rejection),
        (stand_in.batch_of([1, 1, 1], [0, 1, 2], [5, 6, 7]), batch),
    ):  # fmt: skip
        assert not list(differences(one, theirs))
    for one, path, owner in (
        (config, "config/speculative.py", "SpeculativeConfig"),
        (metadata(2), "v1/sample/metadata.py", "SamplingMetadata"),
    ):
        assert not list(strangers(one, fields(f"vllm/{path}", owner)))
    for name, path in (("LogprobsTensors", "vllm.v1.outputs"), ("LogitsContext", CONTEXT)):
        assert list(getattr(stand_in, name).__annotations__) == list(getattr(load(path), name).__annotations__)


def test_what_is_hooked_is_there():
    load(V2)
    importlib.import_module("specdec_kernels.engines._vllm").check_version()
    for path, owner, name, names in (
        ("worker_base.py", "WorkerWrapperBase", "initialize_from_config", ["self", "kv_cache_configs"]),
        ("gpu/model_states/interface.py", "ModelState", "custom_sampler", ["self", "sampler"]),
    ):
        given, by_name = signature(functions(f"vllm/v1/worker/{path}", owner)[name])
        assert [argument for argument, _ in given] == names
        assert not by_name


def decided(case):
    """`rejection_sample`'s arguments for twelve requests whose outcome no uniform can change."""
    counts, generator = [1 + b % (K + 1) for b in range(12)], torch.Generator().manual_seed(3)
    slots = torch.randperm(16, generator=generator)[:12].tolist()
    wanted = torch.randint(4, (sum(counts),), generator=generator)  # what each row decides
    drafts = torch.randint(4, (12, K), generator=generator)
    given = arguments(counts, slots, drafts, list(range(12)), capacity=16)
    for row in (given["expanded_local_pos"] > 0).nonzero().flatten().tolist():
        if row % 5:  # most drafts are right
            given["draft_sampled"][row] = wanted[row - 1]
    given["target_logits"] = SURE * torch.nn.functional.one_hot(wanted, 4).float()
    if case == "greedy":
        given["temperature"] = torch.zeros(16)
    if case == "without draft logits":
        given["draft_logits"] = None
    if case == "bfloat16":
        given["target_logits"] = given["target_logits"].bfloat16()
    return given | {"use_block_verification": case == "block"}


@pytest.mark.parametrize("case", ["greedy", "rejection", "without draft logits", "bfloat16", "block"])
def test_v2_decides_alike(case, table):
    given = decided(case)
    theirs, counts = load(V2).rejection_sample(**given)
    ours, our_counts = vllm.rejection_sample(**given)
    there = torch.arange(K + 1) < counts[:, None]
    assert torch.equal(counts, our_counts)
    assert torch.equal(theirs[there], ours[there])
    assert len(counts.unique()) == K + 1
    table(TITLE, {"what": f"V2 rejection_sample, {case}", "compared": "12 requests", "the same": "all tokens"})


@pytest.mark.parametrize("block", [False, True], ids=["rejection", "block"])
def test_v2_law(block, table):
    """Of the first token, and of how many drafts are accepted."""
    count = 160
    given = arguments([K + 1] * count, range(count), drafted(count), [5] * count)
    theirs, their_counts = load(V2).rejection_sample(**given, use_block_verification=block)
    many = 20_000
    given = arguments([K + 1] * many, range(many), drafted(many), [5] * many)
    ours, our_counts = vllm.rejection_sample(**given, use_block_verification=block)
    for tokens in (theirs, ours):
        assert_law(tokens[:, 0], prefix_law(TARGET[:1]))
    assert_law(their_counts - 1, torch.bincount(our_counts - 1, minlength=K + 1))
    name = f"V2 rejection_sample, {'block' if block else 'rejection'}, law"
    table(TITLE, {"what": name, "compared": f"{count} requests", "the same": "first token, drafts accepted"})


@pytest.mark.parametrize("law", ["with probabilities", "that count as certain"])
def test_v1_decides_alike(law, table):
    """Greedy requests and others, whose outcome no uniform can change, in one batch."""
    generator = torch.Generator().manual_seed(4)
    counts = [b % (K + 1) for b in range(12)]
    total = sum(counts)
    wanted = torch.randint(4, (total,), generator=generator)
    right = torch.rand(total, generator=generator) < 0.7
    drafts = torch.where(right, wanted, torch.randint(4, (total,), generator=generator)).int()
    probs = torch.rand(total, 4, generator=generator).softmax(-1) if law == "with probabilities" else None
    meta = SimpleNamespace(
        all_greedy=False, all_random=False, temperature=(torch.arange(12) % 2).float(),
        generators={b: torch.Generator().manual_seed(b) for b in range(0, 12, 3)},
    )  # fmt: skip
    given = (
        drafts, counts, K, torch.tensor(counts).cumsum(0).int(), probs,
        SURE * 4 * torch.nn.functional.one_hot(wanted, 4).float(),
        torch.randint(4, (12, 1), generator=generator, dtype=torch.int32), meta,
    )  # fmt: skip
    theirs = load(V1).rejection_sample(*given)
    assert torch.equal(theirs, vllm_v1.rejection_sample(*given))
    assert len((theirs >= 0).sum(1).unique()) == K + 1
    table(TITLE, {"what": f"V1 rejection_sample, drafts {law}", "compared": "12 requests", "the same": "all tokens"})


@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
@pytest.mark.parametrize("vocabulary", [100, 1000])
def test_top_k_top_p(vocabulary, ties, table):
    """vLLM's kept tokens stay, the tied ones at a cut among them."""
    logits = 3 * torch.randn(8, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    if ties:
        logits = (2 * logits).round() / 2
    k = torch.tensor([50, 5, vocabulary, vocabulary, 20, 1, 7, 60])
    p = torch.tensor([1.0, 0.9, 0.7, 1.0, 0.3, 0.5, 0.95, 0.99])
    theirs = load("vllm.v1.sample.ops.topk_topp_triton").apply_top_k_top_p_triton
    same = 0
    for filters in ((k, None), (None, p), (k, p)):
        one, other = (filtered(logits.clone(), *filters) for filtered in (theirs, vllm.apply_top_k_top_p))
        same += (one == other).all(1).sum().item()
    row = {"what": f"top-k, top-p, both, V = {vocabulary}, {'ties' if ties else 'no ties'}", "compared": "24 rows"}
    table(TITLE, row | {"the same": f"{same} rows keep the same"})
    assert same == 24


def test_min_p(table):
    logits = 3 * torch.randn(12, 1000, generator=torch.Generator().manual_seed(5))
    slots, min_p = torch.arange(12) % 4, torch.tensor([0.0, 0.01, 0.1, 0.5])
    theirs = logits.clone()
    load("vllm.v1.worker.gpu.sample.min_p").apply_min_p(theirs, slots, min_p)
    least = specdec.cutoff(logits, sampling=Sampling.vllm(min_p=min_p[slots])).value[:, None]
    assert torch.equal(theirs, logits.masked_fill(logits < least, -torch.inf))
    table(TITLE, {"what": "min-p", "compared": "12 rows", "the same": "12 rows keep the same"})
