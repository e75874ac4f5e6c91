"""Uniforms of the noise contract."""

import torch

from specdec_kernels.backends.reference import noise
from specdec_kernels.calls import typed
from specdec_kernels.calls.values import Noise


def uniform(call: "typed.Uniform"):
    """Each uniform is the first word of its counter."""
    *counters, index = (
        torch.as_tensor(value, dtype=torch.int64, device=call.uniforms.device).expand(call.uniforms.shape)
        for value in (*call.noise, call.index)
    )
    call.uniforms.copy_(noise.uniform_of(noise.words(Noise(*counters), call.stream, index.unsqueeze(-1))[..., 0, 0]))
