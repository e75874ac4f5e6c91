"""The machine that runs PTX: what threads do together, and each planted fault is caught."""

import ctypes
import re

import numpy as np
import pytest

from tests.backends.ptx.build import no_compiler
from tests.backends.ptx.texts import Texts, entry

pytestmark = pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))

SHARED = ".shared .align 16 .b8 room[256];\n.shared .align 16 .b8 whole[512];"
ARENA = ".extern .shared .align 16 .b8 arena[];"
STORE = "cvt.u64.u32 %rd9, %r9; st.global.u64 [%rd2], %rd9;"
MEET = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
# name -> PTX; %r9 of each thread is seen.
WORKS = {
    "up": "shfl.sync.up.b32 %r9|%p1, %r1, 3, 0, -1; @!%p1 add.u32 %r9, %r9, 100;",
    "down": "shfl.sync.down.b32 %r9|%p1, %r1, 3, 31, -1; @!%p1 add.u32 %r9, %r9, 100;",
    "bfly": "shfl.sync.bfly.b32 %r9, %r1, 5, 31, -1;",
    # Segments of eight lanes: 0x1800 is the mask of a segment's number, 7 its last lane.
    "idx": "shfl.sync.idx.b32 %r9, %r1, 10, 0x1807, -1;",
    "up_in_segments": "shfl.sync.up.b32 %r9|%p1, %r1, 3, 0x1800, -1; @!%p1 add.u32 %r9, %r9, 100;",
    "ballot": "setp.lt.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r9, %p1, -1;",
    "any": "setp.eq.u32 %p1, %r1, 5; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;",
    "all": "setp.ne.u32 %p1, %r1, 5; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;",
    "half": "setp.gt.u32 %p1, %r1, 15; @%p1 bra $away; redux.sync.add.u32 %r9, %r1, 0xffff; bra $on; $away:\n"
            "mov.u32 %r9, 7; $on:",
    **{f"redux_{op}_{kind}": f"sub.s32 %r3, %r1, 3; redux.sync.{op}.{kind} %r9, %r3, -1;"
       for op, kind in (("min", "s32"), ("max", "s32"), ("min", "u32"), ("max", "u32"), ("add", "s32"),
                        ("and", "b32"), ("or", "b32"), ("xor", "b32"))},
    **{f"redux_float_{name}": f"cvt.rn.f32.u32 %f1, %r1; neg.f32 %f1, %f1; setp.eq.u32 %p1, %r1, {lane}; "
                              "mov.f32 %f2, 0f7fc12345; selp.f32 %f1, %f2, %f1, %p1; "
                              f"redux.sync.{form}.f32 %f1, %f1, -1; mov.b32 %r9, %f1;"
       for name, lane, form in (("max", 99, "max.NaN"), ("nan", 7, "max.NaN"), ("number", 0, "max"),
                                ("min", 31, "min"))},
    "bar_or": "setp.eq.u32 %p1, %r1, 31; bar.red.or.pred %p2, 0, %p1; selp.u32 %r9, 1, 0, %p2;",
    "bar_and": "setp.eq.u32 %p1, %r1, 31; bar.red.and.pred %p2, 0, %p1; selp.u32 %r9, 1, 0, %p2;",
    "bar_popc": "setp.lt.u32 %p1, %r1, 9; bar.red.popc.u32 %r9, 0, %p1;",
    "neighbour": "mov.u32 %r3, room; mul.lo.u32 %r4, %r1, 8; add.u32 %r3, %r3, %r4; st.shared.v2.u32 [%r3], {%r1, %r4};"
                 "bar.sync 0; xor.b32 %r4, %r4, 8; mov.u32 %r3, room; add.u32 %r3, %r3, %r4; ld.shared.u32 %r9, [%r3];",
    "dynamic": "mov.u32 %r3, arena; shl.b32 %r4, %r1, 2; add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], %r1; "
               "ld.shared.u32 %r9, [%r3];",
    # Lane 4 j + k has elements 2 k and 2 k + 1 of row j of each; lane 8 i + j has the address of row j of matrix i.
    "matrices": "mov.u32 %r3, whole; shl.b32 %r4, %r1, 4; add.u32 %r3, %r3, %r4; add.u32 %r5, %r1, 100; "
                "add.u32 %r6, %r1, 200; add.u32 %r7, %r1, 300; "
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r3], {%r1, %r5, %r6, %r7}; bar.warp.sync -1; "
                "ld.shared.u32 %r9, [%r3];",
    # Lane j < 8 has the address of row j; lane 4 j + k gets elements 2 k and 2 k + 1 of row j.
    "matrix": "mov.u32 %r3, whole; shl.b32 %r4, %r1, 2; add.u32 %r3, %r3, %r4; mul.lo.u32 %r5, %r1, 3; "
              "st.shared.u32 [%r3], %r5; bar.warp.sync -1; mov.u32 %r3, whole; shl.b32 %r4, %r1, 4; "
              "add.u32 %r3, %r3, %r4; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r3];",
    "atomics": "mov.u32 %r3, room; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r3], 5; bar.sync 0;"
               "atom.shared.add.u32 %r4, [%r3], 2; bar.sync 0; ld.shared.u32 %r9, [%r3];",
    "signed_max": "mov.u32 %r3, room; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r3], -9; bar.sync 0;"
                  "neg.s32 %r5, %r1; atom.shared.max.s32 %r4, [%r3], %r5; bar.sync 0; ld.shared.u32 %r9, [%r3];",
    "local": ".local .align 16 .b8 depot[16]; mov.u64 %rd5, depot; cvta.local.u64 %rd6, %rd5; mov.u32 %r3, 4;"
             "st.local.v2.u32 [%rd5+8], {%r1, %r3}; ld.u32 %r9, [%rd6+8];",
    "parts": "mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r9, {%rs2, %rs1};",
    "narrow": "mov.u32 %r9, -1; ld.global.u8 %r9, [%rd2];",
    "narrow_signed": "ld.global.s8 %r9, [%rd2];",
    "generic": "mov.u64 %rd5, room; cvta.shared.u64 %rd6, %rd5; st.u32 [%rd6+4], %r1; cvta.to.shared.u64 %rd7, %rd6; "
               "ld.shared.u32 %r9, [%rd7+4];",
    "places": "mov.u32 %r3, %laneid; mov.u32 %r4, %ntid.x; mad.lo.u32 %r9, %r3, 100, %r4;",
}  # fmt: skip
LANES = np.arange(32)
EXPECTED = {
    "up": np.where(LANES < 3, LANES + 100, LANES - 3), "down": np.where(LANES > 28, LANES + 100, LANES + 3),
    "bfly": LANES ^ 5, "idx": LANES // 8 * 8 + 2,
    "up_in_segments": np.where(LANES % 8 < 3, LANES + 100, LANES - 3),
    "ballot": 31, "any": 1, "all": 0, "half": np.where(LANES < 16, 120, 7),
    "redux_min_s32": 2**32 - 3, "redux_max_s32": 28, "redux_min_u32": 0, "redux_max_u32": 2**32 - 1,
    "redux_add_s32": 400, "redux_and_b32": 0, "redux_or_b32": 2**32 - 1,
    "redux_float_max": 0x80000000, "redux_float_nan": 0x7FFFFFFF,
    "redux_float_number": 0xBF800000, "redux_float_min": 0xC1F00000,
    "redux_xor_b32": np.bitwise_xor.reduce((LANES - 3) % 2**32), "bar_or": 1, "bar_and": 0, "bar_popc": 9,
    "matrices": LANES % 8 * 4 + LANES // 8 * 100,
    "matrix": LANES * 3,
    "neighbour": LANES ^ 1, "dynamic": LANES, "atomics": 69, "signed_max": 0, "local": LANES, "parts": LANES << 16,
    "narrow": 0xA5, "narrow_signed": 0xFFFFFFA5, "generic": LANES, "places": LANES * 100 + 32,
}  # fmt: skip
ONE = {"generic": 1}  # threads, where it is not a warp

