"""What `make test-engines` measures, in tables at its end."""

import pytest

TABLES = {}


@pytest.fixture
def table():
    """``table(title, row)``: a row of a table, as a dict from columns to values."""
    return lambda title, row: TABLES.setdefault(title, []).append(row)


def pytest_terminal_summary(terminalreporter):
    for title, rows in TABLES.items():
        terminalreporter.write_line(f"\n{title}\n")
        lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
        for line in lines:
            terminalreporter.write_line(f"| {' | '.join(line)} |")
