"""Every CUDA kernel compiles for every architecture, without spills, and streams its rows by 16 bytes."""

import json

import pytest

from tests.support import cuda_aot
from tests.support.calls import streams

pytestmark = pytest.mark.skipif(cuda_aot.unavailable() is not None, reason=f"{cuda_aot.unavailable()}")


def test_memory_that_is_touched_early_is_seen():
    """A compiler that moved a load above the wait would be caught: every compiled kernel is looked at."""
    assert cuda_aot.touches_early(["S2R", "LDG.E", "PREEXIT", "ACQBULK"])
    assert not cuda_aot.touches_early(["LDC", "ULDC", "PREEXIT", "ACQBULK", "LDG.E"])
    assert not cuda_aot.touches_early(["LDG.E", "EXIT"])


LOAD = "LDG.E.NA.128.CONSTANT R{}, desc[UR4][R2.64] ;"


@pytest.mark.parametrize(
    "lines, together",
    [
        ([LOAD.format(4), LOAD.format(8), "FMNMX R0, R4, R5, PT ;", LOAD.format(12)], 2),
        ([LOAD.format(4), "FMNMX R0, R7, R6, PT ;", LOAD.format(8), "STL.128 [R1], R8 ;", LOAD.format(12)], 1),
        ([LOAD.format(4), "@!P0 BRA 0x0060 ;", LOAD.format(8), "IADD3 R0, R0, 1, RZ ;"], 2),  # it is not taken
        ([LOAD.format(4), "BRA 0x0060 ;", LOAD.format(8)], 1),
        (["IADD3 R0, R0, 1, RZ ;", LOAD.format(4), LOAD.format(8), "@P0 BRA 0x0020 ;"], 1),  # one of them in a loop
        ([LOAD.format(4), "@P0 EXIT ;", LOAD.format(8)], 1),
        ([LOAD.format(4), LOAD.format(8).replace("R2", "R4")], 1),  # the address of the second is what the first brings
    ],
)
def test_loads_that_wait_for_each_other_are_not_together(lines, together):
    """Nor would be those of a row's end that were stored one by one, as they once were."""
    sass = "\n".join(f"/*{16 * place:04x}*/  {line}" for place, line in enumerate(lines))
    assert cuda_aot.loads(sass)["loads_together"] == together


def key(row):
    return row["op"], row["kernel"], row["arch"]


# These stream rows alone, in whole chunks and at a row's end.
WHOLE_ROWS = (
    "race_sample_kernel", "race_rows_kernel", "race_queue_kernel", "race_topk_kernel", "mass_tiles_kernel",
    "residual_race_kernel",
)  # fmt: skip

# Each compiles for minutes; sm_90a comes from the build.
ARCHS = [arch if arch == "sm_90a" else pytest.param(arch, marks=pytest.mark.slow) for arch in cuda_aot.ARCHS]


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile(arch):
    committed = {key(row): row for row in json.loads(cuda_aot.TABLE.read_text()) if row["arch"] == arch}
    found = {key(row): row for row in cuda_aot.report(arch)}
    assert set(found) == set(committed), "make the table anew: python -m tests.support.cuda_aot table"
    for name, row in found.items():
        assert row["spill_bytes"] == 0, row
        assert row["shared_bytes"] <= 4 << 10, row  # kDeclaredShared
        assert row["registers"] <= 128, row  # two blocks a multiprocessor
        if streams(row["op"]):
            assert row["loads_together"] >= 8, row
        if row["kernel"].startswith(WHOLE_ROWS):
            assert row["fewest_together"] == 8, row
        if row["compiler"] == committed[name]["compiler"]:
            assert row == committed[name], "make the table anew: python -m tests.support.cuda_aot table"
