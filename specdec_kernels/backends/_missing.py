"""What the C++ and Triton kernels do not do yet. A backend that does it all takes its import of this away."""

import torch


def unsupported(op, call):
    """Why a call cannot be done, or None."""
    for name in ("request_index", "draft_map"):
        if name in op.arguments and getattr(call, name) is not None:
            return f"it does not take {name}="
    if "draft_law" in op.arguments and call.draft is not None and not _same(call.draft_law, call.target_law):
        return "it takes draft rows by the target's law alone"
    return None


def _same(law, other):
    """Whether two laws are one and the same."""
    if law is other or law.space != other.space:
        return law.space == other.space
    t, u = law.temperature, other.temperature
    if type(t) is float or type(u) is float:
        return type(t) is type(u) and t == u
    return (t.data_ptr() == u.data_ptr() and t.stride() == u.stride()) or torch.equal(t, u)
