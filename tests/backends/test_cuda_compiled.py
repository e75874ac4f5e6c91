"""Every CUDA kernel compiles for every architecture, without spills, and streams its rows by 16 bytes."""

import json
import re

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


# Of assembly that is not volatile the compiler believes that it depends on its operands alone. So it may stand before
# the check that guards it.
PURE = {"max", "lg2", "ex2", "mov", "mapa"}


def test_assembly_that_depends_on_memory_or_order_is_volatile():
    found = [
        (path.name, *part)
        for path in cuda_aot.texts()
        for part in re.findall(r'\basm\s*(volatile)?\s*\(\s*"([a-z0-9]*)', path.read_text())
    ]
    assert len(found) > 10
    assert [part for part in found if not part[1] and part[2] not in PURE] == []


GUARDED = """
.entry _ZN7specdec4cuda11tree_kernelEv(
)
{
	setp.ge.s32 	%p1, %r1, 8;
	@%p1 bra 	$L__BB0_3;
MOVED
	mov.u32 	%r2, 0;

$L__BB0_1:
	@%p2 bra 	$L__BB0_2;
	// begin inline asm
	ld.global.nc.L1::no_allocate.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1];
	// end inline asm

$L__BB0_2:
	@%p3 bra 	$L__BB0_1;

$L__BB0_3:
	ret;
}
"""


def test_loads_that_were_moved_before_a_loop_are_seen():
    load = next(line for line in GUARDED.splitlines() if "no_allocate" in line)
    assert cuda_aot.before_loops(GUARDED.replace("MOVED", "")) == set()
    assert cuda_aot.before_loops(GUARDED.replace("MOVED", load)) == {"tree_kernel"}


@pytest.mark.parametrize(
    "source",
    [path for path in sorted((cuda_aot.CSRC / "cuda" / "ops").glob("*.cu")) if streams(path.stem)],
    ids=lambda path: path.stem,
)
def test_loads_stay_behind_their_guards(source):
    text = cuda_aot.ptx_of(source)
    if text is None:
        pytest.skip("the build has no PTX of sm_90a: SPECDEC_CUDA_ARCHS=90a+PTX")
    assert cuda_aot.before_loops(text) == set()


def key(row):
    return row["op"], row["kernel"], row["arch"]


# These stream rows alone, in whole chunks and at a row's end.
WHOLE_ROWS = "race_sample_kernel", "race_topk_kernel", "residual_race_kernel"

# For few requests: those that draw, of which a lane has a few columns; and those that weigh, whose eight loads are of
# eight bytes where elements have 16 bits.
FEW_LOADS = {
    "chain_race_kernel": 3, "sample_few_rows_kernel": 3, "chain_rejection_kernel": 4, "chain_block_kernel": 4,
    "chain_chunk_kernel": 4, "filtered_sample_kernel": 3, "filtered_chain_kernel": 3, "logprobs_kernel": 7,
}  # fmt: skip

# Each compiles for minutes; sm_90a comes from the build.
ARCHS = [arch if arch == "sm_90a" else pytest.param(arch, marks=pytest.mark.slow) for arch in cuda_aot.ARCHS]


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile(arch):
    committed = {key(row): row for row in json.loads(cuda_aot.TABLE.read_text()) if row["arch"] == arch}
    found = {key(row): row for row in cuda_aot.report(arch)}
    assert set(found) == set(committed), "make the table anew: python -m tests.support.cuda_aot table"
    for name, row in found.items():
        assert row["spill_bytes"] == 0, row
        assert row["shared_bytes"] <= 6 << 10, row  # kDeclaredShared
        assert row["registers"] <= 128, row  # two blocks a multiprocessor
        if streams(row["op"]):
            assert row["loads_together"] >= FEW_LOADS.get(row["kernel"], 8), row
        if row["kernel"].startswith(WHOLE_ROWS):
            assert row["fewest_together"] == 8, row
            assert row["words_together"] >= 32, row  # of rows that do not start on 16 bytes
        if row["compiler"] == committed[name]["compiler"]:
            assert row == committed[name], "make the table anew: python -m tests.support.cuda_aot table"
