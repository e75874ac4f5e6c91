"""`specdec-kernels compare`: one row per method, with the races that differ from plain sampling counted."""

import json
import re

from specdec_kernels.cli import main
from specdec_kernels.generate import Generation, Round
from specdec_kernels.studies.compare import record


def test_the_command_prints_a_table_and_json(capsys):
    options = ["--tokens", "6", "--texts", "3", "--repeats", "2", "--dtype", "float64"]
    assert main(["compare", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["plain", "rejection", "block", "race", "race, n-gram", "rejection, tree", "traversal, tree"]
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in names]
    assert main(["compare", *options, "--json"]) == 0
    plain, rejection, block, race, ngram, *trees = json.loads(capsys.readouterr().out)
    assert (plain["acceptance"], plain["tokens_per_call"], plain["tokens"]) == (None, 1.0, 18)
    assert (race["texts_unlike_plain"], ngram["texts_unlike_plain"], rejection["texts_unlike_plain"]) == (0, 0, None)
    for row in (rejection, block, *trees):
        assert 0 < row["acceptance"] <= 1 < row["tokens_per_call"]
        assert row["texts_unlike_plain"] is None


def test_the_command_says_it_in_one_line(capsys):
    assert main(["compare", "--line", "--tokens", "6", "--texts", "2", "--repeats", "1", "--dtype", "float64"]) == 0
    passes = r"[\d.]+ tokens/s of one core, (\d+) passes of the target"
    said = rf"12 tokens: plain {passes}; race {passes}, 2 of 2 texts the same as plain's; rejection {passes}\n"
    plain, race, rejection = map(int, re.fullmatch(said, capsys.readouterr().out).groups())
    assert plain == 12
    assert 4 <= min(race, rejection) <= max(race, rejection) < 12


def test_texts_unlike_plain_are_counted():
    def text(tokens):
        return Generation([1], [Round(0, tokens, [], 0, 0, "length", {})])

    row = record("race", [text([1, 2]), text([1, 3])], [text([1, 2]), text([1, 2])], seconds=[1.0, 1.0])
    assert (row["texts_unlike_plain"], row["tokens_per_second"]) == (1, 2.0)
