"""The CUDA kernels on the played machine: the CPU backend's bits, on every machine and in every order of threads."""

import ctypes
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from specdec_kernels import _C, LogitEdits, Sampling, cutoff, logprobs, race_sample, race_topk
from specdec_kernels.sharded._parts import residual_sums
from tests.backends.host_cuda.build import ROOT, build
from tests.backends.host_cuda.played import MACHINES, NEEDS_COMPILER
from tests.support.calls import every_call
from tests.support.cases import DTYPES, FAR_ELEMENTS, beside_threshold, chain_as_tree, chain_call, seeds
from tests.support.edits import bits_of
from tests.support.large_batches import edited, filtered, large_batches
from tests.support.ops import overlap, residual, verify_chain, verify_tree
from tests.support.same_bits import assert_as_by_baseline, assert_same, on_cpu, random_calls

pytestmark = NEEDS_COMPILER

PARTS_SANITIZED = """
from tests.backends import test_row_part
test_row_part.every_part()
"""
PLAY_SANITIZED = """
from specdec_kernels import backend
from tests import conftest
from tests.backends.test_cuda_ops import assert_every_op
conftest.pytest_configure()
with backend("cuda-host"):
    from tests.backends.host_cuda.backend import begin_capture, play
    begin_capture(1)  # where no kernel may be loaded by its launch
    play(MACHINE)
    assert_every_op()
"""

OLDER_CODE = """
import torch
from specdec_kernels import LogitEdits, backend
from tests.support.ops import verify_tree
from tests import conftest
from tests.support.cases import chain_as_tree, chain_call
conftest.pytest_configure()
with backend("cuda-host"):
    from tests.backends.host_cuda.backend import counted, play
    play("large", multiprocessors=40, code=80)
    call = chain_as_tree(chain_call(3, requests=20, slots=3, vocabulary=9000))
    call["edits"] = LogitEdits(allowed=torch.full((20, 282), -1, dtype=torch.int32))
    print(counted(lambda: verify_tree(**call))["blocks"])
"""


def assert_every_op(count=60):
    assert_as_by_baseline([*random_calls(range(count), 2100), *((name, *call) for name, call in every_call().items())])