# name -> PTX, blocks of a cluster, what the report says.
FAULTS = {
    "misaligned": ("ld.global.u32 %r3, [%rd1+2];", 1, "a misaligned 4-byte access"),
    "misaligned_vector": ("ld.global.v2.u32 {%r3, %r4}, [%rd1+4];", 1, "a misaligned 8-byte access"),
    "misaligned_shared": ("mov.u32 %r3, room; st.shared.u64 [%r3+4], %rd1;", 1, "a misaligned 8-byte access"),
    "behind": ("ld.global.u32 %r3, [%rd1+512];", 1, "4 bytes behind the end of 512 bytes"),
    "before": ("st.global.u16 [%rd1+-2], %rs1;", 1, "2 bytes before the start of 512 bytes"),
    "half_behind": ("st.global.v4.u32 [%rd1+504], {%r1, %r1, %r1, %r1};", 1, "a misaligned 16-byte|8 bytes behind"),
    "null": ("mov.u64 %rd5, 0; ld.u32 %r3, [%rd5];", 1, "global memory that the call does not have"),
    "shared_bounds": ("mov.u32 %r3, room; st.shared.u32 [%r3+256], %r1;", 1, r"shared memory\[64\]: out of bounds"),
    "arena_bounds": ("st.shared.u32 [arena+128], %r1;", 1, r"shared memory\[32\]: out of bounds"),
    "below_shared": ("mov.u32 %r3, room; st.shared.u32 [%r3+-4], %r1;", 1, "no address of the block's shared memory"),
    "zero_shared": ("mov.u32 %r3, 0; st.shared.u32 [%r3], %r1;", 1, "no address of the block's shared memory"),
    "misaligned_matrix": ("stmatrix.sync.aligned.m8n8.x4.shared.b16 [room+8], {%r1, %r1, %r1, %r1};", 1,
                          "a misaligned 16-byte access"),
    "unwritten": ("atom.shared.add.u32 %r4, [room], 1;", 1, "read of unwritten shared memory"),
    "race": ("mov.u32 %r3, room; st.shared.u32 [%r3], %r1;", 1, "without a barrier between"),
    "copies": ("mov.u32 %r3, 7; st.shared.u32 [room], %r3;", 1, "without a barrier between"),
    "no_such_rank": ("mov.u64 %rd5, room; cvta.shared.u64 %rd5, %rd5; mapa.u64 %rd6, %rd5, 2;", 2,
                     "no block of rank 2"),
    "mapa_of_global": ("mapa.u64 %rd6, %rd1, 1;", 2, "no address of shared memory"),
    "mapa_bounds": ("mov.u64 %rd5, room; cvta.shared.u64 %rd5, %rd5; add.s64 %rd5, %rd5, 256; mapa.u64 %rd6, %rd5, 1;",
                    2, "mapa: no address of the block's shared memory"),
    "peer_bounds": (f"{MEET} mov.u64 %rd5, room; cvta.shared.u64 %rd5, %rd5; mapa.u64 %rd6, %rd5, 1; "
                    f"st.u32 [%rd6+256], %r1; {MEET}", 2, "out of bounds"),
    "peer_gone": ("mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 1; @%p1 bra $end; "
                  "$again: ld.acquire.gpu.global.u32 %r4, [%rd1]; mov.u64 %rd5, room; cvta.shared.u64 %rd5, %rd5; "
                  "mapa.u64 %rd6, %rd5, 1; bra $again; $end:", 2, "the peer block has left"),
    "lane_left": ("setp.eq.u32 %p1, %r1, 5; @%p1 ret; vote.sync.any.pred %p2, %p1, -1;", 1,
                  "deadlock.*threads 5 left the kernel.*wait in vote.sync.any.pred"),
    "lane_elsewhere": ("setp.eq.u32 %p1, %r1, 5; @%p1 bra $away; redux.sync.add.u32 %r3, %r1, -1; $away: bar.sync 0;",
                       1, "deadlock.*threads 5 wait in bar.sync.*wait in redux.sync.add.u32"),
    "not_in_mask": ("vote.sync.any.pred %p2, %p1, 0xff;", 1, "the calling lane is not in its mask"),
    "other_mask": ("setp.gt.u32 %p1, %r1, 15; selp.u32 %r3, 0xfffffff0, 0xffffffff, %p1; "
                   "redux.sync.add.u32 %r4, %r1, %r3;", 1, "with another mask or kind"),
    "from_outside": ("setp.gt.u32 %p1, %r1, 15; @%p1 ret; shfl.sync.idx.b32 %r3, %r1, 20, 31, 0xffff;", 1,
                     "reads lane 20, which is not in the mask"),
    "barrier_in_a_branch": ("setp.eq.u32 %p1, %r1, 5; @%p1 ret; bar.sync 0;", 1, "deadlock.*wait in bar.sync"),
    "other_barrier": ("bar.sync 1;", 1, "a barrier that is not played: 1"),
    "cluster_barrier": (f"mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 1; @%p1 ret; {MEET}", 2,
                        "deadlock.*wait in the cluster barrier"),
    "wait_alone": ("barrier.cluster.wait.acquire.aligned;", 2, "without an arrival"),
    "arrives_twice": ("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.arrive.relaxed.aligned;", 2, "twice"),
    "unfenced": ("mov.u64 %rd5, room; cvta.shared.u64 %rd5, %rd5; setp.ne.u32 %p1, %r1, 0; @%p1 bra $on; "
                 f"mov.u32 %r3, room; st.shared.u32 [%r3], 7; $on: {MEET} mov.u32 %r4, %cluster_ctarank; "
                 f"xor.b32 %r4, %r4, 1; mapa.u64 %rd6, %rd5, %r4; ld.u32 %r9, [%rd6]; {MEET}", 2,
                 "without a barrier between"),
    "spins": ("$again: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.ne.u32 %p1, %r3, 1; @%p1 bra $again;", 1,
              "no progress, threads spin for ever"),
    "zero": ("mov.u32 %r3, 0; div.u32 %r4, %r1, %r3;", 1, "a division by zero"),
    "trap": ("trap;", 1, "trap"),
    "local_bounds": (".local .align 4 .b8 depot[8]; mov.u64 %rd5, depot; st.local.u32 [%rd5+8], %r1;", 1,
                     "local memory out of bounds"),
    "param_bounds": ("ld.param.u32 %r3, [param_bounds_out+8];", 1, "parameters out of bounds"),
}  # fmt: skip


