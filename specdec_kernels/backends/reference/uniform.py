"""Uniforms of the noise contract."""

import torch

from specdec_kernels.backends.reference import noise
from specdec_kernels.calls import typed
from specdec_kernels.calls.values import Noise


def uniform(call: "typed.Uniform"):
    """A uniform for each place, from the first word of its counter."""
    *whose, index = (
        torch.as_tensor(value, dtype=torch.int64, device=call.uniforms.device).expand(call.uniforms.shape)
        for value in (*call.noise, call.index)
    )
    call.uniforms.copy_(noise.uniform_of(noise.words(Noise(*whose), call.stream, index.unsqueeze(-1))[..., 0, 0]))
