"""What the plug-in does inside SGLang's workers, with stand-ins of the modules that it imports."""

import contextlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import DraftTree, Sampling
from specdec_kernels.engines import sglang
from tests.engines.launches import launches
from tests.engines.sglang_stand_in import (
    Pool,
    Registry,
    Sampler,
    attached,
    info,
    request,
    schedule_batch,
    verify_input,
)
from tests.support.filters import kept
from tests.support.laws import P, Q, assert_law, follows_law

LAW = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1])
TREE = DraftTree.from_parents([-1, 0, 0, 1])
MANY = 20_000


pytestmark = pytest.mark.usefixtures("engine")


def test_off_unless_asked_for(monkeypatch, engine):
    sglang.register()
    assert not Registry.hooks
    assert "specdec_kernels.engines._sglang" not in sys.modules
    monkeypatch.setenv("SPECDEC_SGLANG", "rejection")
    sglang.register()
    kinds = {target.removeprefix("sglang.srt."): kind for target, (_, kind) in Registry.hooks.items()}
    assert kinds == {
        "speculative.eagle_utils.eagle_sample": "replace",
        "speculative.spec_info.SpeculativeAlgorithm.create_worker": "after",
        "sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch": "after",
        "sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward": "after",
        "model_executor.model_runner.ModelRunner.sample": "before",
        "managers.scheduler.Scheduler.init_model_worker": "after",
    }
    assert isinstance(engine.backends["specdec"](), Sampler)
    assert "pytorch" not in engine.backends
    Registry.hooks = {}
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    assert Registry.hooks.keys() - {f"sglang.srt.{target}" for target in kinds} == {
        "sglang.srt.speculative.spec_utils.fast_sample"
    }
    assert type(engine.backends["pytorch"]()) is type(engine.backends["specdec"]()) is not Sampler
    monkeypatch.setenv("SPECDEC_SGLANG", "fast")
    with pytest.raises(ValueError, match="SPECDEC_SGLANG: expected one of 'rejection', 'race', 'block'; got 'fast'"):
        sglang.register()


def test_a_checkout_on_the_path_is_no_package_of_sglangs(monkeypatch):
    """Its code for MXFP4 imports triton_kernels, of which a checkout has a folder."""
    monkeypatch.setitem(sys.modules, "triton_kernels", None)  # which is put back
    del sys.modules["triton_kernels"]
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])
    assert importlib.util.find_spec("triton_kernels") is not None
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    assert importlib.util.find_spec("triton_kernels") is None


def prepared(
    logits, tokens, tree, sampling_info, draft_probs=None, topk=2, length=5, method="rejection", reqs=None, depth=None,
):  # fmt: skip
    """`eagle_sample` and its arguments, of logits [B, N, V] and tokens [B, N]."""
    os.environ["SPECDEC_SGLANG"] = method
    if not Registry.hooks:
        sglang.register()
    batch, nodes = tokens.shape
    schedule = schedule_batch(
        sampling_info, torch.as_tensor(length).expand(batch), torch.arange(batch),
        reqs or [request(prompt=range(6))] * batch,
        Pool(batch),
    )  # fmt: skip
    attached(schedule)
    output = types.SimpleNamespace(next_token_logits=logits.reshape(batch * nodes, -1).clone())
    return Registry.hook("eagle_sample"), verify_input(tokens, tree, topk, draft_probs, depth), schedule, output


def verified(logits, tokens, tree, sampling_info, *, grammar_mask=None, watermark_state=None, **given):
    """`eagle_sample`: the tokens of each path [B, S], -1 after the last."""
    hook, drafts, *rest = prepared(logits, tokens, tree, sampling_info, **given)
    batch, nodes = tokens.shape
    with empty_is_poison():
        predict, lengths, path = hook(drafts, *rest, grammar_mask, watermark_state=watermark_state)
    assert predict.dtype == lengths.dtype == path.dtype == torch.int32
    assert path.shape == (batch, drafts.max_tree_depth)
    assert torch.equal((path >= 0).sum(1), lengths.long())
    assert torch.equal(path[:, 0].long(), torch.arange(batch) * nodes)
    written = torch.zeros_like(predict, dtype=torch.bool)
    written[path[path >= 0].long()] = True
    assert not predict[~written].any()  # SGLang embeds these tokens, too
    return torch.where(path >= 0, predict[path.long().clamp(min=0)], -1).long()


