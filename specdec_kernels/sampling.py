"""How logits become the law that tokens are drawn from."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

__all__ = ["Sampling"]

Number = float | torch.Tensor  # float32
Count = int | torch.Tensor  # int32 or int64


class Sampling(NamedTuple):
    """How a row becomes a law: what every op that reads rows takes as ``sampling=`` and ``draft_sampling=``.

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
