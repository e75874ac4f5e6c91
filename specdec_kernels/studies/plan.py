"""The best draft length, drafting probability and tree, by acceptance and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

import specdec_kernels as specdec
from specdec_kernels import theory
from specdec_kernels.theory.chains import speedup_curve, tokens_curve
from specdec_kernels.theory.trees import entropy_bounds, optimal_nodes


def make_plan(
    source: str, acceptance: Sequence[float] | None, cost: float, children: Sequence[float] | None = None,
    laws: tuple[np.ndarray, np.ndarray] | None = None, *, max_k: int = 16, nodes: int = 12,
) -> dict[str, Any]:  # fmt: skip
    """The plan as one dictionary; `specdec-kernels plan` prints it.

    `source` is the origin of the figures, `cost` is c. `acceptance` is by slot, where the last stands for later slots,
    too; None, with laws alone, is their mean overlap. `children` is acceptance by child index, which may not rise; None
    is that of the laws (where it rises, as if it did not), or of a chain. `laws` are p and q, float64 [N, V] each, for
    a* and the race.
    """
    if laws is not None:
        if acceptance is None:
            acceptance = [float(np.minimum(*laws).sum() / len(laws[0]))]
        if children is None:
            from specdec_kernels.studies.measure import acceptance_by_child

            children = np.minimum.accumulate(acceptance_by_child(*laws)).tolist()
    betas = list(acceptance[:max_k]) + [acceptance[-1]] * (max_k - len(acceptance))
    curves = zip(tokens_curve(betas).tolist(), speedup_curve(betas, cost).tolist(), strict=True)
    lengths = [dict(k=k, tokens=tokens, speedup=speedup) for k, (tokens, speedup) in enumerate(curves)]
    best = lengths[theory.best_draft_length(betas, cost, max_k)]
    plan = dict(source=source, acceptance=list(acceptance), cost_ratio=cost, best=best, lengths=lengths)
    if laws is not None:
        plan |= dict(race=race(*laws), block=block(*laws, cost, max_k), randomised=randomised(*laws, cost),
                     paths=paths(*laws, cost, max_k, nodes))  # fmt: skip
    return plan | dict(tree=tree([acceptance[0]] if children is None else children, nodes))


def race(p: np.ndarray, q: np.ndarray) -> dict[str, Any]:
    """Means over the workload of the race's acceptance, its bounds and those on the entropy of the accepted child."""
    bounds = np.mean([theory.race_bounds(*row) for row in zip(p, q, strict=True)], axis=0)
    entropy = np.mean([entropy_bounds(*row) for row in zip(p, q, strict=True)], axis=0)
    return dict(
        acceptance=float(np.mean([theory.race_acceptance(*row) for row in zip(p, q, strict=True)])),
        lower=dict(zip(("harmonic", "joint", "variation"), bounds.tolist())),  # noqa: B905 the last is the upper one
        upper=float(bounds[3]),
        kl_bits=float(entropy[0]),
        entropy_bound_bits=float(entropy[2]),
    )


