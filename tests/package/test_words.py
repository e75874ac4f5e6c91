"""Pages stay short: each has a number of words that it may exceed by a tenth."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "packaging" / "README.md"]
MADE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)  # tables of figures, which grow with their JSON

# Pages that were written for one kind of reader, and the words that they may have.
LIMITS = {
    "CHANGELOG.md": 900,
    "CONTRIBUTING.md": 1300,
    "README.md": 930,
    "docs/architecture.md": 1800,
    "docs/cpp.md": 1550,
    "docs/cuda.md": 3100,
    "docs/embedded-models.md": 680,
    "docs/engines.md": 570,
    "docs/engines/flashinfer.md": 450,
    "docs/engines/kernel-hub.md": 330,
    "docs/engines/llamacpp.md": 890,
    "docs/engines/mlx-lm.md": 720,
    "docs/engines/sglang.md": 1360,
    "docs/engines/transformers.md": 660,
    "docs/engines/vllm-seen.md": 700,
    "docs/engines/vllm.md": 1800,
    "docs/filters.md": 1370,
    "docs/generator.md": 1990,
    "docs/glossary.md": 500,
    "docs/methods.md": 2230,
    "docs/noise.md": 2320,
    "docs/ops.md": 2410,
    "docs/performance-notes.md": 2500,
    "docs/performance.md": 760,
    "docs/quick-start.md": 970,
    "docs/recipes.md": 2190,
    "docs/sharded.md": 1450,
    "docs/theory.md": 2300,
    "docs/trees.md": 1780,
    "docs/triton.md": 2000,
    "docs/watermark.md": 1150,
    "packaging/README.md": 800,
}
# Pages that are still to be shortened: their words of today.
PRESENT = {
    "SECURITY.md": 190,
    "docs/conformance.md": 1390,
    "docs/who_keeps.md": 140,
}


def words(text):
    """How many words a page has, outside of the tables that are made for it. Signs alone are no words."""
    return sum(bool(re.search(r"\w", word)) for word in MADE.sub("", text).split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_no_longer_than_its_limit(page):
    name = page.relative_to(ROOT).as_posix()
    limit = (LIMITS | PRESENT).get(name)
    assert limit, f"{name}: a page needs a line in LIMITS"
    count = words(page.read_text(encoding="utf-8"))
    assert count <= 1.1 * limit, f"{name}: {count} words, {limit} are its limit: shorten it"


def test_the_table_names_pages_that_exist():
    assert not [name for name in LIMITS | PRESENT if not (ROOT / name).is_file()]


def test_words_are_counted_as_a_reader_counts_them():
    table = "<!-- table: figures -->\n\n| made | of JSON |\n|---|---|\n\n<!-- end -->"
    assert words(f"# A page\n\n{table}\n\n| two | words |\n|---|---|\nx → 3 µs, `a_name` — end.") == 9
