"""Laws of what adapters emit, by the conformance kit: each verifies the kit's batches as its engine would call it."""

import functools
import types

import pytest
import torch

from specdec_kernels import DraftTree
from specdec_kernels.conformance import check
from specdec_kernels.engines import flashinfer, transformers, vllm, vllm_v1
from specdec_kernels.engines._methods import METHODS
from tests.engines import sglang_stand_in, vllm_stand_in, vllm_v1_stand_in
from tests.engines.test_sglang_plugin import verified as verified_by_sglang
from tests.engines.test_vllm_plugin import admit

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "frequency": 0.0, "presence": 0.0}


def flat(batch):
    """Numbers of drafts, and which rows [B, K + 1] requests have: one more."""
    counts = (batch.drafts >= 0).sum(1)
    return counts, torch.arange(batch.target.shape[1]) <= counts[:, None]


def by_vllm(batch, padded=False):
    """With ``padded`` rows where no draft is, too."""
    counts, there = flat(batch)
    there |= padded
    request, column = there.nonzero().unbind(1)
    slots, ones = torch.arange(len(counts)), torch.ones(len(counts))
    tokens = torch.nn.functional.pad(batch.drafts, (1, 0)).int()[there]
    return vllm.rejection_sample(
        batch.target[there], None if batch.draft is None else batch.draft.log(), tokens,
        torch.nn.functional.pad(there.sum(1).cumsum(0), (1, 0)).int(), batch.position[request] + column, slots,
        request, column.int(), ones, batch.seed, batch.drafts.shape[1],
    )[0]  # fmt: skip


def by_v2(method, batch):
    """By the V2 runner's plug-in."""
    counts, there = flat(batch)
    size, width, vocabulary = len(counts), batch.drafts.shape[1], batch.target.shape[2]
    vllm.register()
    sampler = vllm_stand_in.Sampler(size, vocabulary)
    numbers, penalties = sampler.sampling_states, sampler.penalties_state
    for name in ("temperature", "top_p", "min_p"):
        getattr(numbers, name).gpu[:] = getattr(batch, name)
    numbers.top_k.gpu[:], numbers.seeds.gpu[:] = batch.top_k.where(batch.top_k > 0, vocabulary), batch.seed
    for name in ("repetition", "frequency", "presence"):
        getattr(penalties, f"{name}_penalty").gpu[:] = getattr(batch, name)
    penalties.use_penalty[:] = sampler.needs_logits_processing[:] = True
    penalties.prompt_bin_mask[:] = (1 << batch.prompt).sum(1, keepdim=True)
    penalties.output_bin_counts[:] = torch.nn.functional.one_hot(batch.output, vocabulary).sum(1)
    state = vllm_stand_in.ModelState(vllm_stand_in.speculative(width), {"specdec": method})
    _, rejection = state.custom_sampler(sampler)
    for slot, texts in enumerate(zip(batch.prompt.tolist(), batch.output.tolist(), strict=True)):
        sampler.req_states.begin(slot, *texts)
    admit(sampler)
    given = vllm_stand_in.batch_of((counts + 1).tolist(), range(size), batch.position.tolist())
    tokens = torch.nn.functional.pad(batch.drafts, (1, 0)).int()[there]
    warm = batch.temperature.where(batch.temperature > 0, 1.0)[:, None, None]
    draft = None if batch.draft is None else warm * batch.draft.log()
    return rejection._verify_in_chunks(batch.target[there], given, draft, tokens, given.positions, 1, -1, tokens)[0]


def by_v1(plugin, method, batch):
    """By the V1 runner's plug-in, of drafts whose probabilities are others'."""
    counts, there = flat(batch)
    runner = vllm_v1_stand_in.Runner(vllm_v1_stand_in.Proposer(None, probabilistic=False))
    plugin.take_over(runner, method)
    names, drafts = [*range(len(counts))], [row[:n] for row, n in zip(batch.drafts.tolist(), counts, strict=True)]
    runner.drafter.rows, runner.drafted_for = batch.draft, names
    numbers = [getattr(batch, name).tolist() for name in ("temperature", *OFF)]
    kinds = [
        {name: x for name, x in zip(("temperature", *OFF), each, strict=True) if x != OFF.get(name)}
        for each in zip(*numbers, strict=True)
    ]
    for name, seed in zip(names, batch.seed.tolist(), strict=True):
        runner.requests[name] = types.SimpleNamespace(generator=torch.Generator().manual_seed(seed))
    texts = batch.prompt.tolist(), batch.output.tolist()
    runner.batch(names, vllm_v1_stand_in.metadata_of(kinds, *texts, drafts, batch.target.shape[2]))
    found = runner.step(batch.target[there], drafts, (batch.position + counts).tolist()).sampled_token_ids
    return torch.nn.functional.pad(found, (0, batch.target.shape[1] - found.shape[1]), value=-1)


