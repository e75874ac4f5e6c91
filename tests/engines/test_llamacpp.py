"""llama.cpp's adapter against a stand-in of its C interface: `make test-engines` has the engine itself."""

import doctest
import gc
import importlib
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels.engines import counters
from specdec_kernels.engines.llamacpp import (
    LlamaDraft,
    LlamaModel,
    RaceProcessor,
    generate,
    install,
    uninstall,
    write_gguf,
)
from specdec_kernels.generate import NgramDrafter
from tests.engines import llama_stand_in as lib
from tests.support.laws import assert_law, assert_rate

V, NEW = 6, 12
PROMPTS = ([1, 2], [3], [0, 4, 4, 1])
FILTERS = Sampling.llamacpp(temperature=0.9, top_k=4, top_p=0.95, min_p=0.02)


pytestmark = pytest.mark.usefixtures("llama_cpp")


def tables():
    """Of a target, and of a draft that is near."""
    generator = np.random.default_rng(5)
    target = generator.normal(size=(V, V, V)) * 1.5
    return target, target + generator.normal(size=(V, V, V)) * 0.7


def pair(**options):
    return tuple(lib.Llama(table, **options) for table in tables())


def texts(prompts, *models, **options):
    found = generate(prompts, *models, **({"max_new_tokens": NEW, "eos_token_ids": [], "seed": 3} | options))
    return [generation.tokens for generation in found]


WAYS = {
    "chain": dict(k=3),
    "long chain": dict(k=6),
    "tree": dict(tree=[-1, 0, 0, 1, 1, 2]),
    "wide tree": dict(tree=[-1, *[0] * 10, 1, 1, 2, 12]),
}


class TestGenerate:
    def test_a_model_that_drafts_for_itself_has_all_accepted(self):
        target, _ = pair()
        for way in ("chain", "tree"):
            for method in ("race", "rejection"):
                options = dict(max_new_tokens=NEW, eos_token_ids=[], method=method, **WAYS[way])
                for generation in generate(PROMPTS, target, target, **options):
                    assert {entry.accepted for entry in generation.rounds[:-1]} == {3 if way == "chain" else 2}

    @pytest.mark.parametrize("way", ["chain", "tree"])
    def test_law_of_rejection(self, way):
        """Of two tokens; and drafts are accepted as often as their laws say, so they are the drafts' own."""
        target, draft = pair()
        count, prompt = 4000, [2, 1]
        p, q = (torch.from_numpy(model.table).double().softmax(-1) for model in (target, draft))
        models, batch, found, accepted = (LlamaModel(target), LlamaModel(draft)), 8, [], []
        options = dict(method="rejection", max_new_tokens=2, eos_token_ids=[], **WAYS[way])
        for seed in range(0, count, batch):
            for generation in generate([prompt] * batch, *models, seed=seed, **options):
                found.append(generation.tokens)
                accepted.append(generation.rounds[0].accepted > 0)
        law = p[2, 1][:, None] * p[1]
        assert_law(torch.tensor(found) @ torch.tensor([V, 1]), law.flatten())
        if way == "chain":
            assert_rate(accepted, torch.minimum(p[2, 1], q[2, 1]).sum().item())

    def test_texts_of_a_batch_are_those_of_single_texts(self):
        target, draft = pair()
        for options in (dict(k=3), WAYS["tree"]):
            batch = texts(PROMPTS, target, draft, method="rejection", **options)
            for row, prompt in enumerate(PROMPTS):
                assert texts([prompt], target, draft, method="rejection", seed=3 + row, **options) == [batch[row]]

    def test_texts_end_at_different_times(self):
        """What is left goes on with its own sequences."""
        target, draft = pair()
        for options in (dict(k=3), WAYS["tree"]):
            plain = texts(PROMPTS, target, method="plain", eos_token_ids=None)
            assert len({len(text) for text in plain}) > 1
            assert texts(PROMPTS, target, draft, eos_token_ids=None, **options) == plain

    def test_look_up_and_edits(self):
        target, draft = pair()
        edits = specdec.generate.TextEdits(repetition=1.3, bias={2: 1.0})
        plain = texts(PROMPTS, target, method="plain", edits=edits)
        assert texts(PROMPTS, target, NgramDrafter(), edits=edits) == plain
        assert texts(PROMPTS, target, draft, edits=edits, logprobs=2) == plain

    def test_text_goes_in_and_out(self):
        target, draft = pair(letters="abcdef")
        (found,) = generate(["ab"], target, draft, max_new_tokens=NEW, seed=1)
        assert found.prompt == [0, 1]
        assert found.text == target.detokenize(found.tokens).decode()
        assert LlamaModel(target).eos_token_ids == {V - 1}
        assert LlamaModel(pair(letters="")[0]).eos_token_ids == set()
        (plain,) = generate([[0, 1]], *pair(letters=""), max_new_tokens=NEW, seed=1)
        assert (plain.text, plain.tokens[: len(found.tokens)]) == ("", found.tokens)

    def test_long_prompts_are_read_in_pieces(self):
        target, draft = pair(n_batch=8)
        prompts = [[1, 2, 3, 4, 5] * 5, [2] * 3]
        for options in (dict(k=3), dict(tree=[-1, 0, 0, 1])):
            found = texts(prompts, target, draft, **options)
            assert found == texts(prompts, *pair(), **options)
        assert max(max(context.decoded) for context in lib.contexts if context.params.n_batch == 8) == 8
        with pytest.raises(ValueError, match="k: expected at most 8 rows a call, n_batch of target; got 10"):
            texts(prompts, target, draft, k=4)


