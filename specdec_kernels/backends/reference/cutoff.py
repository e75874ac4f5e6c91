"""The filters' cut of a row."""

import torch

from specdec_kernels.backends.reference import laws, requests
from specdec_kernels.backends.reference.edits import LogitEdits
from specdec_kernels.calls import typed
from specdec_kernels.status import Status


def cutoff(call: "typed.Cutoff"):
    """Value, id, count and mass of the support of each row."""
    batch, inner, _ = call.rows.shape
    active = requests.of(call, batch, call.rows.device, inner=(inner,))
    law, bad = laws.decoded(call.law, active)
    edits = LogitEdits(call, active, call.rows)
    rows = edits.rows(call.rows[active.rows])
    cuts = laws.cuts(rows, law)
    for name, nothing in (("value", -torch.inf), ("last", -1), ("count", 0), ("mass", 0), ("max", -torch.inf)):
        output = getattr(call, name)
        figures = torch.tensor([getattr(cut, name) for cut in cuts], dtype=output.dtype, device=output.device)
        active.write(output, figures.view(len(rows), inner), idle=nothing, outside=nothing)
    if call.status is not None:
        status = laws.unfit(rows, law.space).int() * Status.NON_FINITE | (bad | edits.bad).int() * Status.PARAMETER
        active.write(call.status, status, outside=Status.PARAMETER)