def block(p: np.ndarray, q: np.ndarray, cost: float, max_k: int, draws: int = 20_000) -> dict[str, Any]:
    """Tokens a round and speed-up of block verification by draft length, at most 64, and the best of them.

    Means of the weights w over drafts, as `theory.block_expected_accepted` has them exactly for few tokens. Each slot's
    laws are those of another position: so the acceptance of rejection is planned, too.
    """
    rng, each = np.random.default_rng(0), -(-draws // len(p))
    ratios = np.concatenate([
        (target / np.where(draft > 0, draft, 1))[rng.choice(len(draft), each, p=draft / draft.sum())]
        for target, draft in zip(p, q, strict=True)
    ])  # fmt: skip
    weights, tokens = np.ones(len(ratios)), [1.0]
    for _ in range(min(max_k, 64)):
        weights = np.minimum(1, weights * rng.permutation(ratios))
        tokens.append(tokens[-1] + weights.mean())
    lengths = [dict(k=k, tokens=float(n), speedup=float(n / (1 + cost * k))) for k, n in enumerate(tokens)]
    return dict(best=max(lengths, key=lambda at: at["speedup"]), lengths=lengths)


def paths(p: np.ndarray, q: np.ndarray, cost: float, max_k: int, nodes: int, draws: int = 20_000) -> dict[str, Any]:
    """Tokens a round and speed-up of `paths` by number and length of chains of at most `nodes` tokens in all.

    Chains are drafted side by side, so that a token of each costs what one token costs. As for `block`, each slot's
    laws are those of another position. Chains are drawn and verified by the kernels: how often i tokens or more are
    accepted does not depend on the length of chains, so the longest of each number serve for all lengths.
    """
    rng, lengths = np.random.default_rng(0), [dict(n=1, k=0, tokens=1.0, speedup=1.0)]
    for n in (1, 2, 4, 8):
        longest = min(max_k, 64, nodes // n)
        if not longest:
            continue
        rows = rng.integers(len(p), size=(-(-draws // (n * longest)), longest))
        parts = np.array_split(rows, -(-n * rows.size * p.shape[1] // 2**24))  # memory for so much at once
        rounds = [accepted_of_chains(p[at], q[at], n, seed=draws * part) for part, at in enumerate(parts)]
        accepted = np.concatenate(rounds)
        tokens = 1 + np.cumsum([(accepted >= i).mean() for i in range(1, longest + 1)])
        lengths += [dict(n=n, k=k, tokens=float(x), speedup=float(x / (1 + cost * k))) for k, x in enumerate(tokens, 1)]
    return dict(best=max(lengths, key=lambda at: at["speedup"]), lengths=lengths)


def accepted_of_chains(p: ArrayLike, q: ArrayLike, n: int, seed: int = 0) -> np.ndarray:
    """How many tokens `paths` accepts of `n` chains in each of R rounds, int64 [R]; p, q [R, K, V] by position.

    The last law is repeated for the bonus token, which is not used.
    """
    runs, k, _ = np.shape(p)
    p, q = (torch.as_tensor(np.asarray(law), dtype=torch.float32, device="cpu") for law in (p, q))
    seeds = torch.arange(seed, seed + runs, dtype=torch.int64, device="cpu")
    shape = (runs, n, k)
    positions, nonces = (torch.arange(a, b, dtype=torch.int64, device="cpu") for a, b in ((0, k), (1, n + 1)))
    noise = dict(seed=seeds[:, None, None], position=positions, nonce=nonces[:, None])
    flat = {name: value.expand(shape).reshape(runs, -1) for name, value in noise.items()}
    drawn = specdec.race_sample(q.repeat(1, n, 1), space="probs", **flat)
    tree = specdec.merge_chains(drawn.view(shape))
    depth = specdec.tree_positions(tree.parents, prefix_len=0).clamp(0, k - 1)[..., None]
    p, q = (law.take_along_dim(depth, 1) for law in (p, q))
    verdict = specdec.verify_tree(
        tree.draft_tokens, p, q, parents=tree.parents, leaves=tree.leaves, method="paths", seed=seeds, position=0,
        space="probs", max_depth=k,
    )  # fmt: skip
    return verdict.num_accepted.numpy()


def randomised(p: np.ndarray, q: np.ndarray, cost: float) -> dict[str, dict[str, float]]:
    """One drafted token: a*, its rate and the cost from which drafting less pays, by both ways to count."""
    return {
        kind: dict(
            draft_prob=(a := theory.best_draft_prob(p, q, cost, kind)),
            rate=theory.drafting_rate(p, q, a, cost, kind),
            rate_always=theory.drafting_rate(p, q, 1, cost, kind),
            threshold=theory.drafting_gain_condition(p, q, kind),
        )
        for kind in ("renewal", "paper")
    }


def tree(children: Sequence[float], nodes: int) -> dict[str, Any]:
    """The best tree of `nodes` drafted tokens, in `DraftTree`'s layout, and what bounds it."""
    best = optimal_nodes(children, nodes)
    rest = 1 - sum(children)
    return dict(
        children=list(children),
        parents=best.parents,
        tokens=float(1 + best.values.sum()),
        bound=theory.tree_bound(children, nodes) if nodes else 1.0,
        tunstall_bound=theory.tunstall_bound(children, nodes) if abs(rest) < 1e-6 else None,
    )
