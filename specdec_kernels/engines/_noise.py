"""Seeds from torch's generators, for engines that give none."""

from __future__ import annotations

import torch

WORD = 2**32
SPREAD = 0x9E3779B97F4A7C15  # odd, with bits all over: 2**64 over the golden ratio


def seed_of(generator: torch.Generator | None, device: torch.device) -> int:
    """A seed that the generator gives once: the device's own one if there is none.

    A CUDA generator is asked on the host, where it counts what was drawn. So nothing is launched and nothing waits.
    """
    if device.type == "cuda":
        if generator is None:
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
        count = generator.get_offset()
        generator.set_offset(count + 4)  # the step that CUDA generators ask for
        return mixed(generator.initial_seed(), count)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def mixed(seed: int, count: int) -> int:
    """One seed of 64 bits for each pair; different ones for the different counts of a seed.

    Examples
    --------
    >>> mixed(7, 0), mixed(7, 4) == mixed(7, 8)
    (7, False)
    """
    return (seed + count * SPREAD) % WORD**2
