"""mlx-lm's adapter against a stand-in of mlx and mlx-lm: `make test-engines` has the engine itself."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines import counters, mlx_lm
from specdec_kernels.engines.mlx_lm import generate_step
from tests.engines import mlx_stand_in as lib
from tests.support.laws import assert_law, assert_rate

V, NEW = 6, 30
PROMPT = [2, 1]
FILTERS = Sampling(0.9, top_k=4, top_p=0.95, min_p=0.02)


pytestmark = pytest.mark.usefixtures("mlx")


def pair(*make_cache):
    """A target, and a draft that is near."""
    generator = np.random.default_rng(5)
    target = generator.normal(size=(V, V, V)) * 1.5
    return lib.Model(target, *make_cache), lib.Model(target + generator.normal(size=(V, V, V)) * 0.7)


def written(*models, prompt=PROMPT, **options):
    options = dict(max_tokens=NEW, num_draft_tokens=3, sampling=FILTERS, seed=3) | options
    return [token for token, _, _ in generate_step(prompt, *models, **options)]


def by_hand(target, text, new, sampling=FILTERS, processor=lambda text, row: row):
    """What a race writes, by `race_sample` alone."""
    text = list(text)
    for _ in range(new):
        row = torch.from_numpy(processor(text, lib.logits_after(target.table, text)))
        text.append(int(specdec.race_sample(row, seed=3, position=len(text), sampling=sampling)))
    return text[-new:]


@pytest.mark.parametrize("sampling", [Sampling(), FILTERS], ids=["unfiltered", "filtered"])
@pytest.mark.parametrize("prompt", [[4], PROMPT, [1, 2, 3, 4, 5] * 5], ids=len)
def test_a_race_writes_what_it_writes_without_drafts(prompt, sampling):
    target, draft = pair()
    expected = by_hand(target, prompt, NEW, sampling)
    for k in (1, 3, 8):
        assert written(target, draft, prompt=prompt, num_draft_tokens=k, sampling=sampling) == expected
    target.pieces.clear()
    assert written(target, prompt=prompt, sampling=sampling, prefill_step_size=4) == expected
    assert max(target.pieces) == min(4, len(prompt))


@pytest.mark.parametrize("method", ["race", "rejection", "block"])
def test_greedy_texts_and_equal_models(method, monkeypatch):
    target, draft = pair()
    assert written(target, draft, sampling=Sampling(0.0), method=method) == by_hand(target, PROMPT, NEW, Sampling(0.0))
    monkeypatch.setattr(counters, "_SEEN", {})
    drafted = [each[2] for each in generate_step(PROMPT, target, target, method=method, max_tokens=NEW,
                                                 num_draft_tokens=3, sampling=FILTERS, seed=3)]  # fmt: skip
    assert drafted == ([True] * 3 + [False]) * 7 + [True, False]  # the last token needs no draft
    assert counters.accepted_drafts("mlx-lm") == (8, [8, 7, 7])


@pytest.mark.parametrize("method", ["rejection", "block"])
def test_law(method):
    """Of two tokens, filtered; drafts are accepted as often as their laws say."""
    target, draft = pair()
    rows = torch.from_numpy(target.table)
    p = specdec.residual(rows, rows, sampling=FILTERS, draft_prob=0.0).probs
    texts = [
        [each for each in generate_step(PROMPT, target, draft, method=method, num_draft_tokens=2, max_tokens=3,
                                        sampling=FILTERS, seed=seed)]
        for seed in range(3000)
    ]  # fmt: skip
    tokens = torch.tensor([[token for token, _, _ in text[:2]] for text in texts])
    assert_law(tokens @ torch.tensor([V, 1]), (p[2, 1][:, None] * p[1]).flatten())
    if method == "rejection":
        rows = torch.from_numpy(draft.table[2, 1])
        q = specdec.residual(rows, rows, sampling=FILTERS, draft_prob=0.0).probs
        assert_rate([text[0][2] for text in texts], torch.minimum(p[2, 1], q).sum().item())


@pytest.mark.parametrize("method, fresh", [("block", True), ("rejection", False), ("race", False)])
def test_rounds_that_look_ahead_have_noise_of_their_own(monkeypatch, method, fresh):
    """Under one nonce their texts are biased: tests/ops/test_traversal_laws.py has the law."""
    drawn, verified = [], []
    race, verify = specdec.race_sample, specdec.verify_chain

    def drawing(logits, **noise):
        drawn.append((noise["position"], noise["nonce"]))
        return race(logits, **noise)

    def verifying(*call, **noise):
        verified.append(noise["nonce"])
        return verify(*call, **noise)

    monkeypatch.setattr(specdec, "race_sample", drawing)
    monkeypatch.setattr(specdec, "verify_chain", verifying)
    written(*pair(), method=method)
    assert len(verified) > 5
    assert (len(set(drawn)) == len(drawn)) == fresh
    assert len(set(verified)) == (len(verified) if fresh else 1)


CACHES = {
    "states": lib.ArraysCache,
    "both": lambda: lib.CacheList(lib.KVCache(), lib.ArraysCache()),
    "window": lambda: lib.RotatingKVCache(NEW // 2),  # full before the end
}


@pytest.mark.parametrize("kind", [
    lib.KVCache, lambda: lib.CacheList(lib.KVCache(), lib.KVCache()), CACHES["both"], lambda: lib.RotatingKVCache(4),
])  # fmt: skip
@pytest.mark.parametrize("stop", range(1, 7))
def test_a_cache_goes_on_from_where_the_caller_stopped(stop, kind):
    """It holds all that was yielded, and noise goes on, too."""
    target, draft = pair(kind)
    expected = by_hand(target, PROMPT, stop)
    expected += [3, *by_hand(target, [*PROMPT, *expected, 3], NEW)]
    for models in ((target, draft), (target,)):
        cache = [kind(), lib.KVCache()][: len(models)]
        options = dict(num_draft_tokens=3, sampling=FILTERS, seed=3, prompt_cache=cache)
        rounds = generate_step(PROMPT, *models, **options)
        found = [next(rounds)[0] for _ in range(stop)]
        rounds.close()
        assert written(*models, prompt=[3], **options) == expected[stop + 1 :]
        assert found == expected[:stop]
        parts = [part for each in cache for part in getattr(each, "caches", [each])]
        assert len({part.offset for part in parts if hasattr(part, "offset")}) == 1


def test_what_is_yielded():
    target, draft = pair()
    text = list(PROMPT)
    for token, logprobs, drafted in generate_step(PROMPT, target, draft, max_tokens=NEW, sampling=FILTERS):
        row = torch.from_numpy(lib.logits_after(target.table, text))
        torch.testing.assert_close(torch.from_numpy(np.asarray(logprobs)), row.double().log_softmax(-1).float())
        assert (type(token), type(drafted)) == (int, bool)
        text.append(token)
    endless = generate_step(PROMPT, target, draft, max_tokens=-1)
    assert len([next(endless) for _ in range(400)]) == 400
    assert len({tuple(written(target, draft, seed=None)) for _ in range(4)}) == 4


def test_logits_are_read_where_they_lie(monkeypatch):
    target, draft = pair()
    given, seen, verify = [], [], specdec.verify_chain
    call = lib.Model.__call__

    def kept(self, *args, **options):
        given.append(call(self, *args, **options))
        return given[-1]

    def watched(drafts, logits, laws, **options):
        seen.append(np.shares_memory(logits.numpy(), given[-1]))
        return verify(drafts, logits, laws, **options)

    monkeypatch.setattr(lib.Model, "__call__", kept)
    monkeypatch.setattr(specdec, "verify_chain", watched)
    written(target, draft, method="rejection")
    assert len(seen) > 2
    assert all(seen)


def test_processors_see_the_tokens_before_their_row():
    target, draft = pair()

    def edited(text, row):
        return (row + np.sin(np.arange(V) * sum(text) + len(text))).astype(np.float32)

    def processor(tokens, logits):
        return edited(tokens.tolist(), logits)

    expected = by_hand(target, PROMPT, NEW, processor=edited)
    options = dict(logits_processors=[processor])
    assert written(target, **options) == expected
    assert written(target, draft, **options) == expected
    drafted = sum(each[2] for each in generate_step(
        PROMPT, target, target, method="rejection", max_tokens=NEW, num_draft_tokens=3, sampling=FILTERS, **options
    ))  # fmt: skip
    assert drafted == 22  # all of them


def test_vocabularies_of_other_sizes():
    target, draft = pair()
    wide = np.full((V + 2,) * 3, 2.0)
    wide[:V, :V, :V] = draft.table
    for other in (lib.Model(draft.table[:4, :4, :4]), lib.Model(wide)):
        assert written(target, other) == written(target)
        assert len(written(target, other, method="rejection")) == NEW


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("cache", CACHES)
def test_caches_that_cannot_rewind(cache, most):
    target, draft = pair(CACHES[cache])
    expected = by_hand(target, PROMPT, NEW)
    draft.make_cache = lib.KVCache
    for models in ((target, draft), (target, target)):
        assert written(*models, max_pending=most) == expected
    assert written(draft, target, max_pending=most) == by_hand(draft, PROMPT, NEW)
    assert written(target, draft, num_draft_tokens=0) == expected
    assert written(target, draft, method="rejection", sampling=Sampling(0.0)) == by_hand(
        target, PROMPT, NEW, Sampling(0.0)
    )


def test_calls_are_counted():
    target, draft = pair(lib.ArraysCache)
    for most in (1, 16):
        target.pieces.clear()
        found = list(generate_step(
            PROMPT, target, draft, max_tokens=NEW, num_draft_tokens=3, sampling=FILTERS, seed=3, max_pending=most
        ))  # fmt: skip
        rounds = [0]
        for _, _, drafted in found:
            rounds[-1] += drafted
            if not drafted:
                rounds.append(0)
        # A call a round and, with 1, one for each that took something back, but for the last.
        refused = sum(accepted < 3 for accepted in rounds[:-1])
        assert len(target.pieces) - (len(rounds) - 1) in ((refused, refused + 1) if most == 1 else range(8))


class TestRefusals:
    def test_a_cache_that_rewinds_by_less(self, monkeypatch):
        monkeypatch.setattr(lib.KVCache, "trim", lambda self, n: n - 1)
        with pytest.raises(RuntimeError, match=r"model: expected a cache that rewinds by (\d); KVCache did by \d"):
            written(*pair())

    def test_arguments(self):
        target, draft = pair()
        for error, options, said in (
            (ValueError, dict(method="traversal"), "method: expected one of rejection, race, block; got 'traversal'"),
            (NotImplementedError, dict(sampler=max), "sampler: expected None, for sampling= has the rules, or"),
            (ValueError, dict(num_draft_tokens=-1), "num_draft_tokens: expected at least 0; got -1"),
            (ValueError, dict(max_tokens=-2), "max_tokens: expected at least -1; got -2"),
            (ValueError, dict(max_pending=0), "max_pending: expected at least 1; got 0"),
            (ValueError, dict(prefill_step_size=0), "prefill_step_size: expected at least 1; got 0"),
            (ValueError, dict(prompt=[]), "prompt: expected one token at least; got none"),
        ):
            with pytest.raises(error, match=said):
                written(target, draft, **options)
        with pytest.raises(RuntimeError, match="verify_chain"):
            written(lib.Model(np.full((V, V, V), np.nan)), draft)


class TestInstall:
    def test_puts_and_takes_back(self, mlx):
        before = {name: dict(vars(module)) for name, module in mlx.items()}
        mlx_lm.install()
        assert mlx["mlx_lm.generate"].speculative_generate_step is generate_step
        mlx_lm.uninstall()
        assert {name: dict(vars(module)) for name, module in mlx.items()} == before

    def test_samplers_say_their_law(self, mlx):
        target, draft = pair()
        make_sampler = mlx["mlx_lm.server"].make_sampler
        options = dict(temp=0.9, top_p=0.95, min_p=0.02, top_k=4)
        with pytest.raises(NotImplementedError, match="sampler: expected None, for sampling= has the rules, or one"):
            written(target, draft, sampler=make_sampler(**options))
        mlx_lm.install()
        try:
            make_sampler = mlx["mlx_lm.server"].make_sampler
            expected = by_hand(target, PROMPT, NEW, Sampling(0.9, 4, 0.95, 0.02, (), "all", False))
            assert written(target, draft, sampler=make_sampler(**options)) == expected
            assert written(target, draft, sampler=make_sampler(0.9)) == by_hand(target, PROMPT, NEW, Sampling(0.9))
            assert written(target, draft, sampler=make_sampler()) == by_hand(target, PROMPT, NEW, Sampling(0.0))
            for more in (dict(xtc_probability=0.5), dict(min_tokens_to_keep=2)):
                with pytest.raises(NotImplementedError, match="without XTC"):
                    written(target, draft, sampler=make_sampler(**options, **more))
        finally:
            mlx_lm.uninstall()


def test_imports():
    """Without mlx."""
    code = (
        "import sys; sys.modules['mlx'] = sys.modules['mlx_lm'] = None\n"
        "from specdec_kernels.engines import mlx_lm\n"
        "try: mlx_lm.generate_step([1], None)\n"
        "except ImportError: print('none')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "none\n", done.stderr
