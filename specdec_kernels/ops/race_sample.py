"""race_sample: one token of each row by the exponential race."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._registration import define


def merge_noise(rows, space, temperatures, temperature, seeds, seed, positions, position, nonces, nonce, tokens):
    return (
        rows,
        space,
        temperature if temperatures is None else temperatures,
        seed if seeds is None else seeds,
        position if positions is None else positions,
        nonce if nonces is None else nonces,
        tokens,
    )


def check_noise_of_rows(rows, lead, space, temperature, seed, position, nonce):
    """The arguments that race_sample and race_topk share, as the schema wants them; rows [A, R, V]."""
    device = rows.device
    inputs.check_noise(rows.shape[0] * rows.shape[1], seed, position, nonce)
    temperatures, temperature = inputs.number("temperature", temperature, lead, device)
    inputs.check_space(space, temperature if temperatures is None else temperatures)
    seeds, seed = inputs.counter("seed", seed, lead, device)
    positions, position = inputs.counter("position", position, lead, device)
    nonces, nonce = inputs.counter("nonce", nonce, lead, device)
    return (
        inputs.fold(temperatures, rows), temperature, inputs.fold(seeds, rows), seed,
        inputs.fold(positions, rows), position, inputs.fold(nonces, rows), nonce,
    )  # fmt: skip


NOISE_SCHEMA = (
    "str space, Tensor? temperatures, float temperature, Tensor? seeds, SymInt seed, "
    "Tensor? positions, SymInt position, Tensor? nonces, SymInt nonce, Tensor(a!) tokens"
)
_op = define("race_sample", f"Tensor target, {NOISE_SCHEMA}", merge_noise)


def race_sample(target, *, seed, position, nonce=0, space="logits", temperature=1.0, out=None):
    """Draw one token of each row: ``argmin_i E(i) / p(i)``, E the position's exponential arrivals.

    The law is exactly ``softmax(target / temperature)``, but no softmax is computed: one pass over the row, and
    logarithms only for the few tokens that could win. The noise is that of ``verify_chain(method="race")``, which
    therefore reproduces plain sampling by this function token for token; it is also how a draft model should draw.

    Parameters
    ----------
    target : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary.
    seed, position, nonce : int or Tensor
        int64, broadcast to the rows. With several rows at least one must differ between them.
    space : {"logits", "probs"}
    temperature : float or Tensor
        float32, broadcast to the rows. 0 means argmax, ties to the lowest id.
    out : Tensor, optional
        int64 [...], preallocated.

    Returns
    -------
    Tensor
        int64 [...]: always inside [0, V). NaN logits have no weight; a row without any gives token 0.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    References
    ----------
    Maddison, Tarlow, Minka 2014 (A* sampling); Kobus, Gündüz 2025.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> logits = torch.tensor([0.0, 9.0, -float("inf")])
    >>> specdec_kernels.race_sample(logits, seed=1, position=0, temperature=0.0).item()
    1
    """
    inputs.check_rows("target", target)
    lead = target.shape[:-1]
    rows = inputs.rows3("target", target)
    noise = check_noise_of_rows(rows, lead, space, temperature, seed, position, nonce)
    if out is None:
        out = torch.empty(lead, dtype=torch.int64, device=target.device)
    else:
        inputs.output("out", out, torch.int64, lead, target.device)
    _op(rows, space, *noise, out.view(rows.shape[:2]))
    return out