def by_v1_function(batch):
    counts = (batch.drafts >= 0).sum(1)
    drafted, rows = batch.drafts >= 0, batch.target / batch.temperature[:, None, None]
    bonus = torch.multinomial(rows[torch.arange(len(counts)), counts].softmax(-1), 1)
    metadata = types.SimpleNamespace(all_greedy=False, all_random=True, temperature=batch.temperature, generators={})
    return vllm_v1.rejection_sample(
        batch.drafts[drafted].int(), counts.tolist(), batch.drafts.shape[1], counts.cumsum(0).int(),
        None if batch.draft is None else batch.draft[drafted], rows[:, :-1][drafted], bonus, metadata,
    )  # fmt: skip


def by_flashinfer(dtype, batch):
    return flashinfer.chain_speculative_sampling(
        batch.draft, batch.drafts.to(dtype), batch.target.softmax(-1), seed=batch.seed, offset=batch.position
    )[0]


def by_sglang(engine, method, batch):
    """Sampled drafts, or drafts without a law."""
    engine.options.speculative_use_rejection_sampling = batch.draft is not None
    given = sglang_stand_in.info(
        len(batch.seed), batch.seed, temperatures=batch.temperature[:, None], top_ps=batch.top_p,
        top_ks=torch.where(batch.top_k == 0, 1 << 30, batch.top_k).int(), min_ps=batch.min_p,
        **dict.fromkeys(("need_top_k_sampling", "need_top_p_sampling", "need_min_p_sampling"), True),
    )  # fmt: skip
    tokens = torch.nn.functional.pad(batch.drafts, (1, 0))
    call = batch.target, tokens, DraftTree.chain(2), given
    return verified_by_sglang(*call, draft_probs=batch.draft, topk=1, method=method, length=batch.position)


def by_transformers(batch):
    tokens = torch.full((len(batch.drafts), 3), -1)
    for row, drafts, q, p in zip(tokens, batch.drafts, batch.draft.log(), batch.target, strict=True):
        count = int((drafts >= 0).sum())
        text = torch.cat([torch.tensor([3]), drafts[:count]])[None]
        found, _ = transformers.speculative_sampling(text, q[None, :count], count, p[None, : count + 1])
        row[: found.shape[1]] = found
    return tokens


ADAPTERS = {  # what verifies, checks, requests of a kind
    "vLLM": (by_vllm, "chain certain ends seeds batch", 20_000),
    "vLLM, padded": (functools.partial(by_vllm, padded=True), "chain certain ends seeds batch", 20_000),
    "V1's function": (by_v1_function, "chain certain ends", 6000),
    **{f"FlashInfer, {str(dtype)[6:]}": (functools.partial(by_flashinfer, dtype), "chain ends seeds", 20_000)
       for dtype in (torch.int64, torch.int32, torch.int16)},
    "transformers": (by_transformers, "chain ends", 2000),
}  # fmt: skip


def assert_conforms(verify, checks, trials=6000, **options):
    report = check(verify, checks.split(), trials=trials, **options)
    assert report.passed, str(report)


@pytest.mark.parametrize("name", ADAPTERS)
def test_functions(name):
    torch.manual_seed(1)  # the kit's generator has 0
    assert_conforms(*ADAPTERS[name])


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize("method", ["rejection", "block"])
def test_v2_plugin(method):
    """Laws of races are those of the slot machine's texts."""
    assert_conforms(functools.partial(by_v2, method), "chain certain ends temperatures filters penalties seeds batch")


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_v1_plugin(v1, method):
    assert_conforms(functools.partial(by_v1, v1, method), "chain certain filters", 2500)


@pytest.mark.parametrize("method", METHODS)
def test_sglang_plugin(engine, method):
    assert_conforms(functools.partial(by_sglang, engine, method), "chain certain temperatures filters seeds batch")


@pytest.mark.parametrize("is_drafting", [True, False])
def test_residuals_do_not_share_the_noise_of_drafts(is_drafting):
    """Drafts of vLLM's `gumbel_sample`; even those with the target's noise leave the law alone: that of a race."""

    def draw(probs, seed, position):
        slots, ones = torch.arange(len(seed)), torch.ones(len(seed))
        return vllm.gumbel_sample(probs.log(), slots, ones, seed, position, True, is_drafting)

    assert_conforms(by_vllm, "chain", 20_000, draw=draw)
