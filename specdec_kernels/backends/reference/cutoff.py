"""The filters' cut of a row."""

import torch

from specdec_kernels.backends.reference import laws
from specdec_kernels.backends.reference.edits import edited_rows
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def cutoff(call: "typed.Cutoff"):
    """Value, id, count and mass of the support of each row."""
    active, rows, law, bad = edited_rows(call)
    cuts = laws.cuts(rows, law)
    for name, nothing in (("value", -torch.inf), ("last", -1), ("count", 0), ("mass", 0), ("max", -torch.inf)):
        output = getattr(call, name)
        figures = torch.tensor([getattr(cut, name) for cut in cuts], dtype=output.dtype, device=output.device)
        active.write(output, figures.view(rows.shape[:-1]), idle=nothing, outside=nothing)
    active.report(call.status, laws.unfit(rows, law.space).int() * Status.NON_FINITE | bad.int() * Status.PARAMETER)
