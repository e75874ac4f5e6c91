"""Coins of the noise contract."""

import torch

from specdec_kernels.backends.reference import noise
from specdec_kernels.calls import typed
from specdec_kernels.calls.values import Noise


def coin(call: "typed.Coin"):
    """A coin for each place, from the first word of its counter."""
    *whose, index = (
        torch.as_tensor(value, dtype=torch.int64, device=call.coins.device).expand(call.coins.shape)
        for value in (*call.noise, call.index)
    )
    call.coins.copy_(noise.coin_of(noise.words(Noise(*whose), call.stream, index.unsqueeze(-1))[..., 0, 0]))
