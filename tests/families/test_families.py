"""Families that stand for kinds of layers, as the sweep over all of them tries each; and what the last sweep saw."""

import json
from collections import Counter
from pathlib import Path

import pytest
import transformers

from tests.families.build import NAMES
from tests.families.sweep import tried

KINDS = {  # chunk = steps, crop, positions, tree masks, reading
    "cohere2": ("yes", "yes", "from 0", "yes", "masks"),  # a window
    "glm_moe_dsa": ("yes", "yes", "from 0", "yes", "masks"),  # an indexer
    "llama4_text": ("yes", "yes", "from 0", "yes", "masks"),  # chunks
    "qwen3_next": ("yes", "no", "from 0", "has recurrent layers", "masks"),  # Gated DeltaNet
    "mamba2": ("yes", "no", "none", "makes its masks itself", "text by text"),
    "bloom": ("yes", "yes", "none", "makes its masks itself", "text by text"),  # ALiBi
}


@pytest.mark.parametrize("name", KINDS)
def test_texts_are_those_of_whole_forwards(name):
    entry = tried(name)
    assert (entry["ours"], entry.get("why")) == ("right", None)
    columns = "chunk = steps", "crop", "positions", "tree masks", "reading"
    assert tuple(entry[column] for column in columns) == KINDS[name]


def test_the_last_sweep_saw_no_wrong_text():
    """`make test-models` writes it, and the table of docs/generator.md from it."""
    path = Path(__file__).parents[2] / "bench/results/families.json"
    seen = json.loads(path.read_text())
    count = Counter(entry["ours"] for entry in seen["families"].values())
    assert count.keys() <= {"right", "refused", "not built"}
    assert count["right"] >= 165
    if seen["transformers"] == transformers.__version__:
        assert list(seen["families"]) == NAMES
