"""Experiments with the kernels on known laws: what the theory's lines are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

import specdec_kernels as specdec
from specdec_kernels.ops import Verdict


def rows(laws: ArrayLike) -> torch.Tensor:
    """Laws as float32 rows, whose rounding is far below any simulation's error."""
    return torch.as_tensor(np.asarray(laws), dtype=torch.float32, device="cpu")


def rejections(
    target: ArrayLike, draft: ArrayLike, x0: ArrayLike, drafts: int = 1, runs: int = 5000, seed: int = 0
) -> np.ndarray:
    """Rejections of `runs` decodings of a Markov chain with unlimited look-ahead, int64 [runs].

    As in `theory.expected_rejections`: where a round starts, `drafts` first tokens are drawn independently, each tried
    against the residual that the drafts before it left; after an accepted token only its draft continues. With
    unlimited look-ahead a draft token's fate depends on the state before it only, so that position by position will do.

    Parameters
    ----------
    target, draft : array_like [T, S, S]
        Transition laws.
    x0 : array_like [S]
        Law of the prompt's state.
    """
    seeds = torch.arange(seed, seed + runs, dtype=torch.int64, device="cpu")
    state = torch.from_numpy(np.random.default_rng(seed).choice(len(x0), runs, p=np.asarray(x0)))
    at_root, count = (
        torch.ones(runs, dtype=torch.bool, device="cpu"),
        torch.zeros(runs, dtype=torch.int64, device="cpu"),
    )
    for n, (p, q) in enumerate(zip(rows(target), rows(draft), strict=True)):
        accepted = torch.empty_like(at_root)
        for tries, group in ((drafts, at_root), (1, ~at_root)):
            here = state[group]
            state[group], accepted[group] = one_token(p[here], q[here], seeds[group], n, tries)
        at_root = ~accepted
        count += at_root
    return count.numpy()


def one_token(
    p: torch.Tensor, q: torch.Tensor, seeds: torch.Tensor, position: int, drafts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of law p [R, S] by `drafts` independent drafts of law q: tokens [R], and if a draft was accepted."""
    shape = (len(seeds), drafts)
    nonces = torch.arange(1, drafts + 1, dtype=torch.int64, device="cpu").expand(shape)
    noise = dict(
        seed=seeds[:, None].expand(shape),
        position=torch.full(shape, position, dtype=torch.int64, device="cpu"),
        nonce=nonces,
    )
    x = specdec.race_sample(q[:, None].expand(*shape, -1), **noise, space="probs")
    tree, parents = (
        torch.nn.functional.pad(x, (1, 0), value=-1),
        torch.tensor([-1] + [0] * drafts, dtype=torch.int64, device="cpu"),
    )
    p, q = (law[:, None].expand(-1, 1 + drafts, -1) for law in (p, q))
    options = dict(seed=seeds, position=position, space="probs", replacement=True, max_depth=1)
    verdict = specdec.verify_tree(tree, p, q, parents=parents, **options)
    return verdict.tokens[:, 0], verdict.num_accepted > 0


def rounds(
    p: ArrayLike, q: ArrayLike, k: int = 1, runs: int = 20000, seed: int = 0, draft_prob: float = 1.0,
    drafted: ArrayLike | None = None, x: ArrayLike | None = None, **options: Any,
) -> Verdict:  # fmt: skip
    """Verdicts of `runs` rounds of `k` draft tokens of law q under p.

    `p` broadcasts to [runs, k + 1, V] and `q` to [runs, k, V]; ``drafted`` [runs] says which rounds draft at all. The
    drafts are `x` [runs, k], or drawn by the noise that a race shares.
    """
    p, q = rows(p).expand(runs, k + 1, -1), rows(q).expand(runs, k, -1)
    seeds, places = (
        torch.arange(seed, seed + runs, dtype=torch.int64, device="cpu"),
        torch.arange(k, dtype=torch.int64, device="cpu").expand(runs, k),
    )
    noise = dict(seed=seeds[:, None].expand(runs, k), position=places, space="probs")
    x = specdec.race_sample(q, **noise) if x is None else torch.as_tensor(x, dtype=torch.int64, device="cpu")
    if drafted is not None:
        x = torch.where(torch.as_tensor(drafted, dtype=torch.bool, device="cpu")[:, None], x, -1)
    draft = None if options.get("method") == "race" else q
    return specdec.verify_chain(x, p, draft, draft_prob=draft_prob, seed=seeds, position=0, space="probs", **options)
