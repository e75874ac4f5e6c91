"""Measurements of a pair of models: laws along a text, acceptance by slot and by child index, cost of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import specdec_kernels as specdec
from specdec_kernels.generate.control import Acceptance, ChildAcceptance

if TYPE_CHECKING:
    from specdec_kernels.generate import Drafter, Generation, LanguageModel


class Workload(NamedTuple):
    """Laws of target and draft, float64 [N, V], at N positions of texts that the target wrote."""

    p: np.ndarray
    q: np.ndarray


@torch.no_grad()
def workload(
    target: LanguageModel, draft: LanguageModel, prompts: Sequence[str], *, tokens: int = 128, temperature: float = 1.0,
    seed: int = 0,
) -> Workload:  # fmt: skip
    """The laws of both models at each of the next `tokens` tokens that the target writes after each prompt.

    The temperature is above 0; `seed` is that of the first prompt.
    """
    from specdec_kernels.generate import generate

    p, q = [], []
    options = dict(method="plain", max_new_tokens=tokens, temperature=temperature, seed=seed)
    for generation in generate(prompts, target, **options):
        text = torch.tensor([generation.prompt + generation.tokens], device=target.device, dtype=torch.int64)
        for model, laws in ((target, p), (draft, q)):
            logits = model.model(text).logits[0, len(generation.prompt) - 1 : -1, : target.config.vocab_size]
            laws.append((logits.double() / temperature).softmax(-1).cpu().numpy())
    return Workload(np.concatenate(p), np.concatenate(q))


def acceptance_by_slot(generations: Sequence[Generation], slots: int) -> list[float]:
    """Share of accepted tokens among the tested ones, slot by slot, as far as any was tested."""
    seen = Acceptance(slots)
    for generation in generations:
        for entry in generation.rounds:
            seen.add(entry.drafted, entry.accepted)
    tried = seen.tried[seen.tried > 0]
    return (seen.passed[: len(tried)] / tried).tolist()


def acceptance_by_child(p: np.ndarray, q: np.ndarray, children: int = 8, draws: int = 64, seed: int = 0) -> list[float]:
    """P(the target's race winner is the draft's i-th arrival), i = 1 … `children`, over all rows of [N, V] laws.

    Drawn by the kernels, `draws` times a row; `theory.race_rank_law` is its expectation row by row.
    """
    target, draft = (torch.tensor(law, dtype=torch.float32, device="cpu")[None].expand(draws, -1, -1) for law in (p, q))
    shape = target.shape[:2]
    seeds = torch.arange(seed, seed + draws, dtype=torch.int64, device="cpu")[:, None].expand(shape)
    positions = torch.arange(shape[1], dtype=torch.int64, device="cpu").expand(shape)
    race = dict(seed=seeds, position=positions, space="probs")
    arrivals = specdec.race_topk(draft, min(children, draft.shape[-1]), **race)
    agrees = arrivals == specdec.race_sample(target, **race)[..., None]
    return agrees.double().mean(dim=(0, 1)).tolist()


def child_acceptance(generations: Sequence[Generation], children: int = 8) -> ChildAcceptance:
    """Counts over the draft trees of texts: how often a visited node offered its i-th child, and it was accepted."""
    seen = ChildAcceptance(children)
    for generation in generations:
        for entry in generation.rounds:
            for offered, taken in entry.tree.offers():
                if offered:
                    seen.add(offered, taken)
    return seen


def calibrate(
    target: LanguageModel, drafter: Drafter, prompts: Sequence[str], *, children: int = 8, seed: int = 0, **options: Any
) -> list[float]:
    """Acceptance by child index for `DraftTree.optimal`, falling, measured on continuations of the prompts.

    Every round offers `children` alternatives. The seeds are far from `seed`, that of the texts that the tree is for: a
    tree chosen by the noise that is to verify it would bias rejection. `options` are arguments of `generate`.
    """
    from specdec_kernels.generate import generate

    tree = specdec.DraftTree.alternatives(children)
    generations = generate(prompts, target, drafter, tree=tree, seed=seed + 2**63, **options)
    return child_acceptance(generations, children).rates().tolist()


def cost_ratio(plain: Sequence[Generation], drafted: Sequence[Generation], k: int) -> float:
    """c: the time that one draft token adds to a round, over a round without drafts.

    Each is the 20th percentile of the rounds after the first, because disturbances only make rounds longer.
    """

    def typical(runs: Sequence[Generation]) -> float:
        seconds = [sum(entry.seconds.values()) for run in runs for entry in run.rounds[1:]]
        if not seconds:
            raise ValueError("runs: expected texts of two rounds at least; got none")
        return float(np.quantile(seconds, 0.2))

    without, with_drafts = typical(plain), typical(drafted)
    return max(0.0, with_drafts - without) / (k * without)
