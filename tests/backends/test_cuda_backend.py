"""The CUDA backend says why it cannot run, where it cannot."""

import functools
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import specdec_kernels
from specdec_kernels import _C, backends
from specdec_kernels.backends import cuda
from tests.support.threads import together


def native(**parts):
    """A native module with other parts than the one that was built."""
    return SimpleNamespace(**{"build_info": _C.build_info, **parts})


def of_build(**parts):
    return lambda: json.dumps({**json.loads(_C.build_info()), **parts})


@pytest.fixture
def not_loaded(monkeypatch):
    monkeypatch.delitem(backends._loaded, "cuda", raising=False)


def reason():
    """Told in two places: the build report, and the error of a call that asks for the backend."""
    told = specdec_kernels.build_info()["backends"]["cuda"]
    with pytest.raises(RuntimeError) as error, specdec_kernels.backend("cuda"):
        pass
    assert str(error.value) == told
    return told.removeprefix("backend 'cuda' is not available: ")


@pytest.mark.usefixtures("not_loaded")
class TestReasons:
    def test_nvcc_was_not_there(self, monkeypatch):
        monkeypatch.setattr(cuda, "_C", native(build_info=of_build(cuda=None, cuda_reason="nvcc not found")))
        assert reason() == "built without CUDA: nvcc not found"

    def test_torch_without_cuda(self, monkeypatch):
        monkeypatch.setattr(cuda, "_C", native(cuda=SimpleNamespace()))
        monkeypatch.setattr(torch.version, "cuda", None)
        assert reason() == "this torch cannot use CUDA"

    def test_no_device(self, monkeypatch):
        monkeypatch.setattr(cuda, "_C", native(cuda=SimpleNamespace()))
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        assert reason() == "no CUDA device can be used: torch finds none"

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_of_this_build(self):
        reasons = ("built without CUDA: ", "this torch cannot use CUDA", "no CUDA device can be used: ")
        assert reason().startswith(reasons)


@pytest.fixture
def device(not_loaded, monkeypatch):
    """A device of capability 8.0 for a build that has code for later ones."""
    built = of_build(cuda="nvcc", cuda_archs=["90a", "100"])
    monkeypatch.setattr(cuda, "_C", native(cuda=SimpleNamespace(unavailable=str), build_info=built))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    return monkeypatch


def test_a_device_that_the_build_has_no_code_for(device):
    expected = "backend 'cuda' is not available: built for 90a, 100; the device is of capability 8.0"
    with pytest.raises(RuntimeError, match=expected), specdec_kernels.backend("cuda"):
        pass


def test_the_log_says_once_what_runs_in_its_place(device, caplog):
    device.setattr(backends, "_cuda_runs", functools.cache(backends._cuda_runs.__wrapped__))
    with caplog.at_level("INFO", "specdec_kernels"):
        assert [backends._default("cuda"), backends._default("cuda"), backends._default("cpu")] == ["triton"] * 2 + [
            "cpu"
        ]
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "calls on CUDA tensors run by backend 'triton'" in record.getMessage()
    assert "built for 90a, 100; the device is of capability 8.0" in record.getMessage()


def test_a_device_that_does_not_answer(device):
    device.setattr(cuda, "_C", native(cuda=SimpleNamespace(unavailable=lambda: "initialization error")))
    with pytest.raises(RuntimeError, match="no CUDA device can be used: initialization error"):
        backends._load("cuda")


def test_reports_touch_no_device(device):
    """A process that has touched one can no longer fork children that use it."""

    def touched(*_):
        raise AssertionError("a report touched the device")

    device.setattr(cuda._C.cuda, "unavailable", touched)
    for name in ("is_available", "get_device_capability", "init", "_lazy_init", "current_device", "synchronize"):
        device.setattr(torch.cuda, name, touched)
    device.setattr(torch._C, "_cuda_getDeviceCount", touched, raising=False)
    assert specdec_kernels.build_info()["backends"]["cuda"] is None
    assert "cuda" in specdec_kernels.available_backends()
    assert "cuda" not in backends._loaded


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_call_names_the_reason():
    call = "import torch, specdec_kernels; specdec_kernels.race_sample(torch.zeros(3), seed=1, position=0)"
    environment = {**os.environ, "SPECDEC_BACKEND": "cuda"}
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, env=environment)
    assert "BackendError: backend 'cuda' is not available: " in done.stderr


@pytest.mark.parametrize(
    "archs, runs",
    [
        (("80",), {(8, 0), (8, 6), (8, 9)}),
        (("90a",), {(9, 0)}),
        (("90",), {(9, 0)}),
        (("86", "100"), {(8, 6), (8, 9), (10, 0), (10, 3)}),
        (("80", "90+PTX", "100", "120"), {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)}),
        ((), set()),
    ],
)
def test_devices_a_build_runs_on(archs, runs):
    """Code runs on the same chip and on later ones of its kind, PTX on all later ones, an "a" on its chip alone."""
    known = {(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)}
    assert {capability for capability in known if cuda.runs_on(capability, archs)} == runs