@pytest.fixture(scope="module")
def texts():
    works = [entry(name, f"{body} {STORE}") for name, body in WORKS.items()]
    faults = [entry(name, body) for name, (body, *_) in FAULTS.items()]
    peer = (
        "mov.u64 %rd5, room; cvta.shared.u64 %rd5, %rd5; mov.u32 %r3, %cluster_ctarank; setp.ne.u32 %p1, %r1, 0; "
        f"@%p1 bra $on; add.u32 %r4, %r3, 40; st.shared.u32 [room], %r4; $on: fence.acq_rel.cluster; {MEET} "
        "mov.u32 %r5, %cluster_nctarank; add.u32 %r4, %r3, 1; rem.u32 %r4, %r4, %r5; mapa.u64 %rd6, %rd5, %r4; "
        f"ld.u32 %r9, [%rd6]; fence.acq_rel.cluster; {MEET} cvt.u64.u32 %rd9, %r9; mul.wide.u32 %rd7, %r3, 256; "
        "add.s64 %rd2, %rd2, %rd7; st.global.u64 [%rd2], %rd9;"
    )
    waits = entry("waits", "griddepcontrol.launch_dependents; griddepcontrol.wait; ld.global.u8 %r9, [%rd2];")
    poison = entry("poison", f"ld.shared.u32 %r9, [room]; {STORE}")
    bounded = entry("few_threads", "", launch=".maxntid 32")
    return Texts(SHARED, ARENA, *works, *faults, entry("peer", peer), poison, bounded, waits)


