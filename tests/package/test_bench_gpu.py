"""The benches for a GPU, as far as they go without one: their path on the CPU, and the scripts' syntax."""

import contextlib
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
from specdec_kernels.engines import flashinfer, vllm

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

GPU = Path(__file__).parents[2] / "bench" / "gpu"


OPS = ("race_sample", "race", "rejection", "serving race", "serving rejection", "tree race", "tree rejection")


def dry_run(out, *options):
    command = [sys.executable, GPU / "bench.py", "--dry-run", "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_dry_run_in_pieces(tmp_path):
    assert "\n15 of 75 cases" in dry_run(tmp_path, "--ops", "race_sample")
    first = (tmp_path / "cases.jsonl").read_text()
    assert "\n15 of 75 cases" in dry_run(tmp_path, "--seconds", "0")
    assert (tmp_path / "cases.jsonl").read_text() == first
    written = json.loads((tmp_path / "gpu.json").read_text())
    contenders = {record["contender"] for record in written["records"] if record["op"] == "race_sample"}
    assert {"specdec", "read roof", "softmax + multinomial"} <= contenders


@pytest.mark.slow
def test_dry_run_goes_all_the_way(tmp_path):
    dry_run(tmp_path, "--ops", "race_sample")
    first = (tmp_path / "cases.jsonl").read_text()
    assert "\n75 of 75 cases" in dry_run(tmp_path)
    assert (tmp_path / "cases.jsonl").read_text().startswith(first)
    written = json.loads((tmp_path / "gpu.json").read_text())
    contenders = {(record["op"], record["contender"]) for record in written["records"]}
    assert {(op, name) for op in OPS for name in ("specdec", "read roof")} <= contenders
    assert all(record["median"] > 0 for record in written["records"])
    assert all((tmp_path / f"{op}_{by}.svg").exists() for op in ("race", "rejection") for by in ("batch", "vocabulary"))


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


def imported(monkeypatch):
    """bench/gpu/bench.py, whose name is that of the folder of benches, too."""
    monkeypatch.syspath_prepend(str(GPU))
    monkeypatch.setitem(sys.modules, "bench", None)  # which is put back
    del sys.modules["bench"]
    return importlib.import_module("bench")


def measured(monkeypatch, verify_chain, contenders):
    """A race's entry beside a backend whose verify_chain is another."""
    bench = imported(monkeypatch)
    monkeypatch.setitem(backends._BACKENDS, "other", (SimpleNamespace(verify_chain=verify_chain), ("cpu",)))
    monkeypatch.delitem(backends._loaded, "other", raising=False)
    case = {"sweep": "B", "B": 3, "V": 512, "acceptance": 0.7, "cold": True}
    return bench.measured("race", case, bench.DRY, "cpu", contenders)


def test_a_backend_that_differs_is_written_down_and_not_timed(monkeypatch):
    def wrong(call):
        for out in (call.tokens, call.num_accepted, call.status):
            out.zero_()

    entry = measured(monkeypatch, wrong, {"specdec": "cpu", "theirs": "other"})
    assert entry["differs"] == ["theirs"]
    assert "theirs" not in entry["seconds"]
    assert len(entry["seconds"]["specdec"]) > 0


def test_a_backend_that_fails_is_left_out_and_told(monkeypatch):
    def fails(call):
        raise TypeError("a kernel\nthat does not compile")

    entry = measured(monkeypatch, fails, {"theirs": "other", "specdec": "cpu"})
    assert entry["skipped"]["theirs"] == "TypeError: a kernel"
    assert (entry["differs"], list(entry["seconds"])[:1]) == ([], ["specdec"])


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


def test_behind_a_product_only_what_calls_add_counts(monkeypatch):
    """On a clock that only graphs move: what is captured costs as many milliseconds as it says."""
    bench = imported(monkeypatch)
    clock, captured = [0.0], []

    class Graph:
        def replay(self):
            clock[0] += sum(self.costs)

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.time = clock[0]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.time - self.time

    @contextlib.contextmanager
    def capture(graph):
        captured.clear()
        yield
        graph.costs = list(captured)

    for name, stand_in in (("CUDAGraph", Graph), ("Event", Event), ("graph", capture), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    times = bench.replayed_behind(lambda: captured.append(1000.0), captured.append, [2.0, 4.0])
    assert times == pytest.approx([3e-3] * bench.REPLAYS)
    assert bench.replayed(captured.append, [2.0, 4.0]) == pytest.approx([3e-3] * bench.REPLAYS)


@pytest.mark.parametrize(
    ("driver", "release", "said"),
    [
        ("570.86.10", "13.0", "driver: a build by CUDA 13.0 needs 580 or newer; got 570.86.10\nFAILED: driver\n"),
        ("570.86.10", "12.8", "driver 570.86.10, CUDA 12.8\n"),
        ("580.65.06", "11.8", "toolkit: expected CUDA 12 or 13; got 11.8\nFAILED: driver\n"),
    ],
)
def test_a_driver_too_old_is_said(tmp_path, driver, release, said):
    for name, text in (("nvidia-smi", driver), ("nvcc", f"Cuda compilation tools, release {release}, V{release}.88")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    environment = {"OUT": str(tmp_path / "out"), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", GPU / "run.sh", "driver"], capture_output=True, text=True, env=environment)
    assert done.returncode == ("FAILED" in said)
    assert done.stdout.endswith(said)


def test_the_calls_of_peers_are_those_of_their_functions(monkeypatch):
    """Our adapters have the arguments of FlashInfer's and vLLM's newest functions, so they stand in for them."""
    bench, peers = imported(monkeypatch), importlib.import_module("peers")
    monkeypatch.setattr(flashinfer, "softmax", lambda x: x.softmax(-1), raising=False)
    gpu = "vllm.v1.worker.gpu"
    for name, module in (
        ("flashinfer.sampling", flashinfer), (f"{gpu}.sample.gumbel", vllm),
        (f"{gpu}.spec_decode.rejection_sampler_utils", vllm),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    for op, calls in peers.PEERS.items():
        inputs = bench.make(op, 3, 512, 0.7, 0, "cpu")
        for _, call in calls.values():
            call(inputs)


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
