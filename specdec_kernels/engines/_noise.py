"""Seeds from torch's generators, for engines without seeds; cached tensors of positions."""

from __future__ import annotations

import functools

import torch

WORD = 2**32
SPREAD = 0x9E3779B97F4A7C15  # odd, with bits all over: 2**64 over the golden ratio


def seed_of(generator: torch.Generator | None, device: torch.device) -> int:
    """A seed from the generator; without one from the device's.

    A CUDA generator is read on the host, which holds its offset. So nothing is launched and nothing waits.
    """
    if device.type == "cuda":
        if generator is None:
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
        count = generator.get_offset()
        generator.set_offset(count + 4)  # CUDA generators need multiples of 4
        return mixed(generator.initial_seed(), count)
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))


def mixed(seed: int, count: int) -> int:
    """A seed of 64 bits for each pair, injective in the count.

    Examples
    --------
    >>> mixed(7, 0), mixed(7, 4) == mixed(7, 8)
    (7, False)
    """
    return (seed + count * SPREAD) % WORD**2


@functools.lru_cache(maxsize=64)
def made(rows: int, stride: int, device: torch.device) -> torch.Tensor:
    """`positions`, without a look at where the call is."""
    return torch.arange(0, rows * stride, stride, device=device, dtype=torch.int64)


def positions(like: torch.Tensor, rows: int, stride: int = 1) -> torch.Tensor:
    """int64 [rows]: the first position of each row, cached, so that a step of a running engine allocates none.

    A compiler's tensors are not cached, nor those of a graph's capture, which have values after a replay alone.
    """
    plain = type(like) is torch.Tensor and not torch.compiler.is_compiling()
    plain = plain and not (like.is_cuda and torch.cuda.is_current_stream_capturing())
    tensor = (made if plain else made.__wrapped__)(rows, stride, like.device)
    if plain and type(tensor) is not torch.Tensor:  # a torch mode makes tensors of another class
        made.cache_clear()
    return tensor