@pytest.mark.parametrize("schedule", (1, 2))
@pytest.mark.parametrize("name", WORKS)
def test_works(texts, name, schedule):
    threads = ONE.get(name, 32)
    report, out = texts.run(name, words=threads, threads=threads, dynamic=128, schedule=schedule)
    assert report == ""
    np.testing.assert_array_equal(out, np.broadcast_to(EXPECTED[name], 32)[:threads])


@pytest.mark.parametrize("schedule", (1, 2))
def test_a_cluster_reads_its_peers(texts, schedule):
    report, out = texts.run("peer", words=96, threads=32, blocks=3, cluster=3, schedule=schedule)
    assert report == ""
    np.testing.assert_array_equal(out.reshape(3, 32), [[41] * 32, [42] * 32, [40] * 32])


def test_shared_memory_that_nobody_wrote_holds_something_else_for_each_seed(texts):
    """It may be read: where a source reads one word or another, the compiler may read both and take one."""
    assert len({texts.run("poison", schedule=schedule)[1][0] for schedule in (1, 2, 3)}) == 3


def test_copies_of_a_value_may_be_written_where_the_compiler_does_so(texts):
    texts.library.ptx_copies_are_written(ctypes.c_bool(True))
    try:
        assert texts.run("copies", threads=32)[0] == ""
        assert re.search("without a barrier between", texts.run("race", threads=32)[0])
    finally:
        texts.library.ptx_copies_are_written(ctypes.c_bool(False))


@pytest.mark.parametrize("schedule", (1, 2))
@pytest.mark.parametrize("name", FAULTS)
def test_catches(texts, name, schedule):
    _, cluster, expected = FAULTS[name]
    report, _ = texts.run(name, threads=32, blocks=cluster, cluster=cluster, schedule=schedule)
    assert report.startswith(f"kernel {name}: ")
    assert re.search(expected, report), report


def test_a_kernel_that_overlaps_with_the_one_before_it_waits_before_it_touches_memory(texts):
    assert texts.run("waits", overlaps=True)[0] == ""
    assert "touches memory before it waited" in texts.run("narrow", overlaps=True)[0]
    assert "never waited for the kernel before" in texts.run("few_threads", overlaps=True)[0]


def test_a_launch_of_more_threads_than_the_kernel_was_compiled_for(texts):
    assert texts.run("few_threads", threads=32)[0] == ""
    assert "invalid launch" in texts.run("few_threads", threads=33)[0]


def test_a_fault_ends_launches_until_somebody_hears_of_it(texts):
    """The host goes on with one block where blocks that wait cannot run; its result would hide the fault."""
    assert [texts.launch(name, threads=32)[0] for name in ("places", "trap", "places")] == [False, True, True]
    assert "trap" in texts.library.host_cuda_last_fault().decode()
    assert texts.launch("places", threads=32)[0] is False