def calls_at_the_threshold(dtype):
    """Two calls of one draft a request that differ by one unit in the last place of `draft_prob`.

    The first one accepts every draft, the second one none.
    """
    generator = torch.Generator().manual_seed(7)
    target = 2 * torch.randn(96, 2, 2500, generator=generator)
    target[48:] = -21.0 - torch.rand(48, 2, 2500, generator=generator)  # what is lost in a tile counts here
    target[48:, :, ::1024] = 0.0
    draft = target[:, :1] + torch.randn(96, 1, 2500, generator=generator)
    draft[48:, 0, 0] += 3.0
    noise = {"seed": seeds(96), "position": 5, "temperature": torch.tensor([1.0, 0.8]).repeat(48)}
    target, draft = target.to(dtype), draft.to(dtype)
    tokens = race_sample(draft[:, 0], **noise | {"nonce": 1})[:, None]
    tokens[48:] = 0
    call = {"draft_tokens": tokens, "target": target, "draft": draft, **noise}
    rejected = verify_chain(**call).num_accepted == 0
    call = {name: x[rejected] if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    assert rejected.sum() > 30
    call["draft_prob"], slot = torch.ones(int(rejected.sum()), 1), (slice(None), 0)
    return beside_threshold(verify_chain, call, "draft_prob", slot, lambda verdict: verdict.num_accepted == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uniforms_at_the_threshold(machine, dtype):
    """A bit more or less in any probability would decide otherwise, on the CPU's instruction sets and here."""
    before = _C.isa()
    try:
        for accepted, call in zip((1, 0), on_cpu(calls_at_the_threshold, dtype), strict=True):
            found = verify_chain(**call)
            assert (found.num_accepted == accepted).all()
            for name in _C.isas():
                _C.set_isa(name)
                assert_same(found, on_cpu(verify_chain, **call))
    finally:
        _C.set_isa(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_pairs_are_read_slot_after_slot(device, dtype):
    """Of large batches: a pair is read where the chain comes to it, and once more where a token is drawn from it; a
    certain draft's residual needs its target row alone."""
    requests, slots, vocabulary = 64, 3, 4096
    target = torch.randn(requests, slots + 1, vocabulary, generator=torch.Generator().manual_seed(3)).to(dtype)
    likely, unlikely = target[:, :slots].argmax(-1), target[:, :slots].argmin(-1)
    draft, second = target[:, :slots] / 2, torch.where(torch.arange(slots) == 1, unlikely, likely)
    noise = {"seed": seeds(requests), "position": 5}
    rows, found = requests * vocabulary * dtype.itemsize, []
    for of_draft, tokens, read in (draft, likely, 2 * slots + 1), (draft, second, 2 + 2 + 2), (None, unlikely, 2):
        call = {"draft_tokens": tokens, "target": target, "draft": of_draft, **noise}
        bytes_read = device.counted(lambda call=call: found.append(verify_chain(**call)))["bytes_read"]
        assert_same(found[-1], on_cpu(verify_chain, **call))
        assert rows * read <= bytes_read < rows * (read + 0.2)


def test_a_draft_row_whose_only_weight_one_block_sees(machine):
    target, draft = torch.full((1, 2, 9000), 1 / 9000), torch.zeros(1, 1, 9000)
    target[..., 8000] = 0.0
    for weight, status in ((1.0, 0), (0.0, 1)):
        draft[..., 8000] = weight
        verdict = verify_chain(torch.tensor([[8000]]), target, draft, space="probs", seed=1, position=0)
        assert verdict.status.item() == status


def far(rows, axis):
    """Rows, 2^31 elements from the first to the last along ``axis``, in memory never touched in between."""
    room = torch.from_numpy(np.empty(FAR_ELEMENTS, np.int16)).view(torch.bfloat16)
    strides = [2560, 2560, 1]
    strides[axis] = (2**31 // (rows.shape[axis] - 1) + 8) // 8 * 8
    return room.as_strided(rows.shape, strides).copy_(rows)


@pytest.mark.parametrize("axis", [0, 1], ids=["requests", "rows"])
def test_every_offset_has_64_bits(machine, axis):
    """By request and by row, of rows, chains and trees: in the last ones only a wrong offset finds another row. Several
    blocks share a row where the machine is large."""
    tokens = torch.tensor([[3, 1, 4, 7], [2, 8, 5, 6]])
    target = torch.full((2, 4, 2500), -20.0).scatter(-1, tokens[..., None], 20.0).bfloat16()
    noise = {"seed": seeds(2), "position": 0}
    each = {"seed": seeds(2)[:, None], "position": 0}
    cut = {"sampling": Sampling(top_k=5)}
    parents = torch.tensor([-1, 0, 1, 2])
    rows = far(target, axis)
    assert torch.equal(race_sample(rows, **each), tokens)
    assert torch.equal(race_sample(rows, **each, **cut), tokens)
    assert torch.equal(race_topk(rows, 2, **each)[..., 0], tokens)
    assert torch.equal(logprobs(rows, tokens, **cut)[1], torch.ones(2, 4, dtype=torch.int32))
    assert_same(cutoff(rows, **cut), on_cpu(cutoff, target, **cut))
    assert_same(residual(rows, rows.roll(1, -1)), residual(target, target.roll(1, -1)))
    assert_same(overlap(rows.roll(1, -1), rows), overlap(target.roll(1, -1), target))
    draft = far(target[:, :3], axis)
    for call in ({"draft": draft}, {"draft": None, "method": "race"}, {"draft": draft, **cut}):
        assert torch.equal(verify_chain(tokens[:, :3], rows, **call, **noise).tokens, tokens)
    nodes = tokens.roll(1, -1)
    for call in ({}, {"method": "race"}, cut):
        found = verify_tree(nodes, rows, None if "method" in call else rows, parents=parents, **call, **noise)
        assert torch.equal(found.tokens, tokens)


def test_an_output_past_32_bits(device):
    """Of two million rows the last one is played; nobody touches the memory of the others."""
    rows, vocabulary = 2**31 // 1000 + 2, 1000
    unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 and newer name it
    memory = mmap.mmap(-1, 4 * rows * vocabulary, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
    probs = torch.frombuffer(memory, dtype=torch.float32).view(rows, vocabulary)
    target, draft = torch.randn(2, 1, vocabulary, generator=torch.Generator().manual_seed(0))
    expected = residual(target, draft)
    device.play("small", first_block=rows - 1)
    mass = torch.empty(rows)
    residual(target.expand(rows, -1), draft.expand(rows, -1), out=(probs, mass))
    assert_same((probs[-1:].clone(), mass[-1:]), tuple(expected)[:2])


def test_no_result_depends_on_how_rows_are_shared(device):
    """Masses are integers, and sums over pairs of rows are combined in one order: all machines give the same bits."""
    rows, row = 3 * torch.randn(2, 1, 9000, generator=torch.Generator().manual_seed(0)), torch.zeros(1).int()
    pair = {"target": rows, "draft": rows, "row": row, "draft_row": row + 1, "subtracted": 0.5}
    pair["row_stats"] = torch.full((1, 4), 4.0)
    cut, found, expected = Sampling(0.8, 5, 0.9, top_p_after=()), [], on_cpu(residual_sums, **pair)
    for name in MACHINES:
        for schedule in (1, 2):
            device.play(name, schedule=schedule)
            found.append([op(rows, rows.roll(1, -1), sampling=x) for op in (residual, overlap) for x in (None, cut)])
            assert_same(residual_sums(**pair), expected)
            counted = device.counted(lambda: residual_sums(**pair))
            assert counted["launches"] == 1 < counted["blocks"]
    for other in found[1:]:
        assert_same(other, found[0])


ODD_MACHINES = {
    "a stream has a part of the device": {"of_streams": 3},
    "a multiprocessor has one block": {"blocks_per_multiprocessor": 1},
    "blocks that wait are refused": {"refuses": True},
    "a new device without clusters": {"clusters": False},
    "one block lags": {"lags": True},
}


@pytest.mark.parametrize("change", ODD_MACHINES.values(), ids=ODD_MACHINES)
def test_odd_machines(device, change):
    """Where blocks cannot all run at once fewer share a request, or one has it: never an error, and the same bits."""
    device.play("large", **change)
    assert_every_op(60 if "refuses" in change else 20)


def test_code_of_an_older_architecture():
    """Where the driver compiled it from PTX of sm_80 it has no clusters, whatever the device has. Software ones come.

    A launch of clusters would be refused here, and one block a request come in its place.
    """
    done = subprocess.run([sys.executable, "-c", OLDER_CODE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == 20 * 4


@pytest.mark.parametrize("requests", [1, 20], ids=["grid", "clusters"])
def test_a_refused_launch_leaves_the_callers_errors(device, requests):
    """One block a request comes in its place. No error is left of it, and one that was there before still is."""
    call = chain_call(3, requests=requests, slots=3, vocabulary=9000)
    for pending in (0, 1):
        device.play("large", multiprocessors=40, refuses=True)
        device.pend(pending)
        assert device.counted(lambda: verify_chain(**call))["blocks"] == requests
        assert bool(device.taken_error()) == bool(pending)


# These wait for the kernel before by themselves; the others are launched when it has ended.
OVERLAPPING = ("cutoff", "logprobs", "overlap", "race_sample", "race_topk", "residual", "verify_chain", "verify_tree")


def written_late(backend, arguments):
    """These arguments; what the tensors hold, the kernel before writes while the next one is in flight."""

    def late(x):
        if not isinstance(x, torch.Tensor) or not x.numel():
            return x
        buffer = torch.full_like(x, torch.nan if x.is_floating_point() else 0, memory_format=torch.contiguous_format)
        backend.write_before(buffer, x.contiguous())
        return buffer

    # The host looks into parents, where it can.
    return {name: x if name == "parents" else late(x) for name, x in arguments.items()}


@pytest.mark.parametrize("played", ["large", "lone"])
def test_inputs_that_the_kernel_before_writes(device, played):
    """A kernel that overlaps with it reads nothing until it has ended."""
    calls = {name: call for name, call in every_call().items() if call[0].__name__ in OVERLAPPING}
    for name, (op, arguments) in calls.items():
        device.play(played)
        expected = op(**arguments)
        device.play(played, overlaps=True)
        late = written_late(device, arguments)
        found = []
        count = device.counted(lambda: found.append(op(**late)))  # noqa: B023
        assert count["overlapped"] == count["launches"] == 1, name
        assert_same(found[0], expected)


# Blocks a team that are asked for, with or without clusters: how many come. Clusters have eight at most; the machine's
# grid has room for ten a request.
ASKED = {(1, False): 1, (3, False): 3, (9, False): 8, (3, True): 3, (40, True): 10}


@pytest.mark.parametrize(("asked", "blocks"), ASKED.items(), ids=str)
def test_teams_that_are_asked_for(device, asked, blocks):
    """As a bench does: the verdict is the same, by as many blocks as can wait for each other."""
    call = chain_as_tree(chain_call(3, requests=3, slots=3, vocabulary=80_000))
    call |= {"edits": LogitEdits(allowed=torch.full((3, 2500), -1, dtype=torch.int32))}
    device.play("large")
    expected = verify_tree(**call)
    device.play("large", team=asked[0], team_is_grid=asked[1])
    found = []
    count = device.counted(lambda: found.append(verify_tree(**call)))
    assert (count["launches"], count["blocks"]) == (1, 3 * blocks)
    assert_same(found[0], expected)


@pytest.fixture(scope="module")
def parts():
    """Functions of csrc/cuda, one by one."""
    return ctypes.CDLL(str(build("parts")))


@pytest.mark.parametrize("lags", [0, 1])
def test_blocks_hand_words_to_each_other(parts, lags):
    """Through the workspace; a release or an acquire less, or one set of items for two, is a fault in any order."""
    parts.exchange.restype, parts.fault.restype = ctypes.c_uint64, ctypes.c_char_p
    for schedule in range(1, 6):
        teams, size, items, rounds = 2, 3, 10, 4
        each = sum(round + item for round in range(rounds) for item in range(items))
        found = parts.exchange(ctypes.c_uint64(schedule), lags, teams, size, items, rounds)
        assert found == teams * size * each, parts.fault()


def test_chunks_are_loaded_ahead(parts):
    """A chunk is 4 KiB. The first one is on its way before the guess, each other one before that in front is judged."""
    row, chunk = torch.zeros(4 * 2048, dtype=torch.bfloat16), 4096
    found = (ctypes.c_uint64 * 5)()
    parts.loads_ahead(ctypes.c_void_p(row.data_ptr()), row.numel(), found)
    assert list(found) == [chunk, 2 * chunk, 3 * chunk, 4 * chunk, 4 * chunk], parts.fault()


@pytest.mark.parametrize("work", [1, 2])
def test_teams_fill_the_device(parts, work):
    """On 132 multiprocessors 264 blocks run at once. Those of a software cluster wait for each other, so all must."""
    for requests in range(8, 265):
        size = parts.team_size(132, ctypes.c_int64(requests), 128_256, work)
        if size < 0:
            assert 240 <= -size * requests <= 264
        else:
            assert 1 <= size <= 8
            assert size * min(requests, 264 // size) >= 240


class TestTheLaunch:
    @pytest.mark.parametrize("kind", ["plain", "filtered", "edited"])
    @pytest.mark.parametrize("rows, vocabulary", [(1, 262_144), (5, 128_256), (100, 8192), (160, 8192), (265, 4100)])
    def test_no_block_comes_late(self, device, rows, vocabulary, kind):
        """Where a row can be split, its parts are as many as run at once: one block more would take twice the time."""
        device.play("large", multiprocessors=132)
        logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)).bfloat16().expand(rows, -1)
        options = {"filtered": {"sampling": Sampling(top_k=9)}}.get(kind, {})
        if kind == "edited":
            options["edits"] = LogitEdits(allowed=bits_of([range(9)], vocabulary))
        found = device.counted(lambda: race_sample(logits, seed=seeds(rows), position=0, **options))
        assert found["blocks"] <= max(264, rows)
        if kind == "plain":
            rows = min(rows, 264)  # more rows of a race come in order
            tokens, logits = torch.zeros(1, rows - 1).long(), logits[:rows]
            found = device.counted(lambda: verify_chain(tokens, logits[None], method="race", seed=1, position=0))
            assert found["blocks"] <= 264

    def test_captures_have_workspaces_of_their_own(self, machine):
        call = chain_call(1, requests=2, slots=3, vocabulary=60_000)
        expected = verify_chain(**call)
        held = [(memory.data_ptr(), memory.sum()) for memory in machine.workspaces()]
        for memory in machine.workspaces():
            memory.fill_(255)  # tickets that nobody may take
        for number in (1, 2):
            machine.begin_capture(number)
            try:
                found = [verify_chain(**call) for _ in range(2)]
            finally:
                machine.begin_capture(0)
            for verdict in found:
                assert all(map(torch.equal, verdict, expected))
        assert [memory.data_ptr() for memory in machine.workspaces()] == [place for place, _ in held]
        for memory in machine.workspaces():
            assert (memory == 255).all()
            memory.zero_()

    def test_calls_without_values_take_no_workspace(self, machine):
        row = torch.zeros(64)
        race_sample(row, seed=1, position=0)  # remembered: the next one looks for its like
        race_sample(row.to("meta"), seed=1, position=0)
        assert all(not workspace.is_meta for workspace in machine.workspaces())

    @pytest.mark.slow
    @pytest.mark.parametrize("vocabulary", [128_256, 262_144])
    def test_a_small_workspace(self, device, vocabulary):
        """At 256 requests and fewer, on a device of 132 multiprocessors: requested, not launched. The largest is that
        of 256 rejections: two sets of two rows of tiles, two words of 8 bytes a tile, and an eighth of all for tickets.
        """
        most = 2 * 256 * 2 * (-(-vocabulary // 1024)) * 2 * 8 * 8 / 7 + 128
        device.play("large", multiprocessors=132)
        for requests in (1, 2, 8, 16, 32, 33, 64, 128, 256):
            for name, (op, call) in large_batches(requests, vocabulary).items():
                for one in (call, filtered(op, call), edited(op, call)):
                    needed = device.bytes_needed(lambda: op(**one))  # noqa: B023
                    assert 0 <= needed <= most, (requests, name, needed)


def library_of(name):
    found = subprocess.run([os.environ.get("CXX", "g++"), f"-print-file-name={name}"], capture_output=True, text=True)
    return found.stdout.strip()


SANITIZED = {"parts": PARTS_SANITIZED, **{name: f"MACHINE = {name!r}{PLAY_SANITIZED}" for name in MACHINES}}


@pytest.mark.slow
@pytest.mark.parametrize("code", SANITIZED.values(), ids=SANITIZED)
def test_sanitized(code):
    """Sanitizers see parts of rows, and every op, in a capture from the first call on."""
    address = library_of("libasan.so")
    if not os.path.isabs(address):
        pytest.skip("the C++ compiler has no AddressSanitizer")
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{address} {library_of('libubsan.so')} {library_of('libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "SPECDEC_HOST_CUDA_SANITIZE": "address,undefined",
    }
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "runtime error" not in done.stderr, done.stderr[-3000:]
    assert "AddressSanitizer" not in done.stderr, done.stderr[-3000:]
