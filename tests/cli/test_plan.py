import json
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_kernels import theory
from specdec_kernels.cli import main
from specdec_kernels.studies.measure import acceptance_by_child, cost_ratio
from specdec_kernels.studies.plan import block, make_plan, paths
from tests.theory.enumeration import P, Q, random_laws

GIVEN = ["--acceptance", "0.8", "--cost", "0.1"]


def printed(capsys, *arguments):
    assert main(["plan", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_from_one_acceptance(capsys):
    plan = printed(capsys, "--acceptance", "0.8", "--cost", "0.1")
    assert plan["best"]["k"] == 6
    assert plan["best"]["speedup"] == pytest.approx(2.46964, abs=5e-6)
    assert plan["tree"]["parents"] == list(range(-1, 12))  # without acceptances by child only a chain is known


def test_plan_from_acceptance_by_slot_and_child(capsys):
    plan = printed(
        capsys, "--acceptance", "0.88,0.96,0.65", "--cost", "0.3", "--children", "0.5,0.2,0.12,0.08,0.06,0.04"
    )
    assert plan["lengths"][3]["tokens"] == pytest.approx(3.27392, abs=1e-9)
    assert plan["tree"]["tokens"] == pytest.approx(2.7175, abs=1e-9)
    assert plan["tree"]["parents"][:4] == [-1, 0, 1, 0]
    assert plan["tree"]["tunstall_bound"] == pytest.approx(theory.tunstall_bound(plan["tree"]["children"], 12))


def test_plan_from_laws(capsys, tmp_path):
    p, q = np.stack([random_laws(np.random.default_rng(seed), 6) for seed in range(40)], axis=1)
    np.savez(tmp_path / "laws.npz", p=p, q=q)
    plan = printed(capsys, "--laws", str(tmp_path / "laws.npz"), "--cost", "0.6")
    assert plan["acceptance"] == pytest.approx([np.minimum(p, q).sum() / 40])
    for kind in ("renewal", "paper"):
        assert plan["randomised"][kind]["draft_prob"] == theory.best_draft_prob(p, q, 0.6, kind)
        assert plan["randomised"][kind]["rate"] >= plan["randomised"][kind]["rate_always"]
    for mine, other in zip(plan["block"]["lengths"], plan["lengths"], strict=True):
        assert mine["tokens"] >= other["tokens"] - 0.05
    assert plan["block"]["best"]["speedup"] == max(at["speedup"] for at in plan["block"]["lengths"])
    race = plan["race"]
    assert max(race["lower"].values()) <= race["acceptance"] <= race["upper"]
    assert plan["tree"]["children"][0] == pytest.approx(race["acceptance"], abs=0.03)


def test_block_of_one_place_is_the_theory():
    lengths = block(P[None], Q[None], 0.1, 4, draws=200_000)["lengths"]
    for at in lengths:
        assert at["tokens"] == pytest.approx(1 + theory.block_expected_accepted(P, Q, at["k"]), abs=0.02)


def test_paths_of_one_place_are_the_theory():
    plan = paths(P[None], Q[None], 0.1, 4, 8, draws=100_000)
    for at in plan["lengths"]:
        if at["n"] < 8:
            expected = 1 + theory.paths_expected_accepted(P, Q, at["n"], at["k"])
            assert at["tokens"] == pytest.approx(expected, abs=0.05)
        assert at["speedup"] == pytest.approx(at["tokens"] / (1 + 0.1 * at["k"]))
        assert at["n"] * at["k"] <= 8
    assert (plan["best"]["n"], plan["best"]["k"]) == (2, 4)


def test_table_says_what_json_says(capsys):
    assert main(["plan", "--acceptance", "0.8", "--cost", "0.1"]) == 0
    assert "k = 6: 3.951 tokens a round, 2.470 x plain decoding" in capsys.readouterr().out


def test_children_are_the_rank_law():
    drawn = acceptance_by_child(P[None], Q[None], draws=40_000)
    deviation = np.sqrt(0.25 / 40_000)
    np.testing.assert_allclose(drawn, theory.race_rank_law(P, Q), atol=5 * deviation)  # 5 deviations: 6e-7 an entry


def test_children_of_a_vocabulary_smaller_than_asked_for():
    assert len(make_plan("laws", None, 0.1, laws=(P[None], Q[None]))["tree"]["children"]) == 4


@pytest.mark.parametrize(
    "content, said",
    [
        (lambda file: np.save(file, P), "(one array"),
        (lambda file: np.savez(file, p=P[None]), "q is not a file in the archive"),
        (lambda file: file.write(b""), "(No data left in file)"),
        (lambda file: file.write(b"PK\x03\x04 and no more"), "(File is not a zip file)"),
        (lambda file: np.savez(file, p=P[None], q=2 * Q[None]), "q: expected a sum of 1 within 1e-06; got 2"),
        (lambda file: np.savez(file, p=[P, P], q=Q[None]), "q: expected the shape of p, (2, 4); got (1, 4)"),
    ],
    ids=["one array", "one law", "empty", "cut off", "not a law", "other shape"],
)
def test_files_without_two_laws_are_named(refused, tmp_path, content, said):
    path = tmp_path / "laws.npz"
    with path.open("wb") as file:
        content(file)
    err = refused("plan", "--laws", path, "--cost", 0.1)
    assert f"argument --laws: expected an .npz file with p and q; got {path} (" in err
    assert said in err


def test_a_plan_without_drafting(capsys):
    plan = printed(capsys, *GIVEN, "--max-k", "0")
    assert plan["lengths"] == [{"k": 0, "tokens": 1.0, "speedup": 1.0}]
    assert plan["tree"]["children"] == [0.8]


def test_long_plans_take_no_longer_than_they_are(capsys):
    """Twenty thousand lengths, each from the one before it: a formula a length took minutes."""
    plan = printed(capsys, *GIVEN, "--max-k", "20000")
    assert [entry["k"] for entry in plan["lengths"][::5000]] == [0, 5000, 10000, 15000, 20000]
    for entry in plan["lengths"][:40:13]:
        assert entry["tokens"] == pytest.approx(theory.expected_tokens(0.8, entry["k"]), abs=1e-12)
        assert entry["speedup"] == pytest.approx(theory.speedup(0.8, entry["k"], 0.1), abs=1e-12)


def test_measured_children_that_rise_are_planned_with_as_if_they_did_not():
    """The draft's first arrival is never the target's winner, its second always."""
    p, q = np.array([[0.0, 1.0, 0.0]]), np.array([[1 - 2e-9, 1e-9, 1e-9]])
    shape = make_plan("laws", None, 0.1, laws=(p, q), nodes=3)["tree"]
    assert shape["children"] == [0.0, 0.0, 0.0]
    assert shape["tokens"] == 1.0


def test_too_few_rounds_tell_no_cost():
    run = SimpleNamespace(rounds=[SimpleNamespace(seconds={"draft": 0.0, "target": 9.0})])
    with pytest.raises(ValueError, match="runs: expected texts of two rounds at least; got none"):
        cost_ratio([run], [run], k=4)


def test_the_cost_of_a_draft_is_that_of_undisturbed_rounds():
    """Three rounds of four wait for something else, most of all the first ones, which were plain."""

    def run(seconds, delay):
        times = [9.0] + [seconds + (delay if index % 4 else 0.0) for index in range(40)]
        return SimpleNamespace(rounds=[SimpleNamespace(seconds={"draft": 0.0, "target": each}) for each in times])

    assert cost_ratio([run(1.0, 5.0)], [run(1.8, 0.5)], k=4) == pytest.approx(0.2)
