"""Checks of residual_race and residual_sums: one row of the target for each request, perhaps beside one of a draft."""

from specdec_kernels.calls import inputs
from specdec_kernels.calls.values import Law
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops._laws import NUMBERS, target_law


def check_rows(op, target, draft, row, draft_row, cuts, known):
    """What says which rows are meant, and what is known of them; the sizes of the op."""
    inputs.check_rows("target", target)
    if draft is not None:
        inputs.check_rows("draft", draft)
        inputs.check_device("draft", draft, target.device)
        if draft.shape[-1] != target.shape[-1]:
            raise ValueError(f"draft: expected the target's {target.shape[-1]} columns; got {inputs.shown(draft)}")
    return op.check({"device": target.device}, row=row, draft_row=draft_row, cuts=cuts, known=known)


def laws_of(temperature, draft_temperature, count, device):
    """The Laws of both sides; the draft has the target's temperature unless it has one of its own."""
    law = target_law("logits", temperature, None, (count,), device)
    if draft_temperature is None:
        return law, law
    return law, Law("logits", NUMBERS["temperature"].taken("draft_temperature", draft_temperature, (count,), device))


def edit_of(edits, law, target, folded):
    """The Edit of the target's rows, whichever of them are meant."""
    return edit.of_rows(edits, law, target, folded, target.shape[:-1], folded.shape[:2])
