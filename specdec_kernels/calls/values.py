"""The values of a call: laws, edits, noise, the bits that modify them; and the types of public arguments."""

from typing import Literal, NamedTuple

import torch

Number = float | torch.Tensor  # float32
Counter = int | torch.Tensor  # int64 or int32
Space = Literal["logits", "probs"]
ChainMethod = Literal["rejection", "race", "block"]
TreeMethod = Literal["rejection", "race", "traversal", "paths"]

# Bits of a Law's rules.
AFTER = {"top_k": 1, "min_p": 2}
TOGETHER, BEFORE_TEMPERATURE, FILTERED, DIVIDED = 4, 8, 16, 32
# Bits of an Edit.
ALLOWED_BY_ROW, BIAS_BY_ROW = 1, 2
# How a verdict is written, as in csrc/include/specdec.h.
EMITTED, ADDED, ZEROS = 1, 2, 4


class Law(NamedTuple):
    """The map from a row's raw values to weights.

    ``rules`` is a sum of bits: 1 top_p after top_k, 2 top_p after min_p, 4 ties stay together, 8 filters before the
    temperature, 16 filters may be on: none of them if every filter is a plain number that means off, 0, 1.0 and 0.0.
    32: logits are divided by the temperature already.
    """

    space: str
    temperature: "float | torch.Tensor"
    top_k: "int | torch.Tensor" = 0
    top_p: "float | torch.Tensor" = 1.0
    min_p: "float | torch.Tensor" = 0.0
    rules: int = 0


class Edit(NamedTuple):
    """Edits of a target row's logits before its law: ``specdec_kernels.LogitEdits`` in the backends' form.

    Tensors except ``bias_tokens`` and ``bias_values`` are [S, R, items]: one list for each entry S and, in ops on rows,
    each row R; elsewhere R is 1. Bits 1 and 2 of ``by_row``: ``allowed`` and ``bias_spans`` are like the target's rows
    instead, ragged ones [1, rows, items]. A span is a begin and an end in ``bias_tokens``. Lists with an index are
    [n, 1, items], and the index has their shape, with one item.
    """

    allowed: "torch.Tensor | None" = None
    bias_tokens: "torch.Tensor | None" = None
    bias_values: "torch.Tensor | None" = None
    bias_spans: "torch.Tensor | None" = None
    repetition: "float | torch.Tensor" = 1.0
    frequency: "float | torch.Tensor" = 0.0
    presence: "float | torch.Tensor" = 0.0
    prompt_mask: "torch.Tensor | None" = None
    output_mask: "torch.Tensor | None" = None
    output_counts: "torch.Tensor | None" = None
    pending: "torch.Tensor | None" = None
    by_row: int = 0
    seen_index: "torch.Tensor | None" = None
    allowed_index: "torch.Tensor | None" = None

    def on(self):
        """Whether it may change a logit."""
        return any(isinstance(x, torch.Tensor) or x != off for x, off in zip(self, Edit(), strict=True))

    def by_entry(self):
        """The tensors with one list or number for each entry."""
        allowed = self.allowed if self.allowed_index is None else self.allowed_index
        seen = (self.prompt_mask, self.output_mask, self.output_counts)
        lists = [self.pending, *(seen if self.seen_index is None else [self.seen_index])]
        lists += [] if self.by_row & ALLOWED_BY_ROW else [allowed]
        lists += [] if self.by_row & BIAS_BY_ROW else [self.bias_spans]
        return [x for x in (*self[4:7], *lists) if isinstance(x, torch.Tensor)]


class Noise(NamedTuple):
    """The keys of a call's random numbers."""

    seed: "int | torch.Tensor"
    position: "int | torch.Tensor"
    nonce: "int | torch.Tensor"


def filters_of(law):
    """The names of a Law's filters that may be on: tensors, and numbers that do not mean off."""
    filters = (("top_k", law.top_k, 0), ("top_p", law.top_p, 1.0), ("min_p", law.min_p, 0.0))
    return [name for name, value, off in filters if isinstance(value, torch.Tensor) or value != off]
