"""Tests in Triton's interpreter that the quick set skips; `python -m tests.support.interpreted` lists them anew.

The interpreter takes a second where the CPU takes a millisecond. So of tests that take longer than `CHEAP` the quick
set has those that launch each variant of a kernel: its name and its constants. `make test-all` has all. The planted
faults judge the choice (`tests/support/faults.py`).
"""

import inspect
import os
import sys
import time
from pathlib import Path

import pytest

LIST = Path(__file__).with_suffix(".txt")
CHEAP = 1.05  # seconds of the processor


def skipped_tests():
    """Names of tests, as pytest has them; none while they are listed."""
    if os.environ.get("SPECDEC_INTERPRETED") == "all" or not LIST.exists():
        return frozenset()
    return frozenset(LIST.read_text().split("\n")[:-1])


class Listening:
    """Records the time of each test, and the variants that it launched."""

    def __init__(self):
        self.tests, self.variants = {}, set()

    def pytest_collection_modifyitems(self, items):
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def heard(executor, *given, **named):
            parameters = inspect.signature(executor.fn).parameters
            arguments = dict(zip(parameters, given, strict=False)) | named
            compiled = tuple(
                str(arguments.get(name)) for name, each in parameters.items() if "constexpr" in str(each.annotation)
            )
            self.variants.add((executor.fn.__name__, compiled))
            return run(executor, *given, **named)

        GridExecutor.__call__ = heard

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        begin = time.process_time()
        self.variants = set()
        done = yield
        if self.variants:
            self.tests[item.nodeid] = time.process_time() - begin, self.variants
        return done


def dear_and_not_needed(tests):
    """Of {name: (seconds, variants)}: the cheap ones stay, then the test with the most new variants a second."""
    stay = {name for name, (seconds, _) in tests.items() if seconds < CHEAP}
    left = set().union(*(variants for _, variants in tests.values()))
    left -= set().union(*(tests[name][1] for name in stay))
    while left:
        name = max(tests, key=lambda name: len(left & tests[name][1]) / (tests[name][0] + 0.05))
        stay.add(name)
        left -= tests[name][1]
    return sorted(tests.keys() - stay)


if __name__ == "__main__":
    os.environ["SPECDEC_INTERPRETED"] = "all"
    listening = Listening()
    code = pytest.main(["-q", "-n", "0", "-k", "triton", *sys.argv[1:]], plugins=[listening])
    if code == 0:
        LIST.write_text("".join(f"{name}\n" for name in dear_and_not_needed(listening.tests)))
    sys.exit(code)
