"""FlashInfer's samplers on our ops, with its names and signatures. Seen: flashinfer-python 0.7.4.

The functions run on any device that a backend of ours has; only `install` needs FlashInfer.

What all of them change:

- **Noise.** ``seed`` and ``offset`` are our seed and nonce, and the row is our position: the same pair gives the same
  tokens, another offset gives independent ones, and rows are independent. These are not the tokens that FlashInfer
  draws from its Philox stream. Of offsets in a tensor the low 32 bits count. Without both, a seed comes from
  ``generator`` or the device's generator, which moves on.
- **deterministic** makes no difference: all results are deterministic.
- **Numbers** that switch a filter off (``top_k`` of 0, negative or V and more) keep all tokens. FlashInfer's kernels
  take a ``top_k`` of 0 as it is, and drop the whole row.
- **Ties** at a cut stay together, as in FlashInfer, so more than k may stay. Its path for 65,536 tokens and more
  with k up to 256 keeps exactly k.

Shared arguments: ``logits`` are float32, bfloat16 or float16 [B, V]; ``probs`` any floats [B, V], of any sum.
With ``indices``, int32 or int64 [B], rows are [U, V] and copied: which row each output is drawn from. A negative one,
or one of U and more, is a ValueError on the CPU and an assertion on a device. ``top_k``, ``top_p`` and ``min_p`` are a
number, or a tensor with one for all or one for each row. ``seed`` and ``offset`` are ints, or int64 or uint64 [1] or
[B], both or neither. ``check_nan`` raises a ValueError for NaN, and waits for the device. Tokens are [B], int32 or of
the type of ``indices``; with ``return_valid`` bool [B] follows: whether the row has a law (positive weights, no NaN).
Without one it gives token 0.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

import specdec_kernels as specdec
from specdec_kernels import OutputFormat, Sampling
from specdec_kernels.engines._noise import WORD, mixed, positions, seed_of
from specdec_kernels.engines._replace import Replacements

__all__ = [
    "chain_speculative_sampling", "install", "min_p_sampling_from_probs", "sampling_from_logits", "sampling_from_probs",
    "top_k_mask_logits", "top_k_renorm_probs", "top_k_top_p_sampling_from_logits", "top_p_renorm_probs", "uninstall",
]  # fmt: skip

Counter = int | torch.Tensor
Samples = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def chain_speculative_sampling(
    draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor,
    maybe_output_accepted_token_num: torch.Tensor | None = None,
    maybe_output_emitted_draft_token_num: torch.Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, seed: Counter | None = None, offset: Counter | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Verify chains of drafts: ``flashinfer.sampling.chain_speculative_sampling``, by `verify_chain`.

    The law is the target's, as FlashInfer's. A draft id of -1 ends a request's drafts, and one of V or more is
    rejected, where FlashInfer reads out of bounds. ``draft_probs`` [B, n, V] and ``target_probs`` [B, n + 1, V] are
    floats, whose rows need not be contiguous with each other; a one-hot target row decides greedily.
    ``draft_token_ids`` are [B, n], any integers. The two counters are int32 [B] and added to in place; any other type
    is a TypeError, where FlashInfer adds to a copy and the caller's counter never moves.

    Returns
    -------
    tuple of Tensor
        Tokens int32 [B, n + 1], -1 after the last. How many drafts pass their test, int32 [B], those after the
        first rejection too. How many were emitted, without the last token, int32 [B]. The last two are the counters,
        where they are given. A rejected draft did not pass: FlashInfer draws a second uniform for the first one of a
        request, so that its ``accepted`` is larger on average than the documented count.

    Examples
    --------
    >>> draft = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.1]]])
    >>> target = torch.tensor([[[0.0, 0.1, 0.6, 0.3], [1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1]]])
    >>> chain_speculative_sampling(draft, torch.tensor([[2, 1]]), target, seed=0, offset=0)
    (tensor([[ 2,  0, -1]], dtype=torch.int32), tensor([1], dtype=torch.int32), tensor([1], dtype=torch.int32))
    """
    draft, target = (x if x.dtype in FLOATS else x.float() for x in (draft_probs, target_probs))
    drafts = draft_token_ids if draft_token_ids.dtype in (torch.int32, torch.int64) else draft_token_ids.int()
    if drafts.ndim != 2:
        raise ValueError(f"draft_token_ids: expected [B, n]; got {list(drafts.shape)}")
    batch, slots = drafts.shape
    counters = maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num
    for name, counter in zip(("accepted_token_num", "emitted_draft_token_num"), counters, strict=True):
        if counter is not None and (counter.dtype, counter.shape) != (torch.int32, (batch,)):
            kind = ValueError if counter.dtype == torch.int32 else TypeError
            raise kind(
                f"maybe_output_{name}: expected int32 [{batch}], which is added to in place; got {counter.dtype} "
                f"{list(counter.shape)}"
            )
    noise = _noise(target, batch, generator, seed, offset, stride=slots + 1)
    tokens = torch.empty(batch, slots + 1, dtype=torch.int32, device=target.device)
    adds = any(x is not None for x in counters)
    made = torch.zeros if adds else torch.empty
    accepted, emitted = (made(batch, dtype=torch.int32, device=target.device) if x is None else x for x in counters)
    specdec.verify_chain(
        drafts, target, draft, space="probs", **noise, out=(tokens, emitted, None),
        output_format=OutputFormat(num_passed=accepted, add=adds),
    )  # fmt: skip
    return tokens, accepted, emitted