class TestWorkspaces:
    """Streams and captures are numbers here, and memory is the host's."""

    DEVICE = torch.device("cpu")

    @pytest.fixture
    def capture(self):
        return SimpleNamespace(number=0, waited=[])

    @pytest.fixture
    def workspaces(self, capture):
        return cuda.Workspaces(lambda stream: capture.number, lambda stream: capture.waited.append(stream))

    @staticmethod
    def place(memory):
        return memory.data_ptr(), memory.data_ptr() + memory.numel()

    def apart(self, *memories):
        return self.places_apart(map(self.place, memories))

    @staticmethod
    def places_apart(places):
        return all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(places)))

    def in_capture(self, workspaces, capture, number, size, stream=1):
        """What a call that needs ``size`` bytes gets."""
        capture.number = number
        try:
            held = workspaces.get(self.DEVICE, stream, 1)
            return held if held.numel() >= size else workspaces.get(self.DEVICE, stream, size)
        finally:
            capture.number = 0

    def test_streams_have_one_each_and_keep_it(self, workspaces):
        first, second = (workspaces.get(self.DEVICE, stream, 1) for stream in (1, 2))
        assert self.apart(first, second)
        assert first.numel() == second.numel() == cuda._BYTES
        assert workspaces.get(self.DEVICE, 1, 1000) is first
        larger = workspaces.get(self.DEVICE, 1, cuda._BYTES + 1)
        assert not larger.any()
        assert workspaces.get(self.DEVICE, 1, 1) is larger

    def test_captures_from_large_to_small_with_calls_between(self, workspaces, capture):
        """As engines do it, on one stream. No graph may share memory with another, or with what is not captured."""
        workspaces.get(self.DEVICE, 1, 1)
        captured = []  # where they are: a graph holds no tensor
        for number in range(1, 41):
            memory = self.in_capture(workspaces, capture, number, (45 - number) * 16_000)
            assert not memory.any()
            memory.fill_(255)
            captured.append(self.place(memory))
            plain = workspaces.get(self.DEVICE, 1, cuda._BYTES + number)
            assert not plain.any()
        assert self.places_apart([*captured, self.place(plain)])

    def test_a_capture_keeps_its_own(self, workspaces, capture):
        workspaces.get(self.DEVICE, 1, 1)
        first = self.in_capture(workspaces, capture, 7, 5_000)
        assert self.in_capture(workspaces, capture, 7, 4_000) is first
        larger = self.in_capture(workspaces, capture, 7, 50_000)
        assert self.apart(first, larger)
        assert self.in_capture(workspaces, capture, 7, 5_000) is larger
        assert self.apart(larger, self.in_capture(workspaces, capture, 8, 5_000))

    def test_streams_of_a_capture_have_one_each(self, workspaces, capture):
        workspaces.get(self.DEVICE, 1, 1)
        branches = [self.in_capture(workspaces, capture, 7, 5_000, stream) for stream in (1, 2)]
        assert self.apart(*branches)

    def test_a_capture_of_calls_that_need_none_takes_none(self, workspaces, capture):
        assert self.in_capture(workspaces, capture, 7, 0).numel() == 0

    def test_only_the_stream_that_clears_memory_is_waited_for(self, workspaces, capture, monkeypatch):
        """Another thread may be capturing, which waiting for the whole device would end."""

        def zeros(size, dtype, device):
            return torch.full((size,), 0, dtype=dtype)

        monkeypatch.setattr(torch, "zeros", zeros)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: pytest.fail("waited for the device"))
        for _ in range(2):
            workspaces.get(torch.device("cuda"), 5, 1)
        assert capture.waited == [5]

    def test_where_nothing_was_put_aside_memory_is_zeroed_in_the_graph(self, workspaces, capture):
        memories = [self.in_capture(workspaces, capture, number, 3 << 20) for number in (1, 2, 3)]
        assert self.apart(*memories)
        assert not any(memory.any() for memory in memories)
        workspaces.get(self.DEVICE, 1, 1)
        assert self.apart(*memories, *(self.in_capture(workspaces, capture, number, 3 << 20) for number in (4, 5)))

    def test_threads_that_capture_at_once(self):
        workspaces = cuda.Workspaces(lambda stream: stream, lambda stream: None)
        workspaces.get(self.DEVICE, 0, 1)
        taken = []

        def work(first):
            for stream in range(first, first + 200):
                taken.append(workspaces.get(self.DEVICE, stream, 1 << 12))

        together(*(lambda i=i: work(1 + 1000 * i) for i in range(4)))
        assert self.places_apart(sorted(map(self.place, taken)))
        assert len(taken) == 800