class TestContexts:
    def test_settings_and_reuse(self):
        target, draft = pair()
        models = LlamaModel(target), LlamaModel(draft)
        first = texts([[1, 2]], *models)
        (settings,) = {bytes(memoryview(context.params)) for context in lib.contexts if context.llama is target}
        params = lib.ContextParams.from_buffer_copy(settings)
        assert (params.n_threads, params.embeddings, params.kv_unified, params.swa_full) == (3, False, True, True)
        given = target.context_params
        assert (given.n_ctx, given.n_seq_max, given.kv_unified) == (64, 1, False)
        gc.collect()
        assert texts([[1, 2]], *models) == first
        assert len(lib.contexts) == 2  # one for each model
        texts(PROMPTS, *models)
        gc.collect()
        assert [context.freed for context in lib.contexts] == [True, True, False, False]
        assert [context.beside for context in lib.contexts] == [0] * 4
        del models
        gc.collect()
        assert all(context.freed for context in lib.contexts)

    def test_logits_are_read_where_they_lie(self, monkeypatch):
        seen, verify = [], specdec.verify_chain

        def watched(drafts, logits, laws, **options):
            context = next(context for context in lib.contexts if context.llama is target)
            seen.append(logits.data_ptr() == context.buffer.ctypes.data)
            return verify(drafts, logits, laws, **options)

        monkeypatch.setattr(specdec, "verify_chain", watched)
        target, draft = pair()
        texts([[1, 2]], target, draft, method="rejection")
        assert len(seen) > 2
        assert all(seen)

    def test_a_text_that_has_ended_is_forgotten(self):
        model = LlamaModel(pair()[0])
        reader = model.reader(3, 8)
        reader.read(torch.tensor([[1, 2], [3, 4], [0, 1]]), [2, 2, 2], rows=1)
        reader.keep([1])
        assert [cell[1] for cell in reader.context.pointer.cells] == [3, 4]
        del reader  # a stream that was left: its context is used again
        model.reader(3, 8)
        assert lib.contexts[0].cells == []
        assert len(lib.contexts) == 1

    def test_a_tree_with_more_leaves_than_spare_sequences(self):
        target, draft = pair()
        assert texts(PROMPTS, target, draft, **WAYS["wide tree"]) == texts(PROMPTS, target, method="plain")
        most = max(context.params.n_seq_max for context in lib.contexts)
        assert most == 3 * 11  # texts times leaves
        with pytest.raises(ValueError, match="prompts: expected at most 64 texts, times leaves of a tree; got 88"):
            texts([[1]] * 8, target, draft, tree=WAYS["wide tree"]["tree"])

    def test_what_llama_cpp_cannot_do(self, monkeypatch):
        target, _ = pair()
        with monkeypatch.context() as patched:
            patched.setattr(lib.Context, "decode", lambda self, batch: 1)
            with pytest.raises(RuntimeError, match="llama_decode: expected 0; got 1"):
                texts([[1]], target)
        with pytest.raises(MemoryError, match="expected a context of 200"):
            LlamaModel(target, n_ctx=300_000).reader(1, 200_000)
        model = LlamaModel(target)
        reader = model.reader(1, 8)
        reader.read(torch.tensor([[1, 2, 3]]), [3], rows=1)
        reader.context.pointer.forgets = False
        with pytest.raises(RuntimeError, match="llama_memory_seq_rm: expected a memory that forgets from position 1"):
            reader.roll_back([1])