@contextlib.contextmanager
def empty_is_poison():
    """New tensors are full of NaN, or of the largest number."""
    torch.use_deterministic_algorithms(True)
    fill, torch.utils.deterministic.fill_uninitialized_memory = (
        torch.utils.deterministic.fill_uninitialized_memory,
        True,
    )
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def drafted(batch):
    return torch.tensor([9, 0, 1, 2]).expand(batch, -1)


@pytest.mark.parametrize("method", ["rejection", "race", "block"])
def test_law_of_trees_with_filters(method):
    """The joint rule, as SGLang's sampler has it: 0.7 of the whole row, which is more than 0.7 of what top-k keeps."""
    filters = dict(
        top_ks=torch.full((MANY,), 3, dtype=torch.int32), top_ps=torch.full((MANY,), 0.7), need_top_k_sampling=True,
        need_top_p_sampling=True, temperatures=torch.full((MANY, 1), 0.5),
    )  # fmt: skip
    logits = (0.5 * LAW.log()).expand(MANY, 4, -1)
    tokens = verified(logits, drafted(MANY), TREE, info(MANY, **filters), method=method)
    law = torch.where(torch.arange(5) < 3, LAW, 0.0)
    assert_law(tokens[:, 0], law)
    more = tokens[:, 1] >= 0
    assert_law(tokens[more, 1], law)
    assert (tokens[:, 2] >= 0).any()


def launched(tokens, tree, sampling_info, **given):
    """What `eagle_sample` launches; asking a generator for a seed launches nothing on a GPU."""
    hook, *call = prepared(LAW.log().expand(*tokens.shape, -1), tokens, tree, sampling_info, **given)
    asking = "aten::random_", "aten::_local_scalar_dense"
    return [name for name in launches(lambda: hook(*call)) if name not in asking]


@pytest.mark.parametrize("seeds", [True, False])
@pytest.mark.parametrize("method", ["rejection", "race", "block"])
def test_launches(method, seeds, engine):
    """Ours alone; zeros where a chain may not be as long as SGLang's, for what SGLang reads behind it."""
    given = dict(sampling_info=info(4, **{} if seeds else {"sampling_seed": None}), method=method)
    assert launched(drafted(4), TREE, **given) == ["specdec::tree_parents", "specdec::verify_tree"]
    chain = dict(tokens=drafted(4)[:, :3], tree=DraftTree.chain(2), topk=1)
    assert launched(**chain, **given) == ["specdec::verify_chain"]
    assert launched(**chain, **given, depth=2) == ["aten::zeros", "specdec::verify_chain"]
    engine.options.speculative_use_rejection_sampling = True
    given["draft_probs"] = Q.expand(4, 2, -1)
    assert launched(**chain, **given) == ["specdec::verify_chain"]


def test_launches_of_lenient_thresholds(engine):
    engine.options.speculative_accept_threshold_acc = 0.5
    ours = ["specdec::residual", "specdec::verify_linked_tree"]
    assert launched(drafted(4), TREE, info(4)) == ours
    chain = dict(tokens=drafted(4)[:, :3], tree=DraftTree.chain(2), topk=1)
    assert launched(**chain, sampling_info=info(4)) == ours
    assert launched(**chain, sampling_info=info(4), method="race") == ["specdec::verify_chain"]


