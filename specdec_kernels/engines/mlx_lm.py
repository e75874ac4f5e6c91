"""Speculative generation in mlx-lm by our methods. Seen: mlx-lm 0.32.2 with mlx 0.32.4 on CPUs, on no GPU of Apple.

`generate_step` replaces ``speculative_generate_step``, which verifies a draft by sampling afresh and comparing.
`install` does so for ``mlx_lm.generate``, ``stream_generate`` and ``mlx_lm.server`` with a ``draft_model``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from specdec_kernels import Sampling
from specdec_kernels.engines._methods import METHODS
from specdec_kernels.engines._replace import Replacements
from specdec_kernels.generate.checks import whole_number

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

__all__ = ["generate_step", "install", "uninstall"]

GREEDY = Sampling(0.0)


def generate_step(
    prompt: mx.array | Sequence[int], model: nn.Module, draft_model: nn.Module | None = None,
    stream: mx.Stream | None = None, *, method: str = "race", num_draft_tokens: int = 2, max_tokens: int = 256,
    sampling: Sampling = GREEDY, seed: int | None = None, sampler: Callable[..., Any] | None = None,
    logits_processors: Sequence[Callable[[mx.array, mx.array], mx.array]] | None = None,
    prompt_cache: list[Any] | None = None, prefill_step_size: int = 512, max_pending: int = 16,
    kv_bits: int | None = None, kv_group_size: int = 64, quantized_kv_start: int = 5000,
) -> Iterator[tuple[int, mx.array, bool]]:  # fmt: skip
    """Write on by our methods: ``mlx_lm.generate.speculative_generate_step``, one `verify_chain` a round.

    The target reads the drafts in one call. Its logits are read in mlx's memory, in float32, float16 or bfloat16; those
    of drafts are copied, and not for "race". The ops run on the CPU. Token n of the whole text, which begins with the
    tokens in `prompt_cache`, has the noise of position n, so "race" writes the text that it writes without drafts, if
    the model gives the same logits however many tokens it reads at once.

    Parameters
    ----------
    prompt : array or list of int
        [L], one token at least.
    model, draft_model : Module
        mlx-lm's, with the same tokens; the draft reads ids past the end of its vocabulary as 0. Without a draft model a
        call gives a token.
    method : {"race", "rejection", "block"}
        A method of `verify_chain`. Greedy texts are the same with all.
    num_draft_tokens, max_tokens : int
        Drafts a round, K; tokens of the text, -1 for no limit.
    sampling : Sampling
        Temperature, top-k, top-p and min-p of target and draft. Default: greedy, as in mlx-lm.
    seed : int, optional
        The text depends on it, not on K. Default: one from mlx's generator (``mx.random.seed``).
    sampler : callable, optional
        One of ``make_sampler`` after `install` was called, without XTC: its law replaces `sampling`. No other, for the
        law of a function is not known.
    logits_processors : list of callable, optional
        ``processor(tokens [n], logits [1, V])``: called for each row of target and draft, with the tokens before it.
        They must not store anything between calls.
    prompt_cache : list, optional
        The target's entries, then the draft's. In the end they hold the prompt and all yielded tokens, wherever the
        caller stops; the next call's prompt continues them.
    max_pending : int
        Where recurrent states or windows cannot remove tokens: how many accepted ones are read again, at most, in front
        of drafts; beyond it another call reads them.
    stream, prefill_step_size, kv_bits, kv_group_size, quantized_kv_start : optional
        As in mlx-lm.

    Yields
    ------
    tuple of int, array, bool
        A token; the log-probabilities [V] of the target's row after its processors, before `sampling`; whether the
        token was drafted.

    Raises
    ------
    NotImplementedError, ValueError, RuntimeError
        Another sampler; an unknown method, no prompt, numbers out of range; logits that are no law's, a cache that
        rewinds by less than requested.
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}; got {method!r}")
    if sampler is not None:
        if not hasattr(sampler, "sampling"):
            raise NotImplementedError(
                f"sampler: expected None, for sampling= has the rules, or one that make_sampler made after install(), "
                f"without XTC; got {sampler!r}"
            )
        sampling = sampler.sampling
    for name, number, least in (
        ("num_draft_tokens", num_draft_tokens, 0), ("max_tokens", max_tokens, -1),
        ("prefill_step_size", prefill_step_size, 1), ("max_pending", max_pending, 1),
    ):  # fmt: skip
        whole_number(name, number, least)
    if not len(prompt):
        raise ValueError("prompt: expected one token at least; got none")
    parts = importlib.import_module("specdec_kernels.engines._mlx_lm")
    caches = parts.caches_of(model, draft_model, prompt_cache)
    quantization = quantized_kv_start, kv_group_size, kv_bits
    if draft_model is None:
        num_draft_tokens = 0
    readers = [
        parts.Reader(each, cache, name, stream, prefill_step_size, quantization, num_draft_tokens > 0, max_pending)
        for each, cache, name in zip((model, draft_model), caches, ("model", "draft_model"), strict=True)
        if each is not None
    ]
    text = parts.Text(prompt, readers[0].offset, logits_processors or ())
    seed = parts.new_seed() if seed is None else seed
    return parts.rounds(text, readers, method, num_draft_tokens, max_tokens, sampling, seed, prompt_cache is not None)


_replaced = Replacements()


def install() -> None:
    """Replace ``mlx_lm.generate.speculative_generate_step`` by `generate_step`.

    ``mlx_lm.generate(model, tokenizer, prompt, draft_model=..., method="race", sampling=..., seed=...)`` then takes
    these arguments, and so does ``stream_generate``. Samplers of ``make_sampler`` carry their law, so
    that ``mlx_lm.server`` with a draft model writes by ours, too.
    """
    modules = [importlib.import_module(f"mlx_lm.{name}") for name in ("sample_utils", "generate", "server")]
    telling = _telling(modules[0].make_sampler)
    for module in modules:
        _replaced.put(module, "make_sampler", telling)
    _replaced.put(modules[1], "speculative_generate_step", generate_step)


def _telling(make_sampler: Callable[..., Any]) -> Callable[..., Any]:
    """mlx-lm's function, whose samplers carry their law as ``sampling``, where there are rules for it."""

    @functools.wraps(make_sampler)
    def made(
        temp: float = 0.0, top_p: float = 0.0, min_p: float = 0.0, min_tokens_to_keep: int = 1, top_k: int = 0,
        xtc_probability: float = 0.0, *rest: Any, **more: Any,
    ) -> Any:  # fmt: skip
        sampler = make_sampler(temp, top_p, min_p, min_tokens_to_keep, top_k, xtc_probability, *rest, **more)
        if temp == 0 or (min_tokens_to_keep <= 1 and xtc_probability <= 0):
            whole = Sampling(temp, top_k, top_p if 0 < top_p < 1 else 1.0, min_p, (), "all", at_temperature=False)
            sampler.sampling = whole if temp else GREEDY  # mlx-lm has one sampler for all greedy ones
        return sampler

    return made


def uninstall() -> None:
    """Restore mlx-lm's functions."""
    _replaced.undo()
