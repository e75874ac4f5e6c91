"""Any number of threads may call: each gets its own call's results. And little is kept of calls that ended."""

import gc
import subprocess
import sys

import pytest
import torch
from torch.utils._pytree import tree_map_only

import specdec_kernels
from specdec_kernels import Sampling, cutoff, mask_logits, race_sample, residual
from specdec_kernels.backends import reference
from tests.support.calls import every_call, outcome, rows
from tests.support.cases import seeds
from tests.support.threads import together

CALLS = every_call()
# Rounds of all calls. What is played or interpreted takes a thousand times longer.
ROUNDS = {"cpu": 200, "reference": 2, "cuda-host": 2, "cuda-device": 100, "triton-device": 20}


def turned(arguments, by):
    """A call whose rows and other tensors of floats are those of another one, in another order."""
    return tree_map_only(torch.Tensor, lambda x: x.roll(by, -1) if x.is_floating_point() else x.clone(), arguments)


def equal(found, wanted):
    return len(found) == len(wanted) and all(
        map(torch.equal, map(torch.nan_to_num, found), map(torch.nan_to_num, wanted))
    )


def made_by_call(name):
    """A call without the outputs that it was given, if it can do without them."""
    function, arguments = CALLS[name]
    if "output_format" not in arguments:
        arguments = {key: value for key, value in arguments.items() if key not in ("out", "status")}
    return function, arguments


def check_together(backend, names, rounds, threads=3):
    for name in names:
        function, arguments = made_by_call(name)
        calls = [turned(arguments, by) for by in range(threads)]
        with specdec_kernels.backend(backend):
            wanted = [outcome(function, call) for call in calls]

        def work(i, function=function, calls=calls, wanted=wanted, name=name):
            with specdec_kernels.backend(backend):
                for _ in range(rounds):
                    assert equal(outcome(function, calls[i]), wanted[i]), f"{name}: another thread's results"

        together(*(lambda i=i, work=work: work(i) for i in range(threads)))


def test_every_op(other_backend):
    check_together(other_backend, CALLS, ROUNDS[other_backend])


@pytest.mark.one_backend
def test_oracle():
    check_together("reference", [name for name in CALLS if name in reference.__all__], ROUNDS["reference"], threads=2)


@pytest.mark.one_backend
def test_interpreted():
    """One call is enough: the interpreter changes Triton's own functions while it runs a kernel."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton does not interpret here")
    check_together("triton", ["race_sample"], rounds=3, threads=3)


@pytest.mark.one_backend
def test_a_call_inside_a_call():
    """Python may end an object, and run its finaliser, wherever a call makes a tensor or a tuple."""
    outer, inner = rows(61)["target"], rows(62, count=2)["target"]
    wanted = [race_sample(outer, seed=seeds(3), position=1), race_sample(inner, seed=seeds(2), position=2)]
    found = []

    class Ends:
        def __init__(self):
            self.itself = self

        def __del__(self):
            found.append(race_sample(inner, seed=seeds(2), position=2))

    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what is there already is not looked at again
    try:
        for count in range(1, 40):  # after so many new objects Python looks for what has ended
            Ends()
            gc.set_threshold(count)
            assert torch.equal(race_sample(outer, seed=seeds(3), position=1), wanted[0])
            gc.set_threshold(0)
            gc.collect()
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
    assert len(found) == 39
    assert all(torch.equal(x, wanted[1]) for x in found)


def resident():
    """MiB of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def grow(count=120, vocabulary=32_000):
    """Prints what is resident after calls whose batch grows by one each time, over what was before."""
    cut = Sampling(top_k=50)
    race_sample(torch.randn(1, vocabulary), seed=0, position=0)
    before = resident()
    for batch in range(1, count + 1):
        target = torch.zeros(batch, vocabulary)
        residual(target, target.clone())
        found = cutoff(target, sampling=cut)
        mask_logits(target, found)
    print(resident() - before)


@pytest.mark.one_backend
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_stays_in_memory():
    """No call leaves behind what keeps the memory of its large tensors from being used again.

    The largest call has 15 MiB a tensor, five of them.
    """
    command = [sys.executable, "-c", f"from {__name__} import grow; grow()"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(ran.stdout.split()[-1]) < 200, ran.stdout