def test_a_chain_may_be_longer_than_paths():
    """What stands behind it is 0, too."""
    call = LAW.log().expand(50, 3, -1), drafted(50)[:, :3], DraftTree.chain(2), info(50)
    assert torch.equal(verified(*call, topk=1, depth=2)[:, 0], verified(*call, topk=1)[:, 0])


def test_a_path_may_be_wider_than_a_chain():
    call = LAW.log().expand(50, 3, -1), drafted(50)[:, :3], DraftTree.chain(2), info(50)
    found = verified(*call, topk=1, depth=5)
    assert torch.equal(found[:, :3], verified(*call, topk=1))
    assert (found[:, 3:] == -1).all()


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_a_greedy_batch_has_no_draft_laws(method, engine):
    engine.options.speculative_use_rejection_sampling = True
    given = info(2, is_all_greedy=True)
    tokens = torch.tensor([[9, 0, 1], [9, 1, 0]])
    found = verified(LAW.log().expand(2, 3, -1), tokens, DraftTree.chain(2), given, topk=1, method=method)
    assert found.tolist() == [[0, 0, -1], [0, -1, -1]]


def test_min_p_is_not_left_out():
    least = dict(min_ps=torch.full((MANY,), 0.6), need_min_p_sampling=True)
    tokens = verified(LAW.log().expand(MANY, 4, -1), drafted(MANY), TREE, info(MANY, **least))
    assert_law(tokens[:, 0], torch.where(LAW >= 0.18, LAW, 0.0))


def test_lenient_thresholds(engine):
    engine.options.speculative_accept_threshold_acc = 0.5
    tokens = verified(LAW.log().expand(MANY, 4, -1), drafted(MANY), TREE, info(MANY))
    assert not follows_law(tokens[:, 0], LAW)
    assert (tokens[:, 0] < 2).all()  # 0.55 / 0.5 is more than any uniform
    raced = verified(LAW.log().expand(MANY, 4, -1), drafted(MANY), TREE, info(MANY), method="race")
    assert_law(raced[:, 0], LAW)


@pytest.mark.parametrize("seeds", [True, False])
def test_a_threshold_that_nothing_reaches_changes_no_law(seeds, engine):
    """Each token has the target's law, and so have pairs of the first two."""
    engine.options.speculative_accept_threshold_single = 0.99
    given = info(MANY, **{} if seeds else {"sampling_seed": None})
    tokens = verified(LAW.log().expand(MANY, 4, -1), drafted(MANY), TREE, given)
    assert_law(tokens[:, 0], LAW)
    for first in range(5):
        second = tokens[(tokens[:, 0] == first) & (tokens[:, 1] >= 0), 1]
        if len(second) > 0:
            assert_law(second, LAW)


def test_sampled_drafts_without_their_laws(engine):
    engine.options.speculative_use_rejection_sampling = True
    with pytest.raises(ValueError, match="draft_probs: expected the laws of the drafts"):
        verified(P.log().expand(2, 3, -1), drafted(2)[:, :3], DraftTree.chain(2), info(2), topk=1)


def test_race_is_the_sampler():
    """One seed, one text: verification and the sampling backend give the same token at the same position."""
    logits = 2 * torch.randn(50, 4, 40, generator=torch.Generator().manual_seed(0))
    filters = dict(
        top_ks=torch.full((50,), 9, dtype=torch.int32), need_top_k_sampling=True, temperatures=torch.full((50, 1), 0.8)
    )
    given = info(50, torch.arange(50) + 1000, **filters)
    tokens = verified(logits, torch.randint(40, (50, 4)), TREE, given, method="race", length=5)
    backend = sys.modules["specdec_kernels.engines._sglang"].SpecdecSampler()
    for return_logprob in (False, True):
        output = types.SimpleNamespace(next_token_logits=logits[:, 0].clone())
        drawn = backend.forward(output, given, return_logprob, [], [], torch.full((50,), 5))
        assert torch.equal(drawn, tokens[:, 0])
        assert hasattr(output, "next_token_logprobs") == return_logprob
        assert return_logprob or backend.synced is drawn
    wanted = specdec.race_sample(
        logits[:, 0], seed=torch.arange(50) + 1000, position=6, sampling=Sampling.sglang(0.8, top_k=9)
    )
    assert torch.equal(wanted, tokens[:, 0])


