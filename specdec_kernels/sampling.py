"""How logits are edited, how rows become laws (distributions of tokens), and the laws of drafts."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from specdec_kernels._constants import SMALLEST
from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import Number

__all__ = ["Draft", "LogitEdits", "Sampling", "draft_map"]

Count = int | torch.Tensor  # int32 or int64


class LogitEdits(NamedTuple):
    """Edits of a target's logits before ``Sampling``: ``edits=`` of every op that reads target rows.

    In this order, each operation in float32 and rounded once; z is the logit of the row:

    1. ``bias``: ``z + b``.
    2. ``repetition`` r, for tokens seen in the prompt or the output: ``z * (1 / r)`` if z > 0, else ``z * r``.
    3. ``frequency`` f: ``z - f * c``, c how often the token stands in the output.
    4. ``presence`` g: ``z - g`` for tokens with c > 0.
    5. ``allowed``: -inf for tokens whose bit is 0.
    Along a draft, its tokens count as output: a row counts those before it, in a tree those on the path to its node
    (the output has the root's token already). So penalties are the same as without speculation.

    A request is one of the batch, or of the entries that ``request_index`` points to; in ops on rows each row is one.
    Rows of masks may have any stride; bits and numbers past V are not read. A number is one for all, or float32 with
    one for each request; one that is not finite, and a ``repetition`` of 0 or less, is off and sets status 8.

    Attributes
    ----------
    allowed : Tensor, optional
        int32, bit ``i % 32`` of word ``i // 32`` is 1 where token i may come. [..., ceil(V / 32)], one mask for each
        target row (of chains and trees [B N, ceil(V / 32)], too, rows one after the other), or [B, ceil(V / 32)], one
        for each request; with a ``Packing`` that is [B, 1, ceil(V / 32)].
    bias : tuple, optional
        ``(tokens, values, cu)``: int32 [n], float32 [n], int32 [B+1]. Request b has the entries ``cu[b] .. cu[b+1]``,
        whose tokens rise. Or a begin and an end for each target row: ``cu`` is then [..., 2]. -inf forbids a token, and
        so does NaN; +inf counts as the largest float32. An entry whose token is out of range or does not rise is not
        used, nor are all entries of a span that is no part of [0, n]: status 8.
    repetition : float or Tensor
        More than 0; 1 is off.
    frequency, presence : float or Tensor
        0 is off.
    prompt_mask, output_mask : Tensor, optional
        int32 [B, ceil(V / 32)], bits as in ``allowed``: tokens seen in the prompt, and in the output.
    output_counts : Tensor, optional
        int32 [B, V]: how often. Read where ``output_mask`` has a bit, which counts as 1 at least. ``count_tokens``
        updates both. Counts end at 2**31 - 1.
    pending : Tensor, optional
        int32 or int64 [B, J]: tokens that count as output already, for instance those that a draft model has proposed.
        -1 is none; others out of range are not used, and set status 8.
    seen_index : Tensor, optional
        int32 [B]: the index of a request's ``prompt_mask``, ``output_mask`` and ``output_counts`` in lists [n, ...].
        -1: no list; so do others out of range, which set status 8.
    allowed_index : Tensor, optional
        int32, one for each target row, or [B]; with a ``Packing`` that is [B, 1]. The index of its mask in ``allowed``
        [n, ceil(V / 32)].

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import LogitEdits
    >>> token = specdec_kernels.race_sample(
    ...     torch.tensor([0.0, 9.0, 5.0]), seed=1, position=0, temperature=0.0,
    ...     edits=LogitEdits(allowed=torch.tensor([0b101], dtype=torch.int32)),
    ... )
    >>> token.item()
    2
    """

    allowed: torch.Tensor | None = None
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    repetition: Number = 1.0
    frequency: Number = 0.0
    presence: Number = 0.0
    prompt_mask: torch.Tensor | None = None
    output_mask: torch.Tensor | None = None
    output_counts: torch.Tensor | None = None
    pending: torch.Tensor | None = None
    seen_index: torch.Tensor | None = None
    allowed_index: torch.Tensor | None = None


class Sampling(NamedTuple):
    """How a row becomes a law: ``sampling=`` of every op that reads rows, and of a ``Draft``.

    Filters keep tokens of one order: the largest logit first, ties by the lower id. ``W`` is a token's weight,
    ``exp(v - max v)``, as an integer, so that every backend keeps the same tokens. The first of the order always stays.

    Each number is one for all, or a tensor with one for each request (row in ops on rows), read when the kernel runs.
    In a tensor, NaN and negative ``top_p`` and ``min_p`` count as off and set status 8.

    Attributes
    ----------
    temperature : float or Tensor
        Logits are divided by it, float32. 0 means argmax, ties to the lowest id; filters then change nothing.
        Probabilities are final: there only 0 or not 0 matters, and a plain number is 0 or 1.
    top_k : int or Tensor
        int32 or int64: keep the first k tokens. 0, negative numbers and V or more mean all.
    top_p : float or Tensor
        float32 in [0, 1]: keep a token while the mass before it is less than ``top_p`` of the whole. 1 means all, 0 the
        first alone.
    min_p : float or Tensor
        float32 in [0, 1]: keep tokens of at least ``min_p`` of the largest probability. 0 means all; in a tensor, more
        than 1 counts as 1.
    top_p_after : tuple of str
        Which cuts come before ``top_p``, whose whole is then what they keep: any of "top_k", "min_p". A cut that is off
        does not count; where none is left, the whole is the row's mass.
    ties : {"first", "all"}
        Of equal logits at a cut keep those of the lowest ids, so that ``top_k`` keeps exactly k; or keep or drop them
        together.
    at_temperature : bool
        Whether filters see logits divided by the temperature, or the logits of the row.
    divided : bool
        Whether logits are divided by the temperature already. Then it only tells whether it is 0.

    Notes
    -----
    ``vllm``, ``huggingface``, ``sglang``, ``sglang_verify``, ``flashinfer``, ``flashinfer_joint``, ``trtllm`` and
    ``llamacpp`` make a Sampling by the rules of those engines. Where an engine leaves ties to a sort that is not
    stable, no rule repeats it. Without ties at a cut they keep the same tokens, but for rounding.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import Sampling
    >>> specdec_kernels.race_sample(
    ...     torch.tensor([0.0, 9.0, 5.0]), seed=1, position=0, sampling=Sampling(temperature=0.0)
    ... ).item()
    1
    >>> Sampling.llamacpp(temperature=0.8, top_k=40, min_p=0.05).at_temperature
    False
    """

    temperature: Number = 1.0
    top_k: Count = 0
    top_p: Number = 1.0
    min_p: Number = 0.0
    top_p_after: tuple[str, ...] = ("top_k", "min_p")
    ties: Literal["first", "all"] = "first"
    at_temperature: bool = True
    divided: bool = False

    @classmethod
    def vllm(cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0) -> Sampling:
        """As vLLM's Triton kernel: ``top_p`` of what ``min_p`` and ``top_k`` keep, ties by the lower id."""
        return cls(temperature, top_k, top_p, min_p)

    @classmethod
    def huggingface(
        cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0
    ) -> Sampling:
        """As transformers' warpers: ``top_p`` of what ``top_k`` keeps. Its ``min_p`` comes last: the same tokens."""
        return cls(temperature, top_k, top_p, min_p, ("top_k",), "all")

    @classmethod
    def sglang(cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0) -> Sampling:
        """As SGLang's sampler: ``top_p`` of the whole row, but with ``min_p`` of what ``top_k`` keeps."""
        joint = not isinstance(min_p, torch.Tensor) and min_p == 0
        return cls(temperature, top_k, top_p, min_p, () if joint else ("top_k",), "all")

    @classmethod
    def sglang_verify(
        cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0
    ) -> Sampling:
        """As SGLang's verification: ``top_p`` of what ``top_k`` keeps, whatever its sampler does."""
        return cls(temperature, top_k, top_p, min_p, ("top_k",), "all")

    @classmethod
    def flashinfer(
        cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0
    ) -> Sampling:
        """As FlashInfer with ``filter_apply_order="top_k_first"``: ``top_p`` of what ``top_k`` keeps."""
        return cls(temperature, top_k, top_p, min_p, ("top_k",), "all")

    @classmethod
    def flashinfer_joint(
        cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0
    ) -> Sampling:
        """As FlashInfer with ``filter_apply_order="joint"``: ``top_p`` of the whole row."""
        return cls(temperature, top_k, top_p, min_p, (), "all")

    @classmethod
    def trtllm(cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0) -> Sampling:
        """As TensorRT-LLM: ``top_p`` of what ``top_k`` keeps, ties by the lower id."""
        return cls(temperature, top_k, top_p, min_p, ("top_k",))

    @classmethod
    def llamacpp(
        cls, temperature: Number = 1.0, top_k: Count = 0, top_p: Number = 1.0, min_p: Number = 0.0
    ) -> Sampling:
        """As llama.cpp: ``top_p`` of what ``top_k`` keeps, all cuts before the temperature."""
        return cls(temperature, top_k, top_p, min_p, ("top_k",), at_temperature=False)


class Draft(NamedTuple):
    """The laws that draft tokens were drawn from: ``draft`` of ops that compare them with the target's.

    A tensor is short for ``Draft(tensor)``.

    Attributes
    ----------
    rows : Tensor
        float32, bfloat16 or float16 [..., V'], V' <= V: one row for each draft. Tokens from V' on have q = 0 (but see
        ``map``).
    space : {"logits", "probs"}, optional
        What the rows hold. Default: what the target's hold.
    sampling : Sampling, optional
        How the draft tokens were drawn from their rows. Default: at the target's temperature, without filters.
    map : Tensor, optional
        int32 [V'], rising: the target's token for each of the draft's, for a draft with a reduced vocabulary. All
        other tokens have q = 0. Draft tokens are always the target's. ``draft_map`` makes it from checkpoints' tensors.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import Draft
    >>> p, q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.5])
    >>> writable = torch.tensor([1, 3], dtype=torch.int32)  # the target's tokens that the draft can write
    >>> round(specdec_kernels.overlap(p, Draft(q, map=writable), space="probs").accept.item(), 4)
    0.6
    """

    rows: torch.Tensor
    space: Literal["logits", "probs"] | None = None
    sampling: Sampling | None = None
    map: torch.Tensor | None = None


def draft_map(
    *, d2t: torch.Tensor | None = None, t2d: torch.Tensor | None = None, vocab_size: int | None = None
) -> torch.Tensor:
    """The ``map`` of a ``Draft``, from the tensors of that name in checkpoints of EAGLE-3 and of speculators.

    ``map[i] = i + d2t[i]``; the indices at which ``t2d`` is True are the same tokens. The values are checked here,
    once, which waits for a GPU's tensor. Ops check maps on a CPU alone.

    Parameters
    ----------
    d2t : Tensor, optional
        int64 or int32 [V']: the target's token less the draft's. Not the token itself.
    t2d : Tensor, optional
        bool [V]: whether the draft's vocabulary has a target token. Beside ``d2t`` the two must name the same tokens.
    vocab_size : int, optional
        V of the target's rows, if tokens are to be checked against it.

    Returns
    -------
    Tensor
        int32 [V'], rising, on the device of the argument.

    Raises
    ------
    TypeError
        For tensors of another type.
    ValueError
        For tokens out of range, for tokens that do not rise (the text names the order that sorts the draft's columns),
        and for two tensors that name different tokens.

    References
    ----------
    Li et al. 2025, "EAGLE-3"; ``build_vocab_mappings_from_distribution`` of speculators 0.9.0, which writes both.

    Examples
    --------
    >>> import torch
    >>> from specdec_kernels import draft_map
    >>> draft_map(d2t=torch.tensor([0, 2, 2, 5])).tolist()
    [0, 3, 4, 8]
    >>> draft_map(t2d=torch.tensor([True, False, False, True, True])).tolist()
    [0, 3, 4]
    """
    limit = 2**31 if vocab_size is None else inputs.whole("vocab_size", vocab_size, "a positive int", 1)
    maps = [] if d2t is None else [_offset_tokens(d2t, limit)]
    maps += [] if t2d is None else [_flagged_tokens(t2d, limit)]
    if not maps:
        raise ValueError("d2t, t2d: expected one of them, or both; got neither")
    if not torch.equal(maps[0], maps[-1]):
        shown = [f"{len(tokens)} tokens from {int(tokens[0])} to {int(tokens[-1])}" for tokens in maps]
        raise ValueError(f"d2t: expected offsets of the tokens of t2d, {shown[1]}; got {shown[0]}")
    device = next(x.device for x in (d2t, t2d) if x is not None)
    return maps[0].to(device, torch.int32)


def _offset_tokens(d2t: torch.Tensor, limit: int) -> torch.Tensor:
    """The tokens of a ``d2t``, int64 [V'] on the host, each below ``limit``; ValueError if they do not rise."""
    inputs.check_tensor("d2t", d2t, inputs.TOKEN_DTYPES, 1)
    tokens = d2t.cpu().long() + torch.arange(len(d2t), dtype=torch.int64, device="cpu")
    order = tokens.argsort(stable=True)
    ascending = tokens[order]
    _check_range("d2t", ascending, limit)
    repeats, falls = ((x.diff() <= 0).nonzero().flatten().tolist() for x in (ascending, tokens))
    if repeats:
        first, second = int(order[repeats[0]]), int(order[repeats[0] + 1])
        raise ValueError(f"d2t: expected each token once; got {int(tokens[first])} in columns {first} and {second}")
    if falls:
        raise ValueError(
            f"d2t: expected rising tokens d2t[i] + i; got {int(tokens[falls[0] + 1])} after {int(tokens[falls[0]])} "
            "(with tokens = d2t + torch.arange(len(d2t)) and order = tokens.argsort() the map is tokens[order].int(), "
            "and the draft's rows are rows[..., order], or its lm_head has weight[order])"
        )
    return tokens


def _flagged_tokens(t2d: torch.Tensor, limit: int) -> torch.Tensor:
    """The tokens of a ``t2d``, as ``_offset_tokens``."""
    inputs.check_tensor("t2d", t2d, (torch.bool,), 1)
    tokens = t2d.cpu().nonzero().flatten()
    _check_range("t2d", tokens, limit)
    return tokens


def _check_range(name: str, ascending: torch.Tensor, limit: int) -> None:
    if not len(ascending):
        raise ValueError(f"{name}: expected a token at least; got none")
    if ascending[0] < 0 or ascending[-1] >= limit:
        got = f"{int(ascending[0])} to {int(ascending[-1])}"
        raise ValueError(f"{name}: expected tokens inside [0, {limit}); got {got}")


def undivided(sampling: Sampling) -> Sampling:
    """This law without ``divided``: temperatures are 1, or 0 for argmax."""
    if not sampling.divided:
        return sampling
    temperature = sampling.temperature
    if isinstance(temperature, torch.Tensor):
        temperature = torch.where(temperature >= SMALLEST, 1.0, temperature)
    elif temperature >= SMALLEST:
        temperature = 1.0
    return sampling._replace(temperature=temperature, divided=False)
