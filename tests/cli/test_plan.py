import json
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_kernels import theory
from specdec_kernels.cli import main
from specdec_kernels.studies.measure import acceptance_by_child, cost_ratio
from specdec_kernels.studies.plan import make_plan
from tests.theory.enumeration import P, Q, random_laws


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
    race = plan["race"]
    assert max(race["lower"].values()) <= race["acceptance"] <= race["upper"]
    assert plan["tree"]["children"][0] == pytest.approx(race["acceptance"], abs=0.03)


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
    "arguments, said",
    [
        (["--acceptance", "0.8"], "--cost"),
        (["--acceptance", "0.8,1.2", "--cost", "0.1"], "--acceptance"),
        (["--acceptance", "high", "--cost", "0.1"], "--acceptance"),
        (["--acceptance", "0.8", "--cost", "-1"], "c:"),
        (["--acceptance", "0.8", "--cost", "0.1", "--children", "0.9,0.9"], "R:"),
        (["--laws", "nowhere.npz", "--cost", "0.1"], "--laws"),
    ],
)
def test_bad_arguments_are_said_in_one_line(capsys, arguments, said):
    assert main(["plan", *arguments]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_the_cost_of_a_draft_is_that_of_undisturbed_rounds():
    """Three rounds of four wait for something else, most of all the first ones, which were plain."""

    def run(seconds, delay):
        times = [9.0] + [seconds + (delay if index % 4 else 0.0) for index in range(40)]
        return SimpleNamespace(rounds=[SimpleNamespace(seconds={"draft": 0.0, "target": each}) for each in times])

    assert cost_ratio([run(1.0, 5.0)], [run(1.8, 0.5)], k=4) == pytest.approx(0.2)
