"""The benches for a GPU, as far as they go without one: their path on the CPU, and the scripts' syntax."""

import importlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specdec_kernels import backends

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

GPU = Path(__file__).parents[2] / "bench" / "gpu"


OPS = ("race_sample", "race", "rejection", "tree race", "tree rejection")


def dry_run(out, *options):
    command = [sys.executable, GPU / "bench.py", "--dry-run", "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_dry_run_in_pieces(tmp_path):
    assert "\n13 of 57 cases" in dry_run(tmp_path, "--ops", "race_sample")
    first = (tmp_path / "cases.jsonl").read_text()
    assert "\n13 of 57 cases" in dry_run(tmp_path, "--seconds", "0")
    assert (tmp_path / "cases.jsonl").read_text() == first
    written = json.loads((tmp_path / "gpu.json").read_text())
    contenders = {record["contender"] for record in written["records"] if record["op"] == "race_sample"}
    assert {"specdec", "read roof", "softmax + multinomial"} <= contenders


@pytest.mark.slow
def test_dry_run_goes_all_the_way(tmp_path):
    dry_run(tmp_path, "--ops", "race_sample")
    first = (tmp_path / "cases.jsonl").read_text()
    assert "\n57 of 57 cases" in dry_run(tmp_path)
    assert (tmp_path / "cases.jsonl").read_text().startswith(first)
    written = json.loads((tmp_path / "gpu.json").read_text())
    contenders = {(record["op"], record["contender"]) for record in written["records"]}
    assert {(op, name) for op in OPS for name in ("specdec", "read roof")} <= contenders
    assert all(record["median"] > 0 for record in written["records"])
    assert all((tmp_path / f"{op}_{by}.png").exists() for op in ("race", "rejection") for by in ("batch", "vocabulary"))


@pytest.mark.slow
def test_chains_by_teams_are_a_table_of_their_own(tmp_path):
    dry_run(tmp_path, "--ops", "race,rejection")
    for team in ("local", "cluster4"):
        assert "rejection, B = 1, by team: {'" in dry_run(tmp_path, "--team", team)
    rows = json.loads((tmp_path / "gpu.json").read_text())["teams"]
    assert {(row["op"], row["B"]) for row in rows} == {(op, B) for op in ("race", "rejection") for B in (1, 8, 64, 256)}
    assert set(rows[0]["us"]) == {"local", "cluster4"}


def test_an_unknown_team_is_refused():
    command = [sys.executable, GPU / "bench.py", "--dry-run", "--team", "warp2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "argument --team: expected local, clusterN or gridN; got warp2" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, GPU / "bench.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "skipped: no CUDA device\n")


@pytest.mark.parametrize("script", ["run.sh", "sanitize.sh"])
def test_scripts_parse(script):
    assert subprocess.run(["sh", "-n", GPU / script]).returncode == 0


def test_a_backend_that_differs_is_written_down_and_not_timed(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    bench = importlib.import_module("bench")

    def wrong(call):
        for out in (call.tokens, call.num_accepted, call.status):
            out.zero_()

    monkeypatch.setitem(backends._BACKENDS, "wrong", (SimpleNamespace(verify_chain=wrong), ("cpu",)))
    monkeypatch.delitem(backends._loaded, "wrong", raising=False)
    case = {"sweep": "B", "B": 3, "V": 512, "acceptance": 0.7, "cold": True}
    entry = bench.measured("race", case, bench.DRY, "cpu", {"specdec": "cpu", "theirs": "wrong"})
    assert entry["differs"] == ["theirs"]
    assert "theirs" not in entry["seconds"]
    assert len(entry["seconds"]["specdec"]) > 0


def test_a_step_that_hangs_or_fails_stops_no_other(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho begun\nsleep 60\n")
    python.chmod(0o755)
    out = tmp_path / "out"
    environment = {"OUT": str(out), "PYTHON": str(python), "SECONDS_A_STEP": "1", "PATH": "/usr/bin:/bin"}
    command = ["sh", GPU / "run.sh", "test", "triton/2", "bench"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50)
    assert done.returncode == 1
    assert re.findall("== (.*)", done.stdout) == ["test", "triton/2", "bench"]
    with tarfile.open(out / "gpu.tar.gz") as archive:
        logs = {name: archive.extractfile(name).read().decode() for name in archive.getnames() if name.endswith("txt")}
    assert logs == {
        f"./logs/{name}.txt": f"begun\nFAILED: {step}\n"
        for name, step in (("test", "test"), ("triton-2", "triton/2"), ("bench", "bench"))
    }


def test_shards_share_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    shard, all_of_them = importlib.import_module("shard"), []
    for number in (1, 2, 3):
        items = list(range(10))
        monkeypatch.setenv("SHARD", f"{number}/3")
        shard.pytest_collection_modifyitems(items)
        all_of_them += items
    assert sorted(all_of_them) == list(range(10))


def test_an_unknown_step_is_refused(tmp_path):
    command = ["sh", GPU / "run.sh", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, env={"OUT": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (2, "unknown step: tests\n")
