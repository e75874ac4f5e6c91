"""The detector of the watermark that races write into a text with ``context_seeds``.

docs/watermark.md says what the watermark is and what it is not.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_kernels._C import maths
from specdec_kernels.calls import inputs
from specdec_kernels.ops.context_seeds import context_seeds

__all__ = ["Detection", "check_race", "detect", "p_value", "scores"]


class Detection(NamedTuple):
    """The evidence of a text for a key: the tokens that count, the sum of their scores, and its p-value.

    For texts independent of the key the sum has the mean ``count``, and a share of at most ``p_value`` of them has as
    large a sum.
    """

    count: int
    statistic: float
    p_value: float


def detect(tokens: Sequence[int], key: int, *, window: int = 4, ordered: bool = True) -> Detection:
    """The statistic ``Σ −log(1 − U)`` of a text, and its p-value.

    U is ``exp(−E)`` of a token's arrival in its context's race, as the kernels draw it: uniform for a text that is
    independent of the key, near 1 for one that was drawn by it. So the sum of n is gamma distributed, with shape n. A
    token counts if its whole context has not occurred before.

    Parameters
    ----------
    tokens : sequence of int
        Token ids of the text, by the model's tokenizer. A prompt before it weakens the statistic and is no error.
    key : int
        The secret that the text may be drawn by. Not 0, which means no watermark.
    window, ordered
        As for ``context_seeds``.

    Raises
    ------
    TypeError, ValueError
        For tokens that are no sequence of whole numbers (a string, a generator, floats), a key of 0, and a window that
        is no int from 1 to 8.

    Examples
    --------
    >>> from specdec_kernels.watermark import detect
    >>> detect([5, 3, 8, 1, 5, 3, 8, 1, 5], key=42).count  # from the fifth on, and what follows 5, 3, 8, 1 but once
    4
    """
    each = scores(tokens, key, window=window, ordered=ordered)
    statistic = float(each.sum())
    return Detection(len(each), statistic, p_value(statistic, len(each)))


def scores(tokens: Sequence[int], key: int, *, window: int = 4, ordered: bool = True) -> torch.Tensor:
    """The score ``−log(1 − U)`` of each token that counts, float64: exponential without the watermark."""
    text = _ids(tokens)
    if (secret := inputs.integer(key)) is None:
        raise TypeError(f"key: expected an int; got {inputs.shown(key)}")
    check_key("key", secret)
    window = inputs.whole("window", window, "an int from {least} to {most}", 1, 8)
    windows = text.unfold(0, window, 1)[:-1] if len(text) > window else text.new_empty(0, window)
    seeds = context_seeds(  # of single windows, so that a repeated window is not skipped
        windows, windows[:, :0], key=secret, seed=0, position=window, window=window, ordered=ordered
    )
    first: dict[int, int] = {}
    for seed, token in zip(seeds[:, 0].tolist(), text[window:].tolist(), strict=True):
        first.setdefault(seed, token)
    arrivals = torch.empty(len(first), dtype=torch.float32, device="cpu")
    for i, (seed, token) in enumerate(first.items()):
        maths.arrivals(seed, 0, 0, 0, token, 1, arrivals[i:].data_ptr())
    return -torch.log(-torch.expm1(-arrivals.double()))


def _ids(tokens: Any) -> torch.Tensor:
    """Token ids of a sequence, a tensor or an array as int64 [n]."""
    ids = tokens.tolist() if isinstance(tokens, (torch.Tensor, np.ndarray)) else tokens
    wrong = "tokens: expected a sequence of token ids, whole numbers; got"
    if not isinstance(ids, Sequence) or isinstance(ids, (str, bytes)):
        raise TypeError(f"{wrong} {inputs.shown(tokens)}")
    for token in ids:
        try:
            if isinstance(token, bool):
                raise TypeError
            number = operator.index(token)
        except TypeError:
            raise TypeError(f"{wrong} {inputs.shown(token)}") from None
        if not 0 <= number < 2**63:
            raise ValueError(f"tokens: expected token ids from 0 to 2^63 - 1; got {number}")
    return torch.tensor(list(map(operator.index, ids)), dtype=torch.int64, device="cpu")


def p_value(statistic: float, count: int) -> float:
    """How probable a gamma variable of shape ``count`` is to be at least ``statistic``."""
    if count == 0:
        return 1.0
    shape, at = (torch.tensor(float(x), dtype=torch.float64, device="cpu") for x in (count, statistic))
    return float(torch.special.gammaincc(shape, at))


def check_key(name: str, key: int) -> None:
    """Raise ValueError for a key of 0, with which ops write no watermark."""
    if key == 0:
        raise ValueError(f"{name}: expected a number other than 0, which is no watermark; got 0")


def check_race(name: str, method: str) -> None:
    """Raise ValueError for a method that does not draw all tokens by the race."""
    if method != "race":
        raise ValueError(
            f"{name}: expected a race; got {method}, whose accept uniforms are not of the key: either fewer drafts are "
            "accepted, or the watermark is weaker (Hu, Huang 2024)"
        )
