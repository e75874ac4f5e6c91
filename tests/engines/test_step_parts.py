"""The parts of an engine's step: seconds without those of parts within, launches, copies and waits."""

from types import SimpleNamespace

import torch

import specdec_kernels as specdec
from tests.engines.step_parts import KERNELS, Parts

ROWS = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))


class Clock:
    """Seconds that pass as they are added."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def engine(clock):
    """A step of 1 s around a forward of 2 s, and a sampler of 4 s that moves a number, draws, and reads the token."""
    made = SimpleNamespace()

    def forward():
        clock.now += 2
        return ROWS * 2

    def sample():
        clock.now += 4
        seeds = torch.tensor([1, 2]).to("cpu", non_blocking=True)
        return specdec.race_sample(made.forward(), seed=seeds, position=0)

    def step():
        clock.now += 1
        return made.sample().tolist()

    made.forward, made.sample, made.step = forward, sample, step
    return made


def test_a_part_has_no_seconds_of_those_within():
    clock = Clock()
    with Parts(clock) as parts:
        made = engine(clock)
        parts.wrap(made, "forward", "forwards")
        parts.wrap(made, "sample", "adapter")
        parts.taken()
        made.step()
        assert parts.taken() == {"engine": 1, "adapter": 4, "forwards": 2, "ops": 0}
        assert parts.taken() == {"engine": 0}


def test_launches_copies_and_waits_by_part():
    clock = Clock()
    with Parts(clock) as parts:
        made = engine(clock)
        parts.wrap(made, "forward", "forwards")
        parts.wrap(made, "sample", "adapter")
        made.step()
        with parts.counting() as (launches, copies, waits):
            made.step()
    assert launches == {"forwards": 1, "ops": 1}
    assert copies == {"adapter": 1}
    assert waits == {"engine": 1}


def test_leaving_restores_what_was_wrapped():
    before = specdec.race_sample
    with Parts():
        assert specdec.race_sample is not before
    assert specdec.race_sample is before


def test_masks_that_the_host_counts_are_waits():
    with Parts() as parts, parts.counting() as (_, copies, waits):
        ROWS[ROWS > 0]
        ROWS[0]
        ROWS.clone().copy_(ROWS, non_blocking=True)
        int(ROWS[0, 0])
        ROWS.to(torch.float64)
        ROWS.numpy()
    assert waits.total() == 2
    assert copies.total() == 1


def test_an_interpreted_kernel_is_one_launch():
    """Its seconds are no part's that calls it."""
    clock = Clock()
    made = SimpleNamespace(step=lambda: made.kernel())

    def kernel():
        clock.now += 2
        return (ROWS * 2).sum().item()

    made.kernel = kernel
    with Parts(clock) as parts:
        parts.wrap(made, "kernel", KERNELS)
        parts.wrap(made, "step", "adapter")
        with parts.counting() as (launches, copies, waits):
            made.step()
        assert parts.taken() == {"engine": 0, "adapter": 0, "kernels": 2}
    assert launches == {"adapter": 1}
    assert copies.total() == waits.total() == 0
