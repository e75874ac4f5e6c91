"""Every Triton kernel compiles for every architecture, without contraction, in whole vectors, once a vocabulary."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_kernels.calls.op import OPS
from tests.support.calls import reads_rows

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "bench" / "results" / "compiled" / "triton.json"
FIGURES = ("registers", "spill_bytes", "shared_bytes")
# Bytes stored and loaded. ptxas may spill this much by itself if that makes room for one more program of 128 threads on
# a multiprocessor. Most on sm_90: 188 by the last launch of rejection over float32 probabilities, for five programs.
MOST_SPILLED = 188
# Kernels that find cuts are held to 168 registers, for three programs. They spill where one program searches.
MOST_SPILLED_IN_CUTS = 1300
MOST_SPILLED_IN_CUT_TREES = 2200  # where children are tried as well; docs/triton.md says how much is in loops over rows
# For races over rows and for draws: so six programs of 128 threads fit a multiprocessor. Rare code must not use more.
# Five fit where rows are of float32, three where they are edited, or were cut.
MOST_REGISTERS, MOST_EDITED = {"bfloat16": 80, "float32": 96}, 168
WITHOUT_TICKETS = {
    "residual: weigh", "residual: normalise", "tree_mask", "tree_parents", "tree_positions", "build_tree",
    "compact_kv", "compact_kv, pages", "uniform", "context_seeds", "count_tokens", "tile_laws", "first_arrivals",
    "mask_logits", "merge_chains", "store_rows", "token_logits", "token_logits, edited",
    "verify_chain, block: accept_block", "verify_tree, paths: accept_tree", "verify_tree, traversal: accept_tree",
    "verify_tree, one-hot traversal: accept_tree", "verify_tree, traversal, edited: accept_tree",
}  # fmt: skip
# On AMD GPUs two launches without tickets.
CUTS = {
    "cutoff", "cutoff, edited", "race_sample, filtered", "race_topk, filtered", "logprobs",
    "verify_chain, race, filtered", "verify_chain, rejection, filtered", "verify_tree, race, filtered",
    "verify_tree, rejection, filtered",
}  # fmt: skip
# On AMD GPUs: the launch that cuts rows has stored the ``RowStats`` that this one loads, so a cache may answer.
STATS_OF_CUTS = {"verify_tree, rejection, filtered: scan_tree"}
NO_ROWS = {name for name in OPS if not reads_rows(name)} | {"compact_kv, pages"}
# Compiled as the tests call them, on rows of some tokens.
SMALL_ROWS = {"count_at_least", "mass_tiles", "residual_race", "residual_sums", "token_logits", "verify_linked_tree"}


def ahead_of_time(*arguments, cache):
    """A process of its own: where kernels are compiled they cannot be interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.triton_aot", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert found.returncode == 0, found.stderr[-4000:]
    return json.loads(found.stdout)


def key(row):
    return row["kernel"], row["dtype"], row["space"], row["arch"]


SLOW = pytest.mark.slow  # minutes each
# One of each kind: for the walk over a chain, over whole rows, with edits.
SHORT = ("verify_chain, rejection: scan_chain", "race_sample", "mass_tiles, edited")


def test_the_compiler_reads_every_kernel(tmp_path):
    """What it refuses, the interpreter may take."""
    found, table = ahead_of_time("ir", cache=tmp_path), json.loads(TABLE.read_text())
    assert set(found) == {row["kernel"] for row in table if row["arch"] in ("sm_90", "gfx942")}


LOGITS = ("bfloat16", "logits")


@pytest.mark.parametrize(
    "arch, only, rows",
    [
        pytest.param("sm_90", SHORT, LOGITS, id="sm_90, short ones"),
        *(pytest.param(arch, (), LOGITS, marks=SLOW, id=arch) for arch in ("sm_80", "sm_90", "sm_100", "gfx942")),
        *(pytest.param("sm_90", (), ("float32", x), marks=SLOW, id=f"sm_90, float32 {x}") for x in ("logits", "probs")),
    ],
)
def test_kernels_compile(arch, only, rows, tmp_path):
    committed = {key(row): row for row in json.loads(TABLE.read_text())}
    dtype, space = rows
    found = ahead_of_time(arch, "--dtype", dtype, "--space", space, "--only", *only, cache=tmp_path)
    assert {key(row) for row in found} == {
        k for k in committed if k[1:] == (dtype, space, arch) and (not only or k[0] in only)
    }  # fmt: skip
    for row in found:
        known = committed[key(row)]
        if row["compiler"] == known["compiler"]:
            assert [row[f] for f in FIGURES] == [known[f] for f in FIGURES], row["kernel"]
        cuts = row["kernel"].endswith((": all", "filtered_chain", "filtered_tree"))
        if arch in ("sm_90", "gfx942"):  # of others the table alone says what they spill
            most = MOST_SPILLED_IN_CUTS if cuts else MOST_SPILLED
            assert row["spill_bytes"] <= (MOST_SPILLED_IN_CUT_TREES if row["kernel"] == "cut_tree" else most)
        edited = ", edited" in row["kernel"]
        step = row["kernel"].split(": ")[-1]
        races = step.startswith(("race_chain", "race_tree", "sample_")) or row["kernel"] == "race_sample"
        most = MOST_EDITED if edited or ", filtered" in row["kernel"] else MOST_REGISTERS[dtype]
        assert not (races or edited) or arch == "gfx942" or row["registers"] <= most, row["kernel"]
        assert row["fused_by_name"] or not row["fused"], "a multiply and an add were contracted"
        own_launch = row["kernel"] not in STATS_OF_CUTS
        assert [f for f in row["faults"] if own_launch or "_stats" not in f] == [], row["kernel"]
        assert row.get("unseen", []) == []
        loads_rows = arch != "gfx942" and row["kernel"] not in NO_ROWS
        loads_rows = loads_rows and row["kernel"].split(",")[0] not in SMALL_ROWS
        loads_rows = loads_rows and not step.startswith("accept_")  # many threads share a row there
        # A thread has 8 tokens of an edited tile, else 32.
        assert not loads_rows or row["vector_loads"] >= (1 if edited else 4), "rows are to load 16 bytes a lane"

    assert sum("unseen" in row for row in found) == 1
    # Kernels that stay without a ticket: what they store is read after the launch.
    tickless = WITHOUT_TICKETS | {f"{name}: {stage}" for name in CUTS for stage in ("scan", "cut") if arch == "gfx942"}
    assert {row["kernel"] for row in found if not row["tickets"]} == tickless & {row["kernel"] for row in found}


@SLOW
def test_kernels_compile_for_a_small_vocabulary_of_no_round_size(tmp_path):
    assert len(ahead_of_time("sm_90", "--vocabulary", "99", cache=tmp_path)) == len(
        {row["kernel"] for row in json.loads(TABLE.read_text()) if row["arch"] == "sm_90"}
    )


@pytest.mark.slow
def test_calls_with_all_that_is_optional_compile(tmp_path):
    found = ahead_of_time("unusual", cache=tmp_path)
    kernels = {row["kernel"] for row in found}
    assert kernels >= {"verify_chain: scan_chain", "verify_tree: sample_tree", "race_topk", "laws"}
    assert all(row["spill_bytes"] <= MOST_SPILLED for row in found)


def test_no_number_of_a_call_is_compiled_in(tmp_path):
    programs = ahead_of_time("specialisations", cache=tmp_path)
    assert programs
    assert all(count == 1 for count in programs.values()), programs
