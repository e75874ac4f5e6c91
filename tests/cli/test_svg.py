"""`generate --svg`: every token of every round in its colour, whatever the text holds."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

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


@pytest.mark.parametrize("draft", ["embedded:draft", "ngram"])
def test_rejected_drafts_of_a_chain_show_their_tokens_below_what_replaced_them(run, tmp_path, draft):
    options = ["generate", "--prompt", "to be or not to be or not", "--draft", draft, "--temperature", 1.2, "--seed", 1]
    status, _, _ = run(*options, "--max-new-tokens", 40, "--svg", tmp_path / "rounds.svg", "--json")
    boxes = [box for boxes in rounds_of((tmp_path / "rounds.svg").read_text()) for box in boxes]
    rejected = [text for kind, text in boxes if kind == "rejected"]
    assert status == 0
    assert len(rejected) > 5
    assert all(rejected)


def test_a_chain_of_which_nothing_was_accepted_has_two_rows():
    entry = Round(0, [7], [("replaced", "")], 2, 0, None, {}, chain=[8, 9])
    text = svg.picture([Generation([1], [entry])], str)
    (group,) = ElementTree.fromstring(text).iter(f"{SVG}g")
    at = {entry.text: (int(entry.get("x")), int(entry.get("y"))) for entry in group.iter(f"{SVG}text")}
    assert at["8"] == (at["7"][0], at["7"][1] + svg.ROW)
    assert at["9"][0] > at["8"][0]
    assert at["9"][1] == at["8"][1]


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
    drafts = [0, 1, 2, 3, 0, 2]
    entry = Round(0, [0, 1, 2, 3, 4], [("accepted", ""), ("replaced", "")], 6, 4, "length", {}, chain=drafts)
    (boxes,) = rounds_of(svg.picture([Generation([1], [entry])], lambda token: texts[token]))
    assert [text for _, text in boxes] == ["<&>\"'", "��[0m�", "漢字", "a↵→b·", "", "<&>\"'", "漢字"]
    assert svg.width("漢字") == svg.width("abcd")
    assert rounds_of(svg.picture([Generation([1])], str)) == []


def test_a_file_that_cannot_be_written_is_met_before_the_work(refused, tmp_path):
    err = refused("generate", "--svg", tmp_path / "nowhere" / "rounds.svg")
    assert "argument --svg: expected a file to write to; got" in err
