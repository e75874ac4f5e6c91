"""overlap: how close draft and target are, before any token is drafted."""

from typing import NamedTuple

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._registration import define
from specdec_kernels.ops.residual import check_pair


class Overlap(NamedTuple):
    """Figures of each pair of rows, float32 [...].

    Attributes
    ----------
    accept : Tensor
        ``sum min(p, q)``: what rejection accepts.
    tv : Tensor
        ``1/2 sum |p - q|`` = 1 - accept.
    kl : Tensor
        ``KL(p || q)`` in nats; inf where the draft misses a token of the target.
    harmonic : Tensor
        ``sum p q / (p + q)``: what a race accepts at least.
    """

    accept: torch.Tensor
    tv: torch.Tensor
    kl: torch.Tensor
    harmonic: torch.Tensor


_op = define(
    "overlap",
    "Tensor target, Tensor draft, str space, Tensor? temperatures, float temperature, "
    "Tensor(a!) accept, Tensor(b!) tv, Tensor(c!) kl, Tensor(d!) harmonic",
    lambda target, draft, space, temperatures, temperature, accept, tv, kl, harmonic: (
        target,
        draft,
        space,
        temperature if temperatures is None else temperatures,
        accept,
        tv,
        kl,
        harmonic,
    ),
)


def overlap(target, draft, *, space="logits", temperature=1.0):
    """How much of the target's law the draft's covers: acceptance, distances, and the race's lower bound, in one pass.

    Parameters
    ----------
    target, draft : Tensor
        float32, bfloat16 or float16 [..., V] and [..., V'], V' <= V; tokens from V' on have q = 0.
    space : {"logits", "probs"}
    temperature : float or Tensor
        float32, broadcast to the rows.

    Returns
    -------
    Overlap
        ``(accept, tv, kl, harmonic)``, float32 [...] each.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    References
    ----------
    Leviathan, Kalman, Matias 2023 (acceptance); Kobus, Gündüz 2025, Lemma 3.1 (harmonic).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    >>> [round(x.item(), 4) for x in specdec_kernels.overlap(p, q, space="probs")]
    [0.6, 0.4, 0.4564, 0.4]
    """
    lead, target_rows, draft_rows = check_pair(target, draft)
    temperatures, temperature = inputs.number("temperature", temperature, lead, target.device)
    inputs.check_space(space, temperature if temperatures is None else temperatures)
    out = Overlap(*(torch.empty(lead, dtype=torch.float32, device=target.device) for _ in Overlap._fields))
    _op(
        target_rows, draft_rows, space, inputs.fold(temperatures, target_rows), temperature,
        *(figure.view(target_rows.shape[:2]) for figure in out),
    )  # fmt: skip
    return out
