"""What `make test-engines` measures, in tables at its end; the pages' are made of what is kept of them."""

import json
from pathlib import Path

import pytest

TABLES = {}
KEPT = Path(__file__).resolve().parents[2] / "bench" / "results" / "engines.json"


@pytest.fixture
def table():
    """``table(title, row)``: a row of a table, as a dict from columns to values."""
    return lambda title, row: TABLES.setdefault(title, []).append(row)


def pytest_terminal_summary(terminalreporter, config):
    for title, rows in TABLES.items():
        terminalreporter.write_line(f"\n{title}\n")
        lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
        for line in lines:
            terminalreporter.write_line(f"| {' | '.join(line)} |")
    if TABLES and not config.option.keyword:  # whole tables alone
        kept = json.loads(KEPT.read_text(encoding="utf-8")) | TABLES
        KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
