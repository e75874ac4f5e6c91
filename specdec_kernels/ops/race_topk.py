"""race_topk: the first k arrivals of each row's race."""

import torch

from specdec_kernels.ops import _inputs as inputs
from specdec_kernels.ops._registration import define
from specdec_kernels.ops.race_sample import NOISE_SCHEMA, check_noise_of_rows, merge_noise

_op = define("race_topk", f"Tensor draft, {NOISE_SCHEMA}", merge_noise)


def race_topk(draft, k, *, seed, position, nonce=0, space="logits", temperature=1.0):
    """The first k arrivals of each row, in order: k samples without replacement, the first as by ``race_sample``.

    Parameters
    ----------
    draft : Tensor
        float32, bfloat16 or float16 [..., V], contiguous along the vocabulary.
    k : int
        1 <= k <= V.
    seed, position, nonce : int or Tensor
        int64, broadcast to the rows. With several rows at least one must differ between them.
    space : {"logits", "probs"}
    temperature : float or Tensor
        float32, broadcast to the rows. 0 gives the k most probable tokens, ties to the lower id.

    Returns
    -------
    Tensor
        int64 [..., k]; -1 in the last places where fewer than k tokens have positive weight.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was expected and what came.

    References
    ----------
    Kool, van Hoof, Welling 2019 (Gumbel top-k); Kobus, Gündüz 2025.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> logits = torch.tensor([0.0, 9.0, 5.0, -float("inf")])
    >>> specdec_kernels.race_topk(logits, 4, seed=1, position=0, temperature=0.0).tolist()
    [1, 2, 0, -1]
    """
    inputs.check_rows("draft", draft)
    if not inputs.is_int(k) or not 1 <= k <= draft.shape[-1]:
        raise ValueError(f"k: expected an int from 1 to the vocabulary's {draft.shape[-1]}; got {k!r}")
    lead = draft.shape[:-1]
    rows = inputs.rows3("draft", draft)
    noise = check_noise_of_rows(rows, lead, space, temperature, seed, position, nonce)
    out = torch.empty((*lead, k), dtype=torch.int64, device=draft.device)
    _op(rows, space, *noise, out.view(*rows.shape[:2], k))
    return out
