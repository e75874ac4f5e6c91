"""How logits are edited, how they become the law that tokens are drawn from, and which law drafts were drawn from."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from specdec_kernels._constants import SMALLEST

__all__ = ["Draft", "Edits", "Sampling"]

Number = float | torch.Tensor  # float32
Count = int | torch.Tensor  # int32 or int64


class Edits(NamedTuple):
    """What is done to a target's logits before ``Sampling``: what every op that reads target rows takes as ``edits=``.

    In this order, each operation in float32 and rounded once; z is the logit as it came:

    1. ``bias``: ``z + b``.
    2. ``repetition`` r, for tokens seen in the prompt or the output: ``z * (1 / r)`` if z > 0, else ``z * r``.
    3. ``frequency`` f: ``z - f * c``, c how often the token stands in the output.
    4. ``presence`` g: ``z - g`` for tokens with c > 0.
    5. ``allowed``: -inf for tokens whose bit is 0.

    Along a draft, its tokens are output too: a row counts those before it, in a tree those on the path to its node
    (the root's own token is in the output already). So penalties are the same as without speculation.

    A request is one of the batch, or of the entries that ``request_index`` points to; in ops on rows each row is one.
    Rows of masks may lie apart; bits and numbers past V are not looked at. A number is one for all or float32, one for
    each request; one that is not finite, and a ``repetition`` of 0 or less, is off and sets status 8.

    Attributes
    ----------
    allowed : Tensor, optional
        int32, bit ``i % 32`` of word ``i // 32`` is 1 where token i may come. [..., ceil(V / 32)], one mask for each
        target row, or [B, ceil(V / 32)], one for each request; with a ``Packing`` that is [B, 1, ceil(V / 32)].
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
        int32 [B, V]: how often. Looked at where ``output_mask`` has a bit, which counts as 1 at least. ``count_tokens``
        keeps both. Counts end at 2**31 - 1.
    pending : Tensor, optional
        int32 or int64 [B, J]: tokens that count as output already, for instance those that a draft model proposed so
        far. -1 is none; others out of range are not used, and set status 8.
    seen_index : Tensor, optional
        int32 [B]: which of ``prompt_mask``, ``output_mask`` and ``output_counts`` a request has, if these are those of
        n slots, [n, ...]. -1: none of them; so do others out of range, which set status 8.
    allowed_index : Tensor, optional
        int32, one for each target row, or [B]; with a ``Packing`` that is [B, 1]. Which of ``allowed`` it has, if
        that is [n, ceil(V / 32)].

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import Edits
    >>> token = specdec_kernels.race_sample(
    ...     torch.tensor([0.0, 9.0, 5.0]), seed=1, position=0, temperature=0.0,
    ...     edits=Edits(allowed=torch.tensor([0b101], dtype=torch.int32)),
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
    """How a row becomes a law: what every op that reads rows takes as ``sampling=``, and a ``Draft`` for its own.

    Filters keep tokens of one order: the largest logit first, ties by the lower id. ``W`` is a token's weight,
    ``exp(v - max v)``, as an integer, so that every backend keeps the same tokens. The first of the order always stays.

    Each number is one for all, or a tensor with one for each request (row in ops on rows), read when the kernel runs.
    In a tensor, NaN and negative ``top_p`` and ``min_p`` count as off and set status 8.

    Attributes
    ----------
    temperature : float or Tensor
        What logits are divided by, float32. 0 means argmax, ties to the lowest id; filters then change nothing.
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
        Whether filters see logits divided by the temperature, or as they came.
    divided : bool
        Whether logits came divided by the temperature. Then it says no more than whether it is 0.

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
    """The laws that draft tokens were drawn from: what ops that compare them with the target's take as ``draft``.

    A tensor in its place is short for ``Draft(tensor)``.

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
        int32 [V'], rising: the target's token for each of the draft's, if the draft has a vocabulary of its own. All
        other tokens have q = 0. Draft tokens are always the target's.

    Examples
    --------
    >>> import torch, specdec_kernels
    >>> from specdec_kernels import Draft
    >>> p, q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.5])
    >>> known = torch.tensor([1, 3], dtype=torch.int32)  # the target's tokens that the draft can write
    >>> round(specdec_kernels.overlap(p, Draft(q, map=known), space="probs").accept.item(), 4)
    0.6
    """

    rows: torch.Tensor
    space: Literal["logits", "probs"] | None = None
    sampling: Sampling | None = None
    map: torch.Tensor | None = None


def undivided(sampling: Sampling) -> Sampling:
    """This law without ``divided``: by temperatures of 1, and those that mean argmax."""
    if not sampling.divided:
        return sampling
    temperature = sampling.temperature
    if isinstance(temperature, torch.Tensor):
        temperature = torch.where(temperature >= SMALLEST, 1.0, temperature)
    elif temperature >= SMALLEST:
        temperature = 1.0
    return sampling._replace(temperature=temperature, divided=False)