def test_docstring_examples():
    found = doctest.testmod(importlib.import_module("specdec_kernels.engines._llamacpp"))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
class TestRecurrent:
    """Models whose states forget no token."""

    @pytest.mark.parametrize(("k", "most", "n_batch"), [(1, 4, 9), (3, 1, 64), (6, None, 24)])
    def test_a_race_writes_the_text_of_plain(self, kind, k, most, n_batch):
        target, draft = pair(kind=kind, n_batch=n_batch)
        plain = texts(PROMPTS, target, method="plain")
        for method in ("race", "rejection", "block"):
            found = texts(PROMPTS, target, draft, method=method, k=k, max_pending=most)
            assert method != "race" or found == plain
            alone = [texts([prompt], target, draft, method=method, k=k, max_pending=most, seed=3 + row)[0]
                     for row, prompt in enumerate(PROMPTS)]  # fmt: skip
            # Where a round without drafts settles, the batch shares it: by rejection draws differ, and the law stays.
            assert found == alone or (method != "race" and most == 1)
        assert texts(PROMPTS, target, NgramDrafter(), k=k, max_pending=most) == plain

    def test_what_is_read(self, kind):
        """A round is one call of the target; what was accepted behind a refusal is read again with the next drafts."""
        target, draft = (lib.Llama(table, kind=kind) for table in (tables()[0], np.zeros((V, V, V))))
        (text,) = generate([[1, 2]], target, draft, method="race", k=4, max_new_tokens=40, max_pending=60, seed=1,
                           eos_token_ids=[])  # fmt: skip
        pending, calls = 1, []  # the prompt but for its last token
        for entry in text.rounds:
            calls.append(pending + 1 + entry.drafted)
            pending = 0 if entry.accepted == entry.drafted else pending + 1 + entry.accepted
        assert [count for entry in text.rounds for count in entry.read] == calls
        assert max(calls) > 10
        of_draft = next(context for context in lib.contexts if context.llama is draft)
        assert max(of_draft.decoded) == 3  # two accepted and a new one; of three accepted the draft has read all

    def test_pending_tokens_are_bounded(self, kind):
        target, draft = (lib.Llama(table, kind=kind) for table in (tables()[0], np.zeros((V, V, V))))
        options = dict(k=4, max_new_tokens=40, seed=1, eos_token_ids=[])
        for method in ("race", "rejection"):
            (text,) = generate([[1, 2]], target, draft, method=method, max_pending=3, **options)
            assert max(count for entry in text.rounds for count in entry.read) <= 2 + 5 + 4
            assert any(not entry.drafted for entry in text.rounds[:-1])
            assert text.target_calls <= 41  # plain sampling's, and one

    def test_sequences(self, kind):
        """Two for each text: its own, and one that has the state before the drafts."""
        target, draft = pair(kind=kind)
        texts(PROMPTS, target, draft, k=3)
        assert {context.params.n_seq_max for context in lib.contexts} == {6}
        assert all(context.cells == [] for context in lib.contexts)  # given back with nothing in them

    def test_in_their_loop(self, kind):
        target, draft = pair(kind=kind)
        assert TestTheirLoop().written(target, LlamaDraft(draft, 3, seed=3), 40, seed=3) == TestTheirLoop().written(
            pair()[0], LlamaDraft(pair()[1], 3, seed=3), 40, seed=3
        )


