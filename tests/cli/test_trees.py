"""`python -m examples.figures trees`: what it plays, and what it says of it."""

import json

import numpy as np
import pytest

from examples.figures import trees
from examples.figures.__main__ import main
from examples.figures.curves import PAIR
from specdec_kernels import theory
from specdec_kernels.generate import load_model
from specdec_kernels.trees import DraftTree


@pytest.fixture(scope="module")
def figure():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "TURNS", 1)
        return trees.figure(*map(load_model, PAIR), tokens=40, sizes=(1, 3))


def curves(panel):
    return {curve["label"]: curve for curve in panel["curves"]}


def test_shapes_have_the_size_asked_for():
    acceptance = (0.5, 0.2, 0.1)
    for shape in trees.SHAPES.values():
        assert [shape(k, acceptance).size for k in range(1, 20)] == list(range(1, 20))
    assert trees.SHAPES["SpecInfer"](5, acceptance) == DraftTree.from_parents([-1, 0, 1, 2, 2, 2])


@pytest.mark.slow
def test_lines_are_what_the_measured_acceptance_makes_of_each_shape(figure):
    by_child = curves(figure["panels"][2])
    for panel, method in zip(figure["panels"][:2], trees.METHODS, strict=True):
        acceptance = np.sort(by_child[method]["y"])[::-1]
        lines = curves(panel)
        assert acceptance.sum() <= 1
        assert lines["sequence"]["y"] == pytest.approx(
            [1 + acceptance[0] * (1 if k == 1 else sum(acceptance[0] ** np.arange(k))) for k in (1, 2, 3)]
        )
        assert lines["batch"]["y"] == pytest.approx(1 + np.cumsum(acceptance[:3]))
        best = np.max([lines[name]["y"] for name in trees.SHAPES], axis=0)
        assert lines["optimal"]["y"] == pytest.approx(best)
        assert lines["bound on every tree"]["y"] == pytest.approx([theory.tree_bound(acceptance, k) for k in (1, 2, 3)])
        assert (np.array(lines["bound on every tree"]["y"]) >= best).all()


@pytest.mark.slow
def test_played_rounds_lie_near_the_lines(figure):
    """At one drafted token all shapes are one; a few dozen rounds tell acceptance to a tenth or two."""
    for panel in figure["panels"][:2]:
        lines = curves(panel)
        first = {tuple(lines[f"{name}, played"]["y"][:1]) for name in trees.SHAPES}
        assert len(first) == 1
        for name in trees.SHAPES:
            played = lines[f"{name}, played"]
            near = np.array(played["error"]) * 6 + 0.2
            assert (np.abs(np.array(played["y"]) - np.array(lines[name]["y"])[[0, 2]]) < near).all()


@pytest.mark.slow
def test_command_writes_its_figures(tmp_path, monkeypatch, figure):
    monkeypatch.setattr(trees, "figure", lambda *_: figure)
    main(["trees", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "trees.json").read_text()) == figure
    assert (tmp_path / "trees.svg").stat().st_size > 10_000
