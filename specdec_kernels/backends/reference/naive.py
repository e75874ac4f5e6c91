"""The rules as the papers write them: one request in float64, no filters, no edits, no status, no noise.

Node 0 is the text so far, and nodes 1, 2, … are its drafts: node i holds ``tokens[i]`` after node ``parents[i]``, and
-1 for either where there is none. A chain has ``parents = [-1, 0, 1, …]``. ``p[i]`` and ``q[i]`` are the target's and
the draft's distributions of the token after node i, and the uniform ``u[i]`` decides about node i. ``draw(weights, i)``
samples a token after node i, for which any sampler will do. Every rule returns the nodes on the accepted path, which
begins with node 0, and the token after the last of them.

Tests hold the oracle, ``walk`` and ``traversal`` beside this file, to these rules. It has what engines ask for besides.
"""

from collections.abc import Callable, Sequence

import numpy as np

Draw = Callable[[np.ndarray, int], int]
Verdict = tuple[list[int], int]


def norm(weights: np.ndarray) -> np.ndarray:
    """Weights divided by their sum; zeros if they have none."""
    total = weights.sum()
    return weights / total if total > 0 else np.zeros_like(weights)


def children(parents: Sequence[int], node: int) -> list[int]:
    return [child for child in range(node + 1, len(parents)) if parents[child] == node]


def one_hot(token: int, vocabulary: int) -> np.ndarray:
    return (np.arange(vocabulary) == token).astype(float)


def race(p: Sequence[np.ndarray], tokens: Sequence[int], parents: Sequence[int], draw: Draw) -> Verdict:
    """Kobus, Gündüz (2025), Algorithm 5: a child is accepted iff it holds argmin e / p, the token after its node.

    ``draw`` runs that race. The draft ran it with the same arrivals e, so its token is often the same.
    """
    path = [0]
    while True:
        node = path[-1]
        token = draw(p[node], node)
        matches = [child for child in children(parents, node) if tokens[child] == token]
        if not matches or not p[node].any():
            return path, token
        path.append(matches[0])


def rejection(
    p: Sequence[np.ndarray], q: Sequence[np.ndarray] | None, tokens: Sequence[int], parents: Sequence[int],
    u: Sequence[float], draw: Draw, replacement: bool = False,
) -> Verdict:  # fmt: skip
    """Chen et al. (2023), Algorithm 2, on a chain; on a tree Miao et al. (2024), Algorithm 2, where children were drawn
    with ``replacement``, and Jeon et al. (2024), Algorithm 1, without it.

    A child x is accepted iff u q(x) < p(x), else p becomes norm((p - q)+). Without q the drafts are certain: one-hot.
    """
    path = [0]
    while True:
        node, tried = path[-1], []
        left = p[node]  # of the target's distribution, after the children that were rejected
        drawn_from = None if q is None else q[node]
        for child in children(parents, node) if left.any() else []:
            x = tokens[child]
            if x == -1 or (x in tried and not (q is not None and replacement)):
                continue  # absent, or a repeated child, which was not drawn from what was left of q
            draft = one_hot(x, len(left)) if drawn_from is None else drawn_from
            if draft[x] > 0 and u[child] * draft[x] < left[x]:
                path.append(child)
                break
            tried.append(x)
            left = norm(np.maximum(left - draft, 0.0))
            if drawn_from is not None and not replacement:
                drawn_from = norm(np.where(np.isin(np.arange(len(left)), tried), 0.0, drawn_from))
        else:
            return path, draw(left if left.any() else p[node], node)


def block(
    p: Sequence[np.ndarray], q: Sequence[np.ndarray] | None, tokens: Sequence[int], u: Sequence[float], draw: Draw
) -> Verdict:
    """Sun et al. (2025), "Block Verification", Algorithm 2: the deepest node whose uniform allows it ends the chain.

    With w_0 = 1, w_i = min(1, w_(i-1) p(x_i) / q(x_i)): node i is accepted iff u_i < h_i = Z_i / (Z_i + 1 - w_i), where
    Z_i = sum (w_i p - q)+ over the distributions after it, and h_K = w_K for the last; norm((w_i p - q)+) comes next.
    """
    weights = [1.0]  # w by node, up to the last draft
    for node in range(1, len(tokens)):
        if tokens[node] == -1 or not p[node - 1].any():
            break
        drafted = 1.0 if q is None else q[node - 1][tokens[node]]
        weights.append(min(1.0, weights[-1] * p[node - 1][tokens[node]] / drafted) if drafted > 0 else 0.0)
    accepted, residual = 0, p[0]
    for node, w in enumerate(weights):
        left, h = p[node], w
        if node < len(weights) - 1:
            draft = one_hot(tokens[node + 1], len(left)) if q is None else q[node]
            left = np.maximum(w * p[node] - draft, 0.0)
            rest = left.sum() + 1.0 - w
            h = left.sum() / rest if rest > 0 else 1.0
        if node == 0 or u[node] < h:
            accepted, residual = node, left
    return list(range(accepted + 1)), draw(residual if residual.any() else p[accepted], accepted)