def test_sampling_masks(monkeypatch, engine):
    """SGLang gets the weights of the tokens that our filters keep, of the rows that ask for them."""
    logits = 2 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    given = info(
        6, top_ks=torch.full((6,), 9, dtype=torch.int32), top_ps=torch.full((6,), 0.8), need_top_k_sampling=True,
        need_top_p_sampling=True, temperatures=torch.full((6, 1), 0.7),
        sampling_mask_batch_indices=torch.tensor([1, 4]),
    )  # fmt: skip
    output = types.SimpleNamespace(next_token_logits=logits.clone())
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    backend = engine.backends["specdec"]()
    drawn = backend.forward(output, given, False, [], [], torch.full((6,), 5))
    for row, weights in zip(given.sampling_mask_batch_indices.tolist(), output.capture.weights, strict=True):
        sets = kept(logits[row], Sampling.sglang(0.7, top_k=9, top_p=0.8))
        assert torch.equal(weights > 0, sets)
        assert torch.equal(weights[sets], (logits[row] / 0.7).softmax(-1)[sets])
        assert sets[drawn[row]]
    assert (output.capture.token_ids, output.capture.selected_weight) == (None, None)
    assert output.capture.batch_rows is given.sampling_mask_batch_indices


def test_custom_processors_run_once(monkeypatch):
    """Before the draw; logprobs are of the same rows."""
    monkeypatch.setenv("SPECDEC_SGLANG", "rejection")
    sglang.register()
    rows = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    output = types.SimpleNamespace(next_token_logits=rows.clone())
    given = info(50, has_custom_logit_processor=True)
    backend = sys.modules["specdec_kernels.engines._sglang"].SpecdecSampler()
    drawn = backend.forward(output, given, True, [], [], torch.full((50,), 5))
    rows[:, 0] += 1
    assert torch.equal(drawn, specdec.race_sample(rows, seed=torch.arange(50), position=6))
    wanted = rows.double().log_softmax(-1).gather(1, drawn[:, None])[:, 0].float()
    torch.testing.assert_close(output.next_token_logprobs, wanted)


def test_without_seeds_the_generator_gives_them():
    given = info(200, sampling_seed=None)
    call = LAW.log().expand(200, 4, -1), drafted(200), TREE, given
    torch.manual_seed(1)
    first, second = verified(*call), verified(*call)
    torch.manual_seed(1)
    assert torch.equal(first, verified(*call))
    assert not torch.equal(first, second)
    assert len(first[:, 0].unique()) == 5


def test_greedy_penalties_bias_and_grammar():
    logits = torch.zeros(2, 4, 5)
    logits[..., 4] = 9.0
    given, reqs = info(2, is_all_greedy=True), [request(presence=20.0, prompt=range(5)), request(prompt=range(6))]
    assert verified(logits, drafted(2), TREE, given)[:, 0].tolist() == [4, 4]
    reqs[0].output_ids.append(4)
    assert verified(logits, drafted(2), TREE, given, reqs=reqs)[:, 0].tolist() == [0, 4]
    given.logit_bias = torch.tensor([[0.0, 0, 0, 5, 0], [0, 0, 0, 0, 0]])
    assert verified(logits, drafted(2), TREE, given, reqs=reqs)[:, 0].tolist() == [3, 4]
    mask = types.SimpleNamespace(apply=lambda x: x.__setitem__((slice(None), 4), -torch.inf))
    assert verified(logits, drafted(2), TREE, given, grammar_mask=mask, reqs=reqs)[:, 0].tolist() == [3, 0]


