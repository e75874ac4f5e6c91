"""What ranks send each other, apart from races: tiles of masses, and parts of different types in one collective."""

import functools

import torch

from specdec_kernels import ops

NO_MAXIMUM = torch.tensor(-torch.inf).view(torch.int32).item()


def tiles_of(rows, temperature, shard, request_index=None, edits=None):
    """[int32 [rows, 3, tiles], status [rows]] of a slice, with as many tiles on every rank."""
    found, status = ops.mass_tiles(rows, temperature=temperature, edits=edits, request_index=request_index)
    found = found.flatten(0, -3)
    if found.shape[-1] == shard.most_tiles:
        return [found, status.flatten()]
    tiles = found.new_zeros(*found.shape[:-1], shard.most_tiles)
    tiles[:, 0] = NO_MAXIMUM
    tiles[..., : found.shape[-1]] = found
    return [tiles, status.flatten()]


def sent(parts, shard):
    """What all ranks have, each part as [ranks, ...]: one collective."""
    words = [(part if part.dtype == torch.int32 else part.contiguous().view(torch.int32)).flatten() for part in parts]
    every = shard.gather(torch.cat(words)).split_with_sizes([len(x) for x in words], dim=-1)
    return [
        (x if x.dtype == part.dtype else x.contiguous().view(part.dtype)).view(len(x), *part.shape)
        for x, part in zip(every, parts, strict=True)
    ]


def any_of(bits):
    """The bits of all ranks together: of the first dimension of a tensor, or of tensors."""
    return functools.reduce(torch.bitwise_or, bits.unbind() if isinstance(bits, torch.Tensor) else bits)
