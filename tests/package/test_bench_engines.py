"""`make bench-engines` in a clone without engines."""

import json
import re
from pathlib import Path

from bench.whole import __main__ as bench

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


def test_engines_that_are_not_installed_are_named(tmp_path, monkeypatch, capsys):
    """With the target of the Makefile that installs each; their figures stay."""
    results, before = tmp_path / "figures.json", {"vllm": {"version": "0", "cells": [{"kind": "greedy"}]}}
    results.write_text(json.dumps(before))
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "RESULTS", results)
    bench.run_all()
    said = capsys.readouterr().out
    made = dict(re.findall(r"^(\w+): no .*; `make (\S+)` installs it$", said, re.MULTILINE))
    assert {*made} == {*bench.ENGINES}
    variables = dict(re.findall(r"^(\w+) := (\S+)$", text := MAKEFILE.read_text(), re.MULTILINE))
    for name, value in 2 * [*variables.items()]:  # a variable's value may have another
        text = text.replace(f"$({name})", value)
    for target in made.values():
        assert re.search(rf"^{re.escape(target)}: ", text, re.MULTILINE), target
    assert json.loads(results.read_text()) == before
