"""The arguments of `generate`: checked, and spread over the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec_kernels.generate.models import LanguageModel
from specdec_kernels.generate.protocols import ChainPolicy, Drafter, TreeDrafter, TreePolicy

METHODS = ("plain", "rejection", "race")


def check_method(
    method: str, drafter: Drafter | None, policy: ChainPolicy | TreePolicy, draft_prob: float, replacement: bool
) -> None:
    """Raise unless method, drafter and policy go together."""
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}; got {method!r}")
    if method == "plain" and drafter is not None:
        raise ValueError("drafter: expected None with method plain, which drafts nothing")
    if not isinstance(drafter, Drafter | None):
        raise TypeError(f"drafter: expected a Drafter or None; got {type(drafter).__name__}")
    if isinstance(policy, TreePolicy):
        check_tree_method(method, drafter, draft_prob, replacement)
    elif not isinstance(policy, ChainPolicy):
        raise TypeError(f"policy: expected a ChainPolicy or a TreePolicy; got {type(policy).__name__}")
    elif replacement:
        raise ValueError("replacement: expected False without a tree")
    elif policy.randomised and not (method == "rejection" and drafter is not None and drafter.laws):
        raise ValueError("draft_prob: expected method rejection and a model as drafter where drafting is randomised")


def check_tree_method(method: str, drafter: Drafter | None, draft_prob: float, replacement: bool) -> None:
    """The same, where trees are drafted."""
    if method == "plain":
        raise ValueError("tree: expected method rejection or race; got plain")
    if not isinstance(drafter, TreeDrafter):
        raise ValueError("tree: expected a model as drafter")
    if draft_prob != 1:
        raise ValueError(f"draft_prob: expected 1 with a tree; got {draft_prob}")
    if replacement and method != "rejection":
        raise ValueError(f"replacement: expected method rejection; got {method}")


def check_lengths(prompts: list[list[int]], max_new_tokens: int, models: Sequence[LanguageModel]) -> None:
    """Raise unless there is something to write after, and every model can go on to the end."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected at least 1; got {max_new_tokens}")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompts[{index}]: expected at least one token; got none")
    for model in models:
        longest = max(map(len, prompts))
        if model.max_length is not None and longest + max_new_tokens > model.max_length:
            raise ValueError(
                f"max_new_tokens: expected at most {model.max_length - longest} after a prompt of {longest} tokens "
                f"({model.name} ends at {model.max_length}); got {max_new_tokens}"
            )


def spread_seed(seed: int | Sequence[int], batch: int) -> torch.Tensor:
    """One 64-bit seed per request, int64 [batch]."""
    seeds = [seed + index for index in range(batch)] if isinstance(seed, int) else list(seed)
    if len(seeds) != batch:
        raise ValueError(f"seed: expected a number or one per prompt ({batch}); got {len(seeds)}")
    return torch.tensor([(value + 2**63) % 2**64 - 2**63 for value in seeds])


def spread_temperature(temperature: float | Sequence[float], batch: int) -> torch.Tensor:
    """One temperature per request, float32 [batch]."""
    values = [temperature] * batch if isinstance(temperature, (int, float)) else list(temperature)
    if len(values) != batch:
        raise ValueError(f"temperature: expected a number or one per prompt ({batch}); got {len(values)}")
    if not all(0 <= value < float("inf") for value in values):
        raise ValueError(f"temperature: expected finite numbers >= 0; got {temperature}")
    return torch.tensor(values, dtype=torch.float32)
