"""Chains of drafts under rejection-type rules: acceptance, length, speed-up, rejections, over-acceptance, blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec_kernels.theory.checks import choice, cost, count, law, law_pair, non_negative, numbers, unit


class OverAcceptance(NamedTuple):
    """What an over-accepting rule pays: P(reject), and the total variation between its output and the target."""

    reject: float
    loss: float


def acceptance(p: ArrayLike, q: ArrayLike) -> float:
    r"""Probability that rejection accepts one draft token, ``sum(min(p, q)) = 1 - TV(p, q)``.

    No rule for one draft token accepts more often without bias.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Theorem 3.5; Yin et al. (2024), Theorems 1 and 2.

    Examples
    --------
    >>> round(acceptance([.4, .3, .2, .1], [.1, .2, .3, .4]), 12)
    0.6
    """
    return overlap_mass(*law_pair(p, q))


def overlap_mass(p: np.ndarray, q: np.ndarray) -> float:
    """``sum(min(p, q))`` of unchecked arrays of one shape."""
    return float(np.minimum(p, q).sum())


def total_variation(p: ArrayLike, q: ArrayLike) -> float:
    r"""Total variation distance ``1/2 sum |p - q|``, in [0, 1] (with its factor 1/2; Toner et al. define it without).

    Examples
    --------
    >>> round(total_variation([.4, .3, .2, .1], [.1, .2, .3, .4]), 12)
    0.4
    """
    p, q = law_pair(p, q)
    return float(np.abs(p - q).sum() / 2)


def expected_accepted(betas: ArrayLike) -> float:
    r"""Expected number of accepted draft tokens, ``E[n] = sum_i prod_{j<=i} beta_j``: one less than of emitted ones.

    Parameters
    ----------
    betas : array_like [K]
        Acceptance probability of each slot given that all slots before it were accepted; K may be 0.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Equation 1, without its assumption of one constant acceptance.

    Examples
    --------
    Order matters: a weak slot costs most when it comes first.

    >>> round(expected_accepted([.88, .96, .65]), 5), round(expected_accepted([.65, .96, .88]), 5)
    (2.27392, 1.82312)
    """
    return float(tokens_curve(_betas(betas, "betas"))[-1]) - 1


def expected_tokens(alpha: ArrayLike, k: int) -> float:
    r"""Expected tokens of a round with `k` drafts, ``(1 - alpha^(k+1)) / (1 - alpha)``; never less than 1.

    Parameters
    ----------
    alpha : float, or array_like [>= k]
        One acceptance for every slot, or an acceptance by slot as in `expected_accepted`.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Equation 1.

    Examples
    --------
    >>> round(expected_tokens(.8, 6), 6)
    3.951424
    >>> expected_tokens(1, 3)
    4.0
    """
    return float(tokens_curve(_by_slot(alpha, k))[-1])


def speedup(alpha: ArrayLike, k: int, c: float) -> float:
    r"""Tokens per unit of the target's time, ``E[X] / (k c + 1)``; plain decoding is 1.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Theorem 3.8.

    Examples
    --------
    >>> round(speedup(.8, 6, .1), 5)
    2.46964
    """
    return float(speedup_curve(_by_slot(alpha, k), cost(c, "c"))[-1])


def tokens_curve(betas: np.ndarray) -> np.ndarray:
    """`expected_tokens` for every draft length 0 … K at once, from K unchecked acceptances by slot: float64 [K + 1]."""
    return 1 + np.concatenate([[0.0], np.cumsum(np.cumprod(betas))])


def speedup_curve(betas: np.ndarray, c: float) -> np.ndarray:
    """`speedup` for every draft length 0 … K at once, from K unchecked acceptances by slot: float64 [K + 1]."""
    return tokens_curve(betas) / (1 + c * np.arange(len(betas) + 1))


def best_draft_length(alpha: ArrayLike, c: float, max_k: int = 64) -> int:
    r"""The draft length that maximises `speedup` over ``0 <= k <= max_k``; the shortest of equals.

    There need not be an optimum inside: it can be 0 (``alpha <= c``: do not draft), and with ``c = 0`` every further
    token helps, so that `max_k` is returned if the acceptance is positive.

    Parameters
    ----------
    alpha : float, or array_like
        As in `expected_tokens`; lengths beyond an array's end are not considered.
    max_k : int
        The longest length considered.

    References
    ----------
    Leviathan, Kalman and Matias (2023), section 3.4.

    Examples
    --------
    >>> best_draft_length(.8, .1), best_draft_length(.3, .4), best_draft_length(.3, 0, max_k=9)
    (6, 0, 9)
    """
    max_k, c = count(max_k, "max_k"), cost(c, "c")
    betas = _by_slot(alpha, max_k if np.ndim(alpha) == 0 else min(max_k, np.size(alpha)))
    if c == 0:  # the curve only rises, although in float64 it soon stands still
        return int(np.cumprod(betas > 0).sum())
    return int(np.argmax(speedup_curve(betas, c)))


def residual_mass(p: np.ndarray, q: np.ndarray, draws: int) -> np.ndarray:
    r"""``P(all `draws` independent drafts are rejected and the residual then gives x)``, for every x.

    The residuals ``p_{m+1} = norm((p_m - q)^+)`` are stored scaled by the probability of getting there, so nothing is
    divided and an empty residual is simply 0. Laws lie along the last axis; the arguments are not checked.
    """
    for _ in range(draws):
        p = np.maximum(p - p.sum(axis=-1, keepdims=True) * q, 0)
    return p


def expected_rejections(target: ArrayLike, draft: ArrayLike, x0: ArrayLike, drafts: int = 1) -> float:
    r"""Expected number of rejections while decoding T tokens of a Markov chain with unlimited look-ahead.

    With one draft, ``sum_n E_{x<n ~ p} TV(p_n, q_n)``. With M drafts whose first tokens are independent and whose first
    accepted one is followed alone, Theorem 3 by its recursion (22): with ``f_n`` the measure of "token n was
    rejected", a round starts exactly where the previous token was rejected (or at x0, so ``f_0`` has mass 1), and

        f_n = (law_{n-1} - f_{n-1}) (p_n - q_n)^+ + f_{n-1} r_1 … r_M p_n^{M+1}.

    Calls of the target are ``1 + rejections before the last token``.

    Parameters
    ----------
    target, draft : array_like [T, S, S]
        Transition laws; ``target[n, s]`` is the law of token n + 1 after state s.
    x0 : array_like [S]
        Law of the prompt's state.
    drafts : int
        M, the number of drafts of a round.

    References
    ----------
    Yin et al. (2024), Theorems 1 and 3, Equation 22 (their p is the draft, their q the target).

    Examples
    --------
    The paper does not name its example's generator; this is the only simple one consistent with its "16.41".

    >>> rng = np.random.RandomState(10)
    >>> draft, target = (m / m.sum(-1, keepdims=True) for m in (rng.rand(50, 7, 7), rng.rand(50, 7, 7)))
    >>> round(expected_rejections(target, draft, np.full(7, 1 / 7)), 8)
    16.40489018
    """
    target, draft = law_pair(target, draft, ("target", "draft"), ndims=(3,))
    state_law, drafts = law(x0, "x0"), count(drafts, "drafts", least=1)
    states = target.shape[2]
    if target.shape[1] != states:
        raise ValueError(f"target: expected shape [T, S, S]; got {target.shape}")
    if state_law.shape != (states,):
        raise ValueError(f"x0: expected one entry for each of the {states} states; got shape {state_law.shape}")
    rejected, total = state_law, 0.0
    for p, q in zip(target, draft, strict=True):
        rejected = (state_law - rejected) @ residual_mass(p, q, 1) + rejected @ residual_mass(p, q, drafts)
        total += rejected.sum()
        state_law = state_law @ p
    return float(total)


def over_acceptance(p: ArrayLike, q: ArrayLike, epsilon: float, residual: str = "optimal") -> OverAcceptance:
    r"""Rejection and bias of the lossy rule that accepts iff ``u q(x) < p(x) + epsilon``.

    ``reject = sum (q - p - epsilon)^+``; ``loss`` is the total variation between the output and p. With the optimal
    residual ``norm((p - q)^+)`` (OPT) they add up to TV(p, q); drawing from p itself (UNO) loses more.

    Parameters
    ----------
    residual : {"optimal", "target"}
        What a rejected token is replaced from.

    References
    ----------
    Yin et al. (2024), Theorems 4 and 5; their appendix E.2 drops the factor 1/2 of the loss.

    Examples
    --------
    >>> reject, loss = over_acceptance([.4, .3, .2, .1], [.1, .2, .3, .4], .1)
    >>> round(reject, 12), round(loss, 12)
    (0.2, 0.2)
    """
    p, q = law_pair(p, q)
    epsilon = cost(epsilon, "epsilon")
    choice(residual, "residual", ("optimal", "target"))
    accepted = np.minimum(q, p + epsilon)
    reject = float(np.maximum(q - p - epsilon, 0).sum())
    weights = np.maximum(p - q, 0) if residual == "optimal" and reject > 0 else p
    output = accepted + reject * weights / weights.sum()
    return OverAcceptance(reject, float(np.abs(output - p).sum() / 2))


def block_expected_accepted(p: ArrayLike, q: ArrayLike, k: int | None = None) -> float:
    r"""Expected number of accepted tokens of block verification.

    ``P(at least i accepted | x_1 … x_i) = w_i``, so ``E[n] = sum_i E_q[w_i]`` with ``w_i = min(1, w_{i-1} p_i/q_i)``:
    the law of ``w_i`` is carried along exactly. Its support grows with the number of different products of
    ratios: meant for small vocabularies. The number is never less than rejection's, `expected_accepted`.

    Parameters
    ----------
    p, q : array_like [V] or [K, V]
        The target's and the draft's law, the same at each position, or by position. They do not depend on what was
        drafted before.
    k : int, optional
        Number of draft tokens; with laws by position it is K.

    References
    ----------
    Sun et al. (2024), "Block verification accelerates speculative decoding", Theorem 2.

    Examples
    --------
    >>> p, q = [.4, .3, .2, .1], [.1, .2, .3, .4]
    >>> round(block_expected_accepted(p, q, 2), 12), round(block_expected_accepted([p, p], [q, p]), 12)
    (1.03, 1.2)
    """
    p, q = law_pair(p, q, ndims=(1, 2))
    if (k is None) == (p.ndim == 1):
        raise ValueError(f"k: expected {'a whole number' if p.ndim == 1 else 'None with laws by position'}; got {k}")
    if p.ndim == 1:
        p, q = (np.broadcast_to(row, (count(k, "k"), len(row))) for row in (p, q))
    weight: np.ndarray
    prob: np.ndarray
    weight, prob, total = np.ones(1), np.ones(1), 0.0
    for target, draft in zip(p, q, strict=True):
        drawn = draft > 0
        weight = np.minimum(1, np.multiply.outer(weight, target[drawn] / draft[drawn])).ravel()
        prob = np.multiply.outer(prob, draft[drawn]).ravel()
        total += float(weight @ prob)
        # Equal products in another order differ by a rounding: 14 decimals merge them and move the total as little.
        weight, inverse = np.unique(weight.round(14), return_inverse=True)
        prob = np.bincount(inverse.ravel(), weights=prob)
    return total


def _betas(values: ArrayLike, name: str) -> np.ndarray:
    """Acceptances by slot: a checked float64 array that may be empty."""
    array = numbers(values, name)
    array = array if array.shape == (0,) else non_negative(array, name)
    if array.size and array.max() > 1:
        raise ValueError(f"{name}: expected numbers in [0, 1]; got {array.max():g}")
    return array


def _by_slot(alpha: ArrayLike, k: int) -> np.ndarray:
    """Acceptances of the first `k` slots, from one number or from a list by slot."""
    k = count(k, "k")
    if np.ndim(alpha) == 0:
        return np.full(k, unit(alpha, "alpha"))
    betas = _betas(alpha, "alpha")
    if len(betas) < k:
        raise ValueError(f"alpha: expected at least k = {k} entries; got {len(betas)}")
    return betas[:k]
