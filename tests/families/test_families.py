"""Families that stand for kinds of layers, as the sweep over all of them tries each."""

import pytest

from tests.families.sweep import tried

KINDS = {
    "cohere2": ("masks", "yes"),  # a window
    "glm_moe_dsa": ("masks", "yes"),  # an indexer
    "llama4_text": ("masks", "yes"),  # chunks
    "qwen3_next": ("masks", "has recurrent layers"),  # Gated DeltaNet
    "mamba2": ("text by text", "makes its masks itself"),
    "bloom": ("text by text", "makes its masks itself"),  # ALiBi
}


@pytest.mark.parametrize("name", KINDS)
def test_texts_are_those_of_whole_forwards(name):
    entry = tried(name)
    assert (entry["ours"], entry.get("why")) == ("right", None)
    assert (entry["reading"], entry["trees"]) == KINDS[name]
