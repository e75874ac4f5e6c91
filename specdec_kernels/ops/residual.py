"""residual: what is left of the target once the draft had its share."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._registration import define

_op = define(
    "residual",
    "Tensor target, Tensor draft, str space, Tensor? temperatures, float temperature, "
    "Tensor? draft_probs, float draft_prob, Tensor? epsilons, float epsilon, Tensor(a!) probs, Tensor(b!) mass",
    lambda target, draft, space, temperatures, temperature, draft_probs, draft_prob, epsilons, epsilon, probs, mass: (
        target,
        draft,
        space,
        temperature if temperatures is None else temperatures,
        draft_prob if draft_probs is None else draft_probs,
        epsilon if epsilons is None else epsilons,
        probs,
        mass,
    ),
)


def check_pair(target, draft):
    """Target and draft rows that lie side by side: their leading shape, and both as [A, R, V]."""
    inputs.check_rows("target", target)
    inputs.check_rows("draft", draft)
    inputs.check_device("draft", draft, target.device)
    if target.shape[:-1] != draft.shape[:-1]:
        raise ValueError(f"draft: expected shape {[*target.shape[:-1], 'V']}; got {inputs.shown(draft)}")
    inputs.check_vocabulary(target, draft)
    return target.shape[:-1], inputs.rows3("target", target), inputs.rows3("draft", draft)


def residual(target, draft, *, space="logits", temperature=1.0, draft_prob=1.0, epsilon=0.0):
    """The law ``norm((p - h q)^+)`` that a rejected (or undrafted) token is drawn from, h = ``draft_prob``.

    ``verify_chain`` draws from it without ever writing it; this op is for engines that want to look at it.

    Parameters
    ----------
    target, draft : Tensor
        float32, bfloat16 or float16 [..., V] and [..., V'], V' <= V; tokens from V' on have q = 0.
    space : {"logits", "probs"}
    temperature, draft_prob, epsilon : float or Tensor
        float32, broadcast to the rows.

    Returns
    -------
    probs : Tensor
        float32 [..., V]. Where nothing is left (p and q equal to rounding) it is p. Over-acceptance leaves it as it is.
    mass : Tensor
        float32 [...]: the probability that a token is drawn from it, ``1 - h + sum (h q - p - epsilon)^+``; TV(p, q)
        for h = 1, epsilon = 0.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    References
    ----------
    Leviathan, Kalman, Matias 2023; Toner et al. 2025 (draft_prob); Yin et al. 2024 (epsilon).

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    >>> probs, mass = specdec_kernels.residual(p, q, space="probs")
    >>> [round(x, 4) for x in probs.tolist()], round(mass.item(), 4)
    ([0.75, 0.25, 0.0, 0.0], 0.4)
    """
    lead, target_rows, draft_rows = check_pair(target, draft)
    device = target.device
    temperatures, temperature = inputs.number("temperature", temperature, lead, device)
    inputs.check_space(space, temperature if temperatures is None else temperatures)
    draft_probs, draft_prob = inputs.number("draft_prob", draft_prob, lead, device, most=1.0)
    epsilons, epsilon = inputs.number("epsilon", epsilon, lead, device)
    probs = torch.empty(target.shape, dtype=torch.float32, device=device)
    mass = torch.empty(lead, dtype=torch.float32, device=device)
    _op(
        target_rows, draft_rows, space, inputs.fold(temperatures, target_rows), temperature,
        inputs.fold(draft_probs, target_rows), draft_prob, inputs.fold(epsilons, target_rows), epsilon,
        probs.view(target_rows.shape), mass.view(target_rows.shape[:2]),
    )  # fmt: skip
    return probs, mass