def top_p_renorm_probs(
    probs: torch.Tensor, top_p: float | torch.Tensor, is_deterministic: bool = False
) -> torch.Tensor:
    """Probabilities without the tail behind top-p, renormalised: ``flashinfer.sampling.top_p_renorm_probs``.

    A token stays while the mass of the larger ones is less than ``top_p`` of the row. float32 [B, V].

    Examples
    --------
    >>> top_p_renorm_probs(torch.tensor([[0.5, 0.3, 0.2]]), 0.6)
    tensor([[0.6250, 0.3750, 0.0000]])
    """
    return _renormed(probs, Sampling.flashinfer(top_p=_share(top_p)))


def top_k_renorm_probs(probs: torch.Tensor, top_k: Counter, is_deterministic: bool = False) -> torch.Tensor:
    """The k largest probabilities, renormalised: ``flashinfer.sampling.top_k_renorm_probs``. Of the type of ``probs``.

    Examples
    --------
    >>> top_k_renorm_probs(torch.tensor([[0.5, 0.3, 0.2]]), 2)
    tensor([[0.6250, 0.3750, 0.0000]])
    """
    return _renormed(probs, Sampling.flashinfer(top_k=_count(top_k))).to(probs.dtype)


def _renormed(probs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """float32 [B, V]: the law of a filtered row, which is its residual with a draft of probability 0."""
    logits = probs.float().log()
    return specdec.residual(logits, logits[..., :1], sampling=sampling, draft_prob=0.0).probs


def top_k_mask_logits(logits: torch.Tensor, top_k: Counter) -> torch.Tensor:
    """Logits with -inf for all but the k largest: ``flashinfer.sampling.top_k_mask_logits``. Of the type of ``logits``.

    Examples
    --------
    >>> top_k_mask_logits(torch.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[-inf, 3., 2.]])
    """
    return specdec.mask_logits(logits, specdec.cutoff(logits, sampling=Sampling.flashinfer(top_k=_count(top_k))))


def sampling_from_logits(
    logits: torch.Tensor, indices: torch.Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, check_nan: bool = False, seed: Counter | None = None,
    offset: Counter | None = None,
) -> torch.Tensor:  # fmt: skip
    """A token of each row of logits: ``flashinfer.sampling.sampling_from_logits``, by `race_sample`.

    Examples
    --------
    >>> sampling_from_logits(torch.tensor([[0.0, 50.0], [50.0, 0.0]]), seed=1, offset=0)
    tensor([1, 0], dtype=torch.int32)
    """
    _refuse_nan("logits", logits, check_nan)
    return _drawn(logits, Sampling(), indices, generator, seed, offset)


def sampling_from_probs(
    probs: torch.Tensor, indices: torch.Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, check_nan: bool = False, seed: Counter | None = None,
    offset: Counter | None = None, return_valid: bool = False,
) -> Samples:  # fmt: skip
    """A token of each row of probabilities: ``flashinfer.sampling.sampling_from_probs``, by `race_sample`.

    Examples
    --------
    >>> sampling_from_probs(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), seed=1, offset=0, return_valid=True)
    (tensor([1, 0], dtype=torch.int32), tensor([ True, False]))
    """
    _refuse_nan("probs", probs, check_nan)
    return _drawn(probs, Sampling(), indices, generator, seed, offset, "probs", return_valid)


def min_p_sampling_from_probs(
    probs: torch.Tensor, min_p: float | torch.Tensor, indices: torch.Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, check_nan: bool = False, seed: Counter | None = None,
    offset: Counter | None = None, return_valid: bool = False,
) -> Samples:  # fmt: skip
    """A token of at least ``min_p`` of the largest probability: ``flashinfer.sampling.min_p_sampling_from_probs``.

    Examples
    --------
    >>> min_p_sampling_from_probs(torch.tensor([[0.4, 0.6]]), 0.9, seed=1, offset=0)
    tensor([1], dtype=torch.int32)
    """
    _refuse_nan("probs", probs, check_nan)
    sampling = Sampling.flashinfer(min_p=_share(min_p))
    return _drawn(probs.float().log(), sampling, indices, generator, seed, offset, "logits", return_valid, made=True)


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor, top_k: Counter, top_p: float | torch.Tensor, indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first", deterministic: bool = True, generator: torch.Generator | None = None,
    check_nan: bool = False, seed: Counter | None = None, offset: Counter | None = None, top_k_max: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """A token of what top-k and top-p keep: ``flashinfer.sampling.top_k_top_p_sampling_from_logits``, in one pass.

    ``filter_apply_order`` says whether ``top_p`` is a share of what ``top_k`` keeps, or of the whole row ("joint").
    ``top_k_max`` bounds a tensor ``top_k`` where FlashInfer reads it: with "top_k_first", a bound of 1 to 256 below V,
    and V of 65,536 or more. There a row of a larger or negative ``top_k`` has the bound, and one of 0 is greedy.

    Examples
    --------
    >>> top_k_top_p_sampling_from_logits(torch.tensor([[1.0, 3.0, 2.0]]), 2, 0.5, seed=1, offset=0)
    tensor([1], dtype=torch.int32)
    """
    orders = {"top_k_first": Sampling.flashinfer, "joint": Sampling.flashinfer_joint}
    if filter_apply_order not in orders:
        raise ValueError(f"filter_apply_order: expected 'top_k_first' or 'joint'; got {filter_apply_order!r}")
    if top_k_max is not None and (not isinstance(top_k_max, int) or isinstance(top_k_max, bool)):
        raise TypeError(f"top_k_max: expected an int or None; got {type(top_k_max).__name__}")
    _refuse_nan("logits", logits, check_nan)
    top_k = _count(top_k)
    bounded = isinstance(top_k, torch.Tensor) and top_k.ndim == 1 and filter_apply_order == "top_k_first"
    vocabulary = logits.shape[-1]
    if bounded and top_k_max is not None and 0 < top_k_max <= min(256, vocabulary - 1) and vocabulary >= 65_536:
        top_k = torch.where(top_k < 0, top_k_max, top_k.clamp(1, top_k_max))
    sampling = orders[filter_apply_order](top_k=top_k, top_p=_share(top_p))
    return _drawn(logits, sampling, indices, generator, seed, offset)


def _drawn(
    rows: torch.Tensor, sampling: Sampling, indices: torch.Tensor | None, generator: torch.Generator | None,
    seed: Counter | None, offset: Counter | None, space: str = "logits", return_valid: bool = False,
    made: bool = False,
) -> Samples:  # fmt: skip
    """A token of each row, and whether the row has a law.

    Rows that a launch made are raced by a chain without drafts, whose tokens may be int32. That takes the host longer
    than a race, so other rows are raced, and their tokens changed to int32.
    """
    if rows.ndim != 2:
        raise ValueError(f"rows: expected [B, V]; got {list(rows.shape)}")
    dtype = torch.int32
    if indices is not None:
        if not isinstance(indices, torch.Tensor):
            raise TypeError(f"indices: expected int32 or int64 [B]; got {type(indices).__name__}")
        if indices.dtype not in (torch.int32, torch.int64) or indices.ndim != 1:
            raise TypeError(f"indices: expected int32 or int64 [B]; got {indices.dtype} {list(indices.shape)}")
        if indices.device.type == "cpu" and not all(0 <= row < len(rows) for row in indices.tolist()):
            raise ValueError(f"indices: expected rows from 0 to {len(rows) - 1}; got {indices.tolist()!r:.60}")
    numbers = {
        name: _of_rows(name, getattr(sampling, name), indices, len(rows)) for name in ("top_k", "top_p", "min_p")
    }
    sampling = sampling._replace(**numbers)
    if indices is not None:
        dtype, rows, made = indices.dtype, rows.index_select(0, indices), True
    noise = _noise(rows, len(rows), generator, seed, offset)
    status = torch.empty(len(rows), dtype=torch.int32, device=rows.device) if return_valid else None
    if made:
        tokens = torch.empty(len(rows), dtype=dtype, device=rows.device)
        specdec.verify_chain(
            torch.empty(len(rows), 0, dtype=torch.int32, device=rows.device), rows[:, None], method="race", space=space,
            sampling=sampling, out=(tokens[:, None], None, status), **noise,
        )  # fmt: skip
    else:
        tokens = specdec.race_sample(rows, space=space, sampling=sampling, status=status, **noise).to(dtype)
    return tokens if status is None else (tokens, status == 0)


def _of_rows(name: str, x: Counter | float, indices: torch.Tensor | None, rows: int) -> Counter | float:
    """A filter's number for each output: a number, or a tensor with one for all or one for each row."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.ndim > 1 or x.numel() not in (1, rows):
        raise ValueError(f"{name}: expected a number, or a tensor [1] or [{rows}]; got {x.dtype} {list(x.shape)}")
    x = x.reshape(-1)
    return x if indices is None or len(x) == 1 else x.index_select(0, indices)


def _noise(
    like: torch.Tensor, rows: int, generator: torch.Generator | None, seed: Counter | None, offset: Counter | None,
    stride: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Seed, position and nonce of our ops for each row, `stride` positions long."""
    if seed is None or offset is None:
        seed, offset = seed_of(generator, like.device), 0
    elif isinstance(seed, torch.Tensor) != isinstance(offset, torch.Tensor):
        raise ValueError("seed, offset: expected two tensors or two ints; got one of each")
    elif isinstance(seed, torch.Tensor):
        seed, offset = (_counters(name, x, rows, like.device) for name, x in (("seed", seed), ("offset", offset)))
    else:
        seed, offset = mixed(seed, offset // WORD), offset % WORD
    return {"seed": seed, "position": positions(like, rows, stride), "nonce": offset}


def _counters(name: str, x: torch.Tensor, rows: int, device: torch.device) -> torch.Tensor:
    """Seeds or offsets in the form of our ops."""
    if x.dtype not in (torch.int64, torch.uint64) or x.ndim != 1 or len(x) not in (1, rows) or x.device != device:
        raise ValueError(
            f"{name}: expected int64 or uint64 [1] or [{rows}] on {device}; got {x.dtype} {list(x.shape)} on {x.device}"
        )
    return x.view(torch.int64)


def _refuse_nan(name: str, rows: torch.Tensor, check: bool) -> None:
    if check and rows.isnan().any():
        raise ValueError(f"{name}: expected numbers with check_nan=True; got NaN")


def _share(x: float | torch.Tensor) -> float | torch.Tensor:
    return x.float() if isinstance(x, torch.Tensor) else x


def _count(x: Counter) -> Counter:
    return x.int() if isinstance(x, torch.Tensor) and x.dtype != torch.int64 else x


_replacements = Replacements()


def install() -> None:
    """Replace the functions of ``flashinfer.sampling`` and ``flashinfer`` by these.

    A module that already has a function by name (``from flashinfer.sampling import …``, as TensorRT-LLM does with
    ``chain_speculative_sampling``) keeps FlashInfer's; so install before it is imported. A second call does nothing.
    Without FlashInfer it raises an ImportError, and an AttributeError where that has no function of these names.
    """
    sampling, package = importlib.import_module("flashinfer.sampling"), importlib.import_module("flashinfer")
    for name in __all__:
        if name not in ("install", "uninstall"):
            _replacements.put(sampling, name, globals()[name])
            _replacements.put(package, name, globals()[name])
    for old in ("top_p_renorm_prob", "top_k_renorm_prob"):
        _replacements.put(sampling, old, globals()[f"{old}s"])


def uninstall() -> None:
    """Restore FlashInfer's functions."""
    _replacements.undo()
