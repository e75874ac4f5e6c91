"""What the kernels for GPUs cannot do, in CUDA and in Triton."""

from specdec_kernels.ops._laws import filters_of


def unsupported(op, call):
    """The reason, or None."""
    if op.name == "residual_race" and (filters := filters_of(call.target_law) or filters_of(call.draft_law)):
        return f"it has no {filters[0]} in this op: give it rows in which the tokens that filters drop are -inf"
    return None
