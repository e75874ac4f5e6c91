import html
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from examples.figures import curves as figures
from examples.figures import drawing, methods, simulate
from examples.figures.__main__ import main
from specdec_kernels import theory
from specdec_kernels.generate import load_model
from tests.support.laws import assert_law, assert_rate
from tests.theory.enumeration import P, Q, drafts_with_replacement

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "figures"


def lines_and_points(panel):
    """Theory and simulation of a panel, paired in order."""
    kinds = [[data for data in panel["curves"] if data["points"] is points] for points in (False, True)]
    return list(zip(*kinds, strict=True))


def assert_near(line, points):
    """Simulated points within 5 standard errors of the line (each a false alarm of 6e-7)."""
    expected = np.interp(points["x"], line["x"], line["y"])
    error = np.maximum(points["error"], 1e-12)
    assert (np.abs(np.array(points["y"]) - expected) < 5 * error + 1e-12).all()


@pytest.mark.parametrize("name", ["rejections-50", "rejections-100", "speedup"])
def test_simulation_lies_on_the_theory(name):
    for panel in figures.FIGURES[name](1000)["panels"]:
        for line, points in lines_and_points(panel):
            assert_near(line, points)


def test_pareto_points_lie_on_the_front():
    front, over, by_epsilon = figures.pareto(1000)["panels"]
    tv = front["curves"][0]["x"][0]
    points = over["curves"][2]
    assert np.add(points["x"], points["y"]) == pytest.approx(tv, abs=0.03)
    baseline = over["curves"][1]
    assert (np.add(baseline["x"], baseline["y"]) >= tv - 1e-12).all()
    assert_near(by_epsilon["curves"][0], by_epsilon["curves"][2])


def test_drafting_on_given_laws(monkeypatch):
    monkeypatch.setattr(figures, "pair_laws", lambda: (np.stack([P, Q, P]), np.stack([Q, Q, Q])))
    prompt, *rates = figures.drafting(2000)["panels"]
    assert_near(*lines_and_points(prompt)[0])
    for panel in rates:
        renewal, paper, points = panel["curves"]
        assert_near(renewal, points)
        assert renewal["y"][-1] == pytest.approx(paper["y"][-1])


def test_sampled_verification_on_given_laws(monkeypatch):
    """On P and Q by hand; a certain pair of laws beside them."""
    certain = np.eye(4)[[2]]
    laws = np.concatenate([[P], certain]), np.concatenate([[Q], certain])
    monkeypatch.setattr(figures, "pair_laws", lambda *_: laws)
    (panel,) = figures.sampled(4000)["panels"]
    shares = [lines_and_points(panel)[kind][0]["y"][0] for kind in range(4)]
    assert shares == pytest.approx([(share + 1) / 2 for share in (3 / 5, 19 / 35, 0.1, 0.2)])
    for line, points in lines_and_points(panel):
        assert_near(line, points)


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_simulated_rejections_with_several_drafts(drafts):
    rng = np.random.default_rng(drafts)
    chains = rng.dirichlet(np.ones(4), (6, 4)), rng.dirichlet(np.ones(4), (6, 4)), np.full(4, 0.25)
    counts = simulate.rejections(*chains, drafts=drafts, runs=20_000)
    expected = theory.expected_rejections(*chains, drafts=drafts)
    assert abs(counts.mean() - expected) < 5 * counts.std() / len(counts) ** 0.5


def test_one_token_of_several_drafts_has_the_targets_law():
    seeds = torch.arange(50_000)
    p, q = (simulate.rows(law).expand(len(seeds), -1) for law in (P, Q))
    tokens, accepted = simulate.one_token(p, q, seeds, 0, 3)
    assert_law(tokens, P)
    assert_rate(accepted, drafts_with_replacement(P, Q, 3)[0])


def test_the_command_writes_json_and_svg_and_draws_again(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    main(["--out", str(tmp_path), "pareto", "--runs", "100"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "pareto.json")
    assert json.loads((tmp_path / "pareto.json").read_text())["panels"]
    drawn = (tmp_path / "pareto.svg").read_bytes()
    (tmp_path / "pareto.svg").unlink()
    main(["--out", str(tmp_path), "--redraw"])
    assert (tmp_path / "pareto.svg").read_bytes() == drawn


def test_pictures_in_the_pages_are_of_their_json():
    """`python -m examples.figures --redraw` draws them; what they say is looked at, for drawings differ by version."""
    for path in sorted(FOLDER.glob("*.json")):
        said = html.unescape(path.with_suffix(".svg").read_text(encoding="utf-8"))
        figure = json.loads(path.read_text(encoding="utf-8"))
        words = [figure["title"], *(part["title"] for part in figure["panels"])]
        words += [curve["label"] for part in figure["panels"] for curve in part["curves"]]
        assert not [word for word in words if word not in said], path.name


def test_a_rule_has_one_colour_which_nothing_else_has():
    panels = [part for path in FOLDER.glob("*.json") for part in json.loads(path.read_text())["panels"]]
    seen = [(label, *look) for part in panels for label, look in drawing.looks(part["curves"]).items()]
    rules = {(drawing.rule_of(label), colour) for label, colour, _ in seen if drawing.rule_of(label)}
    assert len(rules) == len(drawing.RULES) == len(set(drawing.RULES.values()))
    assert not {colour for label, colour, _ in seen if not drawing.rule_of(label)} & {colour for _, colour in rules}


def test_an_unknown_figure_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["flowers"])
    assert "argument FIGURE: expected rejections-50, " in capsys.readouterr().err


def test_rules_side_by_side():
    pair = map(load_model, figures.PAIR)
    figure = methods.figure(*pair, tokens=24, lengths=(1, 2), sizes=(3,), turns=1)
    chains, *trees = figure["panels"]
    assert [curve["label"] for curve in chains["curves"][::2]] == ["rejection", "race", "block"]
    for part in (chains, *trees):
        for line, points in zip(part["curves"][::2], part["curves"][1::2], strict=True):
            assert line["y"] == points["y"]
            assert all(1 <= y <= 1 + k for k, y in zip(points["x"], points["y"], strict=True))


def test_intervals_are_over_texts():
    """Two texts of 4 and 2 tokens a round, two rounds each: 3 in the mean, 1.96 times a deviation of 1."""
    rounds = [[SimpleNamespace(accepted=accepted)] * 2 for accepted in (3, 1)]
    assert methods.tokens_a_round(rounds) == pytest.approx((3.0, 1.96))
