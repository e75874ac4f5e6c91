"""One pair of models serves several threads: each generates what it generates alone."""

import threading

import pytest
import transformers

from specdec_kernels.generate import LanguageModel, ModelDrafter, generate
from tests.generate.small import random_model
from tests.support.threads import together

SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)


def test_four_threads(small_pair):
    target, draft = small_pair
    methods = ("race", "rejection", "block", "race")

    def texts(i):
        found = generate(
            [[1, 2, i], [2]], target, ModelDrafter(draft), method=methods[i], k=3, max_new_tokens=12, seed=i
        )
        return [one.tokens for one in found]

    wanted = [texts(i) for i in range(4)]

    def work(i):
        for _ in range(12):
            assert texts(i) == wanted[i]

    together(*(lambda i=i: work(i) for i in range(4)))


@pytest.mark.parametrize("name", ["roberta", "bloom"])
def test_a_model_that_threads_share_from_its_first_text_on(name, monkeypatch):
    """One thread checks it, by copies that are read in other ways; the others wait for what it finds."""
    config = {
        "roberta": transformers.RobertaConfig(**SMALL, is_decoder=True, pad_token_id=1, max_position_embeddings=40),
        "bloom": transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50),
    }[name]
    module, options = random_model(config, spread=0.5).model, dict(method="plain", max_new_tokens=8, temperature=0)
    wanted = generate([[7, 3]], LanguageModel(module), **options)[0].tokens
    shared, checking, read = LanguageModel(module), set(), LanguageModel._apart_in_pieces
    before = shared.layers, shared.first_position

    def watched(way, text):
        checking.add(threading.get_ident())
        assert (shared.layers, shared.first_position) == before
        return read(way, text)

    def work():
        assert generate([[7, 3]], shared, **options)[0].tokens == wanted

    monkeypatch.setattr(LanguageModel, "_apart_in_pieces", watched)
    together(work, work, work)
    assert len(checking) == 1
    assert shared.readable


def test_threads_that_lend_buffers_to_the_same_layers():
    config = transformers.GPTNeoConfig(
        hidden_size=32, intermediate_size=32, num_layers=2, num_heads=4, vocab_size=50, window_size=6,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=40,
    )  # fmt: skip
    model, options = random_model(config, spread=0.5), dict(method="plain", max_new_tokens=12, temperature=0)
    prompts = [[7, 3], [5] * 9]
    wanted = [generate([prompt], model, **options)[0].tokens for prompt in prompts]

    def work(i):
        for _ in range(4):
            assert generate([prompts[i]], model, **options)[0].tokens == wanted[i]

    together(lambda: work(0), lambda: work(1))
