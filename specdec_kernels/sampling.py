"""How logits become the law that tokens are drawn from."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Sampling"]


class Sampling(NamedTuple):
    """How a row becomes a law: what every op that reads rows takes as ``sampling=`` and ``draft_sampling=``.

    More fields come with the sampling filters; give them by name.

    Attributes
    ----------
    temperature : float or Tensor
        What logits are divided by: one number, or float32, one for each request (row in ops on rows). 0 means argmax,
        ties to the lowest id. Probabilities are final: there only 0 or not 0 matters, and a plain number is 0 or 1.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> greedy = specdec_kernels.Sampling(temperature=0.0)
    >>> specdec_kernels.race_sample(torch.tensor([0.0, 9.0, 5.0]), seed=1, position=0, sampling=greedy).item()
    1
    """

    temperature: float | torch.Tensor = 1.0
