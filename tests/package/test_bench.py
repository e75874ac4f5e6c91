"""The tables of the bench can be run: no test runs `make bench`, and nothing else sees how its cases are called."""

import importlib
import inspect
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["bench_ops", "bench_verify"])
def test_cases_can_be_called(name, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    default = importlib.import_module("harness").like_reference
    (mark,) = getattr(importlib.import_module(name), name).pytestmark
    cases = {str(case): case for case, *_ in mark.args[1]}
    assert len(cases) > 40
    for case in cases.values():
        inspect.signature(case.inputs).bind()
        for function in (case.check or default, case.bytes):
            if callable(function):
                inspect.signature(function).bind(max, [])  # a call and its inputs
