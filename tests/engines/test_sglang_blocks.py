"""What the plug-in does inside SGLang's workers for DFLASH and DSPARK, with stand-ins of what it takes the place of."""

import types

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines import sglang
from tests.engines.launches import launches
from tests.engines.sglang_stand_in import (
    DFlashWorkerV2,
    DSparkWorkerV2,
    Pool,
    Registry,
    attached,
    info,
    request,
    schedule_batch,
)
from tests.support.filters import kept
from tests.support.laws import assert_law

VOCABULARY, K, MANY = 12, 3, 20_000
GENERATOR = torch.Generator().manual_seed(0)
TARGET = 2 * torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR)  # logits after each token
BLOCK = TARGET[7] + 0.5 * torch.randn(K, VOCABULARY, generator=GENERATOR)
HEAD = types.SimpleNamespace(weight=torch.eye(VOCABULARY))


pytestmark = pytest.mark.usefixtures("engine")


def made(monkeypatch, method, base, *given):
    """A worker of this class with our methods."""
    monkeypatch.setenv("SPECDEC_SGLANG", method)
    Registry.hooks = {}
    sglang.register()
    algorithm = types.SimpleNamespace(**{
        f"is_{name}": lambda name=name: name in base.__name__.lower() for name in ("dflash", "dspark")
    })  # fmt: skip
    return Registry.hook("create_worker")(base, algorithm, None)(*given)


def batch_of(sampling_info, lengths, reqs=None):
    size = len(lengths)
    reqs = reqs or [request(prompt=range(2))] * size
    return schedule_batch(sampling_info, torch.as_tensor(lengths), torch.arange(size), reqs, Pool(size))


def rounds_of(worker, batch, last, like_target=False):
    """Drafts [B, 1 + K], and what their verification gives: accepted, emitted, last tokens, all tokens."""
    size = len(last)
    if isinstance(worker, DSparkWorkerV2):
        base = torch.zeros(size, K, VOCABULARY) if like_target else BLOCK.expand(size, -1, -1)
        tokens, found = worker._forward_decode(batch, None, base, last, TARGET.__getitem__)
        assert torch.equal(found.new_seq_lens, batch.seq_lens + found.commit_lens)
        return tokens, (found.correct_len, found.commit_lens, found.bonus, found.out_tokens)
    worker._validate_phase1_sampling_support(batch)
    rows = TARGET[0].expand(size * K, -1) if like_target else BLOCK.repeat(size, 1)
    drafts = worker._greedy_sample_from_vocab_parallel_head(hidden_states=rows, lm_head=HEAD)
    tokens = torch.cat((last[:, None], drafts.view(size, K)), 1)
    logits = (TARGET[:1].expand(size * (K + 1), -1) if like_target else TARGET[tokens].flatten(0, 1)).clone()
    *found, lengths = worker._accept_block(
        candidates=tokens, next_token_logits=logits, sampling_info=batch.sampling_info, draft_input=None,
        prefix_lens=batch.seq_lens, bs=size, target_predict=None,
    )  # fmt: skip
    assert lengths is None
    return tokens, found


WORKERS = [(DFlashWorkerV2,), (DSparkWorkerV2, TARGET)]


@pytest.mark.parametrize("worker", WORKERS, ids=["DFLASH", "DSPARK"])
@pytest.mark.parametrize("method", ["race", "rejection"])
def test_a_race_writes_what_plain_steps_write(worker, method, monkeypatch):
    """With filters. By rejection it does not: the test can fail."""
    size, given = 6, dict(top_ks=torch.tensor([1, 3, 5, 12, 12, 4]), need_top_k_sampling=True)
    batch = batch_of(info(size, **given), [2] * size)
    worker, texts = made(monkeypatch, method, *worker), [[7, token] for token in range(size)]
    accepted = 0
    while min(map(len, texts)) < 30:
        batch.seq_lens = torch.tensor([len(text) - 1 for text in texts])
        _, (more, emitted, last, tokens) = rounds_of(worker, batch, torch.tensor([text[-1] for text in texts]))
        assert torch.equal(emitted, more + 1)
        assert torch.equal(last, tokens.gather(1, more[:, None].long())[:, 0])
        assert (more.dtype, emitted.dtype, last.dtype, tokens.dtype) == (torch.int32,) * 2 + (torch.int64,) * 2
        for text, row, length in zip(texts, tokens.tolist(), emitted.tolist(), strict=True):
            text += row[:length]
        accepted += more.sum()
    plain = [[7, token] for token in range(size)]
    for seed, text in enumerate(plain):
        while len(text) < 30:
            law = Sampling.sglang(1.0, top_k=int(given["top_ks"][seed]))
            text.append(int(specdec.race_sample(TARGET[text[-1]], seed=seed, position=len(text), sampling=law)))
    assert accepted
    assert ([text[:30] for text in texts] == plain) == (method == "race")


@pytest.mark.parametrize("worker", WORKERS, ids=["DFLASH", "DSPARK"])
@pytest.mark.parametrize("seeds", [True, False])
def test_the_targets_own_drafts_are_all_accepted_by_a_race(worker, seeds, monkeypatch):
    """They have the noise that verifies them, also where requests have no seeds."""
    worker = made(monkeypatch, "race", *worker)
    batch = batch_of(info(300, **{} if seeds else {"sampling_seed": None}), [5] * 300)
    tokens, (accepted, _, _, found) = rounds_of(worker, batch, torch.zeros(300, dtype=torch.int64), like_target=True)
    assert (accepted == K).all()
    assert torch.equal(found[:, :K], tokens[:, 1:])
    again = rounds_of(worker, batch, torch.zeros(300, dtype=torch.int64), like_target=True)[0]
    assert torch.equal(again, tokens) == seeds  # without seeds each round draws another