def test_drafts_of_a_race_share_its_noise(monkeypatch, engine):
    """Drawn where EAGLE's worker draws them, from the target's own laws, all are accepted."""
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    engine.options.speculative_use_rejection_sampling = True
    batch, drafts, length = 100, 4, 5
    logits = torch.randn(batch, drafts + 1, 30, generator=torch.Generator().manual_seed(0))
    given = info(batch, torch.arange(batch) + 7, temperatures=torch.full((batch, 1), 0.7))
    probs = (logits / 0.7).softmax(-1)
    draw, tokens = Registry.hook("fast_sample"), [torch.zeros(batch, 1, dtype=torch.int64)]
    for step in range(drafts):  # the first after the extension, at its length, the others one place on
        mass, found = draw(
            None, probs[:, step], sampling_seed=given.sampling_seed, positions=torch.full((batch,), length + step),
            draft_step=step,
        )  # fmt: skip
        assert torch.equal(mass, probs[:, step].gather(1, found))
        tokens.append(found)
    call = dict(tree=DraftTree.chain(drafts), sampling_info=given, topk=1, method="race", length=length)
    found = verified(logits, torch.cat(tokens, 1), **call)
    assert (found >= 0).all()
    assert len(tokens[1].unique()) > 10
    near = probs * torch.rand(probs.shape, generator=torch.Generator().manual_seed(1)).add(0.5)
    near /= near.sum(-1, keepdim=True)
    _, first = draw(None, near[:, 0], sampling_seed=given.sampling_seed, positions=torch.full((batch,), length))
    agree = (verified(logits, torch.cat((tokens[0], first, *tokens[2:]), 1), **call)[:, 0] == first[:, 0]).sum()
    assert agree > 0.7 * batch > 3 * (probs[:, 0] * near[:, 0]).sum()  # by chance


def test_draws_that_stay_sglang_s(monkeypatch, engine):
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    draw, probs, seeds = Registry.hook("fast_sample"), LAW.expand(3, -1), torch.arange(3)

    def original(*given, **named):
        return given, named

    named = dict(sampling_seed=seeds, positions=seeds, draft_step=2)
    assert draw(original, probs, 2, **named) == ((probs, 2), named)
    unseeded = dict(sampling_seed=None, positions=None, draft_step=0)
    assert draw(original, probs) == ((probs, 1), unseeded)
    assert draw(original, probs, **named)[1].shape == (3, 1)
    engine.options.enable_multi_layer_eagle = True
    assert draw(original, probs, **named) == ((probs, 1), named)


def test_what_a_race_left_behind_is_not_in_force_for_rejection(monkeypatch, engine):
    """Hooks stay for as long as the process. Drafts drawn by the noise that rejects them would have another law."""
    monkeypatch.setenv("SPECDEC_SGLANG", "race")
    sglang.register()
    monkeypatch.setenv("SPECDEC_SGLANG", "rejection")
    named = dict(sampling_seed=torch.arange(3), positions=torch.arange(3), draft_step=0)
    call = Registry.hook("fast_sample")(lambda *given, **named: (given, named), LAW.expand(3, -1), **named)
    assert call[1] == named
    assert type(engine.backends["pytorch"]()) is Sampler
    assert type(engine.backends["specdec"]()) is not Sampler


