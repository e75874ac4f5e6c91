"""`generate --svg`: every token of every round in its colour, whatever the text holds."""

import json
import xml.etree.ElementTree as ElementTree

from specdec_kernels.cli import svg
from specdec_kernels.generate import Generation, Round

COLOURS = {ground: kind for kind, (ground, _, _) in svg.COLOURS.items()}
SVG = "{http://www.w3.org/2000/svg}"


def rounds_of(text):
    """By round, its boxes as (kind, text) in reading order."""
    picture = ElementTree.fromstring(text)
    rounds = []
    for group in picture.iter(f"{SVG}g"):
        kinds = [COLOURS[rect.get("fill")] for rect in group.iter(f"{SVG}rect")]
        texts = [entry.text or "" for entry in group.iter(f"{SVG}text")][1:]  # without the round's number
        rounds.append(list(zip(kinds, texts, strict=True)))
    return rounds


def written(rounds):
    return "".join(text for boxes in rounds for kind, text in boxes if kind in ("accepted", "replaced", "bonus"))


def test_chains(run, tmp_path):
    options = ["generate", "--max-new-tokens", 40, "--method", "rejection", "--seed", 5]
    status, out, err = run(*options, "--svg", tmp_path / "rounds.svg", "--json")
    report, drawn = json.loads(out), rounds_of((tmp_path / "rounds.svg").read_text())
    assert (status, err, len(drawn)) == (0, "", report["target_calls"])
    assert written(drawn) == report["text"].replace("\n", "↵").replace(" ", "·")
    kinds = [kind for boxes in drawn for kind, _ in boxes]
    assert kinds.count("accepted") == report["accepted"]
    assert report["drafted"] - report["accepted"] - kinds.count("rejected") in (0, 1, 2, 3)  # the last round ends early
    assert kinds.count("replaced") + kinds.count("bonus") in (report["target_calls"], report["target_calls"] - 1)


def test_trees_of_a_batch(run, tmp_path):
    options = ["generate", "--max-new-tokens", 20, "--tree", "specinfer:3,2", "--prompt", "A", "--prompt", "B"]
    status, out, _ = run(*options, "--svg", tmp_path / "rounds.svg", "--json")
    text = (tmp_path / "rounds.svg").read_text()
    reports, drawn = list(map(json.loads, out.splitlines())), rounds_of(text)
    assert status == 0
    assert "prompt 1</text>" in text
    for boxes, entry in zip(drawn, [entry for report in reports for entry in report["rounds"]], strict=True):
        kinds = [kind for kind, _ in boxes]
        assert kinds[0] == "known"
        assert kinds.count("accepted") == len(entry["path"]) - 1
        assert kinds.count("rejected") == sum(token >= 0 for token in entry["draft_tokens"]) - len(entry["path"])


def test_any_text_makes_a_picture():
    texts = ["<&>\"'", "\x00\x1b[0m\ud800", "漢字", "a\r\n\tb ", ""]
    entry = Round(0, [0, 1, 2, 3, 4], [("accepted", ""), ("replaced", "")], 6, 4, "length", {})
    (boxes,) = rounds_of(svg.picture([Generation([1], [entry])], lambda token: texts[token]))
    assert [text for _, text in boxes] == ["<&>\"'", "��[0m�", "漢字", "a↵→b·", "", "", ""]
    assert svg.width("漢字") == svg.width("abcd")
    assert rounds_of(svg.picture([Generation([1])], str)) == []


def test_a_file_that_cannot_be_written_is_met_before_the_work(run, tmp_path):
    status, out, err = run("generate", "--svg", tmp_path / "nowhere" / "rounds.svg")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "argument --svg: expected a file to write to; got" in err