class TestRefusals:
    @pytest.mark.parametrize("kind", ["encoder", "diffusion"])
    def test_models(self, kind):
        target, _ = pair(kind=kind)
        with pytest.raises(NotImplementedError, match="target: expected a decoder; got a model with"):
            texts([[1]], target)

    def test_trees_of_recurrent_models(self):
        target, draft = pair(kind="hybrid")
        with pytest.raises(ValueError, match="tree: expected chains with target, which has recurrent layers"):
            texts([[1]], target, draft, **WAYS["tree"])

    def test_adapters_and_vocabularies(self):
        with pytest.raises(NotImplementedError, match="target: expected no lora_path; got adapter"):
            texts([[1]], pair(lora_path="adapter")[0])
        with pytest.raises(ValueError, match="draft: expected the target's tokens; token 1 is b'b', got b'c'"):
            texts([[1]], pair()[0], pair(letters="acbdef")[1])
        with pytest.raises(ValueError, match="which has no tokenizer; got a text"):
            texts(["ab"], pair(letters="")[0])

    def test_texts_as_long_as_the_context(self):
        target, _ = pair()
        with pytest.raises(ValueError, match=r"max_new_tokens: expected at most 62 .*target ends at 64"):
            texts([[1, 2]], target, max_new_tokens=63)
        assert len(texts([[1, 2]], LlamaModel(target, n_ctx=80), max_new_tokens=63)[0]) == 63

    def test_imports(self):
        """Without llama.cpp and without transformers."""
        code = (
            "import sys; sys.modules['llama_cpp'] = sys.modules['transformers'] = sys.modules['gguf'] = None\n"
            "from specdec_kernels.engines import llamacpp\n"
            "for call in (lambda: llamacpp.LlamaModel(None), lambda: llamacpp.write_gguf('embedded:draft', 'x')):\n"
            "    try: call()\n"
            "    except ImportError: print('none')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "none\nnone\n", done.stderr


@pytest.mark.parametrize(
    "name",
    ["embedded:", "embedded:other", "embedded:../models", "embedded", "target", "", None, 3, Path("embedded:target")],
)
def test_models_that_are_not_embedded(monkeypatch, tmp_path, name):
    """Named before anything is written; gguf is not needed for that."""
    monkeypatch.setitem(sys.modules, "gguf", types.ModuleType("gguf"))
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._gguf", raising=False)
    with pytest.raises(ValueError, match="name: expected embedded:target or embedded:draft; got"):
        write_gguf(name, tmp_path / "it.gguf")
    monkeypatch.delitem(sys.modules, "specdec_kernels.engines._gguf")
    assert not list(tmp_path.iterdir())


class TestTheirLoop:
    """llama-cpp-python's: draws every row, keeps draws while they equal the drafts."""

    def written(self, target, draft, new, prompt=(1, 2), **race):
        text, rounds, process = list(prompt), 0, RaceProcessor(**race)
        end = len(text) + new
        while len(text) < end:
            drafts = draft(np.array(text, np.intc)).tolist() if draft else []
            given = np.array(text, np.intc) if rounds == 0 else np.array(text + drafts, np.intc)
            rounds += 1
            for token in [*drafts, None]:
                scores = np.zeros(V, dtype=[("id", np.intc), ("logit", np.single)])["logit"]  # strided, as theirs
                scores[:] = lib.logits_after(target.table, text)
                drawn = process(given, scores)
                assert np.isfinite(drawn).sum() == 1
                text.append(int(drawn.argmax()))
                if text[-1] != token:
                    break
        return text[len(prompt) : end], rounds

    def test_coupled(self, monkeypatch):
        target, draft = pair()
        race = dict(seed=3, sampling=FILTERS)
        plain = texts([[1, 2]], target, method="plain", max_new_tokens=40, sampling=FILTERS)[0]
        assert self.written(target, None, 40, **race) == (plain, 40)
        drafter = LlamaDraft(draft, 3, **race)
        for _ in range(2):  # from the start again: what it read is taken back
            text, rounds = self.written(target, drafter, 40, **race)
            assert text == plain
            monkeypatch.setattr(counters, "_SEEN", {})
            (ours,) = generate([[1, 2]], target, draft, k=3, max_new_tokens=40, eos_token_ids=[], **race)
            lengths = [entry.accepted for entry in ours.rounds if entry.drafted]
            by_place = [sum(length > place for length in lengths) for place in range(max(lengths))]
            assert counters.accepted_drafts("llama.cpp") == (len(lengths), by_place)
            assert abs(rounds - ours.target_calls) <= 1
        _, other = self.written(target, LlamaDraft(draft, 3, seed=4, sampling=FILTERS), 40, **race)
        assert other > rounds

    def test_drafts(self):
        target, _ = pair(n_ctx=8)
        drafter = LlamaDraft(target, 4, seed=3)
        plain = texts([[1, 2]], target, method="plain", max_new_tokens=6)[0]
        for length, count in ((2, 4), (5, 3), (4, 4), (7, 1), (8, 0), (2, 4)):
            found = drafter(np.array([1, 2, *plain], np.intc)[:length])
            assert found.dtype == np.intc
            assert found.tolist() == plain[length - 2 :][:count]


class TestInstalled:
    @pytest.mark.parametrize("options", [dict(k=3), dict(method="plain"), WAYS["tree"]], ids=str)
    def test_texts_written_at_once(self, options, monkeypatch):
        """Two, each with its seed, as long as the context of the draft."""
        target, draft = pair()
        install(target, LlamaModel(draft, n_ctx=40), **options)
        rounds = []
        for seed, prompt in enumerate(([1, 2], [3])):
            target.set_seed(seed)
            rounds.append(target.generate(prompt, temp=0.9, top_k=4, top_p=0.95, min_p=0.02))  # FILTERS
        most = 64 if "method" in options else 40
        monkeypatch.setattr(counters, "_SEEN", {})
        found = [[next(each) for each in rounds] for _ in range(most - 2)]
        for seed, (prompt, text) in enumerate(zip(([1, 2], [3]), zip(*found, strict=True), strict=True)):
            plain = texts([prompt], target, method="plain", sampling=FILTERS, seed=seed, max_new_tokens=most - 2)
            assert [list(text)] == plain
        assert [len(list(each)) for each in rounds] == [0, 1]
        assert (counters.accepted_drafts("llama.cpp").rounds > 10) == ("method" not in options)

    def test_what_stays_its_own(self):
        target, draft = pair()
        install(target, draft)
        for asked in (dict(temp=-1.0), dict(repeat_penalty=1.1), dict(grammar="root ::= x"), dict(mirostat_mode=2)):
            assert list(target.generate([1], **asked)) == ["its own"]
        assert "its own" not in target.generate([1])
        uninstall(target)
        assert list(target.generate([1])) == ["its own"]
        target._logits_all = True
        with pytest.raises(NotImplementedError, match="target: expected a Llama with logits_all=False"):
            install(target)
