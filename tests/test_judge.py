"""`specdec-kernels judge` and `python -m specdec_kernels.conformance`: a table, JSON and an exit status."""

import json

import pytest

from specdec_kernels import conformance
from specdec_kernels.cli.main import main
from specdec_kernels.conformance.__main__ import main as alone

VERIFIERS = """
import torch

def right(drafts, p, q):
    for i, x in enumerate(drafts.tolist()):
        if torch.rand(()) * q[i, x] >= p[i, x]:
            return [*drafts[:i], torch.multinomial((p[i] - q[i]).clamp(min=0), 1)]
    return [*drafts, torch.multinomial(p[-1], 1)]

def wrong(drafts, p, q):
    return [*drafts, torch.multinomial(p[-1], 1)]

def unclear(drafts, p, q):
    return [*drafts, int(torch.randn(()) > 0)]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setitem(conformance.KINDS, "chain", conformance.KINDS["chain"][1:2])  # it has few ways
    (tmp_path / "verifiers_of_mine.py").write_text(VERIFIERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "verifiers_of_mine"


@pytest.mark.parametrize("name, status", [("right", 0), ("wrong", 1), ("unclear", 2)])
def test_exit_status_and_table(module, capsys, name, status):
    assert main(["judge", f"{module}:{name}", "--per-request", "--checks", "chain"]) == status
    verdict = ("passed", "failed", "inconclusive")[status]
    assert f"{verdict:<12}  chain, p and q reversed: " in capsys.readouterr().out


def test_json(module, capsys, tmp_path):
    options = ["--per-request", "--count", "--checks", "ends", "--trials", "300"]
    assert alone([f"{module}:right", *options, "--json", "report.json"]) == 0
    assert "chi-squared" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"]
    assert [finding["verdict"] for finding in report["findings"]] == ["passed"] * 3
    assert main(["judge", f"{module}:wrong", "--per-request", "--checks", "chain", "--json", "-"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["distance"] > 0.1


@pytest.mark.parametrize("run", [lambda arguments: main(["judge", *arguments]), alone], ids=["judge", "alone"])
@pytest.mark.parametrize(
    "arguments, said",
    [
        ([""], "function: expected package.module:function; got verifiers_of_mine: "),
        ([":wrnog"], "got verifiers_of_mine:wrnog: module 'verifiers_of_mine' has no attribute 'wrnog'"),
        (["s:right"], "got verifiers_of_mines:right: No module named 'verifiers_of_mines'"),
        ([":right", "--checks", "chains"], "checks: expected some of chain, "),
    ],
)
def test_wrong_arguments(module, capsys, run, arguments, said):
    """They are no verdict, so the status is none of a verifier that failed."""
    try:
        status = run([module + arguments[0], *arguments[1:]])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert said in capsys.readouterr().err
