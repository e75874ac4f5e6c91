"""Refusals of a backend that does not know sampling filters."""

from specdec_kernels.ops import Law
from specdec_kernels.ops._laws import filters_of

LACKING = ("cutoff", "logprobs")  # the ops that such a backend lacks
NAMES = {"law": "sampling", "target_law": "sampling", "draft_law": "draft_sampling"}


def unsupported(op, call):
    """The reason why such a backend cannot do a call, or None."""
    if op.name in LACKING:
        return "it has no such op; backends 'cpu', 'cuda' and 'reference' have"
    for name, value in zip(op.arguments, call, strict=True):
        if type(value) is Law and (filters := filters_of(value)):
            return (
                f"{NAMES[name]}.{filters[0]}: expected none, for it knows no filters; 'cpu', 'cuda' and 'reference' do"
            )
    return None
