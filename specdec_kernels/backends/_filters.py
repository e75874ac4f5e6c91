"""Refusals of the backends that do not know sampling filters, or edits of logits."""

from specdec_kernels.ops import Law
from specdec_kernels.ops._laws import filters_of

LACKING = ("cutoff", "logprobs")  # the ops that these backends lack
NAMES = {"law": "sampling", "target_law": "sampling", "draft_law": "draft_sampling"}


def unsupported(op, call):
    """The reason why such a backend cannot do a call, or None."""
    if op.name in LACKING:
        return "it has no such op; backends 'cpu' and 'reference' have"
    for name, value in zip(op.arguments, call, strict=True):
        if type(value) is Law and (filters := filters_of(value)):
            return f"{NAMES[name]}.{filters[0]}: expected none, for it knows no filters; 'cpu' and 'reference' do"
    return no_edits(op, call)


def no_edits(op, call):
    """The reason why a backend without edits cannot do a call, or None."""
    edits = getattr(call, "edits", None)
    return (
        "edits: expected none, for it knows no edits; 'cpu' and 'reference' do"
        if edits is not None and edits.on()
        else None
    )
