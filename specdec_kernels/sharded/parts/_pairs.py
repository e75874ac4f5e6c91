"""Checks of residual_race and residual_sums: one row of the target for each request, perhaps beside one of a draft."""

import torch

from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import Law
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops._laws import target_law

CUT_WORDS = 6


def check_rows(target, draft, row, draft_row, cuts, known):
    """What says which rows are meant, and what is known of them."""
    inputs.check_rows("target", target)
    device = target.device
    inputs.check_tensor("row", row, (torch.int32,), 1)
    count = len(row)
    if draft is not None:
        inputs.check_rows("draft", draft)
        if draft.shape[-1] != target.shape[-1]:
            raise ValueError(f"draft: expected the target's {target.shape[-1]} columns; got {inputs.shown(draft)}")
    if draft_row is not None:
        inputs.check_tensor("draft_row", draft_row, (torch.int32,), 1)
        inputs.check_shape("draft_row", draft_row, (count,))
    inputs.check_tensor("known", known, (torch.float32,), 2)
    inputs.check_shape("known", known, (count, 4))
    if cuts is not None:
        inputs.check_tensor("cuts", cuts, (torch.int32,), 2)
        inputs.check_shape("cuts", cuts, (count, CUT_WORDS))
        if not cuts.is_contiguous():
            raise ValueError(f"cuts: expected a contiguous tensor; got strides {tuple(cuts.stride())}")
    for name, x in (("row", row), ("draft_row", draft_row)):
        if x is not None and not x.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor; got strides {x.stride()}")
    for name, x in (("draft", draft), ("row", row), ("draft_row", draft_row), ("cuts", cuts), ("known", known)):
        if x is not None:
            inputs.check_device(name, x, device)


def laws_of(temperature, draft_temperature, count, device):
    """The Laws of both sides; the draft has the target's temperature unless it has one of its own."""
    law = target_law("logits", temperature, None, (count,), device)
    if draft_temperature is None:
        return law, law
    return law, Law("logits", inputs.number("draft_temperature", draft_temperature, (count,), device))


def edit_of(edits, law, target, folded):
    """The Edit of the target's rows, whichever of them are meant."""
    return edit.of_rows(edits, law, target, folded, target.shape[:-1], folded.shape[:2])
