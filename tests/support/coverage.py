"""Measures how much of the code a set of tests runs: lines of Python, lines and branches of csrc.

    make coverage                            for the set of make test, then for that of make test-all
    make coverage TEST_OPTIONS=--quick       for the set of make test alone

The tree is copied to ``build/coverage`` and compiled there by g++ with counters: the CPU backend, and csrc/cuda for the
played machine. It takes about twice as long as the tests themselves. Tests of Triton's kernels or PTX alone are left
out, and of the slow tests all that Triton runs: neither is counted.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "coverage"
# These compile, or run code that was compiled elsewhere.
NAMES = ("test_faults", "package/test_dist", *(f"backends/test_{x}" for x in ("cuda_compiled", "triton_*", "ptx_*")))
ELSEWHERE = [f"--ignore-glob=tests/{name}.py" for name in NAMES]
ELSEWHERE.append("--deselect=tests/backends/test_cuda_ops.py::test_sanitized")
SETS = {"make test": ("-m", "not slow"), "make test-all": ("-m", "slow", "-k", "not triton")}


def run(*command, **environment):
    subprocess.run(list(map(str, command)), cwd=COPY, env={**os.environ, **environment}, check=True)


def copied():
    shutil.rmtree(COPY, ignore_errors=True)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)
    (COPY / "specdec_kernels" / "triton_kernels").symlink_to("../triton_kernels")


def compiled():
    """The environment for code that was compiled with counters."""
    compiler = COPY / "build" / "g++"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nexec g++ --coverage -fprofile-abs-path "$@"\n')
    compiler.chmod(0o755)
    built = {"CXX": str(compiler), "SPECDEC_CUDA": "0", "SPECDEC_ISAS": "all", "PYTHONPATH": str(COPY)}
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", **built)
    run(sys.executable, "-m", "tests.backends.host_cuda.build", **built)
    return {**built, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def counted(chosen, jobs, environment):
    """Run the chosen tests, and add to the counts so far; failures are printed, but count. By folder: lines that ran,
    all lines, branches taken, all branches."""
    tests = ["-m", "pytest", "-q", "-n", jobs, "--dist", "worksteal", "--benchmark-disable", *ELSEWHERE, *chosen]
    try:
        python_too = ("--cov=specdec_kernels", "--cov-append", "--cov-report=json:python.json")
        run(sys.executable, *tests, *python_too, **environment)
    except subprocess.CalledProcessError as failed:
        if failed.returncode != 1:
            raise
    gcovr = [sys.executable, "-m", "gcovr", "-r", ".", "--filter", "csrc/", "--exclude-throw-branches"]
    merged = ["--merge-mode-functions=merge-use-line-0", "--gcov-ignore-parse-errors=all"]
    run(*gcovr, *merged, "--json-summary", "csrc.json")

    python, csrc = (json.loads((COPY / name).read_text()) for name in ("python.json", "csrc.json"))
    folders = collections.defaultdict(lambda: [0, 0, 0, 0])
    for name, file in python["files"].items():
        summary = file["summary"]
        found = (summary["covered_lines"], summary["num_statements"], 0, 0)
        folder = "/".join(Path(name).parts[:2] if Path(name).parts[1:-1] else Path(name).parts[:1])
        folders[folder] = [a + b for a, b in zip(folders[folder], found, strict=True)]
    for file in csrc["files"]:
        found = (file["line_covered"], file["line_total"], file["branch_covered"], file["branch_total"])
        folder = "/".join(Path(file["filename"]).parts[:2] if Path(file["filename"]).parts[2:] else ["csrc"])
        folders[folder] = [a + b for a, b in zip(folders[folder], found, strict=True)]
    return folders


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def report(title, folders):
    print(f"{title:36}{'lines':>10}{'branches':>10}", flush=True)
    for folder, (lines, all_lines, branches, all_branches) in sorted(folders.items()):
        print(f"{folder:36}{percent(lines, all_lines):>10}{percent(branches, all_branches):>10}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    copied()
    environment = compiled()
    for name, chosen in list(SETS.items())[: 1 if arguments.quick else None]:
        report(name, counted(chosen, arguments.jobs, environment))


if __name__ == "__main__":
    main()
