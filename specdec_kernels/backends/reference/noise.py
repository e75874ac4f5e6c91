"""Counter-based noise: Philox4x32-10, accept uniforms, arrivals in groups of 64 tokens.

Seed, position and nonce are a ``Noise`` of int64 tensors [...]. 32-bit words are held in int64 tensors, too: the 64
bits of a product of two of them all fit.
"""

import torch

from specdec_kernels.calls.values import Noise

RACE, RESIDUAL, UNIFORM, POLICY, CONTEXT = 0, 2, 4, 6, 8
WORD = 0xFFFFFFFF
GROUP = 64


def philox(key, counter):
    """Four 32-bit words of Philox4x32-10 (Salmon et al. 2011) for a (low, high) key and a counter of four words."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32 & WORD) ^ c1 ^ k0, right & WORD, (left >> 32 & WORD) ^ c3 ^ k1, left & WORD
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c0, c1, c2, c3


def words(counters, stream, index):
    """Philox words [..., n, 4] for n values of ``index``."""
    seed, position, nonce = (value.unsqueeze(-1) for value in counters)
    index = index.expand(*seed.shape[:-1], -1)
    counter = (index & WORD, position & WORD, nonce & WORD, torch.full_like(index, stream))
    return torch.stack(philox((seed & WORD, seed >> 32 & WORD), counter), dim=-1)


def uniforms(counters, stream, index):
    """Uniform u in [0, 1), float64 but exact in float32, for one counter ``index`` per request."""
    return uniform_of(
        words(counters, stream, torch.tensor([index], device=counters.seed.device, dtype=torch.int64))[..., 0, 0]
    )


def uniform_of(word):
    """The uniform of a 32-bit word."""
    return torch.where(word < 1 << 24, word.double() * 2.0**-32, (word >> 8).double() * 2.0**-24)


def at(counters, requests, step):
    """The noise of some requests, ``step`` positions later."""
    seed, position, nonce = (value[requests] for value in counters)
    return Noise(seed, position + step, nonce)


def by_node(call, active):
    """The noise of each node's race, [n, N], where a call has seeds of rows."""
    seeds = call.row_seeds[active.rows].long()
    return Noise(seeds, torch.zeros_like(seeds), torch.zeros_like(seeds))


def truncated(integer, bits):
    """The integer of at most ``bits`` bits, rounded toward zero to 24 significant bits."""
    drop = sum((integer >> shift > 0).long() for shift in range(24, bits))
    return integer >> drop << drop


def arrivals(counters, stream, vocabulary):
    """Exp(1) arrivals [..., vocabulary]: of every group of 64 the first one's time and token, then all delays."""
    token = torch.arange(vocabulary, device=counters.seed.device, dtype=torch.int64)
    group = token // GROUP

    pairs = words(counters, stream, torch.arange((vocabulary + 127) // 128, device=token.device, dtype=torch.int64))
    a, b = pairs[..., :2].flatten(-2), pairs[..., 2:].flatten(-2)
    uniform = truncated(2 * ((a << 24) + (b & 0xFFFFFF)) + 1, bits=57).double() * 2.0**-57
    first = -torch.log1p(-uniform) / GROUP
    winner = b >> 26

    fours = words(counters, stream + 1, torch.arange((vocabulary + 3) // 4, device=token.device, dtype=torch.int64))
    uniform = truncated(2 * fours.flatten(-2)[..., :vocabulary] + 1, bits=33).double() * 2.0**-33
    delay = torch.where(token % GROUP == winner[..., group], 0.0, -torch.log1p(-uniform))
    return first[..., group] + delay
