"""Fixtures of the benches, and the report at the end of a run."""

import itertools
import time

import pytest
import torch
from goals import goals
from harness import BATCHES, OURS, Book, environment, print_table, write, write_batches

BOOK = Book()
# A shared machine is slow for seconds at a time. So all cases take turns, and the contenders of a case run one after
# the other.
TURNS = 4
SECONDS_A_TURN = 0.15


def pytest_generate_tests(metafunc):
    metafunc.fixturenames.append("turn")
    metafunc.parametrize("turn", range(TURNS), scope="session")


@pytest.fixture
def threads(request):
    """Runs the test with ``param`` threads (indirect parametrisation), or with one."""
    before = torch.get_num_threads()
    count = getattr(request, "param", 1)
    if count > before:
        pytest.skip(f"{count} threads needed, the machine has {before}")
    torch.set_num_threads(count)
    yield count
    torch.set_num_threads(before)


@pytest.fixture
def measure(benchmark):
    """``measure(op, contender, case, call, inputs, check=..., bytes=...)``: checks once, warms up, times, records."""
    # ``inputs`` is a list of argument tuples, rotated from round to round. ``check(call)`` raises when a result is
    # wrong; it must be given for our ops.

    def run(op, contender, case, call, inputs, check=None, bytes=0):
        if contender == OURS and check is None:
            raise ValueError("check: expected a function that verifies the op, got None")
        if check is not None and not BOOK.has(op, contender, case):
            check(call)
        torch.manual_seed(0)
        start = time.perf_counter()
        for arguments in inputs[:3]:
            call(*arguments)
        once = (time.perf_counter() - start) / len(inputs[:3])
        rounds = max(5, min(1000, int(SECONDS_A_TURN / once)))
        turn = itertools.cycle(inputs)
        benchmark.pedantic(call, setup=lambda: (next(turn), {}), rounds=rounds, warmup_rounds=max(3, rounds // 10))
        BOOK.add(op, contender, case, benchmark.stats.stats.data, bytes)

    return run


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if not BOOK.records:
        return
    from rich.console import Console

    BOOK.close()
    env = environment()
    wanted = goals(env["isa"])
    rows = [row for row in (goal.row(BOOK) for goal in wanted) if row]
    print_table(BOOK, rows, env, Console(width=150))
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line("A check failed: nothing is written.")
        return
    if any(r.op == BATCHES for r in BOOK.records) and not terminalreporter.stats.get("deselected"):
        print(f"written to {write_batches(BOOK, env).relative_to(terminalreporter.config.rootpath)}")
    if len(rows) < len(wanted):
        terminalreporter.write_line("A part of the benches ran: nothing is written.")
        return
    print(f"written to {write(BOOK, rows, env).relative_to(terminalreporter.config.rootpath)}")
