"""The messages of ranks other than races: tiles of masses, and parts of different types in one collective."""

import functools

import torch

from specdec_kernels.sharded import _parts as parts

NO_MAXIMUM = torch.tensor(-torch.inf, dtype=torch.float32, device="cpu").view(torch.int32).item()


def tiles_of(rows, temperature, shard, request_index=None, edits=None):
    """(int32 [rows, 3, tiles], status [...]) of a slice, padded to the most tiles that a rank has."""
    tiles_of_rank, status = parts.mass_tiles(rows, temperature=temperature, edits=edits, request_index=request_index)
    tiles_of_rank = tiles_of_rank.flatten(0, -3)
    if tiles_of_rank.shape[-1] == shard.most_tiles:
        return tiles_of_rank, status
    tiles = tiles_of_rank.new_zeros(*tiles_of_rank.shape[:-1], shard.most_tiles)
    tiles[:, 0] = NO_MAXIMUM
    tiles[..., : tiles_of_rank.shape[-1]] = tiles_of_rank
    return tiles, status


def sent(parts, shard):
    """The parts of all ranks, each as [ranks, ...], by one collective. A part is a list of int32 tensors."""
    every = shard.gather(torch.cat([x.flatten() for part in parts for x in part]))
    every = every.split_with_sizes([sum(x.numel() for x in part) for part in parts], dim=-1)
    return [
        x.view(len(x), sum(map(len, part)), *part[0].shape[1:]) if part[0].ndim > 1 else x
        for x, part in zip(every, parts, strict=True)
    ]


def any_of(bits):
    """The or of all ranks' bits: over the first dimension of a tensor, or over tensors."""
    return functools.reduce(torch.bitwise_or, bits.unbind() if isinstance(bits, torch.Tensor) else bits)
