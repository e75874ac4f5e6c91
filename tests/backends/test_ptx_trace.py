"""The tracer: which machine code runs for a call, without a GPU."""

import json

import pytest

from tests.backends.ptx import trace
from tests.backends.ptx.build import unavailable
from tests.backends.ptx.translate import translate

PTX = """
.visible .entry kernel(
	.param .u64 pointer
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [pointer];
	ld.global.u32 %r1, [%rd1];
	setp.eq.s32 %p1, %r1, 0;
	@%p1 bra $L__BB0_2;
	add.s32 %r2, %r1, 1;
	bar.sync 0;
	add.s32 %r3, %r2, 1;
$L__BB0_2:
	ret;
}
"""


def test_stretches_end_at_branches_labels_and_barriers():
    assert trace.stretches(PTX) == {9: [9, 10, 11, 12], 13: [13, 14], 15: [15], 17: [17]}


def test_kernels_tell_what_they_run():
    found = translate(PTX, "test.ptx", trace.CountingKernel, ("thread.h", "tracer.h"))
    assert [f"traced.at({line});" in found for line in (9, 10, 13, 14, 15, 17)] == [
        True,
        False,
        True,
        False,
        True,
        True,
    ]
    assert "traced.load(" in found
    assert found.count("traced.barrier()") == found.count("traced.met()") == 1


def test_a_path_is_of_the_slowest_warp():
    """Two warps, two stretches. A line of the PTX may be several instructions, and two lines of code."""
    told = {
        (0, 0): (1, [0, 0, 0], {9: 1}), (1, 0): (0, [0, 0, 0], {9: 3}), (0, 1): (3, [1, 1, 0], {15: 2}),
        (1, 1): (2, [1, 0, 0], {17: 1}),
    }  # fmt: skip
    code = {9: [0, 16], 10: [32], 15: [128, 256], 17: [144]}
    path, ran, (tickets, barriers, clusters) = trace.path_of(told, {9: [9, 10], 15: [15], 17: [17]}, code)
    assert path == [trace.Stretch(9, 1, 1), trace.Stretch(4, 2, 2)]
    assert ran == {0, 16, 32, 128, 256, 144}
    assert (tickets, barriers, clusters) == (0, 1, 0)


def test_the_model_knows_what_was_measured():
    """On an H100 a rejection took 31 us cold and 52 behind a product, a race 13.5 and 21 (docs/cuda.md, section 8)."""
    base = {"cluster_barriers": 0, "tickets": 1}
    race = trace.modelled(base | {"path": 3447, "lines": 309, "waits": 8, "grid_barriers": 0})
    rejection = trace.modelled(base | {"path": 10_482, "lines": 683, "waits": 12, "grid_barriers": 1})
    assert race["cold_us"] == pytest.approx(13.5, rel=0.2)
    assert race["behind_product_us"] == pytest.approx(21, rel=0.2)
    assert rejection["cold_us"] == pytest.approx(31, rel=0.2)
    assert rejection["behind_product_us"] == pytest.approx(52, rel=0.2)


COMMITTED = json.loads(trace.COMMITTED.read_text())


@pytest.mark.slow
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize("row", COMMITTED, ids=lambda row: f"{row['call']}, {row['B']}")
def test_the_table(row):
    assert trace.traced_apart(row["call"], row["B"]) == row, (
        "make the table anew: python -m tests.backends.ptx.trace table"
    )