@pytest.mark.parametrize("worker", WORKERS, ids=["DFLASH", "DSPARK"])
@pytest.mark.parametrize("method", ["race", "rejection", "block"])
def test_law_with_filters(worker, method, monkeypatch):
    given = dict(top_ks=torch.full((MANY,), 4), min_ps=torch.full((MANY,), 0.2))
    given |= dict(need_top_k_sampling=True, need_min_p_sampling=True)
    worker, batch = made(monkeypatch, method, *worker), batch_of(info(MANY, **given), [5] * MANY)
    accepted, _, _, found = rounds_of(worker, batch, torch.full((MANY,), 7))[1]
    law = TARGET.double().softmax(-1) * torch.stack(
        [kept(row, Sampling.sglang(1.0, top_k=4, min_p=0.2)) for row in TARGET]
    )
    assert_law(found[:, 0], law[7] / law[7].sum())
    second = found[accepted > 0]
    assert len(second) > 500
    for token in second[:, 0].unique():
        after = second[second[:, 0] == token, 1]
        if len(after) > 500:
            assert_law(after, law[token] / law[token].sum())


def test_a_verification_may_be_of_fewer_drafts(monkeypatch):
    """The target is not asked about the others, and its rows there are anything."""
    lengths = torch.tensor([1, 2, 4], dtype=torch.int32).repeat(100)
    worker = made(monkeypatch, "race", DSparkWorkerV2, TARGET, types.SimpleNamespace(verify_lens=lengths))
    batch, last = batch_of(info(300), [5] * 300), torch.zeros(300, dtype=torch.int64)
    _, emitted, _, found = rounds_of(worker, batch, last, like_target=True)[1]
    assert torch.equal(emitted, lengths)
    whole = made(monkeypatch, "race", DSparkWorkerV2, TARGET)
    everything = rounds_of(whole, batch, last, like_target=True)[1][3]
    reached = torch.arange(K + 1) < lengths[:, None]
    assert torch.equal(found, everything.where(reached, torch.zeros(())).long())


def given_to_verify(batch, tokens):
    return dict(
        candidates=tokens, next_token_logits=TARGET[tokens].flatten(0, 1).clone(), sampling_info=batch.sampling_info,
        draft_input=None, prefix_lens=batch.seq_lens, bs=len(tokens), target_predict=None,
    )  # fmt: skip


def test_what_stays_with_sglang(monkeypatch):
    """Greedy batches, and drafts of DFLASH that have laws, but in a race."""
    tokens = torch.tensor([[9, 0, 1, 2]]).expand(4, -1)
    for method in ("race", "rejection"):
        worker = made(monkeypatch, method, DFlashWorkerV2)
        assert (worker._maybe_build_draft_sampler() is None) == (method == "race")
        greedy = batch_of(info(4, is_all_greedy=True), [5] * 4)
        worker._validate_phase1_sampling_support(greedy)
        assert worker._accept_block(**given_to_verify(greedy, tokens)) == "theirs"
        drafts = worker._greedy_sample_from_vocab_parallel_head(hidden_states=BLOCK.repeat(4, 1), lm_head=HEAD)
        assert torch.equal(drafts, BLOCK.argmax(-1).repeat(4))
        sampled = batch_of(info(4), [5] * 4)
        worker._validate_phase1_sampling_support(sampled)
        worker._selector_sample = torch.zeros(4, K, 2), torch.ones(4, K, 2)
        assert (worker._accept_block(**given_to_verify(sampled, tokens)) == "theirs") == (method == "rejection")
        worker.selector = object()
        assert worker._maybe_build_draft_sampler() == "captured"
        spark = made(monkeypatch, method, DSparkWorkerV2, TARGET)
        assert spark._sampling_accept_graph is None
        assert (
            spark._forward_decode(greedy, None, BLOCK.expand(4, -1, -1), tokens[:, 0], TARGET.__getitem__)[1]
            == "theirs"
        )
    assert Registry.hook("create_worker")(dict, types.SimpleNamespace(is_dflash=bool, is_dspark=bool)) is None


def test_penalties_of_greedy_requests_count_their_drafts(monkeypatch):
    """The row after a token has its penalty, which SGLang leaves out there; a bias it has added itself."""
    worker = made(monkeypatch, "race", DFlashWorkerV2)
    given = info(1, is_all_greedy=True)
    best = TARGET[0].argsort(descending=True)
    given.logit_bias = 50.0 * (torch.arange(VOCABULARY) == best[-1])[None]
    batch = batch_of(given, [2], [request(presence=100.0, prompt=range(2))])
    batch.reqs[0].output_ids.append(9)
    attached(batch)
    worker._validate_phase1_sampling_support(batch)
    tokens = torch.cat((torch.tensor([0]), best[:K]))[None]
    logits = TARGET[:1].repeat(K + 1, 1)
    accepted, _, _, found, _ = worker._accept_block(**given_to_verify(batch, tokens) | {"next_token_logits": logits})
    wanted = [token for token in best.tolist() if token != 0][: K + 1]
    assert found[0, : accepted + 1].tolist() == wanted[: accepted + 1]
    assert accepted > 0


def test_launches(monkeypatch):
    """Of a verification one of ours; beside it what SGLang wants of it, small."""
    worker, batch = made(monkeypatch, "race", DFlashWorkerV2), batch_of(info(4), [5] * 4)
    worker._validate_phase1_sampling_support(batch)
    given = given_to_verify(batch, torch.tensor([[9, 0, 1, 2]]).expand(4, -1).contiguous())
    small = ["aten::_to_copy", "aten::sub", "aten::_to_copy", "aten::gather"]
    assert launches(lambda: worker._accept_block(**given)) == ["specdec::verify_chain", *small]
