"""Pages stay short: each has a number of words that it may exceed by a tenth, and all together have one, too."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "packaging" / "README.md"]
MADE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)  # tables of figures, which grow with their JSON

# The words that each page may have without these tables.
LIMITS = {
    "CHANGELOG.md": 900,
    "CONTRIBUTING.md": 1210,
    "README.md": 930,
    "SECURITY.md": 190,
    "docs/architecture.md": 1660,
    "docs/conformance.md": 1390,
    "docs/cpp.md": 1460,
    "docs/cuda.md": 2890,
    "docs/embedded-models.md": 690,
    "docs/engines.md": 560,
    "docs/engines/flashinfer.md": 450,
    "docs/engines/kernel-hub.md": 330,
    "docs/engines/llamacpp.md": 900,
    "docs/engines/mlx-lm.md": 720,
    "docs/engines/sglang.md": 1475,
    "docs/engines/transformers.md": 660,
    "docs/engines/vllm-seen.md": 710,
    "docs/engines/vllm.md": 1800,
    "docs/filters.md": 1240,
    "docs/generator.md": 1960,
    "docs/glossary.md": 500,
    "docs/methods.md": 2020,
    "docs/noise.md": 2180,
    "docs/ops.md": 2280,
    "docs/performance-notes.md": 2020,
    "docs/performance.md": 780,
    "docs/quick-start.md": 970,
    "docs/recipes.md": 2130,
    "docs/sharded.md": 1360,
    "docs/theory.md": 2150,
    "docs/trees.md": 1630,
    "docs/triton.md": 1840,
    "docs/watermark.md": 1160,
    "docs/who_keeps.md": 150,
    "packaging/README.md": 710,
}
ALL = 50_000  # of all pages together, with the tables that are made for them


def words(text):
    """How many words a text has. Signs alone are no words."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def written_words(page):
    """Those of a page, outside of the tables that are made for it."""
    return words(MADE.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_no_longer_than_its_limit(page):
    name = page.relative_to(ROOT).as_posix()
    limit = LIMITS.get(name)
    assert limit, f"{name}: a page needs a line in LIMITS"
    count = written_words(page)
    assert count <= 1.1 * limit, f"{name}: {count} words, {limit} are its limit: shorten it"


def test_all_pages_together_are_no_longer_than_their_limit():
    count = sum(words(page.read_text(encoding="utf-8")) for page in PAGES)
    assert count <= ALL, f"{count} words in all pages, tables included; {ALL} are the limit: shorten some"


def test_the_table_names_pages_that_exist():
    assert not [name for name in LIMITS if not (ROOT / name).is_file()]


def test_words_are_counted_as_a_reader_counts_them(tmp_path):
    table = "<!-- table: figures -->\n\n| made | of JSON |\n|---|---|\n\n<!-- end -->"
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{table}\n\n| two | words |\n|---|---|\nx → 3 µs, `a_name` — end.", encoding="utf-8")
    assert written_words(page) == 9
    assert words(page.read_text(encoding="utf-8")) == 9 + 6