class TestSaid:
    """Of each engine one line in the log."""

    def line(self, caplog, method, algorithm, sampler=None, selector=None):
        os.environ["SPECDEC_SGLANG"] = method
        if not Registry.hooks:
            sglang.register()
        kinds = ("eagle", "standalone", "ngram", "uno", "none", "dflash", "dspark")
        named = {f"is_{kind}": lambda kind=kind: algorithm.startswith(kind.upper()) for kind in kinds}
        runner = types.SimpleNamespace(sampler=sampler)
        caplog.clear()
        with caplog.at_level("INFO", "sglang"):
            Registry.hook("init_model_worker")(None, types.SimpleNamespace(
                spec_algorithm=types.SimpleNamespace(name=algorithm, **named),
                tp_worker=types.SimpleNamespace(model_runner=runner),
                draft_worker=types.SimpleNamespace(selector=selector, lilicorr=None),
            ))  # fmt: skip
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        return lines[0] if lines else None

    def test_what_it_does(self, caplog, engine):
        begins = "specdec-kernels: method 'race', for"
        assert self.line(caplog, "race", "EAGLE3") == ("INFO", f"{begins} drafts of EAGLE3")
        ours = engine.backends["specdec"]()
        assert self.line(caplog, "race", "NGRAM", ours) == (
            "INFO",
            f"{begins} drafts of NGRAM and steps without drafts",
        )
        for name, selector in (("DFLASH", None), ("DFLASH", object()), ("DSPARK", None)):
            assert self.line(caplog, "race", name, selector=selector) == ("INFO", f"{begins} drafts of {name}")
        assert self.line(caplog, "race", "NONE", ours) == ("INFO", f"{begins} steps without drafts")
        engine.group.rank = 1
        assert self.line(caplog, "race", "EAGLE") is None

    def test_why_it_does_nothing(self, caplog):
        begins, ends = "specdec-kernels: method 'block' changes nothing:", "and the sampling backend is not specdec"
        alone = self.line(caplog, "block", "NONE", Sampler())
        assert alone == ("WARNING", f"{begins} there is no speculative decoding, {ends}")
        own = self.line(caplog, "block", "DFLASH", Sampler(), selector=object())
        assert own == ("WARNING", f"{begins} DFLASH verifies by functions of its own, {ends}")


def test_idle_batches_and_refusals(monkeypatch, engine):
    given = info(2, has_watermark_candidates=True)
    call = LAW.log().expand(2, 4, -1), drafted(2), TREE
    with pytest.raises(NotImplementedError, match="watermark_state"):
        verified(*call, given, watermark_state=object())
    monkeypatch.setattr(sys.modules["sglang.srt.speculative.spec_utils"], "SIMULATE_ACC_LEN", 3)
    with pytest.raises(NotImplementedError, match="SGLANG_SIMULATE_ACC_LEN"):
        verified(*call, info(2))
    idle = types.SimpleNamespace(device="cpu", forward_mode=types.SimpleNamespace(is_idle=lambda: True))
    found = Registry.hook("eagle_sample")(None, idle, None)
    assert [x.numel() for x in found] == [0, 0, 0]


def test_ranks_hear_the_first_one(engine):
    heard = []
    engine.group.world_size, engine.group.broadcast = 2, lambda x, src: heard.append(x.shape)
    verified(LAW.log().expand(3, 4, -1), drafted(3), TREE, info(3))
    assert heard == [(12,), (3, 3), (3,)]


def test_a_step_that_is_padded_marks_its_rows_alone(engine):
    """SGLang captures steps of some sizes and pads a batch to the next one, by slots of others."""
    from specdec_kernels.engines import _sglang as parts
    from specdec_kernels.engines._watermark import Marks
    from specdec_kernels.generate.noise import Watermark

    marks, given = Marks(Watermark(7, 4), torch.zeros(4, 16, dtype=torch.int64)), types.SimpleNamespace()
    step = types.SimpleNamespace(
        sampling_info=given, req_pool_indices=torch.tensor([2, 1]), seq_lens=torch.tensor([5, 5]),
        input_ids=torch.tensor([9, 8]), forward_mode=types.SimpleNamespace(is_decode=lambda: True),
    )  # fmt: skip
    runner = types.SimpleNamespace(req_to_token_pool=types.SimpleNamespace(specdec_marks=marks))
    parts.enter(runner, types.SimpleNamespace(next_token_logits=torch.zeros(1, 5)), step)
    assert marks.text.nonzero().tolist() == [[2, 4]]
    assert given.specdec_marked[1].tolist() == [2]
